//! Composition: the modules of each memory domain form a path of message, RMA, atomic and connection module. Composition is a pure
//! function of the modules' attributes and the user's selection.
//!
//! For every domain with a module that may carry data:
//!
//! 1. The message module is the best module with messages, the RMA module the best with put and get, the atomic module the best
//!    with fetching atomics. RMA and atomic modules need REMOTE_COMPLETION too. [`crate::rank`] defines the order. In a domain with
//!    messages, missing roles are emulated over them.
//! 2. A chosen module that connects to an endpoint needs a connection module (`connection.rs`).
//! 3. A connection-only module that no path needs is closed again.
//! 4. A path without a possible connection module is disabled; other paths remain.
//! 5. The connection module of a path may be its *reserve*, which carries messages to peers without a connection of the message
//!    module. It must belong to the path's domain, be permitted to carry data, and have packed messages.
//!
//! A data-path module and a connection-only module cannot be confused: the function table of a connection-only module has no data
//! slots.

mod connection;
mod line;
mod out_of_band;
mod records;

use std::collections::BTreeMap;

use tieline_plugin_api::caps;

use crate::Error;
use crate::rank::{ModuleFacts, ModuleRef, Ranked, Role, compare};
use tieline_config::select::Selection;
use tieline_config::{Config, vars};
use tieline_explain::{Record, Verdict};

pub use connection::{Connection, scheme};
pub use line::composed_line;
pub use out_of_band::{out_of_band, out_of_band_candidate};
pub use records::PATH_IS_DISABLED;
pub use tieline_plugin_api::OUT_OF_BAND;

/// A module that was found, with its attributes and the user's settings for it.
#[derive(Clone, Debug)]
pub struct FoundModule {
    /// The module's name.
    pub at: ModuleRef,
    /// The module's attributes.
    pub facts: ModuleFacts,
    /// The position of the module's provider in `TIELINE_PROVIDERS`.
    pub provider_preference: usize,
    /// Whether `TIELINE_PROVIDERS` contains the provider's exact name, rather than a glob that matches it.
    pub provider_asked_for: bool,
    /// The priority that the user set, and the variable that sets it: [`Config::priority`].
    pub priority: Option<(i32, String)>,
    /// The list that replaces `TIELINE_CONNECT` in the module's domain: [`Config::connect_of`].
    pub connect: Option<Selection>,
}

/// The preferred source of a connection module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A module of the same domain; `TIELINE_CONNECT` in domains that have no such module.
    Fallback,
    /// A module that `TIELINE_CONNECT` names; a module of the same domain if no named one is possible.
    Prefer,
}

/// The user's selection.
#[derive(Clone, Debug)]
pub struct Preferences {
    /// The domains that may carry data (`TIELINE_DOMAINS`).
    pub domains: Selection,
    /// The modules that may carry data (`TIELINE_MODULES`).
    pub modules: Selection,
    /// The modules that may form connections (`TIELINE_CONNECT`).
    pub connect: Selection,
    /// The preferred source of connection modules (`TIELINE_CONNECT_POLICY`).
    pub policy: Policy,
    /// Whether atomics of devices may be used (`TIELINE_ATOMICS=device`).
    pub device_atomics: bool,
}

impl Preferences {
    /// Reads the user's selection from the configuration.
    ///
    /// # Errors
    /// An error if a list or a policy cannot be parsed.
    pub fn from_config(config: &Config) -> Result<Preferences, Error> {
        Ok(Preferences {
            domains: config.selection(vars::DOMAINS)?,
            modules: config.selection(vars::MODULES)?,
            connect: config.selection(vars::CONNECT)?,
            policy: match config.word(vars::CONNECT_POLICY)?.as_str() {
                "prefer" => Policy::Prefer,
                _ => Policy::Fallback,
            },
            device_atomics: config.word(vars::ATOMICS)? == "device",
        })
    }
}

/// The path that the core composed for one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The domain.
    pub domain: String,
    /// The provider of the domain.
    pub provider: String,
    /// The module that carries messages.
    pub message: Option<ModuleRef>,
    /// The module that executes put and get.
    pub rma: Option<ModuleRef>,
    /// The module that executes atomics.
    pub atomic: Option<ModuleRef>,
    /// The modules that can form connections: the path uses the first one, and the others serve peers that lack it. The list is
    /// empty if no module of the path needs a connection module, or if the path is disabled because no connection module exists.
    pub connections: Vec<Connection>,
    /// The module that carries messages to peers to which the message module has no connection. It is the first of `connections`,
    /// if that belongs to this domain, may carry data and has packed messages.
    pub reserve: Option<ModuleRef>,
    /// The reason that the path cannot be used, if there is one.
    pub disabled: Option<String>,
    /// The operations that the core emulates over this path's messages.
    pub emulated: Emulated,
}

