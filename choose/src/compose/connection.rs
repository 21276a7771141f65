//! The connection modules of a path: they carry the addresses for modules that connect to an endpoint.
//!
//! * *Rule a* takes modules of the same domain that may carry data, connect to an interface and carry small messages (UD for RC).
//! * *Rule b* takes modules that `TIELINE_CONNECT` names, in its order. In the domains of provider verbs, `TIELINE_CONNECT_VERBS`
//!   replaces `TIELINE_CONNECT`; in the domain `verbs:mlx5_0` alone, `TIELINE_CONNECT_VERBS_MLX5_0` does.
//!
//! With `TIELINE_CONNECT_POLICY=fallback` rule a precedes rule b; with `prefer` rule b precedes rule a. A list that excludes
//! modules applies to both rules.
//!
//! The path uses the first module in the list, and the context opens that module for the path. The other modules serve peers that
//! lack the first one, if a usable path uses them in some role. [`Composition::schemes`] returns the list that is advertised to
//! peers. Both sides choose by the ranks in that list ([`crate::rank::agree`]).

use tieline_plugin_api::caps;

use super::{Composition, Contender, LeftOut, Path, Policy, Preferences, Role, compare};
use crate::rank::{ModuleRef, Ranked};
use tieline_config::select::Selection;

/// The rank of the first module of the path's own domain, with the policy `fallback`.
const OWN_FIRST: i32 = 300;
/// The rank of the first module that `TIELINE_CONNECT` names.
const NAMED: i32 = 200;
/// The rank of the first module of the path's own domain, with the policy `prefer`.
const OWN_LAST: i32 = 100;
/// The last position in a part of a list that has its own rank; later positions share the rank.
const PLACES: usize = 99;

/// A module that can form a path's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The name of the connection module.
    pub at: ModuleRef,
    /// A module of higher rank is preferred; the scale is the same on every host.
    pub rank: i32,
    /// The reason for the module's position in the list.
    pub because: String,
    /// The part of `because` that deviates from the usual case; the report shows it with the path.
    pub remark: String,
}

/// Returns the name that both sides use for a connection module, independent of device names: `tcp-connect/stream`.
pub fn scheme(at: &ModuleRef) -> String {
    format!("{}/{}", at.provider, at.module)
}

/// Returns the names by which an entry of `TIELINE_CONNECT` may refer to a module.
pub(super) fn names_of(at: &ModuleRef) -> [String; 3] {
    [at.to_string(), at.provider.clone(), at.module.clone()]
}

impl Composition {
    /// Returns the open modules that can form connections for a domain, best first, as advertised to peers.
    pub fn schemes<'a>(&'a self, domain: &str) -> impl Iterator<Item = &'a Connection> {
        let in_use = |at: &ModuleRef| self.usable().any(|path| !path.roles(at).is_empty());
        let path = self.usable().find(|path| path.domain == domain);
        let ways = path.map_or(&[][..], |path| &path.connections);
        ways.iter().filter(move |connection| in_use(&connection.at))
    }
}

/// Finds the path's connection modules if it needs one; disables the path if there is none.
pub(super) fn connect(path: &mut Path, contenders: &[Contender], preferences: &Preferences) {
    let Some(needy) = needy(path, contenders) else { return };
    let list = list_of(&path.domain, contenders, preferences);
    let (own, named) = (own(path, contenders, list), named(path, contenders, list));
    let own_because = match preferences.policy {
        Policy::Fallback => "of the same domain, and needs no connection itself".to_owned(),
        Policy::Prefer => format!("of the same domain; {} yields none", list.cite()),
    };
    // If the first module of the list belongs to the domain, the remark that the domain has no connection module would be false.
    let elsewhere = named.first().is_some_and(|at| at.domain != path.domain);
    let nothing_own = match elsewhere {
        true => format!("fallback: no module of {} can carry a connection", path.domain),
        false => format!("fallback: first available of {}", list.cite()),
    };
    let named_because = match preferences.policy {
        Policy::Fallback if elsewhere => {
            format!("{nothing_own}; first available of {}", list.cite())
        }
        Policy::Fallback => nothing_own.clone(),
        Policy::Prefer => format!("first available of {}, by {PREFER}", list.cite()),
    };
    // The usual case needs no remark.
    let (first, second) = match preferences.policy {
        Policy::Fallback => (
            (OWN_FIRST, own, own_because, String::new()),
            (NAMED, named, named_because, nothing_own),
        ),
        Policy::Prefer => {
            let remark = format!("fallback: {} yields none", list.cite());
            ((NAMED, named, named_because, PREFER.into()), (OWN_LAST, own, own_because, remark))
        }
    };
    for (rank, found, because, remark) in [first, second] {
        for (place, at) in found.into_iter().enumerate() {
            if path.connections.iter().any(|known| known.at == at) {
                continue;
            }
            let leader = path.connections.first().map(|first| first.at.to_string());
            let because = match leader {
                None => because.clone(),
                Some(leader) => format!("for peers that do not have {leader}"),
            };
            let rank = rank - i32::try_from(place.min(PLACES)).unwrap_or(0);
            path.connections.push(Connection { at, rank, because, remark: remark.clone() });
        }
    }
    if path.connections.is_empty() {
        path.disabled = Some(nobody(path, &needy, contenders, list));
    }
    path.reserve = reserve(path, contenders);
}

