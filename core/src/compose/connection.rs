//! The connection module of a path: who carries the addresses for modules that connect to an endpoint.
//!
//! a. a module of the same domain that connects to an interface and carries small messages (UD for RC);
//! b. a module that `TIELINE_CONNECT` names, in its order.
//!
//! `TIELINE_CONNECT_POLICY=fallback`: a, then b; `prefer`: b, then a. An excluding `TIELINE_CONNECT` bars
//! from both.

use super::{Entrant, Out, Path, Policy, Role, Wishes, compare};
use crate::rank::{ModuleRef, Ranked};

/// The names that an entry of `TIELINE_CONNECT` may mean a module by.
pub(super) fn names_of(at: &ModuleRef) -> [String; 3] {
    [at.to_string(), at.provider.clone(), at.module.clone()]
}

/// Finds the path's connection module if it needs one; disables the path if there is none.
pub(super) fn connect(path: &mut Path, entrants: &[Entrant], wishes: &Wishes) {
    let Some(needy) = needy(path, entrants) else { return };
    let own = || own(path, entrants, wishes).map(|found| (found.at.clone(), own_because(wishes)));
    let named = || {
        named(path, entrants, wishes).map(|found| (found.at.clone(), named_because(path, wishes)))
    };
    let found = match wishes.policy {
        Policy::Fallback => own().or_else(named),
        Policy::Prefer => named().or_else(own),
    };
    match found {
        Some(connection) => path.connection = Some(connection),
        None => path.disabled = Some(nobody(path, &needy, entrants, wishes)),
    }
}

/// The first chosen module that cannot connect by itself.
fn needy(path: &Path, entrants: &[Entrant]) -> Option<ModuleRef> {
    Role::DATA
        .into_iter()
        .filter_map(|role| path.module(role))
        .find(|at| {
            let ranked = entrants.iter().map(|e| &e.ranked).find(|ranked| ranked.at == **at);
            ranked.is_some_and(|ranked| ranked.facts.connects_to_endpoint)
        })
        .cloned()
}

/// Rule a.
fn own<'a>(path: &Path, entrants: &'a [Entrant], wishes: &Wishes) -> Option<&'a Ranked> {
    entrants
        .iter()
        .filter(|entrant| entrant.may_carry_data() && entrant.ranked.at.domain == path.domain)
        .map(|entrant| &entrant.ranked)
        .filter(|ranked| Role::Connection.lacks(&ranked.facts).is_none())
        .filter(|ranked| !names_of(&ranked.at).iter().any(|name| wishes.connect.bars(name)))
        .min_by(|a, b| compare(a, b, Role::Connection).0)
}

/// Rule b. Among modules at the same place of the list, one of the same domain goes first.
fn named<'a>(path: &Path, entrants: &'a [Entrant], wishes: &Wishes) -> Option<&'a Ranked> {
    entrants
        .iter()
        .filter_map(|entrant| Some((place(entrant, wishes)?, &entrant.ranked)))
        .min_by(|(a_place, a), (b_place, b)| {
            let elsewhere = |ranked: &Ranked| ranked.at.domain != path.domain;
            a_place
                .cmp(b_place)
                .then_with(|| elsewhere(a).cmp(&elsewhere(b)))
                .then_with(|| compare(a, b, Role::Connection).0)
        })
        .map(|(_, ranked)| ranked)
}

/// A module's place in `TIELINE_CONNECT`; none when it may not, or cannot, form connections. A data-path
/// module has to be named: a list that excludes, or none, admits connection-only modules alone.
pub(super) fn place(entrant: &Entrant, wishes: &Wishes) -> Option<usize> {
    let facts = &entrant.ranked.facts;
    if entrant.disabled.is_some() || Role::Connection.lacks(facts).is_some() {
        return None;
    }
    let names = names_of(&entrant.ranked.at);
    if wishes.connect.includes() {
        names.iter().filter_map(|name| wishes.connect.admits(name, None).ok()).min()
    } else if facts.connection_only && !names.iter().any(|name| wishes.connect.bars(name)) {
        Some(0)
    } else {
        None
    }
}

fn own_because(wishes: &Wishes) -> String {
    match wishes.policy {
        Policy::Fallback => "of the same domain, and needs no connection itself".into(),
        Policy::Prefer => {
            format!("of the same domain; {} yields none", wishes.connect.cite())
        }
    }
}

fn named_because(path: &Path, wishes: &Wishes) -> String {
    match wishes.policy {
        Policy::Fallback => {
            format!("first there of {}; {} has none itself", wishes.connect.cite(), path.domain)
        }
        Policy::Prefer => {
            format!("first there of {}, by TIELINE_CONNECT_POLICY=prefer", wishes.connect.cite())
        }
    }
}

/// Why there is none.
fn nobody(path: &Path, needy: &ModuleRef, entrants: &[Entrant], wishes: &Wishes) -> String {
    let mut near = Vec::new();
    for entrant in entrants.iter().filter(|e| e.ranked.at.domain == path.domain) {
        let Ranked { at, facts, .. } = &entrant.ranked;
        if facts.connection_only || Role::Connection.lacks(facts).is_some() {
            continue;
        }
        near.push(match (&entrant.disabled, &entrant.out) {
            (Some(verdict), _) | (None, Some(Out::Module(verdict) | Out::Domain(verdict))) => {
                format!("{} could, but is {verdict}", at.module)
            }
            (None, None) => {
                format!("{} could, but is filtered by {}", at.module, wishes.connect.cite())
            }
        });
    }
    let near = if near.is_empty() {
        format!("no module of {} can carry its address", path.domain)
    } else {
        near.join(", ")
    };
    format!("{needy} connects to an endpoint; {near}; {} yields none", wishes.connect.cite())
}