/// The operations that use messages because no admitted module of the domain supports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulated {
    /// Whether put and get are emulated.
    pub rma: bool,
    /// Whether atomics are emulated.
    pub atomic: bool,
}

impl Path {
    /// Returns the module chosen for a role.
    pub fn module(&self, role: Role) -> Option<&ModuleRef> {
        match role {
            Role::Message => self.message.as_ref(),
            Role::Rma => self.rma.as_ref(),
            Role::Atomic => self.atomic.as_ref(),
            Role::Connection => self.connection().map(|connection| &connection.at),
        }
    }

    /// Returns the module chosen for a role; for messages, the path's reserve follows.
    pub fn serving(&self, role: Role) -> impl Iterator<Item = &ModuleRef> {
        let reserve = self.reserve.as_ref().filter(|_| role == Role::Message);
        self.module(role).into_iter().chain(reserve)
    }

    /// Returns the connection module.
    pub fn connection(&self) -> Option<&Connection> {
        self.connections.first()
    }

    /// Returns the roles for which the path uses a module.
    pub fn roles(&self, at: &ModuleRef) -> Vec<Role> {
        let all = [Role::Message, Role::Rma, Role::Atomic, Role::Connection];
        all.into_iter().filter(|role| self.module(*role) == Some(at)).collect()
    }
}

/// The paths, the reasons for them, and the modules that can be closed again.
#[derive(Clone, Debug)]
pub struct Composition {
    /// The paths, one per domain with a module that may carry data and can serve a role, in order of preference.
    pub paths: Vec<Path>,
    /// Every module with its ranking criteria.
    pub modules: Vec<Ranked>,
    /// The records: at least one for every candidate, except that an excluded domain has one for all its modules.
    pub records: Vec<Record>,
    /// The connection-only modules that no path needs; the context closes them before addresses are published.
    pub not_needed: Vec<ModuleRef>,
    /// The lists that replace `TIELINE_CONNECT` in some domains.
    connect_lists: Vec<Selection>,
}

impl Composition {
    /// Returns a module by its name.
    pub fn ranked(&self, at: &ModuleRef) -> Option<&Ranked> {
        self.modules.iter().find(|ranked| ranked.at == *at)
    }

    /// Returns the module whose device executes all atomics on this process's memory, if `TIELINE_ATOMICS=device` is set.
    pub fn device_for_atomics(&self) -> Option<&ModuleRef> {
        let by_device = |at: &&ModuleRef| {
            self.ranked(at).is_some_and(|ranked| ranked.facts.caps & caps::DEVICE_ATOMICS != 0)
        };
        self.usable().filter_map(|path| path.atomic.as_ref()).find(by_device)
    }

    /// Returns the paths that can be used.
    pub fn usable(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter(|path| path.disabled.is_none())
    }

    /// Checks that the domains, modules and connection modules that the user marked `required:` can be used.
    ///
    /// # Errors
    /// An error with the first missing name, and the reason from its record if it has one.
    pub fn check_required(&self, preferences: &Preferences) -> Result<(), Error> {
        let reason = |name: &str| {
            let about = |r: &&Record| {
                let subject = r.subject();
                subject == name
                    || subject.starts_with(&format!("{name}/"))
                    || name.starts_with(&format!("{subject}/"))
            };
            self.records.iter().find(about).map(|record| record.verdict.to_string())
        };
        let domains: Vec<&str> = self.usable().map(|path| path.domain.as_str()).collect();
        preferences.domains.check_required(&domains, reason)?;
        let fit = |ranked: &&Ranked| {
            let name = ranked.at.to_string();
            // A domain without data is reported once. A connection-only module also serves other domains.
            let concerns = |r: &&Record| {
                let subject = r.subject();
                subject == name || subject == ranked.at.domain && !ranked.facts.connection_only
            };
            self.records.iter().filter(concerns).all(|record| {
                !matches!(record.verdict, Verdict::Filtered { .. } | Verdict::Disabled { .. })
            })
        };
        let there = || self.modules.iter().filter(fit).map(|ranked| &ranked.at);
        let modules: Vec<String> = there().map(ToString::to_string).collect();
        let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
        preferences.modules.check_required(&modules, reason)?;
        let connect: Vec<String> = there().flat_map(connection::names_of).collect();
        let connect: Vec<&str> = connect.iter().map(String::as_str).collect();
        preferences.connect.check_required(&connect, reason)?;
        self.connect_lists.iter().try_for_each(|list| list.check_required(&connect, reason))
    }
}

/// The reason that a module is excluded.
#[derive(Clone, Debug)]
enum LeftOut {
    /// The selection excludes the whole domain.
    Domain(Verdict),
    /// The selection excludes only this module.
    Module(Verdict),
}

