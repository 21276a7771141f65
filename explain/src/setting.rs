//! A setting's value with its origin, as errors and pages cite it.

use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program, which set the value through the builder.
    Program,
    /// An environment variable.
    Environment,
    /// A file, and the number of the line in it.
    File(PathBuf, usize),
    /// The default of the variable.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Program => f.write_str("program"),
            Origin::Environment => f.write_str("environment"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A value with its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The text of the value, as it was written.
    pub value: String,
    /// The origin of the value.
    pub origin: Origin,
}

/// Converts a name to the spelling in variables: `shm-cma` becomes `SHM_CMA`.
pub fn upper(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
        .collect()
}
