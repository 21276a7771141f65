//! The check that `TIELINE_TCP_PORTS` has enough ports for the listeners of a process with one context. With too few ports the
//! context would open, but no peer could connect: `tcp` takes the port, and `tcp-connect` finds it in use.

use super::Core;
use crate::config::{Config, vars};
use crate::{Error, Status};
use tieline_net::Ports;
use tieline_plugin_api::connects;

/// The listeners of a process with this context alone.
struct Needed {
    /// The providers that have one listener in each process.
    by_process: Vec<String>,
    /// The providers that have one listener in each context.
    by_context: Vec<String>,
}

impl Needed {
    fn count(&self) -> usize {
        self.by_process.len() + self.by_context.len()
    }

    fn text(&self) -> String {
        let said = |names: &[String], whose: &str| {
            names.iter().map(|name| format!("1 for {name} ({whose})")).collect::<Vec<_>>()
        };
        let mut all = said(&self.by_process, "in each process");
        all.extend(said(&self.by_context, "in each context"));
        all.join(", ")
    }

    /// Returns the error for a range with too few ports; `None`: the range is sufficient.
    fn lacking(&self, ports: Ports, cited: &str) -> Option<Error> {
        let there = ports.count()?;
        let needed = self.count();
        if there >= needed {
            return None;
        }
        Some(Error::new(
            Status::Invalid,
            format!("{cited} has too few ports"),
            format!(
                "it has {there}, and a process with one context needs {needed}: {}",
                self.text()
            ),
            format!(
                "give each process of a host {needed} ports, {} more for each further context, and 1 more for each \
                 context whose workers have names, or set it to 0 for any free ports",
                self.by_context.len()
            ),
        ))
    }
}

/// Checks whether listeners may use any port, so that one without a worker takes the port of no other.
pub(super) fn are_any(config: &Config) -> bool {
    Ports::parse(&config.text(vars::TCP_PORTS)).is_ok_and(|ports| ports.count().is_none())
}

/// Refuses a range that has fewer ports than a process with this context has listeners. `listening`: the providers that read the
/// range.
pub(super) fn check(core: &Core, listening: &[String]) -> Result<(), Error> {
    let text = core.config.text(vars::TCP_PORTS);
    // The provider that reads the value refuses an invalid range.
    let Ok(ports) = Ports::parse(&text) else { return Ok(()) };
    let mut needed = Needed { by_process: Vec::new(), by_context: Vec::new() };
    // A module that connects to an interface needs no listener for its connections.
    let data = core.modules.iter().filter(|module| module.attr.connects == connects::TO_ENDPOINT);
    for (modules, names) in [
        (data.collect::<Vec<_>>(), &mut needed.by_process),
        (core.connectors.iter().collect(), &mut needed.by_context),
    ] {
        for module in modules {
            let provider = &core.memory.domains[module.domain].provider.name;
            if listening.contains(provider) && !names.contains(provider) {
                names.push(provider.clone());
            }
        }
    }
    match needed.lacking(ports, &core.config.cite(vars::TCP_PORTS)) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacking(range: &str) -> Option<Error> {
        let needed =
            Needed { by_process: vec!["tcp".into()], by_context: vec!["tcp-connect".into()] };
        needed.lacking(Ports::parse(range).expect("a range"), "TIELINE_TCP_PORTS=7 (program)")
    }

    #[test]
    fn narrow_port_range_is_refused_with_needed_ports_and_users() {
        let error = lacking("20000").expect("one port for two listeners");
        assert_eq!(error.status(), Status::Invalid);
        let text = error.to_string();
        for part in [
            "TIELINE_TCP_PORTS=7 (program) has too few ports",
            "it has 1, and a process with one context needs 2",
            "1 for tcp (in each process), 1 for tcp-connect (in each context)",
            "2 ports, 1 more for each further context",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(lacking("20000-20001").is_none());
        assert!(lacking("0").is_none() && lacking("").is_none());
    }
}
