//! Gathers the report of a context.

use std::collections::{BTreeMap, BTreeSet};

use tieline_plugin_api::abi::{ABI_MAJOR, ABI_MINOR};
use tieline_plugin_api::{caps, cost_class, log_level, memory_caps};

use super::{DomainView, LaneView, LogView, ModuleView, PathView, ProviderView, Report};
use crate::compose::{Composition, Path, composed_line};
use crate::config::{Config, vars};
use crate::explain::{Record, Verdict};
use crate::lanes::{LaneTarget, PeerModule, Serves, lanes};
use crate::rank::{ModuleRef, Ranked, Role, cost_ns};
use crate::setup::Core;

/// Makes the current report of a context.
pub(crate) fn report(core: &Core) -> Report {
    let (discovery, made) = (&core.discovery, &core.composition);
    let providers = discovery.providers.iter().map(|provider| ProviderView {
        name: provider.name.clone(),
        version: provider.version.to_string(),
        origin: provider.origin.to_string(),
        not_used: core.why_not_used(&provider.name).map(str::to_owned),
    });
    let domains = core.memory.domains.iter().map(|slot| DomainView {
        provider: slot.provider.name.clone(),
        name: slot.name.clone(),
        can: words(slot.attr.caps, MEMORY_WORDS),
        register_ns: slot.attr.register_ns,
        register_ns_per_byte: slot.attr.register_ns_per_byte,
    });
    let records = [&discovery.records, &core.records, &made.records];
    let level = wanted_level(&core.config);
    let lines = discovery.log.lines();
    let log = lines.into_iter().filter(|line| line.is_shown_at(level)).map(LogView::from);
    let mut warnings = core.config.warnings();
    warnings.extend(named_in_vain(core));
    warnings.extend(core.notes());
    warnings.extend(core.promise_not_given());
    warnings.extend(core.journal().and_then(|journal| journal.trouble()));
    let mut report = Report::default();
    report.version = env!("CARGO_PKG_VERSION").to_owned();
    report.abi = format!("{ABI_MAJOR}.{ABI_MINOR}");
    report.searched = discovery.looked.clone();
    report.providers = providers.collect();
    report.domains = domains.collect();
    report.modules = made.modules.iter().map(|ranked| module_view(ranked, made)).collect();
    report.paths = made.paths.iter().map(|path| path_view(path, made)).collect();
    report.lanes = lane_views(made);
    report.waits = core.spin.text();
    report.records = without_repetition(records.into_iter().flatten());
    report.warnings = warnings;
    report.log = log.collect();
    report.config = core.config.views();
    report.files = core.config.files();
    report
}

/// Returns a warning for each provider that the user named and that is not used, for example because this machine has no device for
/// it. If the user does not name a provider, a missing device is a normal state.
fn named_in_vain(core: &Core) -> Vec<String> {
    let Ok(list) = core.config.selection(vars::PROVIDERS) else { return Vec::new() };
    let mut told = BTreeSet::new();
    let without = core.decisions().filter_map(|record| match &record.verdict {
        Verdict::NotUsed { because } if record.domain.is_none() => (list
            .asks_for(&record.provider)
            && told.insert(&record.provider))
        .then(|| {
            format!("{} is named by {} and is not used: {because}", record.provider, list.cite())
        }),
        _ => None,
    });
    without.collect()
}

/// Returns the lanes to a peer that has the same modules as this process and that every module reaches.
fn lane_views(composition: &Composition) -> Vec<LaneView> {
    let alike = |ranked: &Ranked| PeerModule { at: ranked.at.clone(), priority: ranked.priority };
    let peer: Vec<PeerModule> = composition.modules.iter().map(alike).collect();
    let mut lanes = lanes("", composition, &peer, |_, _| Ok(()));
    lanes.choose_small("", composition);
    let mut views = Vec::new();
    for role in Role::DATA {
        views.extend(lanes.of(role).iter().map(|lane| LaneView {
            role: role.name().to_owned(),
            via: match &lane.via {
                LaneTarget::Module(at, _) => at.to_string(),
                LaneTarget::Messages => "emulated".to_owned(),
            },
            memory: match (role, lane.serves) {
                (Role::Message, _) => None,
                (_, Serves::OwnMemory) => Some("own".to_owned()),
                (_, Serves::AnyMemory) => Some("any".to_owned()),
            },
            because: lane.because.clone(),
        }));
    }
    views
}

