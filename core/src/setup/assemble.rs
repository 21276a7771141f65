//! Opening a context: from the configuration to the modules that every worker opens.

use super::connectors::{self, Tested};
use super::{Core, Extras, ModuleUse, Roles, ports, selftest, unusable};
use crate::address::Location;
use crate::builtin::linked;
use crate::compose::{self, Composition, Preferences};
use crate::config::{Config, Declared, ReportTo, vars};
use crate::explain::{Record, Verdict};
use crate::mem::{DomainSlot, Memory};
use crate::rank::{ModuleFacts, ModuleRef, Role, compare};
use crate::sys::ForkGuard;
use crate::{Error, Status};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tieline_explain::Log;
use tieline_explain::journal::Journal;
use tieline_host::abi::objects::OpenDomain;
use tieline_host::{Discovery, LoadedProvider, REFUSED_VALUE, Settings, discover, is_named_after};
use tieline_lookup::Names;
use tieline_plugin_api::abi::{ModuleAttr, Set, fixed_str};
use tieline_plugin_api::role;

/// The access of the crate `tieline-host` to the configuration, also on behalf of providers.
struct ConfigSettings {
    config: Arc<Config>,
    load_all: bool,
    /// The names of the providers that were found.
    found: OnceLock<Vec<String>>,
    /// The providers that read the range of ports on which to listen.
    listening: Mutex<Vec<String>>,
}

impl ConfigSettings {
    fn new(config: Arc<Config>, load_all: bool) -> ConfigSettings {
        ConfigSettings { config, load_all, found: OnceLock::new(), listening: Mutex::default() }
    }

    fn listening(&self) -> MutexGuard<'_, Vec<String>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Settings for ConfigSettings {
    fn get(&self, name: &str) -> Option<Set> {
        Some((self.config.get(name)?, self.config.origin_text(name)))
    }

    fn all(&self) -> Vec<(String, Set)> {
        let all = self.config.all().into_iter();
        all.map(|(name, value)| (name.clone(), (value, self.config.origin_text(&name)))).collect()
    }

    fn core_declaration(&self, name: &str) -> Option<Declared> {
        self.config.core_declaration(name)
    }

    fn found(&self, names: &[&str]) {
        let _ = self.found.set(names.iter().map(|name| (*name).to_owned()).collect());
    }

    fn mentions(&self, provider: &str) -> bool {
        self.load_all
            || self.config.names_set().any(|name| is_named_after(provider, name))
            || self.config.selection(vars::PROVIDERS).is_ok_and(|list| list.asks_for(provider))
    }

    /// Permits a declaration by the provider with the longest matching name: TIELINE_SHM_CMA_... belongs to shm-cma rather than to
    /// shm.
    fn may_declare(&self, provider: &str, name: &str) -> bool {
        let of_another =
            |other: &String| other.len() > provider.len() && is_named_after(other, name);
        is_named_after(provider, name) && !self.found.get().into_iter().flatten().any(of_another)
    }

    fn declared(&self, provider: &str, variable: &Declared) {
        if variable.name == vars::TCP_PORTS {
            self.listening().push(provider.to_owned());
        }
        self.config.declare(provider, [variable.clone()]);
    }
}

/// Makes the journal of this process for a destination.
fn journal(to: &ReportTo) -> Journal {
    let here = Location::here();
    Journal::new(to, here.pid, &here.host)
}

fn no_context(error: &Error) -> String {
    format!("no context: {error}")
}

impl Core {
    pub(crate) fn open(config: Config, extras: Extras) -> Result<Arc<Core>, Error> {
        let journal = config.report_to()?.map(|to| Arc::new(journal(&to)));
        let opened = Core::assemble(config, extras).and_then(|core| {
            core.check_usable()?;
            core.show()?;
            Ok(core)
        });
        match (&opened, journal) {
            (Ok(core), Some(journal)) => drop(core.journal.set(journal)),
            (Err(error), Some(journal)) => journal.tell(&no_context(error)),
            (_, None) => {}
        }
        opened
    }

