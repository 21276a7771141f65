//! A table of promises: each row is tried, and told by name.

use std::fmt::Debug;

/// The rows that were tried.
#[derive(Default)]
pub struct Table {
    held: usize,
    broken: usize,
}

impl Table {
    /// A row that promises this value.
    pub fn row<T: PartialEq + Debug>(&mut self, row: &str, found: T, promised: T) {
        if found == promised {
            println!("row ok: {row}");
            self.held += 1;
        } else {
            println!("row FAILED: {row}: found {found:?}, promised {promised:?}");
            self.broken += 1;
        }
    }

    /// How the program ends: with an error when a row is broken, or when fewer were tried than there are.
    pub fn end(self, least: usize) -> Result<(), String> {
        println!("{} rows hold, {} are broken", self.held, self.broken);
        if self.broken > 0 {
            return Err(format!("{} rows are broken", self.broken));
        }
        if self.held < least {
            return Err(format!("{} rows were tried, and there are {least}", self.held));
        }
        Ok(())
    }
}