/// A candidate during composition.
struct Contender {
    ranked: Ranked,
    /// The reason that the selection excludes the module from data.
    out: Option<LeftOut>,
    /// The reason that the module may not be used at all.
    disabled: Option<Verdict>,
    /// The list that replaces `TIELINE_CONNECT` in the module's domain.
    connect: Option<Selection>,
}

impl Contender {
    fn may_carry_data(&self) -> bool {
        !self.ranked.facts.connection_only && self.out.is_none() && self.disabled.is_none()
    }
}

/// Composes the paths of all domains.
pub fn compose(candidates: &[FoundModule], preferences: &Preferences) -> Composition {
    let lists: Vec<&Selection> = candidates.iter().filter_map(|c| c.connect.as_ref()).collect();
    let asks_to_connect = |at: &ModuleRef| {
        let mut lists = lists.iter().copied().chain([&preferences.connect]);
        lists.any(|list| connection::names_of(at).iter().any(|name| list.asks_for(name)))
    };
    let contender = |c: &FoundModule| contender(c, preferences, asks_to_connect(&c.at));
    let mut contenders: Vec<Contender> = candidates.iter().map(contender).collect();
    contenders.sort_by(|a, b| a.ranked.at.cmp(&b.ranked.at));

    let mut domains: BTreeMap<(usize, usize, &str), Vec<&Contender>> = BTreeMap::new();
    for contender in contenders.iter().filter(|contender| contender.may_carry_data()) {
        let [_, domain, provider] = contender.ranked.preference;
        let key = (domain.0, provider.0, contender.ranked.at.domain.as_str());
        domains.entry(key).or_default().push(contender);
    }
    let mut paths: Vec<Path> = Vec::new();
    for modules in domains.values() {
        if let Some(mut path) = data_path(modules) {
            connection::connect(&mut path, &contenders, preferences);
            paths.push(path);
        }
    }
    let (records, not_needed) = records::explain(&contenders, &paths, preferences);
    let modules = contenders.into_iter().map(|contender| contender.ranked).collect();
    let connect_lists = lists.into_iter().cloned().collect();
    Composition { paths, modules, records, not_needed, connect_lists }
}

fn contender(
    candidate: &FoundModule,
    preferences: &Preferences,
    asked_to_connect: bool,
) -> Contender {
    let FoundModule { at, .. } = candidate;
    let mut facts = candidate.facts.clone();
    if !preferences.device_atomics && facts.caps & caps::DEVICE_ATOMICS != 0 {
        facts.caps &= !caps::ATOMICS;
    }
    let name = at.to_string();
    let (mut domain, mut module) = (0, 0);
    let out = match (
        preferences.domains.admits(&at.domain, None),
        preferences.modules.admits(&name, None),
    ) {
        (Err(verdict), _) => Some(LeftOut::Domain(verdict)),
        (_, Err(verdict)) => Some(LeftOut::Module(verdict)),
        (Ok(d), Ok(m)) => {
            (domain, module) = (d, m);
            None
        }
    };
    let (priority, priority_by) = match &candidate.priority {
        Some((priority, by)) => (*priority, Some(by.clone())),
        None => (facts.priority, None),
    };
    let asked_for = candidate.provider_asked_for
        || preferences.modules.asks_for(&name)
        || (facts.connection_only && asked_to_connect);
    let disabled = match &priority_by {
        _ if priority >= 0 => None,
        None if asked_for => None,
        Some(by) => Some(format!("{by}: a negative priority disables")),
        None => Some(format!("its own priority is {priority}: used only when asked for by name")),
    };
    Contender {
        ranked: Ranked {
            at: at.clone(),
            facts,
            priority,
            priority_by,
            preference: [
                (module, vars::MODULES),
                (domain, vars::DOMAINS),
                (candidate.provider_preference, vars::PROVIDERS),
            ],
        },
        out,
        disabled: disabled.map(|because| Verdict::Disabled { because }),
        connect: candidate.connect.clone(),
    }
}

/// Composes a path by rule 1; `None` if no module of the domain can serve any role.
fn data_path(modules: &[&Contender]) -> Option<Path> {
    let best = |role: Role| {
        let able = modules.iter().map(|e| &e.ranked).filter(|r| role.lacks(&r.facts).is_none());
        able.min_by(|a, b| compare(a, b, role).0).map(|ranked| ranked.at.clone())
    };
    let first = &modules.first()?.ranked.at;
    let (message, rma, atomic) = (best(Role::Message), best(Role::Rma), best(Role::Atomic));
    if message.is_none() && rma.is_none() && atomic.is_none() {
        return None;
    }
    let emulated = Emulated {
        rma: message.is_some() && rma.is_none(),
        atomic: message.is_some() && atomic.is_none(),
    };
    Some(Path {
        domain: first.domain.clone(),
        provider: first.provider.clone(),
        message,
        rma,
        atomic,
        connections: Vec::new(),
        reserve: None,
        disabled: None,
        emulated,
    })
}

#[cfg(test)]
mod tests;
