//! What a user can set: the variables of every TCP provider, and the one of this.

use std::time::Duration;

use tieline_net::{Filter, Listen, Ports};
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status, units};

/// The variables that only this provider reads. `TIELINE_SECRET`, `TIELINE_TCP_INTERFACES`, `TIELINE_TCP_PORTS`,
/// `TIELINE_FAILURE_TIMEOUT` and `TIELINE_CONNECT_TIMEOUT` are declared by the core.
pub(crate) const VARIABLES: &[ConfigDoc] = &[ConfigDoc {
    name: "TIELINE_TCP_CONNECT_MAX",
    default: "512",
    kind: "count",
    doc: "Connections that a worker keeps open for connecting; beyond it the longest unused ones are closed.",
}];

/// The values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) net: tieline_net::Settings,
    /// How long a peer may be silent on a connection that has something to say.
    pub(crate) silence: Duration,
    /// How long forming a connection may take.
    pub(crate) connect_timeout: Duration,
    pub(crate) max_wires: usize,
}

impl Settings {
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    pub(crate) fn read(value: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let text = |name: &str| value(name).unwrap_or_default();
        let duration = |name: &str, default: u64| match text(name).as_str() {
            "" => Ok(Duration::from_secs(default)),
            text => units::time_limit(text.trim()).ok_or_else(|| {
                bad(name, &format!("`{text}` is no duration: write 500ms, 20s or inf"))
            }),
        };
        let filter = Filter::parse(&text("TIELINE_TCP_INTERFACES"))
            .map_err(|why| bad("TIELINE_TCP_INTERFACES", &why))?;
        let ports = Ports::parse(&text("TIELINE_TCP_PORTS"))
            .map_err(|why| bad("TIELINE_TCP_PORTS", &why))?;
        let max_wires = match text("TIELINE_TCP_CONNECT_MAX").trim() {
            "" => 512,
            text => text.parse().ok().filter(|&count| count > 0).ok_or_else(|| {
                bad("TIELINE_TCP_CONNECT_MAX", &format!("`{text}` is no number of connections"))
            })?,
        };
        Ok(Settings {
            net: tieline_net::Settings {
                secret: text("TIELINE_SECRET").into_bytes(),
                filter,
                listen: Listen::Ports(ports),
                ..tieline_net::Settings::default()
            },
            silence: duration("TIELINE_FAILURE_TIMEOUT", 20)?,
            connect_timeout: duration("TIELINE_CONNECT_TIMEOUT", 30)?,
            max_wires,
        })
    }
}

fn bad(name: &str, why: &str) -> Failure {
    Failure::new(Status::Invalid, format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_set_is_fine() {
        let settings = Settings::read(|_| None).expect("the defaults");
        assert_eq!(settings.silence, Duration::from_secs(20));
        assert_eq!(settings.connect_timeout, Duration::from_secs(30));
        assert_eq!(settings.max_wires, 512);
        assert!(settings.net.secret.is_empty());
    }

    #[test]
    fn a_wrong_value_is_a_failure_that_names_the_variable() {
        for (name, value) in [
            ("TIELINE_TCP_INTERFACES", "10.0.0.0/40"),
            ("TIELINE_TCP_PORTS", "20100-20000"),
            ("TIELINE_FAILURE_TIMEOUT", "soon"),
            ("TIELINE_CONNECT_TIMEOUT", "5"),
            ("TIELINE_TCP_CONNECT_MAX", "0"),
        ] {
            let failure = Settings::read(|asked| (asked == name).then(|| value.to_string()))
                .expect_err("a wrong value");
            assert_eq!(failure.status, Status::Invalid);
            assert!(failure.text.contains(name), "{}", failure.text);
            assert!(failure.text.contains(value), "{}", failure.text);
        }
    }
}
