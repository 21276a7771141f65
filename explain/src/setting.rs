//! A setting's value with its origin, as errors, reports and pages cite it.

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

/// A variable with its value, kind and description: an entry of `tieline config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueView {
    /// The name of the variable.
    pub name: String,
    /// The effective value; empty if the variable is not set and has no default.
    pub value: String,
    /// The origin of the effective value.
    pub origin: Origin,
    /// The default of the variable.
    pub default: String,
    /// The kind of the value: `size`, `count`, `duration`, `bool`, `text`, `list`, the accepted words, or both (`size|auto`).
    pub kind: String,
    /// The owner: `core`, or the provider that reads the variable; `launcher` for a variable that launchers set; `unknown` for a
    /// name that was not declared.
    pub owner: String,
    /// The description of the variable's effect.
    pub doc: String,
    /// Other settings of the variable that were overridden, strongest first.
    pub overridden: Vec<Setting>,
}

/// A settings file that was searched for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileView {
    /// The path of the file.
    pub path: PathBuf,
    /// The state of the file: `read`, `not there`, or the reason why it was not read.
    pub state: String,
}

/// Converts a name to the spelling in variables: `shm-cma` becomes `SHM_CMA`. An underscore replaces each character that is no
/// ASCII letter or digit.
pub fn upper(name: &str) -> String {
    name.chars().map(upper_char).collect()
}

/// Returns the character by which [`upper`] replaces this one.
pub fn upper_char(c: char) -> char {
    if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }
}
