//! The contents of a provider file on this machine, or the reason why it has nothing to check.

use crate::case::counting;
use crate::load;
use crate::runner::Listed;
use crate::sys::Provider;
use std::path::Path;
use tieline_plugin_api::abi::fixed_str;
use tieline_plugin_api::{Failure, Status};

pub(crate) enum Nothing {
    /// The file or one of its functions failed, other than for lack of a device.
    Wrong(String),
    /// The machine lacks the provider's device, or the file lists no module.
    NoDevice(String),
}

impl Nothing {
    pub(crate) fn text(self) -> String {
        match self {
            Nothing::Wrong(why) | Nothing::NoDevice(why) => why,
        }
    }
}

/// Lists the modules of the file's domains. A domain without its device is left out if another one has a module.
///
/// # Errors The reason why the file cannot be used at all, or on this machine.
pub(crate) fn modules(path: &Path) -> Result<Vec<Listed>, Nothing> {
    let provider = enter(path)?;
    let (mut names, mut gone) = (Vec::new(), None);
    for attr in provider.domains().map_err(|e| said("query_domains", e))? {
        let unreadable = |what| Nothing::Wrong(format!("a {what}'s name is not UTF-8"));
        let domain_name = fixed_str(&attr.name).ok_or_else(|| unreadable("domain"))?;
        let domain = match provider.open_domain(domain_name) {
            // Other domains may exist.
            Err(e) if e.status == Status::NoDevice => {
                gone = Some(said(&format!("domain {domain_name} cannot be opened"), e));
                continue;
            }
            opened => {
                opened.map_err(|e| said(&format!("domain {domain_name} cannot be opened"), e))?
            }
        };
        for module in domain.modules().map_err(|e| said("query_modules", e))? {
            let name = fixed_str(&module.name).ok_or_else(|| unreadable("module"))?;
            let (name, caps) = (format!("{domain_name}/{name}"), counting(module.caps));
            names.push(Listed { name, role: module.role, caps });
        }
    }
    match (names.is_empty(), gone) {
        (true, Some(gone)) => Err(gone),
        (true, None) => Err(Nothing::NoDevice("it lists no domain, or no module".to_string())),
        _ => Ok(names),
    }
}

fn said(call: &str, failure: Failure) -> Nothing {
    match failure.status {
        Status::NoDevice => Nothing::NoDevice(failure.text),
        _ => Nothing::Wrong(format!("{call}: {failure}")),
    }
}

pub(crate) fn enter(path: &Path) -> Result<&'static Provider, Nothing> {
    let _ = load::note(path).map_err(Nothing::Wrong)?;
    let entry = load::entry(path).map_err(Nothing::Wrong)?;
    Provider::enter(entry).map_err(|e| said("the entry function failed", e))
}
