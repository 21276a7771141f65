//! The connectors that are added automatically: `TIELINE_PROVIDERS=tcp` names the provider for data, and `tcp-connect` forms its
//! connections. Also the connectors that were opened as a test, and that the first worker uses.

use crate::Error;
use crate::compose::{self, Composition, FoundModule, Preferences};
use crate::config::vars;
use crate::explain::{Record, Verdict};
use crate::mem::DomainSlot;
use crate::rank::Role;
use crate::select::Selection;
use crate::setup::ModuleUse;
use tieline_host::Discovery;
use tieline_host::abi::objects::{OpenConnector, ParkedConnector};
#[cfg(test)]
use tieline_plugin_api::abi::ModuleAttr;

/// The connectors that were opened to find out whether they can be opened. They belong to the first worker, because opening one
/// takes some sixty system calls.
pub(crate) struct Tested {
    /// The id of that worker.
    pub(crate) worker: [u8; 16],
    /// The connectors by the paths of their modules; none for a module that belongs to the thread that opens it.
    open: Vec<(String, Option<ParkedConnector>)>,
}

impl Tested {
    pub(super) fn new(worker: [u8; 16]) -> Tested {
        Tested { worker, open: Vec::new() }
    }

    /// Checks that a connector can be opened.
    pub(super) fn check(&mut self, module: &ModuleUse, domain: &DomainSlot) -> Result<(), Error> {
        if !self.open.iter().any(|(path, _)| *path == module.path) {
            let connector = domain.domain.open_connector(&module.name, self.worker)?;
            self.open.push((module.path.clone(), connector.park(&module.attr)));
        }
        Ok(())
    }

    /// Closes the connectors of all modules but these.
    pub(super) fn keep(mut self, modules: &[ModuleUse]) -> Tested {
        self.open.retain(|(path, _)| modules.iter().any(|module| module.path == *path));
        self
    }

    /// Returns the open connector of a module, once.
    pub(crate) fn take(&mut self, path: &str) -> Option<OpenConnector> {
        let (_, connector) = self.open.iter_mut().find(|(known, _)| known == path)?;
        connector.take().map(ParkedConnector::take)
    }

    /// Returns the addresses of the open connectors.
    #[cfg(test)]
    pub(crate) fn addresses(&mut self) -> Vec<Vec<u8>> {
        let mut addresses = Vec::new();
        for (_, connector) in &mut self.open {
            let Some(open) = connector.take().map(ParkedConnector::take) else { continue };
            addresses.push(open.address().unwrap());
            let caps = tieline_plugin_api::caps::ANY_THREAD;
            *connector = open.park(&ModuleAttr { caps, ..ModuleAttr::empty() });
        }
        addresses
    }
}

/// Returns the providers that the list of providers does not name, but that some path needs for its connections. A connector that
/// `TIELINE_CONNECT` forbids, or that the list of providers excludes, is not added.
pub(super) fn missing(
    candidates: &[FoundModule],
    preferences: &Preferences,
    providers: &Selection,
    discovery: &Discovery,
) -> Vec<String> {
    let mut brought: Vec<String> = Vec::new();
    if !providers.includes() {
        return brought;
    }
    let usual = vars::CORE.iter().filter(|var| var.name == vars::CONNECT);
    let usual: Vec<&str> = usual.flat_map(|var| var.default.split(',')).collect();
    let paths = compose::compose(candidates, preferences).paths;
    for path in paths.iter().filter(|path| path.disabled.is_some()) {
        let own = candidates.iter().find(|c| c.at.domain == path.domain);
        let list = own.and_then(|c| c.connect.as_ref()).unwrap_or(&preferences.connect);
        let connects = |name: &str| {
            list.asks_for(name) || usual.contains(&name) && list.admits(name, None).is_ok()
        };
        for Record { provider: name, domain, verdict, .. } in &discovery.records {
            let is_left_out = domain.is_none() && matches!(verdict, Verdict::Filtered { .. });
            if is_left_out
                && providers.passes_over(name)
                && connects(name)
                && !brought.contains(name)
            {
                brought.push(name.clone());
            }
        }
    }
    brought
}

/// Explains each added provider that forms connections.
pub(super) fn told(
    brought: &[String],
    composition: &Composition,
    providers: &Selection,
) -> Vec<Record> {
    let record = |name: &String| {
        let connected = composition.usable().filter(|path| {
            path.connection().is_some_and(|connection| connection.at.provider == *name)
        });
        let connected: Vec<&str> = connected.map(|path| path.domain.as_str()).collect();
        let because = format!(
            "added automatically: {} names no other provider that forms the connections of {}",
            providers.cite(),
            connected.join(", ")
        );
        let roles = vec![Role::Connection.name().to_owned()];
        (!connected.is_empty())
            .then(|| Record::provider(name, Verdict::ChosenFor { roles, because }))
    };
    brought.iter().filter_map(record).collect()
}
