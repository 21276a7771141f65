//! What providers for one host share: memory files, mappings of a peer's, and announcements of accesses.
//!
//! * [`memory_file`] makes a file that cannot change its size, [`reserve`] gives it memory, [`Mapping`] maps it.
//! * [`map_peer`] maps one that another process made, if it is such that an access cannot end this process: a
//!   memory file of ordinary pages, sealed, with memory behind every byte.
//! * [`Announcements`] and [`Accessor`] are for providers that reach the memory of another process behind its
//!   back: the owner of a region learns when the last access to it is through, or its process is dead.
//! * [`Facts`] tell which process an address names.
//! * [`Held`] sums up what the endpoints of an interface hold of their peers' files.
//! * [`Piece`] and [`Cursor`] cut lists of pieces into what one system call takes.
//! * [`Registrations`] and [`PeerRegistrations`] say which regions of an owner live, in a file that only it writes.
//!
//! ```
//! use std::os::fd::AsFd;
//! use tieline_memory_file::{Mapping, PAGE, map_peer, memory_file, reserve};
//!
//! let file = memory_file(c"example", PAGE)?;
//! reserve(&file, 0, PAGE)?;
//! let mine = Mapping::new(file.as_fd(), PAGE, true)?;
//! let theirs = map_peer(&file, PAGE, false).ok_or(tieline_plugin_api::Status::BadData)?;
//! mine.word(8).unwrap().store(7, std::sync::atomic::Ordering::Release);
//! assert_eq!(theirs.word(8).unwrap().load(std::sync::atomic::Ordering::Acquire), 7);
//! # Ok::<(), tieline_plugin_api::Failure>(())
//! ```

mod accessor;
mod announcements;
mod facts;
mod held;
mod piece;
mod pieces;
mod registrations;
mod sys;

pub use accessor::{Accessor, Inside};
pub use announcements::{Announcements, Nonce};
pub use facts::Facts;
pub use held::{Held, HeldByEndpoint};
pub use piece::Piece;
pub use pieces::Cursor;
pub use registrations::{PeerRegistrations, Place, Registrations, WORDS};
pub use sys::{
    Mapping, PAGE, Process, SEAL_WRITERS, backed_len, is_write_sealed, map_peer, map_peer_control,
    memory_file, own_pid, random, reserve, seal, sealed_len,
};
