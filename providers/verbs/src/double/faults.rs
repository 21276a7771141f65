//! Injected faults of the device double.

use core::cell::Cell;
use core::ffi::{c_int, c_uint};

type Handler = Box<dyn FnOnce()>;

thread_local! {
    static INTERRUPTS: Cell<Option<Handler>> = const { Cell::new(None) };
}

/// Runs `handler` in the middle of the next poll of a completion queue, as a signal handler would run.
pub(crate) fn interrupt_poll(handler: impl FnOnce() + 'static) {
    INTERRUPTS.set(Some(Box::new(handler)));
}

pub(super) fn be_interrupted() {
    if let Some(handler) = INTERRUPTS.take() {
        handler();
    }
}

/// Injected faults of the device double.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// The error number with which posting a send fails; 0 for no failure.
    pub(crate) refuse_sends: c_int,
    /// The number of sends that succeed before `refuse_sends` applies.
    pub(crate) sends_before: usize,
    /// The number of further sends before one fails, and the status of its failure.
    pub(crate) fails_after: Option<(usize, c_uint)>,
    /// Whether destroying a queue pair fails.
    pub(crate) keeps_pairs: bool,
    /// Whether sends outside ERR neither complete nor fail.
    pub(crate) stuck: bool,
    /// Whether the network is cut: sends fail after the last retry.
    pub(crate) cut: bool,
    /// Whether a queue pair in ERR flushes nothing and reports nothing.
    pub(crate) hung: bool,
    /// The number of polls of a completion queue after which a queue pair in ERR flushes.
    pub(crate) late: u32,
    /// Whether a queue pair in ERR does not report its last receive.
    pub(crate) mute: bool,
    /// The error number with which posting receives fails; 0 for no failure.
    pub(crate) refuse_receives: c_int,
    /// A queue pair, and the number of further receives that its receive queue accepts; it refuses the following ones.
    pub(crate) refuse_receives_of: Option<(u32, usize)>,
    /// The number of queue pair creations that fail for lack of memory.
    pub(crate) refuse_pairs: usize,
    /// The number of completion queue creations that fail for lack of memory; below, whether all creations of shared receive queues
    /// fail so.
    pub(crate) refuse_completion_queues: usize,
    pub(crate) no_receive_queues: bool,
    /// The limits on queue pairs and on completion queue entries.
    pub(crate) most_pairs: Option<usize>,
    pub(crate) most_completions: Option<c_int>,
    /// Whether arriving messages have no immediate value.
    pub(crate) no_number: bool,
    /// Whether sending datagrams fails.
    pub(crate) no_link: bool,
    /// Whether creating address handles fails: no port is reachable.
    pub(crate) no_way: bool,
    /// The GID indices for which creating address handles fails.
    pub(crate) dead_gids: Vec<u8>,
    /// Whether polling a completion queue fails.
    pub(crate) polls_fail: bool,
    /// The number of polls of a completion queue that find an additional receive without payload.
    pub(crate) chatter: u32,
    /// The limit on registered bytes in total.
    pub(crate) locked: Option<usize>,
    /// The addresses of read-only mappings.
    pub(crate) read_only: core::ops::Range<u64>,
}

impl Faults {
    /// Checks whether the next send fails.
    pub(super) fn refuses_send(&mut self) -> bool {
        let refuses = self.sends_before == 0 && self.refuse_sends != 0;
        self.sends_before = self.sends_before.saturating_sub(1);
        refuses
    }
}
