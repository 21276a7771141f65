//! Programs: the steps of two workers of one context against a third worker of another context, and the lanes.

mod lie;

pub(crate) use lie::Lie;
use proptest::prelude::*;
use tieline_fake::Lane;
use tieline_plugin_api::caps;

/// The number of words for atomics, each of which has its own width. The cells for puts and gets follow the words.
pub(crate) const WORDS: usize = 4;
pub(crate) const CELLS: usize = 3;
/// The number of bytes in a cell; odd, so that cells are not aligned.
pub(crate) const CELL: usize = 301;
pub(crate) const FIRST_CELL: usize = 64;
/// The number of bytes in the target's memory.
pub(crate) const TARGET: usize = FIRST_CELL + CELLS * CELL;
/// The name of the better of two lanes to memory.
pub(crate) const BETTER: &str = "better";
/// The number of workers that post; each worker has one endpoint at a time.
pub(crate) const ENDS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Region,
    Local,
    Bytes,
    Pieces,
    /// Memory by its address.
    Raw,
    /// A list of descriptors, some of them by address.
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Get {
    Region,
    Pieces,
    Raw,
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    Plain,
    Packed,
    Regions,
    Headed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    Listens,
    Answers,
    Connects,
    Panics,
}

/// The handling of a requested acknowledgement by the target's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledges {
    /// The handler returns without taking it.
    Returns,
    Keeps,
    Drops,
    Panics,
}

/// The operations that a notification follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    Everything,
    /// Up to three operations of the end that have not been tested, from this one on.
    Operations(usize),
    /// The same operations by their numbers.
    Numbers(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Put {
        end: usize,
        how: Put,
        cell: usize,
        len: usize,
        /// Whether the put notifies the target with its number.
        tells: bool,
    },
    Get {
        end: usize,
        cell: usize,
        len: usize,
        how: Get,
    },
    Atomic {
        end: usize,
        word: usize,
        fetch: bool,
        how: usize,
    },
    Send {
        end: usize,
        how: Send,
        len: usize,
        handler: Handler,
    },
    /// Sends a message whose operation ends with the target's acknowledgement.
    Deliver {
        end: usize,
        len: usize,
        how: Acknowledges,
    },
    /// Makes the target give or drop an acknowledgement that it has kept.
    Acknowledge {
        nth: usize,
        gives: bool,
    },
    Notify {
        end: usize,
        follows: Follows,
        len: usize,
    },
    /// Posts puts that the end's counter counts, and a notification that follows the counter.
    Batch {
        end: usize,
        cell: usize,
        puts: usize,
    },
    /// Looks up the key of a number under which the target has published its memory, or of a number without memory.
    Number {
        end: usize,
        published: bool,
    },
    /// Sends a message whose length exceeds the inline limit by this number of bytes.
    SendLong {
        end: usize,
        more: usize,
    },
    /// Makes the target receive this number of quarters of a kept rendezvous message.
    Take {
        nth: usize,
        quarters: usize,
    },
    Refuse {
        nth: usize,
    },
    Flush {
        end: usize,
    },
    FlushMessages {
        end: usize,
    },
    FlushWorker {
        end: usize,
    },
    Fence {
        end: usize,
    },
    /// Makes progress on one worker, by its index: those of the ends first, then the target's.
    Turn {
        who: usize,
        times: usize,
    },
    /// Drops the requests of this end, whether they are pending or not.
    Forget {
        end: usize,
    },
    /// Drops the end's endpoint and keys, and connects again.
    Reconnect {
        end: usize,
    },
    Break {
        end: usize,
    },
    Cancel {
        end: usize,
        nth: usize,
    },
    /// Makes the next call of a slot of one of the end's lanes fail, inline or later; the endpoint continues.
    Fail {
        end: usize,
        slot: usize,
        lane: usize,
        later: bool,
    },
    /// Closes the memory of ended or forgotten operations if it is not in use.
    Close {
        end: usize,
    },
    /// Closes the end's worker, with unlimited time or with no time. The end takes no further steps.
    CloseWorker {
        end: usize,
        patient: bool,
    },
    /// Forges a message of the library with one field changed, from one side to the other.
    Forge {
        end: usize,
        to_target: bool,
        lie: Lie,
        wrong: usize,
    },
    Lie {
        end: usize,
        id: u32,
        of: usize,
        status: bool,
    },
}

