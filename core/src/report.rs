//! The providers, modules and paths that a context found, chose and excluded: as text and as JSON.
//!
//! ```no_run
//! let report = tieline::Context::open()?.report();
//! print!("{}", report.table());       // what `tieline info` prints
//! print!("{}", report.why());         // what `tieline info --why --all` prints
//! let json = report.to_json();        // what `tieline info --json` prints
//! # let _ = json; Ok::<(), tieline::Error>(())
//! ```

mod gather;
mod opened;
mod text;
mod values;
mod why;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::explain::{Record, Verdict};

pub use crate::config::{FileView, ValueView};
pub use tieline_explain::{Origin, Setting};
pub use values::{
    configuration, nearest_word, value_text, value_text_within, values_text, values_text_within,
};
use why::{listed, record_lines_within};

/// All facts about a context: its providers, modules, paths, decisions and settings. Later versions only add fields.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of the library.
    pub version: String,
    /// The provider ABI that the library implements, `major.minor`.
    pub abi: String,
    /// The directories that were searched for providers, in order.
    pub searched: String,
    /// The loaded providers.
    pub providers: Vec<ProviderView>,
    /// The open memory domains of these providers.
    pub domains: Vec<DomainView>,
    /// The modules of these domains.
    pub modules: Vec<ModuleView>,
    /// The path that was composed for each domain.
    pub paths: Vec<PathView>,
    /// The order in which modules serve a peer that all of them reach. `Endpoint::report` shows the lanes of one peer.
    pub lanes: Vec<LaneView>,
    /// The first phase of blocking calls, and the reason: spin, or yield the processor immediately.
    pub waits: String,
    /// Every decision that was made while the context was opened or used.
    pub records: Vec<Record>,
    /// The facts that an operator should know.
    pub warnings: Vec<String>,
    /// The log lines of providers, at the level that `TIELINE_LOG` selects.
    pub log: Vec<LogView>,
    /// Every variable with its value and origin.
    pub config: Vec<ValueView>,
    /// The configuration files that were searched.
    pub files: Vec<FileView>,
}

/// A loaded provider.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderView {
    /// The provider's name.
    pub name: String,
    /// The provider's version.
    pub version: String,
    /// The path of the provider's file, or `built in`.
    pub origin: String,
    /// The reason that the provider is not used on this machine: `no device in /sys/class/infiniband`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_used: Option<String>,
}

/// An open memory domain.
#[derive(Clone, Debug, Serialize)]
pub struct DomainView {
    /// The domain's provider.
    pub provider: String,
    /// The domain's name.
    pub name: String,
    /// The domain's operations on memory: `alloc`, `register`.
    pub can: Vec<String>,
    /// The fixed cost of a registration in ns, as the provider states it.
    pub register_ns: f64,
    /// The cost of a registration per byte in ns, as the provider states it.
    pub register_ns_per_byte: f64,
}

/// A module.
#[derive(Clone, Debug, Serialize)]
pub struct ModuleView {
    /// The module's provider.
    pub provider: String,
    /// The module's domain.
    pub domain: String,
    /// The module's name within the domain.
    pub module: String,
    /// The module's role: `data path` or `connection-only`.
    pub role: String,
    /// The kind of object to which the module connects: `interface` or `endpoint`.
    pub connects_to: String,
    /// The module's capabilities.
    pub can: Vec<String>,
    /// The effective priority of the module.
    pub priority: i32,
    /// The variable that set the priority; `None`: the module's own priority applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_by: Option<String>,
    /// The time for one operation in ns, as the module states it: `small_message` and `small_rma` of 8 bytes, `bulk_message` of 8
    /// KiB, `bulk_rma` of 256 KiB (a bandwidth), `atomic` of 8 bytes. Unsupported operations are absent.
    pub cost_ns: BTreeMap<String, f64>,
    /// The roles for which the module was chosen.
    pub used_for: Vec<String>,
}

/// The path of one domain.
#[derive(Clone, Debug, Serialize)]
pub struct PathView {
    /// The name of the domain.
    pub domain: String,
    /// The domain's provider.
    pub provider: String,
    /// The module for messages.
    pub message: Option<String>,
    /// The module for put and get; `emulated`: the core performs them over messages.
    pub rma: Option<String>,
    /// The module for atomics; `emulated`: the core performs them over messages.
    pub atomic: Option<String>,
    /// The module that forms connections.
    pub connection: Option<String>,
    /// The reason for the choice of that module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_because: Option<String>,
    /// The whole path in one line: `{message rc, RMA rc, atomic emulated, connect ud}`.
    pub composed: String,
    /// The roles that need no progress by threads of the target.
    pub passive_target: Vec<String>,
    /// The reason that the path cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
}

