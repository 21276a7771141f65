//! The common parts of providers for one host: memory files, mappings of a peer's files, and announcements of accesses.
//!
//! * [`memory_file`] creates a file that cannot change its size, [`reserve`] gives it memory, [`Mapping`] maps it.
//! * [`map_peer`] maps a file that another process created, if an access to it cannot end this process. The file must be a sealed
//!   memory file of ordinary pages, with memory behind every byte.
//! * [`Announcements`] and [`Accessor`] are for providers that access the memory of another process directly. The owner of a region
//!   can find out whether an access to the region is still in progress.
//! * [`apply64`] and [`apply32`] execute an atomic of the ABI on a shared word.
//! * [`Facts`] identify the process of an address.
//! * [`Held`] sums up the memory of peers' files that the endpoints of an interface hold. [`Process`] tells whether a process is
//!   alive.
//! * [`whole_pages`] rounds a range to the kernel's pages, whose size is [`page_size`].
//! * [`Piece`] and [`Cursor`] cut lists of pieces to the limits of one system call.
//! * [`Registrations`] and [`PeerRegistrations`] publish the live regions of an owner, in a file that only the owner writes.
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
mod atomics;
mod facts;
mod held;
mod order;
mod piece;
mod pieces;
mod registrations;
mod sys;

pub use accessor::{Accessor, Inside};
pub use announcements::{Announcements, Nonce};
pub use atomics::{apply32, apply64};
pub use facts::Facts;
pub use held::{Held, HeldByEndpoint};
pub use order::{after_get, after_put};
pub use piece::Piece;
pub use pieces::Cursor;
pub use registrations::{PeerRegistrations, Place, Registrations, WORDS};
pub use sys::{
    Mapping, PAGE, Process, SEAL_WRITERS, backed_len, copy, is_write_sealed, map_peer,
    map_peer_control, memory_file, own_pid, page_size, random, reserve, seal, sealed_len,
    whole_pages,
};