impl Step {
    pub(crate) fn end(self) -> Option<usize> {
        match self {
            Step::Turn { .. }
            | Step::Take { .. }
            | Step::Refuse { .. }
            | Step::Acknowledge { .. } => None,
            Step::Put { end, .. }
            | Step::Get { end, .. }
            | Step::Atomic { end, .. }
            | Step::Send { end, .. }
            | Step::SendLong { end, .. }
            | Step::Deliver { end, .. }
            | Step::Notify { end, .. }
            | Step::Batch { end, .. }
            | Step::Number { end, .. }
            | Step::Flush { end }
            | Step::FlushMessages { end }
            | Step::FlushWorker { end }
            | Step::Fence { end }
            | Step::Forget { end }
            | Step::Reconnect { end }
            | Step::Break { end }
            | Step::Cancel { end, .. }
            | Step::Fail { end, .. }
            | Step::Close { end }
            | Step::CloseWorker { end, .. }
            | Step::Forge { end, .. }
            | Step::Lie { end, .. } => Some(end),
        }
    }

    fn of(self, end: usize) -> Step {
        match self {
            Step::Put { how, cell, len, tells, .. } => Step::Put { end, how, cell, len, tells },
            Step::Get { cell, len, how, .. } => Step::Get { end, cell, len, how },
            Step::Atomic { word, fetch, how, .. } => Step::Atomic { end, word, fetch, how },
            other => other,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) again: u32,
    pub(crate) declines: u32,
    pub(crate) at_once: u32,
    pub(crate) delay: u64,
    pub(crate) report: u64,
    pub(crate) batch: usize,
    pub(crate) lends: bool,
    pub(crate) cancels: bool,
    pub(crate) max_iov: u32,
    pub(crate) max_put: usize,
    pub(crate) max_get: usize,
    pub(crate) max_short_put: usize,
    pub(crate) max_short: usize,
    pub(crate) max_packed: usize,
    /// The length of the longest gathered message; 0 if there is none.
    pub(crate) max_zcopy: usize,
    /// The number of bits in a notification word of a lane to memory; 0 if the lane does not notify.
    pub(crate) notify_bits: u32,
}

impl Manner {
    fn of(self, lane: Lane) -> Lane {
        let messages = lane.max_packed > 0;
        let tells = lane.caps & caps::PUT != 0 && self.notify_bits > 0;
        let lane = if tells { lane.telling(self.notify_bits) } else { lane };
        let cancels = if self.cancels { caps::CANCEL } else { 0 };
        Lane {
            caps: lane.caps | cancels,
            again: self.again,
            declines: self.declines,
            at_once: self.at_once,
            delay: self.delay,
            report: self.report,
            batch: self.batch,
            lends: self.lends && messages,
            max_iov: self.max_iov,
            max_put: self.max_put,
            max_get: self.max_get,
            max_short_put: self.max_short_put,
            max_short: if messages { self.max_short } else { 0 },
            max_packed: if messages { self.max_packed } else { 0 },
            max_zcopy: if messages { self.max_zcopy } else { 0 },
            ..lane
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Whole,
    Messages,
    Two,
    TwoWithoutAtomics,
    Synchronous,
    TwoProviders,
    /// Two lanes to memory whose operations complete later. One of an end's two keys leads over the second lane only.
    TwoMemories,
}

#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) wants: Wants,
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) manners: [Manner; 2],
    pub(crate) queue_bytes: usize,
    pub(crate) steps: Vec<Step>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Program { seed, shape, queue_bytes, .. } = self;
        writeln!(f, "seed {seed}, {shape:?}, queues of {queue_bytes} bytes")?;
        for manner in &self.manners {
            writeln!(f, "  {manner:?}")?;
        }
        for (at, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {at:3} {step:?}")?;
        }
        Ok(())
    }
}

impl Program {
    /// Returns the lanes of the program, if the network is a fake.
    pub(crate) fn lanes(&self) -> Vec<Lane> {
        let [first, second] = self.manners;
        match self.shape {
            Shape::Whole => vec![first.of(Lane::whole("all"))],
            Shape::Messages => vec![first.of(Lane::messages("am"))],
            Shape::Two => {
                let memory = Lane::memory("rma").with(caps::RMA_LIST);
                vec![first.of(Lane::messages("am")), second.of(memory)]
            }
            Shape::TwoWithoutAtomics => {
                let memory = Lane::memory("rma").without_atomics();
                vec![first.of(Lane::messages("am")), second.of(memory)]
            }
            Shape::Synchronous => {
                let memory = Lane::memory("rma").synchronous().with(caps::RMA_LIST);
                vec![first.of(Lane::messages("am")), second.of(memory)]
            }
            Shape::TwoProviders => {
                let memory = Lane::memory("rma").on_other_provider();
                vec![first.of(Lane::messages("am")), second.of(memory)]
            }
            Shape::TwoMemories => {
                let better = Lane { priority: 9, ..Lane::memory(BETTER) }.with(caps::RMA_LIST);
                let other = second.of(Lane::memory("other"));
                vec![first.of(Lane::messages("am")), first.of(better), other]
            }
        }
    }
}

