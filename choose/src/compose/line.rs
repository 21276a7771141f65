//! A composed path in one line: `{message rc, RMA rc, atomic emulated, connect ud}`.

use crate::compose::{Composition, Path};
use crate::rank::{ModuleRef, Role};

/// Formats the path that was composed for a domain. Modules appear with their names within the domain, except connection modules of
/// other domains. If the choice of the connection module is unusual, the reason is appended.
pub fn composed_line(path: &Path, composition: &Composition) -> String {
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

/// Returns a short name of a connection module that `TIELINE_CONNECT` accepts.
fn connector(at: &ModuleRef, path: &Path, composition: &Composition) -> String {
    let known = composition.ranked(at);
    let siblings = composition.modules.iter().filter(|m| m.at.provider == at.provider).count();
    match known {
        _ if at.domain == path.domain => at.module.clone(),
        Some(ranked) if ranked.facts.connection_only && siblings == 1 => at.provider.clone(),
        _ => at.to_string(),
    }
}
