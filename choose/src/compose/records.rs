//! The records of a composition: for every candidate, the roles it was chosen for, or the reason that it was not. Disabled paths
//! and names in the user's lists that match nothing have records too.

use std::collections::BTreeSet;

use super::{Contender, LeftOut, Path, Preferences, Role, compare, connection};
use crate::rank::{ModuleRef, NO_ARRIVAL, Ranked};
use tieline_explain::{Record, Verdict};

/// Explains every contender. Also returns the connection-only modules that no path needs.
pub(super) fn explain(
    contenders: &[Contender],
    paths: &[Path],
    preferences: &Preferences,
) -> (Vec<Record>, Vec<ModuleRef>) {
    let mut records = Vec::new();
    let mut not_needed = Vec::new();
    let mut told_domains = BTreeSet::new();
    for path in paths {
        if let Some(because) = &path.disabled {
            records.push(domain_record(path, Verdict::Disabled { because: because.clone() }));
        }
    }
    for contender in contenders {
        let at = &contender.ranked.at;
        let about = |verdict| Record::module(&at.provider, &at.domain, &at.module, verdict);
        let chosen = chosen(contender, contenders, paths);
        let path = paths.iter().find(|path| path.domain == at.domain);
        if let Some(verdict) = chosen {
            records.push(about(verdict));
        } else if let Some(verdict) = &contender.disabled {
            records.push(about(verdict.clone()));
        } else if contender.ranked.facts.connection_only {
            let verdict = idle_connector(contender, contenders, paths, preferences);
            if matches!(verdict, Verdict::NotNeeded { .. }) {
                not_needed.push(at.clone());
            }
            records.push(about(verdict));
        } else if let Some(LeftOut::Domain(verdict)) = &contender.out {
            if told_domains.insert(at.domain.as_str()) {
                let mut record = about(verdict.clone());
                record.module = None;
                records.push(record);
            }
        } else if let Some(LeftOut::Module(verdict)) = &contender.out {
            records.push(about(verdict.clone()));
        } else {
            records.extend(lost(&contender.ranked, path, contenders).into_iter().map(about));
        }
    }
    let seen: Vec<String> =
        contenders.iter().map(|contender| contender.ranked.at.to_string()).collect();
    let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
    records.extend(preferences.modules.unmatched(&seen, "the modules that were found"));
    let means: Vec<String> = contenders
        .iter()
        .flat_map(|contender| connection::names_of(&contender.ranked.at))
        .collect();
    let means: Vec<&str> = means.iter().map(String::as_str).collect();
    for list in connection::lists(contenders, preferences) {
        records.extend(list.unmatched(&means, "the modules that were found"));
    }
    (records, not_needed)
}

fn domain_record(path: &Path, verdict: Verdict) -> Record {
    let mut record = Record::provider(&path.provider, verdict);
    record.domain = Some(path.domain.clone());
    record
}

/// Returns the roles of the module in usable paths, with the reasons; `None` if it has no role.
fn chosen(contender: &Contender, contenders: &[Contender], paths: &[Path]) -> Option<Verdict> {
    let at = &contender.ranked.at;
    let mut roles: Vec<Role> = Vec::new();
    let mut reasons: Vec<(Role, String)> = Vec::new();
    for path in paths.iter().filter(|path| path.disabled.is_none()) {
        for role in path.roles(at) {
            let because = match (path.connection(), role) {
                (Some(connection), Role::Connection) => connection.because.clone(),
                _ => why_best(&contender.ranked, role, contenders),
            };
            if !roles.contains(&role) {
                roles.push(role);
                reasons.push((role, because));
            } else if let Some((_, known)) = reasons.iter_mut().find(|(r, _)| *r == role) {
                // One connection module may serve several domains, so each reason is listed once.
                if !known.contains(&because) {
                    known.push_str("; ");
                    known.push_str(&because);
                }
            }
        }
    }
    if roles.is_empty() {
        return None;
    }
    let all_same = reasons.iter().all(|(_, reason)| *reason == reasons[0].1);
    let because = if all_same {
        reasons.swap_remove(0).1
    } else {
        let each = reasons.iter().map(|(role, reason)| format!("{}: {reason}", role.name()));
        each.collect::<Vec<_>>().join("; ")
    };
    Some(Verdict::ChosenFor { roles: roles.iter().map(|r| r.name().to_owned()).collect(), because })
}