    /// Writes the reason that no context was opened, when the configuration itself could not be read.
    pub(crate) fn tell_unopened(to: &ReportTo, error: &Error) {
        journal(to).tell(&no_context(error));
    }

    /// Writes the reason that a context was discarded after it was assembled.
    pub(crate) fn tell_unfinished(&self, error: &Error) {
        if let Some(journal) = self.journal() {
            journal.tell(&no_context(error));
        }
    }

    /// Checks that all required providers and modules are there, that a module carries messages, and that there are enough ports.
    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        let discovery = &self.discovery;
        let names = discovery.providers.iter().map(|p| p.name.as_str());
        let loaded: Vec<&str> = names.filter(|name| self.why_not_used(name).is_none()).collect();
        let reason = |name: &str| {
            let about = discovery.records.iter().chain(&self.records).find(|r| r.provider == name);
            self.why_not_used(name)
                .map(|because| format!("not used: {because}"))
                .or_else(|| about.map(|record| record.verdict.to_string()))
        };
        self.config.selection(vars::PROVIDERS)?.check_required(&loaded, reason)?;
        self.composition.check_required(&Preferences::from_config(&self.config)?)?;
        if self.modules.iter().any(|m| m.roles.message) {
            ports::check(self, &self.listening)
        } else {
            Err(unusable::error(&self.decisions().collect::<Vec<_>>()))
        }
    }

    /// Returns the reason that a provider that was found is not used on this machine.
    pub(crate) fn why_not_used(&self, provider: &str) -> Option<&str> {
        // One device that is not ready does not disqualify the whole provider.
        let open = self.memory.domains.iter().any(|slot| slot.provider.name == provider);
        self.records.iter().find_map(|record| match &record.verdict {
            Verdict::NotUsed { because }
                if record.provider == provider && (record.domain.is_none() || !open) =>
            {
                Some(because.as_str())
            }
            _ => None,
        })
    }

    /// Finds providers, ranks modules and composes paths; the result may be unusable.
    pub(crate) fn assemble(config: Config, extras: Extras) -> Result<Arc<Core>, Error> {
        let config = Arc::new(config);
        let _ = config.secret()?;
        let [id, first_worker] = crate::sys::random_ids()?;
        let providers = config.selection(vars::PROVIDERS)?;
        let preferences = Preferences::from_config(&config)?;
        let settings = Arc::new(ConfigSettings::new(config.clone(), extras.load_all));
        let mut discovery = discover(settings.clone(), &linked(), &|name, version| {
            providers.admits(name, Some(version)).map(|_| ())
        });
        // If a value that was set explicitly is refused, the context must not open without the value's effect.
        for record in &discovery.records {
            if let Verdict::Refused { phase, found, .. } = &record.verdict {
                let blamed = (phase == REFUSED_VALUE)
                    .then(|| config.refused_by(&record.provider, found))
                    .flatten();
                if let Some(error) = blamed {
                    return Err(error);
                }
            }
        }
        let mut records = Vec::new();
        let seen: Vec<&str> = discovery.records.iter().map(|r| r.provider.as_str()).collect();
        records.extend(providers.unmatched(&seen, &discovery.looked));
        for provider in &discovery.providers {
            config.uses(&provider.name);
        }

        let mut domains = Vec::new();
        let mut found = Vec::new();
        for provider in &discovery.providers {
            if let Err(record) = open_domains(provider, id, &mut domains, &mut found, &mut records)
            {
                records.push(*record);
            }
        }
        if config.bool(vars::SELFTEST)? {
            found.retain(|module| self_tested(module, &domains, &mut records));
        }
        let candidate = |(at, attr, _): &FoundModule, discovery: &Discovery| {
            let version = discovery.providers.iter().find(|p| p.name == at.provider);
            let version = version.map(|p| &p.version);
            Ok::<_, Error>(compose::FoundModule {
                at: at.clone(),
                facts: ModuleFacts::from(attr),
                provider_preference: providers.admits(&at.provider, version).unwrap_or(0),
                provider_asked_for: providers.asks_for(&at.provider),
                priority: config.priority(&at.provider, &at.module)?,
                connect: config.connect_of(&at.provider, &at.domain)?,
            })
        };
        let known = found.iter().map(|module| candidate(module, &discovery));
        let mut candidates = known.collect::<Result<Vec<_>, Error>>()?;
        if extras.out_of_band {
            candidates.push(compose::out_of_band_candidate());
        }
        let brought = connectors::missing(&candidates, &preferences, &providers, &discovery);
        if !brought.is_empty() {
            discovery.bring(settings.clone(), &linked(), &brought);
            let is_brought = |p: &&Arc<LoadedProvider>| brought.contains(&p.name);
            let (first, first_domain) = (found.len(), domains.len());
            for provider in discovery.providers.iter().filter(is_brought) {
                config.uses(&provider.name);
                let opened = open_domains(provider, id, &mut domains, &mut found, &mut records);
                records.extend(opened.err().map(|record| *record));
            }
            // These providers were added to form connections: the list of providers alone determines the modules for data.
            found.retain(|(_, attr, at)| *at < first_domain || attr.role != role::DATA);
            for module in &found[first..] {
                candidates.push(candidate(module, &discovery)?);
            }
        }
        // A connection module is used only after it was opened; if it cannot be opened, the composition is repeated without it.
        let mut closed: Vec<String> = Vec::new();
        let mut tested = Tested::new(first_worker);
        let composition = loop {
            let mut composition = compose::compose(&candidates, &preferences);
            let Some(record) = closed_connector(&composition, &found, &domains, &mut tested) else {
                // The name of a closed connector, or of an excluded provider, did match, so the record "not found" is removed.
                composition.records.retain(|r| {
                    let is_there = |name: &String| {
                        closed.contains(name)
                            || discovery.records.iter().any(|seen| seen.subject() == *name)
                    };
                    !matches!(r.verdict, Verdict::NotFound { .. }) || !is_there(&r.subject())
                });
                break composition;
            };
            candidates.retain(|candidate| candidate.at.to_string() != record.subject());
            closed.extend(record.module.clone());
            closed.push(record.provider.clone());
            closed.push(record.subject());
            records.push(record);
        };
        check_names(&preferences, &found, &discovery, &mut records);
        records.extend(connectors::told(&brought, &composition, &providers));
        let idle: Vec<&str> = discovery
            .records
            .iter()
            .map(|r| r.provider.as_str())
            .filter(|name| !discovery.providers.iter().any(|p| p.name == *name))
            .collect();
        let _ = config.check(&idle)?;
        let modules = modules_in_use(&composition, &found, false);
        let connectors = modules_in_use(&composition, &found, true);
        let out_of_band = composition.usable().any(|path| {
            path.module(Role::Connection).is_some_and(|at| at.provider == compose::OUT_OF_BAND)
        });
        let device_atomics = composition
            .device_for_atomics()
            .and_then(|at| domains.iter().position(|slot| slot.name == at.domain));
        let connect_timeout = config.duration(vars::CONNECT_TIMEOUT)?;
        let _ = config.duration(vars::FAILURE_TIMEOUT)?;
        let _ = config.duration(vars::CLOSE_TIMEOUT)?;
        let queue_bytes = config.size(vars::QUEUE_BYTES)?;
        let announced = (config.count(vars::ANNOUNCED)?, config.size(vars::ANNOUNCED_BYTES)?);
        let assist_size = config.size(vars::ASSIST_SIZE)?;
        let polls_often = config.bool(vars::POLLS_OFTEN)?;
        let spin = super::Spin::new(&config)?;
        let (guard, notes) = (Arc::new(ForkGuard::new()), Arc::new(Log::default()));
        let tested = ports::are_any(&config).then(|| tested.keep(&connectors));
        let core = Arc::new(Core {
            id,
            tested: Mutex::new(tested),
            location: OnceLock::new(),
            config,
            discovery,
            composition,
            records,
            modules,
            connectors,
            listening: settings.listening().clone(),
            out_of_band,
            connect_timeout,
            queue_bytes,
            announced,
            assist_size,
            polls_often,
            spin,
            memory: Arc::new(Memory::new(
                id,
                domains,
                device_atomics,
                guard.clone(),
                notes.clone(),
            )),
            guard,
            live: OnceLock::new(),
            notes,
            journal: OnceLock::new(),
            service: OnceLock::new(),
            service_stopped: OnceLock::new(),
            service_poller: OnceLock::new(),
            names: Names::default(),
        });
        Ok(core)
    }

    /// Returns all decisions that were made while the context was opened.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = &Record> {
        self.discovery.records.iter().chain(&self.records).chain(&self.composition.records)
    }
}

