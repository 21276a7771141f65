//! The table of /dev/xpmem, row by row: what each command answers, what becomes of an attachment when its source changes, and
//! what when its holder does. A row that only the lab's double promises says so.

mod attacher;
mod commands;
mod source;
mod watcher;

use tieline_lab_programs::{sys, table::Table};

/// So many rows are tried at least.
const ROWS: usize = 116;

fn main() -> Result<(), String> {
    sys::no_core();
    let mut table = Table::default();
    commands::rows(&mut table);
    commands::rights(&mut table);
    source::rows(&mut table);
    attacher::rows(&mut table);
    table.end(ROWS)
}
