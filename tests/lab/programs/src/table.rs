//! A table of guarantees. Each row is tested and reported by name.

use std::fmt::Debug;

/// The number of rows that hold, and the number of rows that do not hold.
#[derive(Default)]
pub struct Table {
    held: usize,
    broken: usize,
}

impl Table {
    /// Tests a row against its guaranteed value.
    pub fn row<T: PartialEq + Debug>(&mut self, row: &str, found: T, promised: T) {
        if found == promised {
            println!("row ok: {row}");
            self.held += 1;
        } else {
            println!("row FAILED: {row}: found {found:?}, promised {promised:?}");
            self.broken += 1;
        }
    }

    /// Returns the result of the program: an error if a row does not hold, or if there were fewer rows than `least`.
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
