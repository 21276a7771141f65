//! The settings of this provider: names, defaults, a one-sentence description each, and the parsed values.

use std::time::Duration;

use tieline_plugin_api::config::{Value, shared};
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status};

/// The maximum number of connections that a poll reads in each of its two rounds.
pub(crate) const MOST_VISITS: usize = 64;
/// The maximum number of streams between two endpoints.
pub(crate) const MAX_STREAMS: usize = 8;

/// Every variable that this provider reads: its own and some of the core's.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc::count(
        "TIELINE_TCP_STREAMS",
        "1",
        "Connections per endpoint and rail, 1 to 8 in all; both sides use the smaller number.",
    )
    .between(1, MAX_STREAMS as u64),
    ConfigDoc::count(
        "TIELINE_TCP_RAILS",
        "1",
        "Network interfaces that an endpoint uses at once, or `all` that lead to the peer.",
    )
    .between(1, MAX_STREAMS as u64)
    .one_of("all"),
    ConfigDoc::flag(
        "TIELINE_TCP_RECONNECT",
        "auto",
        "Keep what is sent until it is acknowledged, and connect again when a connection breaks: on, off, or \
         auto: only with several streams.",
    )
    .one_of("auto"),
    ConfigDoc::duration(
        "TIELINE_TCP_STALL",
        "1s",
        "How long a stream may delay the others before it is closed and connected again.",
    ),
    ConfigDoc::size(
        "TIELINE_TCP_SEND_BUFFER",
        "256k",
        "The most bytes that wait in one endpoint for the kernel, or for acknowledgement: 128k to 64m.",
    )
    .between(128 << 10, 64 << 20),
    shared::SECRET,
    shared::TCP_INTERFACES,
    shared::TCP_PORTS,
    shared::FAILURE_TIMEOUT,
    shared::CONNECT_TIMEOUT,
    shared::CLOSE_TIMEOUT,
];

/// Whether to keep sent data and to connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reconnect {
    Auto,
    On,
    Off,
}

/// The parsed values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    streams: usize,
    /// The number of rails; `None` means all.
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

    /// Returns the settings with these variables set.
    #[cfg(test)]
    pub(crate) fn of(set: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        Settings::read(tieline_plugin_api::config::values(VARIABLES, set)?)
    }

    fn read(value: impl Fn(&str) -> Value) -> Result<Settings, Failure> {
        let refuse = |name: &str, why: &str| {
            Failure::new(Status::Invalid, format!("{name}={:?} {why}", value(name).text))
        };
        let (rails, reconnect) = (value("TIELINE_TCP_RAILS"), value("TIELINE_TCP_RECONNECT"));
        Ok(Settings {
            streams: value("TIELINE_TCP_STREAMS").size(),
            rails: (rails.word == 0).then(|| rails.size()),
            reconnect: match reconnect.word {
                0 if reconnect.is_yes() => Reconnect::On,
                0 => Reconnect::Off,
                _ => Reconnect::Auto,
            },
            stall: value("TIELINE_TCP_STALL").duration(),
            send_buffer: value("TIELINE_TCP_SEND_BUFFER").size(),
            failure_timeout: value(shared::FAILURE_TIMEOUT.name)
                .duration()
                .max(Duration::from_millis(100)),
            connect_timeout: value(shared::CONNECT_TIMEOUT.name).duration(),
            close_timeout: value(shared::CLOSE_TIMEOUT.name).duration(),
            net: tieline_net::Settings::read(|name| value(name).text, refuse)?,
        })
    }

    /// Returns the number of streams that an endpoint requests, if `interfaces` could lead to a peer.
    pub(crate) fn streams(&self, interfaces: usize) -> usize {
        (self.streams * self.rails(interfaces)).clamp(1, MAX_STREAMS)
    }

    /// Returns the number of rails that the streams are spread over.
    pub(crate) fn rails(&self, interfaces: usize) -> usize {
        self.rails.unwrap_or(interfaces).clamp(1, interfaces.max(1))
    }

    /// Checks whether this side requires that an endpoint with this number of streams keeps sent data until it is acknowledged.
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
        Settings::of(|n| (n == name).then(|| value.to_string()))
    }

    #[test]
    fn the_defaults_are_one_stream_that_keeps_nothing() {
        let settings = Settings::of(|_| None).unwrap();
        assert_eq!((settings.streams(5), settings.retains(1)), (1, false));
        assert!(settings.retains(2));
        assert_eq!(settings.send_buffer, 256 << 10);
        assert_eq!(settings.failure_timeout, Duration::from_secs(20));
    }

    #[test]
    fn rails_are_bounded_by_interfaces_and_streams_by_maximum() {
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
