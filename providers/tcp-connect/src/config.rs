//! The user's settings: the variable of this provider, and the variables that it shares with the core and other providers.

use std::time::Duration;

use tieline_plugin_api::config::{Value, shared};
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status};

/// The variable that only this provider reads, and the shared variables.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc::count(
        "TIELINE_TCP_CONNECT_MAX",
        "512",
        "Connections that a worker keeps open for connecting; beyond it the longest unused ones are closed.",
    )
    .between(1, 0),
    shared::SECRET,
    shared::TCP_INTERFACES,
    shared::TCP_PORTS,
    shared::FAILURE_TIMEOUT,
    shared::CONNECT_TIMEOUT,
];

/// The values of the settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) net: tieline_net::Settings,
    /// The time for which a peer may be silent, whether or not data is pending; at least a few seconds.
    pub(crate) silence: Duration,
    /// The time limit of forming a connection.
    pub(crate) connect_timeout: Duration,
    pub(crate) max_wires: usize,
}

impl Settings {
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    /// Returns the settings with these values.
    #[cfg(test)]
    pub(crate) fn of(set: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        Settings::read(tieline_plugin_api::config::values(VARIABLES, set)?)
    }

    fn read(value: impl Fn(&str) -> Value) -> Result<Settings, Failure> {
        let bad = |name: &str, why: &str| Failure::new(Status::Invalid, format!("{name}: {why}"));
        Ok(Settings {
            net: tieline_net::Settings::read(|name| value(name).text, bad)?,
            silence: value(shared::FAILURE_TIMEOUT.name).duration(),
            connect_timeout: value(shared::CONNECT_TIMEOUT.name).duration(),
            max_wires: value("TIELINE_TCP_CONNECT_MAX").size(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_set_is_fine() {
        let settings = Settings::of(|_| None).expect("the defaults");
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
            let failure = Settings::of(|asked| (asked == name).then(|| value.to_string()))
                .expect_err("a wrong value");
            assert_eq!(failure.status, Status::Invalid);
            assert!(failure.text.contains(name), "{}", failure.text);
            assert!(failure.text.contains(value), "{}", failure.text);
        }
    }
}
