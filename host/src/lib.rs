//! Finds providers, checks them, and loads those that the filters admit.
//!
//! Each file passes these steps, and the report records a failed step:
//!
//! 1. the rights of the directory and of the file (`search`, `permissions`)
//! 2. the file's header (`elf`) and identity (`note`, `abi`)
//! 3. the filters
//! 4. the paths that the note requires: a provider without its device is recorded as not used
//! 5. the parts of the file on which the loader relies (`elf`), unless a trial of the same state of the file has succeeded
//! 6. a trial in a child process (`probe`), if this process can use the loader (`static`, `fork`). Files of the system directory
//!    and files that are loaded already are not tried
//! 7. the loader (`dlopen`, `symbol`)
//! 8. the file's entry function (`init`, or `value` if it refuses a setting; a missing device is recorded as not used)
//! 9. the file's tables (`tables`) and layouts (`layout`)
//!
//! No code of a file runs before step 6. Of a file that a filter excludes, only the note is read. The loaded file is the file that
//! was checked, unless this process had loaded an earlier file of that path. The first file of a name that passes is used. If a file
//! fails, the next file of the same provider name is tried, and the built-in provider last.

pub mod abi;
mod claims;
mod elf;
mod identity;
mod load;
mod loads;
mod objects;
mod probe;
mod room;
mod search;
mod settings;
mod sys;
#[cfg(test)]
mod tests;

pub use abi::Span;
pub use abi::host::Services;
pub use claims::LEAST_PACKED;
pub use identity::{Identity, Origin, Refusal, check_note, note_of, stated};
pub use load::{LoadedProvider, REFUSED_VALUE, entry_of};
pub use search::SearchPath;
pub use settings::{Settings, is_named_after};
pub use sys::page_bytes;

use std::sync::Arc;
use tieline_explain::{Log, LogLine, Record, Verdict};
use tieline_plugin_api::abi::EntryFn;
use tieline_plugin_api::log_level;
use tieline_trial::Trust;
pub use tieline_trial::Unfit;

/// A provider linked into the library or into the program.
#[derive(Clone, Copy)]
pub struct Builtin {
    /// The name of the provider.
    pub name: &'static str,
    /// The version of the provider.
    pub version: &'static str,
    /// The entry function of the provider.
    pub entry: EntryFn,
}

/// The result of a search.
pub struct Discovery {
    /// The providers in use, in the order in which they were found.
    pub providers: Vec<Arc<LoadedProvider>>,
    /// The records of the providers that were considered, and of files and directories that were refused.
    pub records: Vec<Record>,
    /// The directories that were searched, as text for a record.
    pub looked: String,
    /// The log lines of the providers, including later ones.
    pub log: Arc<Log<LogLine>>,
}

/// Searches for providers, checks them, and loads those that `wanted` admits. `wanted` returns `Ok` if the filters admit a
/// provider. A provider that they exclude is recorded with the returned verdict, and is not loaded.
pub fn discover(
    settings: Arc<dyn Settings>,
    builtin: &[Builtin],
    wanted: &dyn Fn(&str, &semver::Version) -> Result<(), Verdict>,
) -> Discovery {
    let path = SearchPath::from_settings(&*settings);
    discover_in(path, settings, builtin, wanted)
}

/// Does the same as [`discover`], in the given path.
pub fn discover_in(
    path: SearchPath,
    settings: Arc<dyn Settings>,
    builtin: &[Builtin],
    wanted: &dyn Fn(&str, &semver::Version) -> Result<(), Verdict>,
) -> Discovery {
    search_in(path, settings, builtin, wanted, Arc::new(Log::default()))
}

impl Discovery {
    /// Searches again for these providers, which the first search excluded. Adds those that start, and replaces the records about
    /// all of them.
    pub fn bring(&mut self, settings: Arc<dyn Settings>, builtin: &[Builtin], names: &[String]) {
        let path = SearchPath::from_settings(&*settings);
        let other = || Verdict::Filtered { by: String::new() };
        let is_meant = |name: &str| names.iter().any(|meant| meant == name);
        let wanted =
            |name: &str, _: &semver::Version| is_meant(name).then_some(()).ok_or_else(other);
        let found = search_in(path, settings, builtin, &wanted, self.log.clone());
        self.records.retain(|record| !is_meant(&record.provider));
        self.records.extend(found.records.into_iter().filter(|r| is_meant(&r.provider)));
        self.providers.extend(found.providers);
    }
}

