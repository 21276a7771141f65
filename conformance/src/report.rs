//! The result of a check.

use core::fmt::{self, Debug, Display};
use tieline_plugin_api::{Failure, Status};

/// The reason why a check stopped before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The check cannot be run on this machine or with this module.
    Skip(String),
    /// The provider broke a rule.
    Fail(String),
}

pub(crate) type Checked = Result<(), Stop>;

/// The verdict of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The check passed.
    Passed,
    /// The check was not run, for this reason.
    Skipped(String),
    /// The check failed: the subject, the expected value, the actual one.
    Failed(String),
}

impl From<Checked> for Verdict {
    fn from(checked: Checked) -> Verdict {
        match checked {
            Ok(()) => Verdict::Passed,
            Err(Stop::Skip(why)) => Verdict::Skipped(why),
            Err(Stop::Fail(what)) => Verdict::Failed(what),
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed => f.write_str("ok"),
            Verdict::Skipped(why) => write!(f, "skipped: {why}"),
            Verdict::Failed(what) => write!(f, "FAILED: {what}"),
        }
    }
}

pub(crate) fn fail(what: impl Display, expected: impl Display, found: impl Display) -> Stop {
    Stop::Fail(format!("{what}, expected {expected}, found {found}"))
}

pub(crate) fn equal<T: PartialEq + Debug>(what: impl Display, expected: T, found: T) -> Checked {
    if expected == found { Ok(()) } else { Err(fail(what, Short(&expected), Short(&found))) }
}

pub(crate) fn holds(
    holds: bool,
    what: impl Display,
    expected: impl Display,
    found: impl Display,
) -> Checked {
    if holds { Ok(()) } else { Err(fail(what, expected, found)) }
}

/// Checks that bytes are equal; the error names the first difference.
pub(crate) fn same_bytes(what: impl Display, expected: &[u8], found: &[u8]) -> Checked {
    equal(format!("length of {what}"), expected.len(), found.len())?;
    match expected.iter().zip(found).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(fail(
            format!("byte {at} of {} of {what}", found.len()),
            format!("{:#04x}", expected[at]),
            format!("{:#04x}", found[at]),
        )),
    }
}

pub(crate) fn succeeds<T>(
    what: impl Display,
    result: Result<T, impl Into<Failure>>,
) -> Result<T, Stop> {
    result.map_err(|failure| fail(what, "success", failure.into()))
}

pub(crate) fn refused<T>(
    what: impl Display,
    result: Result<T, impl Into<Failure>>,
    with: &[Status],
) -> Checked {
    let names = || with.iter().map(|s| s.constant()).collect::<Vec<_>>().join(" or ");
    match result {
        Ok(_) => Err(fail(what, names(), "success")),
        Err(failure) => {
            let failure = failure.into();
            holds(with.contains(&failure.status), what, names(), failure)
        }
    }
}

/// A value's debug text, cut to fit a line.
struct Short<T>(T);

impl<T: Debug> Display for Short<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        match text.char_indices().nth(120) {
            Some((end, _)) => write!(f, "{}...", &text[..end]),
            None => f.write_str(&text),
        }
    }
}
