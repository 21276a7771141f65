//! The providers, modules and paths that a context found, chose and excluded: as text and as JSON.
//!
//! ```no_run
//! let report = tieline::Context::open()?.report();
//! print!("{}", report.table());       // what `tieline info` prints
//! print!("{}", report.why());         // what `tieline info --why --all` prints
//! let json = report.to_json();        // what `tieline info --json` prints
//! # let _ = json; Ok::<(), tieline::Error>(())
//! ```

mod gather;
mod opened;

pub(crate) use gather::report;
pub(crate) use opened::write_while_made;
pub use tieline_explain::snapshot::{
    DomainView, LaneView, LogView, ModuleView, PathView, ProviderView, Report,
};
pub use tieline_explain::text::{
    record_lines, value_text, value_text_within, values_text, values_text_within,
};
pub use tieline_explain::{FileView, Origin, Setting, ValueView};

use crate::Error;
use crate::builtin;
use crate::config::{Config, nearest};

/// Returns variables with their values in this process, and the configuration files that were searched. The variables are those of
/// the core and of the built-in providers, and others that are set. The function opens no context, so it works even if no context
/// can be opened.
///
/// # Errors
/// An error if a configuration file is malformed, or if the file named by `TIELINE_CONFIG` cannot be read.
pub fn configuration() -> Result<(Vec<ValueView>, Vec<FileView>), Error> {
    let config = Config::builder().process_environment().build()?;
    for (provider, variables) in builtin::variables() {
        config.declare(provider, variables);
    }
    Ok((config.views(), config.files()))
}

/// Returns the part of a variable's name that the user probably meant, in lower case: `fastbox` for `fastbx`. `None` if no part is
/// similar.
#[must_use]
pub fn nearest_word(values: &[ValueView], name: &str) -> Option<String> {
    let name = name.trim_start_matches("TIELINE_");
    let mut runs: Vec<String> = Vec::new();
    for value in values {
        let words: Vec<&str> = value.name.split('_').skip(1).collect();
        for first in 0..words.len() {
            runs.extend((first + 1..=words.len()).map(|end| words[first..end].join("_")));
        }
    }
    nearest(name, runs.iter().map(String::as_str)).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_that_nobody_has_is_answered_with_the_nearest() {
        let views: Vec<ValueView> = Config::builder().build().unwrap().views();
        let views: Vec<ValueView> =
            views.into_iter().filter(|view| view.name == "TIELINE_QUEUE_BYTES").collect();
        assert_eq!(nearest_word(&views, "QUEU").as_deref(), Some("queue"));
        assert_eq!(nearest_word(&views, "TIELINE_QUEUE_BYTE").as_deref(), Some("queue_bytes"));
        assert_eq!(nearest_word(&views, "INFINIBAND"), None);
        assert_eq!(nearest_word(&[], "QUEU"), None);
    }
}
