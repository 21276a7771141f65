//! What is played: endpoints in one process, their memory, and what goes wrong as tests tell it to.
//!
//! `sources.rs` says of each way of behaving where it was read or seen. `run`: a program over libfabric 1.17 as Debian ships it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CStr;

/// What the library says of its atomics, and what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomics {
    /// None are there, and who asks for them is told of no provider (tcp of 2.x: run).
    None,
    /// All are there, and are done.
    Kept,
    /// They are there, and messages are shorter with them: another provider is (tcp of 2.x, which is tcp;ofi_rxm then: run).
    Dear,
    /// Fetching ones are said to be there and refused (net of 1.17: run).
    FetchesRefused,
    /// Those of 32 bits write 64.
    TooWide,
    /// They complete, and nothing has changed.
    Forgotten,
    /// All are there, and fewer operations may be under way with them.
    Narrow,
    /// The question for them fails, and not for want of a provider.
    Unanswered,
    /// Those that compare are said to be there and refused.
    SwapsRefused,
    /// The larger and the smaller one are of signed numbers.
    Signed,
    /// The larger one completes, and nothing has changed.
    MaxForgotten,
    /// What is to be swapped is, whatever is there.
    SwapsAlways,
    /// Who compares is told what he compares with.
    ReturnsCompared,
    /// Who adds is told nothing.
    KeepsResults,
}

/// How the library behaves; `sources.rs` names a source for each.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    /// What its device is called.
    pub(crate) device: &'static CStr,
    /// Bytes of its keys (fi_domain(3), mr_key_size).
    pub(crate) key_size: usize,
    /// `FI_MR_...` that it demands (fi_mr(3)).
    pub(crate) mr_mode: i32,
    /// Completion at the target can be asked for (fi_endpoint(3), FI_DELIVERY_COMPLETE).
    pub(crate) delivery: bool,
    /// So many posts are refused with EAGAIN first: a connection forms, or a queue is full (rxm: run).
    pub(crate) eagain: usize,
    /// Queues have a descriptor to wait for, by which nothing is ever told.
    pub(crate) waits: bool,
    /// A put or get is carried out when its target polls (FI_PROGRESS_MANUAL; tcp;ofi_rxm: run).
    pub(crate) manual: bool,
    /// Completions of what is posted wait until they are let go: late ones.
    pub(crate) late: bool,
    /// A put completes when it is posted, whatever it was asked for (net of 1.17: run).
    pub(crate) lies: bool,
    /// The next put or get fails with this error, behind its posting (tcp;ofi_rxm: 125 and 107 when the peer is killed: run).
    pub(crate) fail_transfer: Option<i32>,
    /// The next put or get is refused so, at its posting.
    pub(crate) refuse_transfer: Option<i32>,
    /// The next message fails so.
    pub(crate) fail_send: Option<i32>,
    /// The next message is refused so (sockets says ENOENT where nobody listens: run).
    pub(crate) refuse_send: Option<i32>,
    /// The next message is lost and completes well: what was on a connection that the library replaced (rxm: read in
    /// prov/rxm, which connects anew).
    pub(crate) lose_send: bool,
    /// The next message comes behind the one that is sent after it, whatever order was granted.
    pub(crate) swap_sends: bool,
    /// Completions that were late come in the opposite order (fi_cq(3)).
    pub(crate) backwards: bool,
    /// An event that belongs to no operation (EFA: read in efa_base_ep.c).
    pub(crate) trouble: Option<i32>,
    /// Endpoints refuse to be closed, and go on (cxi, sockets: read in cxip_ep.c, sock_ep.c).
    pub(crate) stays_open: bool,
    /// There is a queue for such events; endpoints without one are complained of.
    pub(crate) has_notices: bool,
    /// The queue of completions fails (fi_cq(3): overrun).
    pub(crate) overrun: bool,
    /// What it is called, and the format of its addresses.
    pub(crate) provider: &'static CStr,
    pub(crate) format: u32,
    /// What it demands of whoever posts (fi_getinfo(3)), and its only kind of table, if there is only one (opx: read in fi_opx_av.c).
    pub(crate) mode: u64,
    pub(crate) av_type: i32,
    /// That a buffer is given back is said by a completion of its own, with what is left of it (opx: read in fi_opx_endpoint.h).
    pub(crate) separate_release: bool,
    /// Nothing is taken for this endpoint (verbs;ofi_rxm, whose receiver has no room: run).
    pub(crate) deaf: Option<usize>,
    /// Puts and gets stay under way while messages pass: nothing orders the one behind the other (cxi, efa: no FI_ORDER_SAW).
    pub(crate) hold_ways: bool,
    /// Somebody who sends nonsense keeps the queue full.
    pub(crate) noise: bool,
    /// What peers put into their refusals as their status.
    pub(crate) refusals_say: Option<i32>,
    /// So many registrations are made, and no more (RLIMIT_MEMLOCK).
    pub(crate) registrations: Option<usize>,
    pub(crate) atomics: Atomics,
    /// The version of the interface that it has to be asked for.
    pub(crate) api: u32,
    /// The orders that are granted, of what is sent and of what is received, whatever was asked for.
    pub(crate) orders: (u64, u64),
    /// Keys that have to be mapped are longer than any room (FI_ETOOSMALL).
    pub(crate) keys_are_long: bool,
    /// Registrations do not end: closing one says so (EBUSY: fi_mr(3), verbs, cxi), and it stays.
    pub(crate) keeps_registrations: Option<i32>,
    /// Each completion comes twice.
    pub(crate) doubles: bool,
    /// So many receives are taken at once; 0: as many as are posted, and it does not say how many.
    pub(crate) receives: usize,
    /// The process ends by this signal as an endpoint opens.
    pub(crate) kills: Option<i32>,
    /// So many things are bound to endpoints, and no more.
    pub(crate) bindings: Option<usize>,
}

