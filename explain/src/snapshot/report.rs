//! The set-up of a context: what it found, chose and excluded.

use super::json;
use crate::log::LogLine;
use crate::record::Record;
use crate::setting::{FileView, ValueView};
use serde::Serialize;
use std::collections::BTreeMap;
use tieline_plugin_api::log_level;

/// The set-up of a context: its providers, modules, paths, decisions and settings. Later versions only add fields.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of the library.
    pub version: String,
    /// The provider ABI that the library implements, `major.minor`.
    pub abi: String,
    /// The directories that were searched for providers, in order, separated by colons.
    pub searched: String,
    /// The loaded providers.
    pub providers: Vec<ProviderView>,
    /// The open memory domains of these providers.
    pub domains: Vec<DomainView>,
    /// The modules of these domains.
    pub modules: Vec<ModuleView>,
    /// The composed paths, one for each domain that may carry data.
    pub paths: Vec<PathView>,
    /// The order in which modules serve a peer that all of them reach. `Endpoint::report` shows the lanes of one peer.
    pub lanes: Vec<LaneView>,
    /// The first phase of blocking calls, and the reason: spin, or yield the processor immediately.
    pub waits: String,
    /// The decisions about providers, domains and modules, without repetitions.
    pub records: Vec<Record>,
    /// The facts that an operator should know.
    pub warnings: Vec<String>,
    /// The kept log lines of providers: those at the level that `TIELINE_LOG` selects, and device events.
    pub log: Vec<LogView>,
    /// The known variables, and unknown ones that are set, with their values and origins.
    pub config: Vec<ValueView>,
    /// The configuration files that were searched for.
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
    /// The time for one operation in ns, computed from the costs that the module states. The sizes are 8 bytes for `small_message`,
    /// `small_rma` and `atomic`, 8 KiB for `bulk_message`, and 256 KiB for `bulk_rma`. A class for which the module states no cost
    /// is 0; a class with an invalid cost is absent. The map of a connection-only module is empty.
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
    /// The module for messages, if there is one.
    pub message: Option<String>,
    /// The module for put and get, if there is one; `emulated`: the core performs them over messages.
    pub rma: Option<String>,
    /// The module for atomics, if there is one; `emulated`: the core performs them over messages.
    pub atomic: Option<String>,
    /// The module that forms connections, if the path needs one.
    pub connection: Option<String>,
    /// The reason for the choice of the module that forms connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_because: Option<String>,
    /// The whole path in one line: `{message rc, RMA rc, atomic emulated, connect ud}`.
    pub composed: String,
    /// The roles, out of `RMA` and `atomic`, whose module needs no progress by threads of the target.
    pub passive_target: Vec<String>,
    /// The reason that the path cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
}

/// One possible lane to a peer that every module reaches.
#[derive(Clone, Debug, Serialize)]
pub struct LaneView {
    /// The role: `message`, `RMA` or `atomic`.
    pub role: String,
    /// The module that serves the role, or `emulated`.
    pub via: String,
    /// The memory that the lane serves. `own`: memory that the peer's module allocated (`Context::alloc`); `any`: all registered
    /// memory. `None` for messages, which access no remote memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The reason for the lane's position.
    pub because: String,
}

/// A line that a provider or the library logged.
#[derive(Clone, Debug, Serialize)]
pub struct LogView {
    /// The name of the provider, or `tieline`.
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
    /// Returns the whole report as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(self)
    }
}

impl From<LogLine> for LogView {
    fn from(line: LogLine) -> LogView {
        let level = match line.level {
            log_level::ERROR => "error",
            log_level::WARN => "warn",
            log_level::INFO => "info",
            _ => "debug",
        };
        LogView {
            provider: line.provider,
            level: level.to_owned(),
            text: line.text,
            event: line.event.map(str::to_owned),
        }
    }
}