type FoundModule = (ModuleRef, ModuleAttr, usize);

/// Opens a provider's domains and lists their modules.
fn open_domains(
    provider: &Arc<LoadedProvider>,
    id: [u8; 16],
    domains: &mut Vec<DomainSlot>,
    found: &mut Vec<FoundModule>,
    records: &mut Vec<Record>,
) -> Result<(), Box<Record>> {
    let refused = |expected: &str, error: &Error| {
        let verdict = Verdict::Refused {
            phase: "open".into(),
            expected: expected.into(),
            found: error.to_string(),
        };
        Record::provider(&provider.name, verdict)
    };
    let attrs = match provider.domains() {
        Ok(attrs) => attrs,
        // A missing device of the provider is not a fault.
        Err(error) if error.status() == Status::NoDevice => {
            let verdict = Verdict::NotUsed { because: error.why().to_owned() };
            return Err(Box::new(Record::provider(&provider.name, verdict)));
        }
        Err(error) => return Err(Box::new(refused("a list of domains", &error))),
    };
    for attr in attrs {
        let name = fixed_str(&attr.name).unwrap_or("?").to_string();
        let with_domain = |mut record: Record| {
            record.domain = Some(name.clone());
            record
        };
        if let Err(verdict) = provider.check_domain(&attr) {
            records.push(with_domain(Record::provider(&provider.name, verdict)));
            continue;
        }
        let listed = |slot: &DomainSlot| slot.name == name && slot.provider.name == provider.name;
        if domains.iter().any(listed) {
            let verdict = twice(provider, "domain", "no other domain of the provider");
            records.push(with_domain(Record::provider(&provider.name, verdict)));
            continue;
        }
        let opened =
            OpenDomain::open_checked(provider, &name, id).and_then(|d| Ok((d.modules()?, d)));
        let (modules, domain) = match opened {
            Ok(opened) => opened,
            // The device is not ready, or belongs to another user, which the operator can change.
            Err(error) if matches!(error.status(), Status::NoDevice | Status::Permission) => {
                let verdict = Verdict::NotUsed { because: error.why().to_owned() };
                records.push(with_domain(Record::provider(&provider.name, verdict)));
                continue;
            }
            Err(error) => {
                records.push(with_domain(refused("a domain that opens", &error)));
                continue;
            }
        };
        let index = domains.len();
        for module in modules {
            let module_name = fixed_str(&module.name).unwrap_or("?").to_string();
            let at = ModuleRef::new(&provider.name, &name, &module_name);
            match provider.check_module(&module, &attr) {
                Ok(()) if found.iter().any(|(known, ..)| *known == at) => {
                    let verdict = twice(provider, "module", "no other module of the domain");
                    records.push(Record::module(&provider.name, &name, &module_name, verdict));
                }
                Ok(()) => found.push((at, module, index)),
                Err(verdict) => {
                    records.push(Record::module(&provider.name, &name, &module_name, verdict));
                }
            }
        }
        domains.push(DomainSlot { provider: provider.clone(), name, attr, domain });
    }
    Ok(())
}