impl Default for Manners {
    fn default() -> Manners {
        Manners {
            device: c"dev0",
            key_size: 8,
            mr_mode: 0,
            delivery: true,
            eagain: 0,
            waits: false,
            manual: true,
            late: false,
            lies: false,
            fail_transfer: None,
            fail_send: None,
            refuse_send: None,
            refuse_transfer: None,
            lose_send: false,
            swap_sends: false,
            backwards: false,
            trouble: None,
            stays_open: false,
            has_notices: true,
            overrun: false,
            provider: c"played",
            format: 9,
            mode: 0,
            av_type: 2,
            separate_release: false,
            deaf: None,
            hold_ways: false,
            noise: false,
            refusals_say: None,
            registrations: None,
            atomics: Atomics::None,
            api: crate::abi::API,
            orders: (crate::abi::FI_ORDER_SAS, crate::abi::FI_ORDER_SAS),
            keys_are_long: false,
            keeps_registrations: None,
            doubles: false,
            receives: 0,
            kills: None,
            bindings: None,
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
    /// For many messages, or for one.
    pub(crate) many: bool,
}

/// A put, get or atomic on its way.
pub(crate) struct Way {
    pub(crate) put: bool,
    /// An atomic, whose local pieces are its operand, what it compares with, and where its result goes.
    pub(crate) atomic: Option<crate::atomics::Native>,
    pub(crate) local: Vec<(usize, usize)>,
    /// In the target's memory: checked when it was posted, as software providers do.
    pub(crate) remote: usize,
    pub(crate) from: usize,
    /// None: its completion has come already.
    pub(crate) context: Option<usize>,
    /// What it was posted with.
    pub(crate) key: u64,
}

#[derive(Default)]
pub(crate) struct End {
    pub(crate) open: bool,
    /// Which one it is, of all that had this place.
    pub(crate) serial: u64,
    /// Where it was opened, and whether it has a table of peers.
    pub(crate) domain: usize,
    pub(crate) has_table: bool,
    /// Completions that its queue has room for.
    pub(crate) room: usize,
    pub(crate) has_notices: bool,
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
    /// Endpoints that there were.
    pub(crate) serial: u64,
    /// Queues and tables, and the endpoint that stands on each; domains, and the fabric that each stands on.
    pub(crate) bound: HashMap<usize, (usize, u64)>,
    pub(crate) fabrics: HashMap<usize, usize>,
    /// Queues that are bound to nothing yet, and how many completions each has room for.
    pub(crate) rooms: HashMap<usize, usize>,
    /// Keys that were mapped: by which domain, and what they lead to.
    pub(crate) mapped: HashMap<u64, (usize, u64)>,
    /// Lists of what is offered, and of what is asked for, that nobody has given back.
    pub(crate) lists: HashSet<usize>,
    /// A message that lets the next one pass.
    pub(crate) aside: Option<Vec<u8>>,
    /// How often it was asked what belongs to no operation.
    pub(crate) looks: usize,
    /// What the host was told.
    pub(crate) told: Vec<String>,
    /// What has been done wrong.
    pub(crate) complaints: Vec<String>,
}

/// What is done whenever a queue is read, and whose.
type Beside = (usize, Box<dyn FnMut()>);

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
    static BESIDE: RefCell<Option<Beside>> = const { RefCell::new(None) };
}

/// Does this from now on whenever that endpoint's queue is read: what other processes do meanwhile.
pub(crate) fn beside(at: usize, act: impl FnMut() + 'static) {
    BESIDE.with(|beside| *beside.borrow_mut() = Some((at, Box::new(act))));
}

pub(crate) fn act_beside(at: usize) {
    // Taken out: it may read queues itself.
    let taken = BESIDE.with(|beside| beside.borrow_mut().take_if(|beside| beside.0 == at));
    if let Some((at, mut act)) = taken {
        act();
        BESIDE.with(|beside| *beside.borrow_mut() = Some((at, act)));
    }
}

pub(crate) fn world<T>(look: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| look(&mut world.borrow_mut()))
}