fn manner() -> impl Strategy<Value = Manner> {
    let chance = || prop_oneof![3 => Just(0u32), 1 => 1..800u32];
    let polls = || prop_oneof![1 => Just(0u64), 1 => 1..6u64, 1 => 6..30u64];
    let limit = || prop_oneof![2 => Just(0usize), 1 => Just(97usize), 1 => Just(256usize)];
    let sizes = (
        limit(),
        limit(),
        prop_oneof![Just(1u32), Just(2), Just(16)],
        prop_oneof![Just(8usize), Just(64)],
        prop_oneof![Just(200usize), Just(2048)],
        prop_oneof![Just(0usize), Just(120), Just(4096)],
        prop_oneof![Just(0u32), Just(8), Just(16), Just(32)],
        prop_oneof![Just(0usize), Just(8), Just(100)],
    );
    let times = (chance(), chance(), chance(), polls(), polls());
    (times, prop_oneof![Just(1usize), Just(16)], [any::<bool>(), any::<bool>()], sizes).prop_map(
        |(
            (again, declines, at_once, delay, report),
            batch,
            [lends, cancels],
            (
                max_put,
                max_get,
                max_iov,
                max_short,
                max_packed,
                max_zcopy,
                notify_bits,
                max_short_put,
            ),
        )| {
            Manner {
                again,
                declines,
                at_once,
                delay,
                report,
                batch,
                lends,
                cancels,
                max_iov,
                max_put,
                max_get,
                max_short_put,
                max_short,
                max_packed,
                max_zcopy,
                notify_bits,
            }
        },
    )
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    /// Whether the program has steps that only the fake provider supports: breaking, lying, waiting for a worker of the same
    /// thread.
    pub(crate) fake: bool,
    pub(crate) panics: bool,
    pub(crate) lies: bool,
    pub(crate) limits: bool,
    pub(crate) fences: bool,
    /// Whether a worker's flush succeeds although an endpoint broke before.
    pub(crate) spoils: bool,
    /// Whether operations without a value return 0.
    pub(crate) values: bool,
}

impl Wants {
    pub(crate) const ALL: Wants = Wants {
        fake: true,
        panics: true,
        lies: true,
        limits: true,
        fences: true,
        spoils: true,
        values: true,
    };

    fn allows(self, shape: Shape, step: &Step) -> bool {
        match step {
            Step::Send { handler: Handler::Panics, .. }
            | Step::Deliver { how: Acknowledges::Panics, .. } => self.panics,
            Step::Lie { .. } | Step::Forge { .. } => self.fake && self.lies,
            Step::Break { .. } | Step::FlushWorker { .. } => self.fake,
            Step::CloseWorker { patient, .. } => self.fake || !patient,
            // Such a lane has completed every operation that it accepted.
            Step::Fail { .. } => self.fake && !matches!(shape, Shape::Synchronous),
            Step::Fence { .. } => self.fences || matches!(shape, Shape::Whole | Shape::Messages),
            _ => true,
        }
    }

    fn apply(self, mut program: Program) -> Program {
        let shape = program.shape;
        program.steps.retain(|step| self.allows(shape, step));
        let breaks = program.steps.iter().any(|step| matches!(step, Step::Break { .. }));
        if !self.spoils && breaks {
            program.steps.retain(|step| !matches!(step, Step::FlushWorker { .. }));
        }
        if !self.limits {
            for manner in &mut program.manners {
                (manner.max_put, manner.max_get) = (0, 0);
            }
        }
        program
    }
}

fn memory_step() -> impl Strategy<Value = Step> {
    let end = || 0..ENDS;
    let len = || prop_oneof![1 => Just(0usize), 3 => 1..9usize, 3 => 9..CELL];
    let put = prop_oneof![
        Just(Put::Region),
        Just(Put::Local),
        Just(Put::Bytes),
        Just(Put::Pieces),
        Just(Put::Raw),
        Just(Put::List)
    ];
    let get = prop_oneof![Just(Get::Region), Just(Get::Pieces), Just(Get::Raw), Just(Get::List)];
    prop_oneof![
        6 => (end(), put, 0..CELLS, len(), prop::bool::weighted(0.4))
            .prop_map(|(end, how, cell, len, tells)| Step::Put { end, how, cell, len, tells }),
        3 => (end(), 0..CELLS, len(), get)
            .prop_map(|(end, cell, len, how)| Step::Get { end, cell, len, how }),
        5 => (end(), 0..WORDS, any::<bool>(), 0..3usize)
            .prop_map(|(end, word, fetch, how)| Step::Atomic { end, word, fetch, how }),
    ]
}