/// Makes the verdict on a name that two objects have, which would be ambiguous.
fn twice(provider: &LoadedProvider, whose: &str, others: &str) -> Verdict {
    let expected = format!("a {whose}'s name that {others} has");
    let found = format!("the same name twice ({})", provider.origin);
    Verdict::Refused { phase: "tables".into(), expected, found }
}

/// Checks whether a module passes the self-test; if it does not, a record names the failed step. Connection-only modules are not
/// tested.
fn self_tested(
    (at, attr, domain): &FoundModule,
    domains: &[DomainSlot],
    records: &mut Vec<Record>,
) -> bool {
    if attr.role != role::DATA {
        return true;
    }
    let slot = &domains[*domain];
    match selftest::check(&slot.domain, slot.attr.caps, &at.module, attr) {
        Ok(()) => true,
        Err(found) => {
            let verdict = Verdict::Refused {
                phase: "selftest".into(),
                expected: "what it claims to do".into(),
                found,
            };
            records.push(Record::module(&at.provider, &at.domain, &at.module, verdict));
            false
        }
    }
}

/// Returns the first connection-only module in use that cannot be opened, with the reason.
fn closed_connector(
    composition: &Composition,
    found: &[FoundModule],
    domains: &[DomainSlot],
    tested: &mut Tested,
) -> Option<Record> {
    modules_in_use(composition, found, true).into_iter().find_map(|module| {
        let slot = &domains[module.domain];
        let error = tested.check(&module, slot).err()?;
        let verdict = Verdict::NotUsed { because: error.why().to_owned() };
        Some(Record::module(&slot.provider.name, &slot.name, &module.name, verdict))
    })
}

