//! The settings of this provider: names, defaults, descriptions, and the parsed values.

use std::path::PathBuf;
use std::time::Duration;

use tieline_plugin_api::config::Value;
use tieline_plugin_api::config::shared;
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status};

use crate::directory::Bases;

/// The variables that this provider declares.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc::text(
        "TIELINE_SHM_DIR",
        "",
        "Directory that only its owner can enter, such as one of mode 0700, for the sockets over which memory \
         files are passed, for processes that share no other one; empty: tieline in XDG_RUNTIME_DIR or /run/user/UID, else tieline-UID in \
         TMPDIR or /tmp.",
    ),
    ConfigDoc::count(
        "TIELINE_SHM_FASTBOX_THRESHOLD",
        "16",
        "Messages to one peer after which the sender asks for a fast box.",
    ),
    ConfigDoc::count(
        "TIELINE_SHM_FASTBOX_MAX",
        "32",
        "The most fast boxes that one receiving interface grants.",
    ),
    ConfigDoc::size(
        "TIELINE_SHM_FASTBOX_SIZE",
        "4k",
        "Size of a fast box: a power of two from 1k to 1m, one message per 64 bytes.",
    )
    .between(1 << 10, 1 << 20),
    ConfigDoc::size(
        "TIELINE_SHM_POOL_MAX",
        "64m",
        "The most memory that one interface takes for messages of more than 48 bytes.",
    )
    .between(256 << 10, 1 << 40),
    ConfigDoc::size(
        "TIELINE_SHM_WINDOW",
        "256k",
        "The most bytes in flight to one peer in messages of more than 48 bytes.",
    )
    .between(64 << 10, 1 << 40),
    shared::CLOSE_TIMEOUT,
];

/// The parsed values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) dir: Option<PathBuf>,
    /// The places where a directory may be created if none is configured.
    pub(crate) bases: Bases,
    pub(crate) threshold: u64,
    pub(crate) fastbox_max: u64,
    pub(crate) fastbox_size: usize,
    pub(crate) pool_max: usize,
    pub(crate) window: usize,
    /// The time that closing may wait for room for goodbyes.
    pub(crate) close_timeout: Duration,
}

impl Settings {
    /// Reads the variables from the host.
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    /// Returns the defaults, independent of the host.
    #[cfg(test)]
    pub(crate) fn defaults() -> Settings {
        Settings::of(|_| None).unwrap()
    }

    /// Returns the settings with these variables set.
    #[cfg(test)]
    fn of(set: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        Settings::read(tieline_plugin_api::config::values(VARIABLES, set)?)
    }

    fn read(value: impl Fn(&str) -> Value) -> Result<Settings, Failure> {
        let fastbox_size = value("TIELINE_SHM_FASTBOX_SIZE");
        if !fastbox_size.number.is_power_of_two() {
            let why =
                format!("TIELINE_SHM_FASTBOX_SIZE={} is not a power of two", fastbox_size.text);
            return Err(Failure::new(Status::Invalid, why));
        }
        let dir = value("TIELINE_SHM_DIR").text;
        Ok(Settings {
            dir: (!dir.is_empty()).then(|| PathBuf::from(dir)),
            bases: Bases::for_this_process(),
            threshold: value("TIELINE_SHM_FASTBOX_THRESHOLD").number,
            fastbox_max: value("TIELINE_SHM_FASTBOX_MAX").number,
            fastbox_size: fastbox_size.size(),
            pool_max: value("TIELINE_SHM_POOL_MAX").size(),
            window: value("TIELINE_SHM_WINDOW").size(),
            close_timeout: value(shared::CLOSE_TIMEOUT.name).duration(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        let settings = Settings::defaults();
        assert_eq!((settings.threshold, settings.fastbox_max), (16, 32));
        assert_eq!(settings.fastbox_size, 4096);
        assert_eq!(settings.dir, None);
    }

    #[test]
    fn a_bad_value_is_an_error_that_names_the_variable() {
        for (name, value) in [
            ("TIELINE_SHM_FASTBOX_SIZE", "3k"),
            ("TIELINE_SHM_FASTBOX_SIZE", "64"),
            ("TIELINE_SHM_POOL_MAX", "lots"),
            ("TIELINE_SHM_WINDOW", "1"),
        ] {
            let failure = Settings::of(|n| (n == name).then(|| value.to_string())).unwrap_err();
            assert!(failure.text.contains(name), "{}", failure.text);
        }
    }
}