/// Returns the reason that the module is the best of its domain for a role: the rule that put it before the runner-up, if there is
/// one.
fn why_best(ranked: &Ranked, role: Role, contenders: &[Contender]) -> String {
    let rivals = contenders.iter().filter(|contender| {
        let other = &contender.ranked;
        contender.may_carry_data()
            && other.at.domain == ranked.at.domain
            && other.at != ranked.at
            && role.lacks(&other.facts).is_none()
    });
    match rivals.map(|contender| &contender.ranked).min_by(|a, b| compare(a, b, role).0) {
        Some(second) => format!("before {}: {}", second.at.module, compare(ranked, second, role).1),
        None => format!("{}, alone in its domain", ranked.priority_text()),
    }
}

/// The text for a module whose path is disabled; the record of the path contains the reason.
pub const PATH_IS_DISABLED: &str = "its path is disabled";

/// Returns the reasons that an admissible data-path module is not used.
fn lost(ranked: &Ranked, path: Option<&Path>, contenders: &[Contender]) -> Vec<Verdict> {
    if path.is_some_and(|path| !path.roles(&ranked.at).is_empty()) {
        let because = PATH_IS_DISABLED.to_owned();
        return vec![Verdict::Disabled { because }];
    }
    let mut verdicts = Vec::new();
    for role in Role::DATA {
        let Some(winner) = path.and_then(|path| path.module(role)) else { continue };
        if role.lacks(&ranked.facts).is_some() {
            continue;
        }
        let Some(best) = contenders.iter().map(|e| &e.ranked).find(|r| r.at == *winner) else {
            continue;
        };
        let rule = compare(best, ranked, role).1;
        let verdict = Verdict::OutrankedBy { winner: winner.to_string(), rule };
        if !verdicts.contains(&verdict) {
            verdicts.push(verdict);
        }
    }
    if let Some(path) = path.filter(|path| path.connections.iter().any(|c| c.at == ranked.at)) {
        if let Some(first) = path.connection() {
            let (winner, rule) =
                (first.at.to_string(), format!("for connection: {}", first.because));
            verdicts.push(Verdict::OutrankedBy { winner, rule });
        }
    }
    if verdicts.is_empty() {
        // A module with a part of a capability was considered, so the record names the missing part.
        let half = Role::DATA.into_iter().find_map(|role| match role.lacks(&ranked.facts) {
            Some(lack @ ("put" | "get" | "atomics that return a value" | NO_ARRIVAL)) => {
                Some((role, lack))
            }
            _ => None,
        });
        verdicts.push(match half {
            Some((role, lack)) => {
                Verdict::LacksCapability { capability: lack.into(), role: role.name().into() }
            }
            None => lacks_everything(),
        });
    }
    verdicts
}

fn lacks_everything() -> Verdict {
    Verdict::LacksCapability {
        capability: "messages, put with get, or fetching atomics".into(),
        role: "any role".into(),
    }
}

/// Returns the reason that a connection-only module is not used.
fn idle_connector(
    contender: &Contender,
    contenders: &[Contender],
    paths: &[Path],
    preferences: &Preferences,
) -> Verdict {
    if let Some(lack) = Role::Connection.lacks(&contender.ranked.facts) {
        let role = Role::Connection.name().into();
        return Verdict::LacksCapability { capability: lack.into(), role };
    }
    if connection::lists(contenders, preferences)
        .all(|list| connection::place(contender, list).is_none())
    {
        return Verdict::Filtered { by: preferences.connect.cite() };
    }
    let others: Vec<String> = paths
        .iter()
        .filter_map(|path| Some((path, &path.connection()?.at)))
        .map(|(path, by)| format!("{} is connected by {by}", path.domain))
        .collect();
    let because = if others.is_empty() {
        "closed again: no path needs it".to_owned()
    } else {
        format!("closed again: {}", others.join(", "))
    };
    Verdict::NotNeeded { because }
}
