//! What is played: endpoints in one process, their memory, and what goes wrong as tests tell it to.
//!
//! Each way of behaving names where it was read or seen. `run`: a program over libfabric 1.17 as Debian ships it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

/// How the library behaves.
#[derive(Clone)]
pub(crate) struct Manners {
    /// `FI_MR_...` that it demands (fi_mr(3)).
    pub(crate) mr_mode: i32,
    /// Completion at the target can be asked for (fi_endpoint(3), FI_DELIVERY_COMPLETE).
    pub(crate) delivery: bool,
    /// So many posts are refused with EAGAIN first: a connection forms, or a queue is full (rxm: run).
    pub(crate) eagain: usize,
    /// A put or get is carried out when its target polls (FI_PROGRESS_MANUAL; tcp;ofi_rxm: run).
    pub(crate) manual: bool,
    /// Completions of what is posted wait until they are let go: late ones.
    pub(crate) late: bool,
    /// The next put or get fails with this error, behind its posting (tcp;ofi_rxm: 125 and 107 when the peer is killed: run).
    pub(crate) fail_transfer: Option<i32>,
    /// The next message fails so.
    pub(crate) fail_send: Option<i32>,
    /// The next message is lost and completes well: what was on a connection that the library replaced (rxm: read in
    /// prov/rxm, which connects anew).
    pub(crate) lose_send: bool,
    /// The queue of completions fails (fi_cq(3): overrun).
    pub(crate) overrun: bool,
}

impl Default for Manners {
    fn default() -> Manners {
        Manners {
            mr_mode: 0,
            delivery: true,
            eagain: 0,
            manual: true,
            late: false,
            fail_transfer: None,
            fail_send: None,
            lose_send: false,
            overrun: false,
        }
    }
}

/// A completion.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// An error, if it is not 0.
    pub(crate) error: i32,
}

/// A buffer for many messages.
pub(crate) struct Posted {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) used: usize,
    pub(crate) context: usize,
}

/// A put or get on its way.
pub(crate) struct Way {
    pub(crate) put: bool,
    pub(crate) local: Vec<(usize, usize)>,
    /// In the target's memory: checked when it was posted, as software providers do.
    pub(crate) remote: usize,
    pub(crate) from: usize,
    pub(crate) context: usize,
}

#[derive(Default)]
pub(crate) struct End {
    pub(crate) open: bool,
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) held: VecDeque<Entry>,
    pub(crate) buffers: VecDeque<Posted>,
    pub(crate) early: VecDeque<Vec<u8>>,
    pub(crate) ways: VecDeque<Way>,
    pub(crate) least_room: usize,
}

pub(crate) struct Memory {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) access: u64,
    /// The endpoint that it is bound to.
    pub(crate) bound: Option<usize>,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) manners: Manners,
    pub(crate) ends: Vec<End>,
    pub(crate) memory: HashMap<u64, Memory>,
    pub(crate) next_key: u64,
    /// What has been done wrong.
    pub(crate) complaints: Vec<String>,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

pub(crate) fn world<T>(look: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| look(&mut world.borrow_mut()))
}

/// Behaves so from now on.
pub(crate) fn manners(set: impl FnOnce(&mut Manners)) {
    world(|world| set(&mut world.manners));
}

impl World {
    /// Whether a post is refused for now.
    pub(crate) fn refuses(&mut self) -> bool {
        let refused = self.manners.eagain > 0;
        self.manners.eagain = self.manners.eagain.saturating_sub(1);
        refused
    }

    pub(crate) fn complete(&mut self, end: usize, entry: Entry) {
        let late = self.manners.late;
        let end = &mut self.ends[end];
        if late { end.held.push_back(entry) } else { end.entries.push_back(entry) }
    }
}

/// Late completions come now.
pub(crate) fn let_go() {
    world(|world| {
        world.manners.late = false;
        for end in &mut world.ends {
            let held = core::mem::take(&mut end.held);
            end.entries.extend(held);
        }
    });
}

/// How many registrations there are.
pub(crate) fn registrations() -> usize {
    world(|world| world.memory.len())
}
