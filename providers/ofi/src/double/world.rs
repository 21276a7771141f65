//! The state of the simulation: endpoints in one process, their memory, and the faults that tests request.
//!
//! `sources.rs` names a source for each behaviour. "Observed" means that a program over libfabric 1.17 as Debian ships it, or over
//! the named version, has shown the behaviour.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CStr;

/// The atomics that the library claims, and those that it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomics {
    /// No atomics exist, and a request for them finds no provider (tcp of 2.x, observed).
    None,
    /// All atomics exist and are executed.
    Kept,
    /// Atomics exist, but with them messages are shorter, because another provider is used (tcp of 2.x, which is tcp;ofi_rxm then,
    /// observed).
    Dear,
    /// Fetching atomics are claimed and refused (net of 1.17, observed).
    FetchesRefused,
    /// Atomics of 32 bits write 64 bits.
    TooWide,
    /// Atomics complete without an effect.
    Forgotten,
    /// All atomics exist, but with them fewer operations may be under way.
    Narrow,
    /// The query for atomics fails for another reason than a missing provider.
    Unanswered,
    /// Comparing atomics are claimed and refused.
    SwapsRefused,
    /// The minimum and maximum compare signed numbers.
    Signed,
    /// The maximum completes without an effect.
    MaxForgotten,
    /// A compare-and-swap always swaps.
    SwapsAlways,
    /// A compare-and-swap returns the comparand.
    ReturnsCompared,
    /// A fetching addition returns no value.
    KeepsResults,
}

/// The library's behaviour; `sources.rs` names a source for each field.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    /// The name of the library's device.
    pub(crate) device: &'static CStr,
    /// The size of the library's keys (fi_domain(3), mr_key_size).
    pub(crate) key_size: usize,
    /// The `FI_MR_...` bits that the library demands (fi_mr(3)).
    pub(crate) mr_mode: i32,
    /// Whether completion at the target can be requested (fi_endpoint(3), FI_DELIVERY_COMPLETE).
    pub(crate) delivery: bool,
    /// The number of posts that are refused with EAGAIN first, while a connection forms or a queue is full (rxm, observed).
    pub(crate) eagain: usize,
    /// Whether queues have a descriptor to wait on, which never becomes readable.
    pub(crate) waits: bool,
    /// Whether a put or get is executed when its target polls (FI_PROGRESS_MANUAL; tcp;ofi_rxm, observed).
    pub(crate) manual: bool,
    /// Whether completions are late: they wait until `let_go`.
    pub(crate) late: bool,
    /// Whether a put completes when it is posted, whatever was requested (net of 1.17, observed).
    pub(crate) lies: bool,
    /// The error with which the next put or get fails after it was posted (tcp;ofi_rxm: 125 and 107 when the peer is killed,
    /// observed).
    pub(crate) fail_transfer: Option<i32>,
    /// The error with which the next put or get is refused when it is posted.
    pub(crate) refuse_transfer: Option<i32>,
    /// The error with which the next message fails.
    pub(crate) fail_send: Option<i32>,
    /// The error with which the next message is refused (sockets returns ENOENT if there is no receiver, observed).
    pub(crate) refuse_send: Option<i32>,
    /// Whether the next message is lost but completes successfully: it was on a connection that the library replaced (rxm; source:
    /// prov/rxm, which connects anew).
    pub(crate) lose_send: bool,
    /// Whether the next message arrives after its successor, whatever order was granted.
    pub(crate) swap_sends: bool,
    /// Whether late completions arrive in reverse order (fi_cq(3)).
    pub(crate) backwards: bool,
    /// The error of an event that belongs to no operation (EFA; source: efa_base_ep.c).
    pub(crate) trouble: Option<i32>,
    /// Whether endpoints refuse to close and continue to work (cxi, sockets; source: cxip_ep.c, sock_ep.c).
    pub(crate) stays_open: bool,
    /// Whether there is a queue for events of no operation; an endpoint without one is then a complaint.
    pub(crate) has_notices: bool,
    /// Whether the next read of a completion queue fails (fi_cq(3): overrun).
    pub(crate) overrun: bool,
    /// The provider's name, and the format of its addresses.
    pub(crate) provider: &'static CStr,
    pub(crate) format: u32,
    /// The mode bits that the library demands (fi_getinfo(3)), and its only kind of table, if there is only one (opx; source:
    /// fi_opx_av.c).
    pub(crate) mode: u64,
    pub(crate) av_type: i32,
    /// Whether the release of a buffer has its own completion, with the rest of the buffer (opx; source: fi_opx_endpoint.h).
    pub(crate) separate_release: bool,
    /// The endpoint for which the library accepts nothing (verbs;ofi_rxm, whose receiver has no room, observed).
    pub(crate) deaf: Option<usize>,
    /// Whether puts and gets stay under way while messages pass: they are not ordered with each other (cxi, efa: no FI_ORDER_SAW).
    pub(crate) hold_ways: bool,
    /// Whether an unknown peer keeps the queue full of invalid packets.
    pub(crate) noise: bool,
    /// The status that peers put into their refusals.
    pub(crate) refusals_say: Option<i32>,
    /// The number of registrations that succeed (RLIMIT_MEMLOCK).
    pub(crate) registrations: Option<usize>,
    pub(crate) atomics: Atomics,
    /// The version of the interface that must be requested.
    pub(crate) api: u32,
    /// The granted orders of sends and of receives, whatever was requested.
    pub(crate) orders: (u64, u64),
    /// Whether keys that must be mapped are longer than any room (FI_ETOOSMALL).
    pub(crate) keys_are_long: bool,
    /// The error with which closing a registration fails; the registration stays (EBUSY: fi_mr(3), verbs, cxi).
    pub(crate) keeps_registrations: Option<i32>,
    /// Whether each completion arrives twice.
    pub(crate) doubles: bool,
    /// The number of receives that the library accepts; 0 if it accepts all and reports no limit.
    pub(crate) receives: usize,
    /// The signal that ends the process as an endpoint opens.
    pub(crate) kills: Option<i32>,
    /// The number of objects that can be bound to endpoints.
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
    /// The error of the operation; 0 for success.
    pub(crate) error: i32,
}