fn module_view(ranked: &Ranked, composition: &Composition) -> ModuleView {
    let facts = &ranked.facts;
    let mut used_for: Vec<String> = Vec::new();
    for role in composition.usable().flat_map(|path| path.roles(&ranked.at)) {
        if !used_for.iter().any(|known| known == role.name()) {
            used_for.push(role.name().to_owned());
        }
    }
    let cost = |(class, size, name): &(usize, usize, &str)| {
        ((*name).to_owned(), cost_ns(&facts.cost[*class], *size))
    };
    let cost_ns: BTreeMap<String, f64> = if facts.connection_only {
        BTreeMap::new()
    } else {
        CLASSES.iter().map(cost).filter(|(_, ns)| ns.is_finite()).collect()
    };
    let to = if facts.connects_to_endpoint { "endpoint" } else { "interface" };
    ModuleView {
        provider: ranked.at.provider.clone(),
        domain: ranked.at.domain.clone(),
        module: ranked.at.module.clone(),
        role: if facts.connection_only { "connection-only" } else { "data path" }.to_owned(),
        connects_to: to.to_owned(),
        can: words(facts.caps, WORDS),
        priority: ranked.priority,
        priority_by: ranked.priority_by.clone(),
        cost_ns,
        used_for,
    }
}

fn path_view(path: &Path, composition: &Composition) -> PathView {
    let name = |at: &Option<ModuleRef>, emulated: bool| match at {
        Some(at) => Some(at.to_string()),
        None if emulated => Some("emulated".to_owned()),
        None => None,
    };
    let passive = |role: &Role| {
        let ranked = path.module(*role).and_then(|at| composition.ranked(at));
        ranked.is_some_and(|ranked| ranked.facts.caps & caps::PASSIVE_TARGET != 0)
    };
    let passive = [Role::Rma, Role::Atomic].into_iter().filter(passive);
    PathView {
        domain: path.domain.clone(),
        provider: path.provider.clone(),
        message: name(&path.message, false),
        rma: name(&path.rma, path.emulated.rma),
        atomic: name(&path.atomic, path.emulated.atomic),
        connection: path.connection().map(|connection| connection.at.to_string()),
        connection_because: path.connection().map(|connection| connection.because.clone()),
        composed: composed_line(path, composition),
        passive_target: passive.map(|role| role.name().to_owned()).collect(),
        disabled: path.disabled.clone(),
    }
}

/// Removes repeated records, since two steps may miss the same name. Merges the records of a provider that was found and is not
/// used.
fn without_repetition<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Record> {
    let mut missing = BTreeSet::new();
    let mut kept: Vec<Record> = Vec::new();
    for record in records {
        let is_missing = matches!(record.verdict, Verdict::NotFound { .. });
        if let Verdict::NotUsed { because } = &record.verdict {
            let subject = record.subject();
            let found = |r: &Record| matches!(r.verdict, Verdict::Found { .. });
            let same = |r: &Record| found(r) && r.subject() == subject;
            if let Some(at) = kept.iter().position(same) {
                // The remaining record keeps the file or other origin, which shows where the provider is installed.
                let because = format!("{because}; {}", kept.remove(at).verdict.detail());
                kept.push(Record { verdict: Verdict::NotUsed { because }, ..record.clone() });
                continue;
            }
        }
        if (!is_missing || missing.insert(record.subject())) && !kept.contains(record) {
            kept.push(record.clone());
        }
    }
    kept
}

