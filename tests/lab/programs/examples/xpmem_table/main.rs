//! The table of /dev/xpmem, row by row: the result of each command, and the effect on an attachment if its source or its holder
//! changes. A row that begins with "the double" holds only for the lab's module; xpmem 2.7.4 behaves differently there. All other
//! rows were verified on xpmem 2.7.4.

mod attacher;
mod commands;
mod source;
mod watcher;

use tieline_lab_programs::{sys, table::Table};

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
