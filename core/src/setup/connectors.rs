//! The connectors that are added automatically: `TIELINE_PROVIDERS=tcp` names the provider for data, and `tcp-connect` forms its
//! connections.

use crate::compose::{self, Composition, FoundModule, Preferences};
use crate::config::vars;
use crate::explain::{Record, Verdict};
use crate::rank::Role;
use crate::registry::Discovery;
use crate::select::Selection;

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