/// A posted receive buffer.
pub(crate) struct Posted {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) used: usize,
    pub(crate) context: usize,
    /// Whether the buffer is for many messages; otherwise it is for one.
    pub(crate) many: bool,
}

/// A put, get or atomic under way.
pub(crate) struct Way {
    pub(crate) put: bool,
    /// The atomic, if this is one. Its local pieces are its operand, its comparand, and the room for its result.
    pub(crate) atomic: Option<crate::atomics::Native>,
    pub(crate) local: Vec<(usize, usize)>,
    /// The address in the target's memory, checked when the operation was posted, as in software providers.
    pub(crate) remote: usize,
    pub(crate) from: usize,
    /// The operation's context; `None` if the operation has already completed.
    pub(crate) context: Option<usize>,
    /// The key with which the operation was posted.
    pub(crate) key: u64,
}

#[derive(Default)]
pub(crate) struct End {
    pub(crate) open: bool,
    /// The number that distinguishes this endpoint from others that had its place.
    pub(crate) serial: u64,
    /// The domain on which the endpoint was opened, and whether the endpoint has a table of peers.
    pub(crate) domain: usize,
    pub(crate) has_table: bool,
    /// The number of completions that fit into the endpoint's queue.
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
    /// The endpoint to which the registration is bound.
    pub(crate) bound: Option<usize>,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) manners: Manners,
    pub(crate) ends: Vec<End>,
    pub(crate) memory: HashMap<u64, Memory>,
    pub(crate) next_key: u64,
    /// The number of endpoints so far.
    pub(crate) serial: u64,
    /// The queues and tables, with the endpoint that depends on each; the domains, with the fabric on which each depends.
    pub(crate) bound: HashMap<usize, (usize, u64)>,
    pub(crate) fabrics: HashMap<usize, usize>,
    /// The unbound queues, with the number of completions that fit.
    pub(crate) rooms: HashMap<usize, usize>,
    /// The mapped keys: for each, the domain that mapped it, and its target.
    pub(crate) mapped: HashMap<u64, (usize, u64)>,
    /// The lists of offers and of hints that were not freed yet.
    pub(crate) lists: HashSet<usize>,
    /// A message that the next one overtakes.
    pub(crate) aside: Option<Vec<u8>>,
    /// The number of queries for events that belong to no operation.
    pub(crate) looks: usize,
    /// The number of reads of completion queues.
    pub(crate) reads: usize,
    /// The messages to the host.
    pub(crate) told: Vec<String>,
    /// Violations of libfabric's rules.
    pub(crate) complaints: Vec<String>,
}

/// An action for each read of a queue, and the number of the queue's endpoint.
type Beside = (usize, Box<dyn FnMut()>);

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
    static BESIDE: RefCell<Option<Beside>> = const { RefCell::new(None) };
}

/// Runs `act` at each read of the endpoint's queue. `act` stands for concurrent actions of other processes.
pub(crate) fn beside(at: usize, act: impl FnMut() + 'static) {
    BESIDE.with(|beside| *beside.borrow_mut() = Some((at, Box::new(act))));
}

pub(crate) fn act_beside(at: usize) {
    // The action is removed during the call, because the action may read queues itself.
    let taken = BESIDE.with(|beside| beside.borrow_mut().take_if(|beside| beside.0 == at));
    if let Some((at, mut act)) = taken {
        act();
        BESIDE.with(|beside| *beside.borrow_mut() = Some((at, act)));
    }
}

pub(crate) fn world<T>(look: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| look(&mut world.borrow_mut()))
}

/// Changes the behaviour of the simulated library.
pub(crate) fn manners(set: impl FnOnce(&mut Manners)) {
    world(|world| set(&mut world.manners));
}

/// Checks memory that is freed: an operation or a registration that leads to it is a complaint.
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
    /// Checks whether a post is refused for the time being.
    pub(crate) fn refuses(&mut self, to: usize) -> bool {
        if self.manners.deaf == Some(to) {
            return true;
        }
        let refused = self.manners.eagain > 0;
        self.manners.eagain = self.manners.eagain.saturating_sub(1);
        refused
    }

    /// Queues `count` invalid packets from an unknown peer.
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

    /// Records a complaint about more completions than fit into the queue: the library would lose them (fi_cq(3): overrun).
    pub(crate) fn check_room(&mut self, at: usize) {
        let (waiting, room) = (self.ends[at].entries.len(), self.ends[at].room);
        if waiting > room && !self.manners.doubles {
            self.complaints.push(format!("{waiting} completions in a queue of {room}"));
        }
    }
}

/// Reports an error with a context of no posted operation.
pub(crate) fn fail_nothing(at: usize, error: i32, context: usize) {
    world(|world| {
        world.ends[at].entries.push_back(Entry { context, flags: 0, at: 0, len: 0, error });
    });
}

/// Reports an error of a receive of this endpoint, or of no operation. A buffer for many messages stays posted.
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

/// Delivers the late completions.
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

/// Returns the number of registrations.
pub(crate) fn registrations() -> usize {
    world(|world| world.memory.len())
}