/// Records the names in the list of domains that match nothing.
fn check_names(
    preferences: &Preferences,
    found: &[FoundModule],
    discovery: &Discovery,
    records: &mut Vec<Record>,
) {
    let domains: Vec<&str> = found.iter().map(|(at, _, _)| at.domain.as_str()).collect();
    records.extend(preferences.domains.unmatched(&domains, &discovery.looked));
}

/// Returns the modules of the usable paths, best first: those that can carry data, or the connection-only ones.
fn modules_in_use(
    composition: &Composition,
    found: &[FoundModule],
    connection_only: bool,
) -> Vec<ModuleUse> {
    let all = [Role::Message, Role::Rma, Role::Atomic, Role::Connection];
    let mut ranked: Vec<_> = composition
        .usable()
        .flat_map(|path| all.into_iter().filter_map(|role| path.module(role)))
        .filter_map(|at| composition.ranked(at))
        .filter(|ranked| ranked.facts.connection_only == connection_only)
        .collect();
    ranked.sort_by(|a, b| compare(a, b, Role::Rma).0.then_with(|| a.at.cmp(&b.at)));
    ranked.dedup_by(|a, b| a.at == b.at);
    let mut modules: Vec<ModuleUse> = Vec::new();
    for ranked in ranked {
        let Some((at, attr, domain)) = found.iter().find(|(at, _, _)| *at == ranked.at) else {
            continue;
        };
        let plays =
            |role: Role| composition.usable().any(|path| path.serving(role).any(|m| m == at));
        let roles = Roles {
            message: plays(Role::Message),
            memory: plays(Role::Rma) || plays(Role::Atomic),
        };
        let mut attr = *attr;
        attr.priority = ranked.priority;
        modules.push(ModuleUse {
            domain: *domain,
            name: at.module.clone(),
            path: at.to_string(),
            roles,
            attr,
        });
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_with_longest_matching_name_may_declare_variable() {
        let config = Arc::new(Config::builder().build().unwrap());
        let settings = ConfigSettings::new(config, false);
        assert!(settings.may_declare("shm", "TIELINE_SHM_CMA_CHUNK"), "nobody else is known");
        settings.found(&["shm", "shm-cma", "tcp"]);
        assert!(settings.may_declare("shm", "TIELINE_SHM_SIZE"));
        assert!(!settings.may_declare("shm", "TIELINE_SHM_CMA_CHUNK"));
        assert!(settings.may_declare("shm-cma", "TIELINE_SHM_CMA_CHUNK"));
        assert!(!settings.may_declare("tcp", "TIELINE_SHM_SIZE"));
        let (probe, who) = settings.get("TIELINE_PROBE").unwrap();
        assert_eq!((&*probe, who), ("on", None));
        assert!(settings.all().contains(&("TIELINE_PROBE".into(), ("on".into(), None))));
        assert_eq!(settings.get("TIELINE_PROVIDERS"), None);
    }
}
