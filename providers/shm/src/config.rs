//! The settings of this provider: names, defaults, one sentence each, and the values as numbers.

use std::path::PathBuf;

use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status, units};

use crate::directory::Bases;

/// Every variable, for `tieline config`.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc {
        name: "TIELINE_SHM_DIR",
        default: "",
        kind: "text",
        doc: "Directory of mode 0700 for the sockets over which memory files are passed, for processes that \
              share no other one; empty: tieline in XDG_RUNTIME_DIR or /run/user/UID, else tieline-UID in \
              TMPDIR or /tmp.",
    },
    ConfigDoc {
        name: "TIELINE_SHM_FASTBOX_THRESHOLD",
        default: "16",
        kind: "count",
        doc: "Messages to one peer after which the sender asks for a fast box.",
    },
    ConfigDoc {
        name: "TIELINE_SHM_FASTBOX_MAX",
        default: "32",
        kind: "count",
        doc: "The most fast boxes that one receiving interface grants.",
    },
    ConfigDoc {
        name: "TIELINE_SHM_FASTBOX_SIZE",
        default: "4k",
        kind: "size",
        doc: "Size of a fast box: a power of two from 1k to 1m, one message per 64 bytes.",
    },
    ConfigDoc {
        name: "TIELINE_SHM_POOL_MAX",
        default: "64m",
        kind: "size",
        doc: "The most memory that one interface takes for messages of more than 48 bytes.",
    },
    ConfigDoc {
        name: "TIELINE_SHM_WINDOW",
        default: "256k",
        kind: "size",
        doc: "The most bytes of messages above 48 bytes that are on their way to one peer.",
    },
];

/// The values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) dir: Option<PathBuf>,
    /// Where a directory may be made when none is given.
    pub(crate) bases: Bases,
    pub(crate) threshold: u64,
    pub(crate) fastbox_max: u64,
    pub(crate) fastbox_size: usize,
    pub(crate) pool_max: usize,
    pub(crate) window: usize,
}

impl Settings {
    /// Reads every variable from the host.
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    /// The defaults, whatever the host says.
    #[cfg(test)]
    pub(crate) fn defaults() -> Settings {
        Settings::read(|_| None).unwrap()
    }

    fn read(value: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let text = |name: &str| {
            let default = VARIABLES.iter().find(|v| v.name == name).map_or("", |v| v.default);
            value(name).unwrap_or_else(|| default.to_string())
        };
        let number = |name: &str, low: u64, high: u64| {
            let text = text(name);
            match units::size(text.trim()).map(|n| n as u64) {
                Some(n) if (low..=high).contains(&n) => Ok(n),
                Some(_) => Err(bad(name, &text, &format!("must lie between {low} and {high}"))),
                None => Err(bad(name, &text, "is not a number such as 16, 4k or 2MiB")),
            }
        };
        let size = |name: &str, low: u64, high: u64| number(name, low, high).map(|n| n as usize);
        let fastbox_size = size("TIELINE_SHM_FASTBOX_SIZE", 1 << 10, 1 << 20)?;
        if !fastbox_size.is_power_of_two() {
            let text = text("TIELINE_SHM_FASTBOX_SIZE");
            return Err(bad("TIELINE_SHM_FASTBOX_SIZE", &text, "is not a power of two"));
        }
        let dir = text("TIELINE_SHM_DIR");
        Ok(Settings {
            dir: (!dir.is_empty()).then(|| PathBuf::from(dir)),
            bases: Bases::of_this_process(),
            threshold: number("TIELINE_SHM_FASTBOX_THRESHOLD", 0, u64::MAX)?,
            fastbox_max: number("TIELINE_SHM_FASTBOX_MAX", 0, u64::MAX)?,
            fastbox_size,
            pool_max: size("TIELINE_SHM_POOL_MAX", 256 << 10, 1 << 40)?,
            window: size("TIELINE_SHM_WINDOW", 64 << 10, 1 << 40)?,
        })
    }
}

fn bad(name: &str, text: &str, why: &str) -> Failure {
    Failure::new(Status::Invalid, format!("{name}={text:?} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        let settings = Settings::read(|_| None).unwrap();
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
            let failure = Settings::read(|n| (n == name).then(|| value.to_string())).unwrap_err();
            assert!(failure.text.contains(name), "{}", failure.text);
        }
    }
}
