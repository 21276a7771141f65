//! A composed path in one line: `{message rc, RMA rc, atomic emulated, connect ud}`.

use crate::compose::{Composition, Path};
use crate::explain::{Record, Verdict};
use crate::rank::{ModuleRef, Role};

/// What was composed for a domain. Modules go by their names within it; the module that forms the connections has
/// the reason beside it where that is not the usual one.
pub(crate) fn of_domain(path: &Path, composition: &Composition) -> String {
    let mut parts = Vec::new();
    for role in Role::DATA {
        let emulated = match role {
            Role::Rma => path.emulated.rma,
            Role::Atomic => path.emulated.atomic,
            _ => false,
        };
        match path.module(role) {
            Some(at) => parts.push(format!("{} {}", role.name(), at.module)),
            None if emulated => parts.push(format!("{} emulated", role.name())),
            None => {}
        }
    }
    match path.connection() {
        Some(connection) if connection.remark.is_empty() => {
            parts.push(format!("connect {}", connector(&connection.at, path, composition)));
        }
        Some(connection) => {
            let name = connector(&connection.at, path, composition);
            parts.push(format!("connect {name} ({})", connection.remark));
        }
        None if path.disabled.is_some() => parts.push("connect none".into()),
        None => {}
    }
    format!("{{{}}}", parts.join(", "))
}

/// What the user calls a connection module in `TIELINE_CONNECT`: as short as leaves no doubt.
fn connector(at: &ModuleRef, path: &Path, composition: &Composition) -> String {
    let known = composition.ranked(at);
    let siblings = composition.modules.iter().filter(|m| m.at.provider == at.provider).count();
    match known {
        _ if at.domain == path.domain => at.module.clone(),
        Some(ranked) if ranked.facts.connection_only && siblings == 1 => at.provider.clone(),
        _ => at.to_string(),
    }
}

/// What was composed for a peer, from the decisions about it. `message` carries its messages now.
pub(crate) fn of_peer(message: &str, records: &[Record]) -> String {
    let by = |role: Role| {
        let plays = |record: &&Record| match &record.verdict {
            Verdict::ChosenFor { roles, .. } => roles.iter().any(|name| name == role.name()),
            _ => false,
        };
        let names = records.iter().filter(plays).map(|record| {
            let (domain, module) = (record.domain.as_deref(), record.module.as_deref());
            format!("{}/{}", domain.unwrap_or("?"), module.unwrap_or("?"))
        });
        names.collect::<Vec<_>>().join(" or ")
    };
    let or_emulated = |names: String| if names.is_empty() { "emulated".into() } else { names };
    let mut parts = vec![
        format!("message {message}"),
        format!("RMA {}", or_emulated(by(Role::Rma))),
        format!("atomic {}", or_emulated(by(Role::Atomic))),
    ];
    let connect = by(Role::Connection);
    if !connect.is_empty() {
        parts.push(format!("connect {connect}"));
    }
    format!("{{{}}}", parts.join(", "))
}