/// Behaves so from now on.
pub(crate) fn manners(set: impl FnOnce(&mut Manners)) {
    world(|world| set(&mut world.manners));
}

/// Memory ends that the library may have been told of.
pub(crate) fn freed(base: usize, len: usize) {
    world(|world| {
        let range = base..base + len;
        let mut ways = world.ends.iter().flat_map(|end| &end.ways);
        let leads = |way: &Way| {
            range.contains(&way.remote) || way.local.iter().any(|piece| range.contains(&piece.0))
        };
        if ways.any(leads) {
            world.complaints.push("memory was freed that operations lead to".into());
        }
        if world.memory.values().any(|memory| range.contains(&memory.base)) {
            world.complaints.push("memory was freed that is registered".into());
        }
    });
}

impl World {
    /// Whether a post is refused for now.
    pub(crate) fn refuses(&mut self, to: usize) -> bool {
        if self.manners.deaf == Some(to) {
            return true;
        }
        let refused = self.manners.eagain > 0;
        self.manners.eagain = self.manners.eagain.saturating_sub(1);
        refused
    }

    /// A stranger has sent nonsense.
    pub(crate) fn early_noise(&mut self, at: usize, count: usize) {
        self.ends[at].early.extend((0..count).map(|_| vec![4; 32]));
    }

    pub(crate) fn complete(&mut self, end: usize, entry: Entry) {
        let (late, twice) = (self.manners.late, if self.manners.doubles { 2 } else { 1 });
        let at = end;
        let end = &mut self.ends[at];
        let to = if late { &mut end.held } else { &mut end.entries };
        to.extend(core::iter::repeat_n(entry, twice));
        self.check_room(at);
    }

    /// A queue that is full loses what comes (fi_cq(3): overrun).
    pub(crate) fn check_room(&mut self, at: usize) {
        let (waiting, room) = (self.ends[at].entries.len(), self.ends[at].room);
        if waiting > room && !self.manners.doubles {
            self.complaints.push(format!("{waiting} completions in a queue of {room}"));
        }
    }
}

/// An error comes with a context that no operation was posted with.
pub(crate) fn fail_nothing(at: usize, error: i32, context: usize) {
    world(|world| {
        world.ends[at].entries.push_back(Entry { context, flags: 0, at: 0, len: 0, error });
    });
}

/// An error comes for a receive of this endpoint, which keeps the buffer, or for no operation at all.
pub(crate) fn fail_receive(at: usize, error: i32, of_one: bool) {
    world(|world| {
        let end = &mut world.ends[at];
        let context =
            if of_one { end.buffers.front().map_or(0, |buffer| buffer.context) } else { 0 };
        if end.buffers.front().is_some_and(|buffer| !buffer.many) {
            let _ = end.buffers.pop_front();
        }
        end.entries.push_back(Entry { context, flags: 0, at: 0, len: 0, error });
    });
}

/// Late completions come now.
pub(crate) fn let_go() {
    world(|world| {
        world.manners.late = false;
        let backwards = world.manners.backwards;
        for end in &mut world.ends {
            let mut held = core::mem::take(&mut end.held);
            if backwards {
                held.make_contiguous().reverse();
            }
            end.entries.extend(held);
        }
    });
}

/// How many registrations there are.
pub(crate) fn registrations() -> usize {
    world(|world| world.memory.len())
}
