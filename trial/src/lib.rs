//! Trials of foreign code: a child process tries a file or a device, and a cache keeps the answer.
//!
//! A file may crash, hang or end the process that loads it. [`in_child`] runs the attempt in a forked child, so that only the child
//! is affected. [`Cache`] keeps the answers, one line per state of a file or per use of that state. [`Trust`] states which owners
//! and writers of a path are acceptable. The search for providers applies these rules, and so does the cache to its directory.

mod cache;
mod sys;
mod trust;

pub use cache::{Answer, Answers, Cache, FileKey, Key, now};
pub use sys::{End, Outcome, Say, Share, in_child};
pub use trust::{Obstacle, Trust};

/// The reason that a file or a path is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The property that a valid one has.
    pub expected: String,
    /// The property that this one has.
    pub found: String,
}