/// Does the same as [`discover_in`], with the log to which providers write.
fn search_in(
    path: SearchPath,
    settings: Arc<dyn Settings>,
    builtin: &[Builtin],
    wanted: &dyn Fn(&str, &semver::Version) -> Result<(), Verdict>,
    log: Arc<Log<LogLine>>,
) -> Discovery {
    let looked = path.looked();
    let mode = probe::Mode::parse(settings.get("TIELINE_PROBE").map(|set| set.0).as_deref());
    let (trust, maps) = (Trust::current_process(), sys::Mappings::default());
    let mut windows = elf::Windows::default();
    let (candidates, records) = path.candidates(&trust);
    let in_files = candidates.iter().map(|candidate| candidate.name_in_file.as_str());
    let names: Vec<&str> = in_files.chain(builtin.iter().map(|it| it.name)).collect();
    settings.found(&names);
    let is_tried = candidates.iter().any(|candidate| !candidate.system);
    let mut search = Search { providers: Vec::new(), records, settings, log, wanted };
    for candidate in candidates {
        let examined = match search::examine(&candidate, &trust, &mut windows) {
            Ok(examined) => examined,
            Err(refusal) => {
                let name = candidate.name_in_file.replace('_', "-");
                search.refuse(&name, &Origin::File(candidate.path), refusal);
                continue;
            }
        };
        let (name, version) = (&examined.identity.name, &examined.identity.version);
        let origin = Origin::File(candidate.path.clone());
        let (settings, log) = (search.settings.clone(), search.log.clone());
        search.consider(name, version, origin.clone(), || {
            loadable(tieline_plugin_api::is_static_program())?;
            if let Some(reason) = examined.identity.missing().filter(|_| !settings.mentions(name)) {
                let (expected, found) = ("its device".to_string(), reason.to_string());
                return Err((load::NO_DEVICE, Unfit { expected, found }));
            }
            let meta = &examined.checked.meta;
            let known = (!candidate.system).then(|| probe::kept(meta, mode, &trust)).flatten();
            // A trial of the same state of the file followed the check of its structure.
            let is_known = known.as_ref().is_some_and(|answer| answer.fault.is_none());
            if !is_known {
                identity::check_structure(&examined.checked.file)?;
            }
            drop(load::begin()?);
            if !candidate.system && !is_known {
                probe::check(&candidate.path, meta, mode, known, &*settings)?;
            }
            load::open_file(&candidate.path, &examined.checked, version, &maps, |text| {
                log.push(name, log_level::WARN, text);
            })
        });
        if examined.identity.aborts && search.providers.iter().any(|it| it.origin == origin) {
            let text = "built with panic=abort: a panic in it would end the process".to_string();
            search.log.push(name, log_level::WARN, text);
        }
    }
    if mode == probe::Mode::On && is_tried {
        probe::end_search();
    }
    for it in builtin {
        match semver::Version::parse(it.version) {
            Ok(version) => search.consider(it.name, &version, Origin::BuiltIn, || Ok(it.entry)),
            Err(error) => {
                let unfit = Unfit { expected: "a version".into(), found: error.to_string() };
                search.refuse(it.name, &Origin::BuiltIn, ("note", unfit));
            }
        }
    }
    Discovery { providers: search.providers, records: search.records, looked, log: search.log }
}

/// Refuses every file if the program has no dynamic loader. Such a program can use built-in providers.
fn loadable(is_static: bool) -> Result<(), Refusal> {
    if !is_static {
        return Ok(());
    }
    let expected = "a program that is linked dynamically".to_string();
    let found = "this one is linked statically, so that it uses built-in providers alone";
    Err(("static", Unfit { expected, found: found.to_string() }))
}

/// A search in progress.
struct Search<'a> {
    providers: Vec<Arc<LoadedProvider>>,
    records: Vec<Record>,
    settings: Arc<dyn Settings>,
    log: Arc<Log<LogLine>>,
    wanted: &'a dyn Fn(&str, &semver::Version) -> Result<(), Verdict>,
}

impl Search<'_> {
    /// Adds a provider, or records the reason for leaving it out. `open` runs only for an admitted provider if no earlier one has
    /// the same name.
    fn consider(
        &mut self,
        name: &str,
        version: &semver::Version,
        origin: Origin,
        open: impl FnOnce() -> Result<EntryFn, Refusal>,
    ) {
        if let Some(first) = self.providers.iter().find(|provider| provider.name == name) {
            if origin == Origin::BuiltIn && first.version == *version {
                // The file and the program contain the same provider, so no record is needed.
                return;
            }
            let winner = format!("{} {} ({})", first.name, first.version, first.origin);
            let rule = match origin {
                Origin::BuiltIn => {
                    format!("a file takes the place of what is built in, {name} {version}")
                }
                Origin::File(path) => {
                    format!("first of its name; not opened: {name} {version} ({})", path.display())
                }
            };
            self.records.push(Record::provider(name, Verdict::OutrankedBy { winner, rule }));
            return;
        }
        if let Err(verdict) = (self.wanted)(name, version) {
            self.records.push(Record::provider(name, verdict));
            return;
        }
        let started = open().and_then(|entry| {
            let (settings, log) = (self.settings.clone(), self.log.clone());
            load::start(name, version, origin.clone(), entry, settings, log)
        });
        match started {
            Ok(provider) => {
                let found =
                    Verdict::Found { origin: origin.to_string(), version: version.to_string() };
                self.records.push(Record::provider(name, found));
                self.providers.push(provider);
            }
            // A missing device of the provider is not a fault.
            Err((load::NO_DEVICE, unfit)) => {
                let reason = format!("{}; version {version}, ", unfit.found);
                // The file and the program contain the same provider, so one record is enough.
                if origin == Origin::BuiltIn && self.has_not_used(name, &reason) {
                    return;
                }
                let because = format!("{reason}{origin}");
                self.records.push(Record::provider(name, Verdict::NotUsed { because }));
            }
            Err(refusal) => self.refuse(name, &origin, refusal),
        }
    }

    /// Checks whether a record says that a provider is not used, with a text that begins with `reason`.
    fn has_not_used(&self, name: &str, reason: &str) -> bool {
        self.records.iter().any(|record| match &record.verdict {
            Verdict::NotUsed { because } => record.provider == name && because.starts_with(reason),
            _ => false,
        })
    }

    fn refuse(&mut self, name: &str, origin: &Origin, (phase, unfit): Refusal) {
        let found = format!("{} ({origin})", unfit.found);
        let verdict =
            Verdict::Refused { phase: phase.to_string(), expected: unfit.expected, found };
        self.records.push(Record::provider(name, verdict));
    }
}