/// Generates messages with acknowledgements, notifications and lookups.
fn following_step() -> impl Strategy<Value = Step> {
    let end = || 0..ENDS;
    let how = prop_oneof![
        2 => Just(Acknowledges::Returns),
        3 => Just(Acknowledges::Keeps),
        1 => Just(Acknowledges::Drops),
        1 => Just(Acknowledges::Panics),
    ];
    let follows = prop_oneof![
        2 => Just(Follows::Everything),
        1 => (0..8usize).prop_map(Follows::Operations),
        1 => (0..8usize).prop_map(Follows::Numbers),
    ];
    prop_oneof![
        3 => (end(), 0..170usize, how).prop_map(|(end, len, how)| Step::Deliver { end, len, how }),
        3 => (0..8usize, prop::bool::weighted(0.7))
            .prop_map(|(nth, gives)| Step::Acknowledge { nth, gives }),
        4 => (end(), follows, 0..170usize)
            .prop_map(|(end, follows, len)| Step::Notify { end, follows, len }),
        2 => (end(), 0..CELLS, 0..4usize)
            .prop_map(|(end, cell, puts)| Step::Batch { end, cell, puts }),
        1 => (end(), prop::bool::weighted(0.8))
            .prop_map(|(end, published)| Step::Number { end, published }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let end = || 0..ENDS;
    let send =
        prop_oneof![Just(Send::Plain), Just(Send::Packed), Just(Send::Regions), Just(Send::Headed)];
    let handler = prop_oneof![
        3 => Just(Handler::Listens),
        1 => Just(Handler::Answers),
        1 => Just(Handler::Connects),
        1 => Just(Handler::Panics),
    ];
    prop_oneof![
        14 => memory_step(),
        7 => following_step(),
        5 => (end(), send, 0..190usize, handler)
            .prop_map(|(end, how, len, handler)| Step::Send { end, how, len, handler }),
        3 => (end(), 0..9000usize).prop_map(|(end, more)| Step::SendLong { end, more }),
        5 => (0..8usize, 0..=4usize).prop_map(|(nth, quarters)| Step::Take { nth, quarters }),
        1 => (0..8usize).prop_map(|nth| Step::Refuse { nth }),
        2 => end().prop_map(|end| Step::Flush { end }),
        2 => end().prop_map(|end| Step::FlushMessages { end }),
        1 => end().prop_map(|end| Step::FlushWorker { end }),
        3 => end().prop_map(|end| Step::Fence { end }),
        8 => (0..=ENDS, 1..8usize).prop_map(|(who, times)| Step::Turn { who, times }),
        1 => end().prop_map(|end| Step::Forget { end }),
        1 => end().prop_map(|end| Step::Reconnect { end }),
        1 => end().prop_map(|end| Step::Break { end }),
        2 => end().prop_map(|end| Step::Close { end }),
        1 => (end(), prop::bool::weighted(0.7))
            .prop_map(|(end, patient)| Step::CloseWorker { end, patient }),
        3 => (end(), any::<bool>(), 0..Lie::ALL.len(), any::<usize>())
            .prop_map(|(end, to_target, lie, wrong)| Step::Forge { end, to_target, lie: Lie::ALL[lie], wrong }),
        2 => (end(), 0..8usize).prop_map(|(end, nth)| Step::Cancel { end, nth }),
        1 => (end(), 0..5usize, 0..3usize, prop::bool::weighted(0.8))
            .prop_map(|(end, slot, lane, later)| Step::Fail { end, slot, lane, later }),
        2 => (end(), 0xf000..0xf009u32, 0..12usize, any::<bool>())
            .prop_map(|(end, id, of, status)| Step::Lie { end, id, of, status }),
    ]
}

/// Generates one step, or two memory operations of one end with a fence between them.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ordered = (0..ENDS, memory_step(), memory_step())
        .prop_map(|(end, first, second)| vec![first.of(end), Step::Fence { end }, second.of(end)]);
    prop_oneof![8 => step().prop_map(|step| vec![step]), 1 => ordered]
}

pub(crate) fn programs(wants: Wants, most: usize) -> impl Strategy<Value = Program> {
    let shape = prop_oneof![
        Just(Shape::Whole),
        Just(Shape::Messages),
        Just(Shape::Two),
        Just(Shape::TwoWithoutAtomics),
        Just(Shape::Synchronous),
        Just(Shape::TwoProviders),
        Just(Shape::TwoMemories),
    ];
    // The bounds of the queue: for one operation, for some, and for more than a program has.
    let queue = prop_oneof![Just(64usize), Just(2 << 10), Just(256 << 10)];
    let steps = prop::collection::vec(steps(), 1..most)
        .prop_map(|pieces| pieces.into_iter().flatten().collect::<Vec<Step>>());
    (any::<u64>(), shape, [manner(), manner()], queue, steps).prop_map(
        move |(seed, shape, manners, queue_bytes, steps)| {
            wants.apply(Program { wants, seed, shape, manners, queue_bytes, steps })
        },
    )
}
