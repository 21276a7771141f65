//! The settings of this provider: names, defaults, one sentence each, and the values as numbers.

use std::time::Duration;

use tieline_net::{Filter, Listen, Ports};
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status, units};

/// The most connections that one poll reads.
pub(crate) const MOST_VISITS: usize = 64;
/// The most streams between two endpoints.
pub(crate) const MAX_STREAMS: usize = 8;

/// Every variable, for `tieline config`.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc {
        name: "TIELINE_TCP_STREAMS",
        default: "1",
        kind: "count",
        doc: "Connections per endpoint and rail, 1 to 8 in all; both sides use the smaller number.",
    },
    ConfigDoc {
        name: "TIELINE_TCP_RAILS",
        default: "1",
        kind: "text",
        doc: "Network interfaces that an endpoint uses at once, or `all` that lead to the peer.",
    },
    ConfigDoc {
        name: "TIELINE_TCP_RECONNECT",
        default: "auto",
        kind: "text",
        doc: "Keep what is sent until it is acknowledged, and connect again when a connection breaks: on, off, or \
              auto: only with several streams.",
    },
    ConfigDoc {
        name: "TIELINE_TCP_STALL",
        default: "1s",
        kind: "duration",
        doc: "How long a stream may hold up the others before it is given up and connected again.",
    },
    ConfigDoc {
        name: "TIELINE_TCP_SEND_BUFFER",
        default: "256k",
        kind: "size",
        doc: "The most bytes that wait in one endpoint for the kernel, or for acknowledgement: 128k to 64m.",
    },
];

/// Variables that the core declares.
const SHARED: [(&str, &str); 6] = [
    ("TIELINE_SECRET", ""),
    ("TIELINE_TCP_INTERFACES", ""),
    ("TIELINE_TCP_PORTS", "0"),
    ("TIELINE_FAILURE_TIMEOUT", "20s"),
    ("TIELINE_CONNECT_TIMEOUT", "30s"),
    ("TIELINE_CLOSE_TIMEOUT", "1s"),
];

/// Whether to keep what is sent, and to connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reconnect {
    Auto,
    On,
    Off,
}

/// The values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    streams: usize,
    /// `None`: all.
    rails: Option<usize>,
    reconnect: Reconnect,
    pub(crate) stall: Duration,
    pub(crate) send_buffer: usize,
    pub(crate) failure_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) net: tieline_net::Settings,
}

impl Settings {
    /// Reads every variable from the host.
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    pub(crate) fn read(value: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let own = VARIABLES.iter().map(|v| (v.name, v.default));
        let text = |name: &str| {
            let default = own.clone().chain(SHARED).find(|(n, _)| *n == name).map_or("", |v| v.1);
            value(name).unwrap_or_else(|| default.to_string())
        };
        let refuse = |name: &str, why: &str| {
            Failure::new(Status::Invalid, format!("{name}={:?} {why}", text(name)))
        };
        let duration = |name: &str| {
            let limit = units::time_limit(text(name).trim());
            limit.ok_or_else(|| refuse(name, "it is no duration: write 500ms, 20s, 2min or inf"))
        };
        let streams = "TIELINE_TCP_STREAMS";
        let rails = "TIELINE_TCP_RAILS";
        let count = |name: &str| match text(name).trim().parse() {
            Ok(n) if (1..=MAX_STREAMS).contains(&n) => Ok(n),
            _ => Err(refuse(name, "is no number from 1 to 8")),
        };
        let buffer = "TIELINE_TCP_SEND_BUFFER";
        let send_buffer = match units::size(text(buffer).trim()) {
            Some(n) if (128 << 10..=64 << 20).contains(&n) => n,
            _ => return Err(refuse(buffer, "is no size from 128k to 64m, such as 256k")),
        };
        let (interfaces, ports) = ("TIELINE_TCP_INTERFACES", "TIELINE_TCP_PORTS");
        Ok(Settings {
            streams: count(streams)?,
            rails: if text(rails).trim() == "all" { None } else { Some(count(rails)?) },
            reconnect: match text("TIELINE_TCP_RECONNECT").trim() {
                "auto" => Reconnect::Auto,
                "on" | "1" | "true" | "yes" => Reconnect::On,
                "off" | "0" | "false" | "no" => Reconnect::Off,
                _ => return Err(refuse("TIELINE_TCP_RECONNECT", "is not auto, on or off")),
            },
            stall: duration("TIELINE_TCP_STALL")?,
            send_buffer,
            failure_timeout: duration("TIELINE_FAILURE_TIMEOUT")?.max(Duration::from_millis(100)),
            connect_timeout: duration("TIELINE_CONNECT_TIMEOUT")?,
            close_timeout: duration("TIELINE_CLOSE_TIMEOUT")?,
            net: tieline_net::Settings {
                secret: text("TIELINE_SECRET").into_bytes(),
                filter: Filter::parse(&text(interfaces)).map_err(|why| refuse(interfaces, &why))?,
                listen: Listen::Ports(
                    Ports::parse(&text(ports)).map_err(|why| refuse(ports, &why))?,
                ),
                ..tieline_net::Settings::default()
            },
        })
    }

    /// How many streams an endpoint asks for, when `interfaces` could lead to a peer.
    pub(crate) fn streams(&self, interfaces: usize) -> usize {
        (self.streams * self.rails(interfaces)).clamp(1, MAX_STREAMS)
    }

    /// How many rails they are spread over.
    pub(crate) fn rails(&self, interfaces: usize) -> usize {
        self.rails.unwrap_or(interfaces).clamp(1, interfaces.max(1))
    }

    /// Whether an endpoint of that many streams keeps what it sends until it is acknowledged.
    pub(crate) fn retains(&self, streams: usize) -> bool {
        match self.reconnect {
            Reconnect::Auto => streams > 1,
            Reconnect::On => true,
            Reconnect::Off => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Settings, Failure> {
        Settings::read(|n| (n == name).then(|| value.to_string()))
    }

    #[test]
    fn the_defaults_are_one_stream_that_keeps_nothing() {
        let settings = Settings::read(|_| None).unwrap();
        assert_eq!((settings.streams(5), settings.retains(1)), (1, false));
        assert!(settings.retains(2));
        assert_eq!(settings.send_buffer, 256 << 10);
        assert_eq!(settings.failure_timeout, Duration::from_secs(20));
    }

    #[test]
    fn rails_are_as_many_as_there_are_interfaces_and_streams_as_many_as_allowed() {
        let settings = with("TIELINE_TCP_RAILS", "all").unwrap();
        assert_eq!((settings.streams(3), settings.rails(3)), (3, 3));
        assert_eq!(settings.streams(100), MAX_STREAMS);
        assert_eq!(with("TIELINE_TCP_RAILS", "2").unwrap().streams(1), 1);
        assert_eq!(with("TIELINE_TCP_STREAMS", "4").unwrap().streams(1), 4);
    }

    #[test]
    fn a_bad_value_is_an_error_that_names_the_variable() {
        for (name, value) in [
            ("TIELINE_TCP_STREAMS", "0"),
            ("TIELINE_TCP_STREAMS", "9"),
            ("TIELINE_TCP_RAILS", "some"),
            ("TIELINE_TCP_RECONNECT", "maybe"),
            ("TIELINE_TCP_STALL", "1"),
            ("TIELINE_TCP_SEND_BUFFER", "1k"),
            ("TIELINE_TCP_PORTS", "a"),
            ("TIELINE_FAILURE_TIMEOUT", "soon"),
        ] {
            let failure = with(name, value).unwrap_err();
            assert!(failure.text.contains(name), "{}", failure.text);
        }
    }
}
