//! Words for whoever sits at the terminal. The reader of an output may have gone. That is no error: a closed output changes neither
//! the work of a command nor its exit status.

use std::io::Write;
use tieline::job::wire::plain;

/// The longest line of an error.
const LONGEST: usize = 4096;

/// One line to standard error. Names and reasons may come from other hosts: nothing in it moves the terminal.
pub(crate) fn error(text: impl std::fmt::Display) {
    let line = format!("tieline: {}\n", plain(&text.to_string(), LONGEST));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// One line to standard output.
pub(crate) fn line(text: impl std::fmt::Display) {
    let line = format!("{}\n", plain(&text.to_string(), LONGEST));
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
