//! The table of /dev/xpmem, row by row: what each command answers, what becomes of an attachment when its source changes, and
//! what when its holder does. A row that begins with "the double" is kept by the lab's module alone: xpmem 2.7.4, on which all
//! others were seen to hold, does something else there.

mod attacher;
mod commands;
mod source;
mod watcher;

use tieline_lab_programs::{sys, table::Table};

/// So many rows are tried at least.
const ROWS: usize = 120;

fn main() -> Result<(), String> {
    sys::no_core();
    let mut table = Table::default();
    commands::rows(&mut table);
    commands::rights(&mut table);
    source::rows(&mut table);
    attacher::rows(&mut table);
    table.end(ROWS)
}