/// Returns the path's connection module if it can replace the message module: it belongs to the domain, may carry data, and has
/// packed messages, which emulation needs.
fn reserve(path: &Path, contenders: &[Contender]) -> Option<ModuleRef> {
    let (message, at) = (path.message.as_ref()?, &path.connection()?.at);
    let contender = contenders.iter().find(|contender| contender.ranked.at == *at)?;
    let able = contender.may_carry_data() && contender.ranked.facts.caps & caps::AM_PACKED != 0;
    (able && at.domain == path.domain && at != message).then(|| at.clone())
}

const PREFER: &str = "TIELINE_CONNECT_POLICY=prefer";

/// Returns the connection list that applies to a domain.
fn list_of<'a>(
    domain: &str,
    contenders: &'a [Contender],
    preferences: &'a Preferences,
) -> &'a Selection {
    let own = contenders.iter().filter(|contender| contender.ranked.at.domain == domain);
    own.filter_map(|contender| contender.connect.as_ref()).next().unwrap_or(&preferences.connect)
}

/// Returns `TIELINE_CONNECT` and the lists that replace it in some domains.
pub(super) fn lists<'a>(
    contenders: &'a [Contender],
    preferences: &'a Preferences,
) -> impl Iterator<Item = &'a Selection> {
    let own = contenders.iter().filter_map(|contender| contender.connect.as_ref());
    std::iter::once(&preferences.connect).chain(own)
}

/// Returns the first chosen module that cannot connect without a connection module.
fn needy(path: &Path, contenders: &[Contender]) -> Option<ModuleRef> {
    Role::DATA
        .into_iter()
        .filter_map(|role| path.module(role))
        .find(|at| {
            let ranked = contenders.iter().map(|e| &e.ranked).find(|ranked| ranked.at == **at);
            ranked.is_some_and(|ranked| ranked.facts.connects_to_endpoint)
        })
        .cloned()
}

/// Lists the modules by rule a (module documentation).
fn own(path: &Path, contenders: &[Contender], list: &Selection) -> Vec<ModuleRef> {
    let mut found: Vec<&Ranked> = contenders
        .iter()
        .filter(|contender| contender.may_carry_data() && contender.ranked.at.domain == path.domain)
        .map(|contender| &contender.ranked)
        .filter(|ranked| Role::Connection.lacks(&ranked.facts).is_none())
        .filter(|ranked| !names_of(&ranked.at).iter().any(|name| list.bars(name)))
        .collect();
    found.sort_by(|a, b| compare(a, b, Role::Connection).0);
    found.into_iter().map(|ranked| ranked.at.clone()).collect()
}

/// Lists the modules by rule b (module documentation). At the same position of the list, a module of the path's domain precedes the
/// others.
fn named(path: &Path, contenders: &[Contender], list: &Selection) -> Vec<ModuleRef> {
    let mut found: Vec<(usize, &Ranked)> = contenders
        .iter()
        .filter_map(|contender| Some((place(contender, list)?, &contender.ranked)))
        .collect();
    found.sort_by(|(a_place, a), (b_place, b)| {
        let elsewhere = |ranked: &Ranked| ranked.at.domain != path.domain;
        a_place
            .cmp(b_place)
            .then_with(|| elsewhere(a).cmp(&elsewhere(b)))
            .then_with(|| compare(a, b, Role::Connection).0)
    });
    found.into_iter().map(|(_, ranked)| ranked.at.clone()).collect()
}

/// Returns a module's position in a connection list; `None` if the module cannot or may not form connections. A data-path module
/// has to be named. An excluding list, or no list, admits only connection-only modules.
pub(super) fn place(contender: &Contender, list: &Selection) -> Option<usize> {
    let facts = &contender.ranked.facts;
    if contender.disabled.is_some() || Role::Connection.lacks(facts).is_some() {
        return None;
    }
    let names = names_of(&contender.ranked.at);
    if list.includes() {
        names.iter().filter_map(|name| list.admits(name, None).ok()).min()
    } else if facts.connection_only && !names.iter().any(|name| list.bars(name)) {
        Some(0)
    } else {
        None
    }
}

/// Lists why the domain has no connection module: one reason for each possible module.
fn nobody(path: &Path, needy: &ModuleRef, contenders: &[Contender], list: &Selection) -> String {
    let mut reasons = Vec::new();
    for contender in contenders {
        let Ranked { at, facts, .. } = &contender.ranked;
        let near = at.domain == path.domain;
        if Role::Connection.lacks(facts).is_some() || !(near || facts.connection_only) {
            continue;
        }
        let name = match near {
            true => at.module.clone(),
            false if at.domain == at.provider => at.provider.clone(),
            false => at.to_string(),
        };
        reasons.push(match (&contender.disabled, &contender.out) {
            (Some(verdict), _) => format!("{name} is {verdict}"),
            (None, Some(LeftOut::Module(verdict) | LeftOut::Domain(verdict)))
                if !facts.connection_only =>
            {
                format!("{name} is {verdict}")
            }
            _ if list.includes() => format!("{name} is not named by {}", list.cite()),
            _ => format!("{name} is left out by {}", list.cite()),
        });
    }
    let first = reasons.is_empty();
    reasons.push(match list.includes() {
        true => {
            let other = if first { "" } else { "else " };
            format!("nothing {other}that {} names is there", list.cite())
        }
        false if first => "there is none".to_owned(),
        false => "there is no other".to_owned(),
    });
    format!("{needy} needs another module to form its connections: {}", reasons.join("; "))
}