type Word = (u64, &'static str);

const WORDS: &[Word] = &[
    (caps::AM_SHORT | caps::AM_PACKED, "messages"),
    (caps::AM_ZCOPY, "zero-copy"),
    (caps::PUT, "put"),
    (caps::GET, "get"),
    (caps::ATOMICS, "atomics"),
    (caps::OWN_MEMORY_ONLY, "own memory only"),
    (caps::LOCAL_ONLY, "local"),
];

const MEMORY_WORDS: &[Word] = &[(memory_caps::ALLOC, "alloc"), (memory_caps::REGISTER, "register")];

const CLASSES: &[(usize, usize, &str)] = &[
    (cost_class::SMALL_MESSAGE, 8, "small_message"),
    (cost_class::BULK_MESSAGE, 8 << 10, "bulk_message"),
    (cost_class::SMALL_RMA, 8, "small_rma"),
    (cost_class::BULK_RMA, 256 << 10, "bulk_rma"),
    (cost_class::ATOMIC, 8, "atomic"),
];

fn words(bits: u64, words: &[Word]) -> Vec<String> {
    words.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, word)| (*word).to_owned()).collect()
}

pub(super) fn wanted_level(config: &Config) -> u32 {
    match config.word(vars::LOG).as_deref() {
        Ok("off") => 0,
        Ok("error") => log_level::ERROR,
        Ok("info") => log_level::INFO,
        Ok("debug") => log_level::DEBUG,
        _ => log_level::WARN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_explain::LogLine;

    #[test]
    fn name_missed_by_two_steps_is_reported_once() {
        let missing = |looked: &str| Verdict::NotFound { looked: looked.into(), nearest: None };
        let found = Verdict::Found { origin: "/a.so".into(), version: "1.2".into() };
        let unused = || Verdict::NotUsed { because: "no device".into() };
        let records = [
            Record::provider("shm", found.clone()),
            Record::provider("verbs", found),
            Record::provider("x", missing("here")),
            Record::provider("x", missing("there")),
            Record::provider("verbs", unused()),
            Record::provider("ofi", unused()),
            Record::provider("ofi", unused()),
            Record::provider("y", missing("there")),
        ];
        let kept = without_repetition(records.iter());
        let words: Vec<String> = kept.iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "shm: found: version 1.2, /a.so",
                "x: not found: looked in here",
                "verbs: not used: no device; version 1.2, /a.so",
                "ofi: not used: no device",
                "y: not found: looked in there",
            ]
        );
    }

    #[test]
    fn the_setting_says_which_lines_are_told_and_each_line_its_level() {
        let level = |value: &str| {
            let config = Config::builder().set(vars::LOG, value).build().unwrap();
            wanted_level(&config)
        };
        let name = |level| {
            let (provider, text) = (String::new(), String::new());
            LogView::from(LogLine { provider, level, text, event: None }).level
        };
        assert_eq!(level("off"), 0);
        let names = ["error", "warn", "info", "debug"];
        for word in names {
            assert_eq!(name(level(word)), word);
        }
        assert_eq!(level(""), log_level::WARN);
        let levels = [log_level::ERROR, log_level::WARN, log_level::INFO, log_level::DEBUG];
        assert_eq!(levels.map(name), names);
    }

    #[test]
    fn capabilities_are_listed_by_their_bits() {
        assert_eq!(words(0, WORDS), [""; 0]);
        assert_eq!(words(caps::AM_PACKED, WORDS), ["messages"]);
        let some = caps::GET | caps::AM_SHORT | caps::LOCAL_ONLY;
        assert_eq!(words(some, WORDS), ["messages", "get", "local"]);
        let all = memory_caps::ALLOC | memory_caps::REGISTER;
        assert_eq!(words(all, MEMORY_WORDS), ["alloc", "register"]);
    }
}
