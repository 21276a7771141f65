//! The texts of a snapshot: for a terminal, and as lines for a journal.

mod columns;
mod opened;
mod report;
mod settings;
mod status;
mod why;

pub use columns::wrap;
pub use opened::{log_line, opened};
pub use settings::{value_text, value_text_within, values_text, values_text_within};
pub use why::record_lines;

#[cfg(test)]
mod report_tests;
#[cfg(test)]
mod status_tests;
