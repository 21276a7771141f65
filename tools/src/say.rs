//! Output for the user. If the reader of an output has closed it, this is not an error: a closed output changes neither the work of
//! a command nor its exit status.

use std::io::Write;
use tieline::job::wire::plain;

/// The maximum length of a line, in characters; the rest is replaced by `...`.
const LONGEST: usize = 4096;

/// Prints a line to standard error. Names and reasons may come from other hosts, so control characters are escaped.
pub(crate) fn error(text: impl std::fmt::Display) {
    let line = format!("tieline: {}\n", plain(&text.to_string(), LONGEST));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

pub(crate) fn line(text: impl std::fmt::Display) {
    let line = format!("{}\n", plain(&text.to_string(), LONGEST));
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