/// One lane to a peer that every module reaches.
#[derive(Clone, Debug, Serialize)]
pub struct LaneView {
    /// The role: `message`, `RMA` or `atomic`.
    pub role: String,
    /// The module that serves the role, or `emulated`.
    pub via: String,
    /// The memory that the lane serves. `own`: memory that the module allocated (`Context::alloc`); `any`: all registered memory.
    /// `None` for messages, which access no memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The reason for the lane's position.
    pub because: String,
}

/// A line of a provider's log.
#[derive(Clone, Debug, Serialize)]
pub struct LogView {
    /// The name of the provider.
    pub provider: String,
    /// The level: `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// The text of the line.
    pub text: String,
    /// The device event, if the line reports one: `port_down`, `port_up` or `device_gone`. Lines with an event are kept at any
    /// level of `TIELINE_LOG`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

impl Report {
    /// Returns the providers, modules and paths in three short tables.
    #[must_use]
    pub fn table(&self) -> String {
        self.table_within(text::WIDTH)
    }

    /// Returns the tables of [`Report::table`] for a terminal of `width` columns.
    #[must_use]
    pub fn table_within(&self, width: usize) -> String {
        let mut text = self.title();
        text.push_str(&section("PROVIDER  VERSION  FROM", &self.providers, width, |p| {
            let from = p.not_used.as_ref().map(|because| format!("not used: {because}"));
            vec![p.name.clone(), p.version.clone(), from.unwrap_or_else(|| p.origin.clone())]
        }));
        text.push_str(&section(
            "MODULE  PRIORITY  USED FOR  CONNECTS TO  CAN",
            &self.modules,
            width,
            |m| {
                vec![
                    format!("{}/{}", m.domain, m.module),
                    m.priority.to_string(),
                    or_dash(m.used_for.join(", ")),
                    m.connects_to.clone(),
                    if m.can.is_empty() { "connect".into() } else { m.can.join(", ") },
                ]
            },
        ));
        text.push_str(&section(
            "PATH  MESSAGE  RMA  ATOMIC  CONNECTION  PASSIVE TARGET",
            &self.paths,
            width,
            |p| {
                let name = |module: &Option<String>| {
                    let short = |m: &String| {
                        m.strip_prefix(&format!("{}/", p.domain)).unwrap_or(m).to_owned()
                    };
                    or_dash(module.as_ref().map(short).unwrap_or_default())
                };
                let passive = match &p.disabled {
                    Some(_) => "disabled".into(),
                    None => or_dash(p.passive_target.join(", ")),
                };
                let modules = [&p.message, &p.rma, &p.atomic, &p.connection].map(name);
                [vec![p.domain.clone()], modules.to_vec(), vec![passive]].concat()
            },
        ));
        let mut warnings = self.warnings.clone();
        let missing = self.records.iter().filter(|r| matches!(r.verdict, Verdict::NotFound { .. }));
        warnings.extend(missing.map(|r| format!("{} is {}", r.subject(), r.verdict)));
        text.push_str(&listed("WARNINGS", &warnings, width));
        let idle = self.not_used();
        if idle > 0 {
            text.push_str(&format!("{idle} not used: `tieline info --why` says why\n"));
        }
        text
    }

    /// Returns the whole report as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| {
            // This is reached only for a map with non-string keys or a failing writer, and the report has neither.
            format!("{{\"error\": \"{}\"}}", error.to_string().replace(['"', '\\'], "'"))
        })
    }

    fn title(&self) -> String {
        format!("Tieline {}, provider ABI {}\n\n", self.version, self.abi)
    }

    /// Returns the number of subjects that exist or were requested, but are not used.
    fn not_used(&self) -> usize {
        let mut idle: Vec<String> = self
            .records
            .iter()
            .filter(|r| !r.verdict.is_used() && !matches!(r.verdict, Verdict::Found { .. }))
            .map(Record::subject)
            .collect();
        idle.sort();
        idle.dedup();
        idle.len()
    }
}

/// Formats records as aligned lines of subject, decision and reason.
#[must_use]
pub fn record_lines<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    record_lines_within(records, text::WIDTH, Verdict::detail)
}

/// Formats a heading, whose words two blanks separate, and a row for each item.
fn section<T>(heading: &str, items: &[T], width: usize, row: impl Fn(&T) -> Vec<String>) -> String {
    let heading: Vec<String> = heading.split("  ").map(str::to_owned).collect();
    if items.is_empty() {
        return format!("{}\nnone\n\n", heading[0]);
    }
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(items.iter().map(row)).collect();
    text::columns(&rows, 0, width) + "\n"
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

#[cfg(test)]
mod tests;
