//! Injected faults of the device double.

use core::ffi::{c_int, c_uint};

/// Injected faults of the device double.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Posting a send fails with this error number.
    pub(crate) refuse_sends: c_int,
    /// The number of sends that succeed first.
    pub(crate) sends_before: usize,
    /// After this many further sends, one fails with this status.
    pub(crate) fails_after: Option<(usize, c_uint)>,
    /// Whether destroying a queue pair fails.
    pub(crate) keeps_pairs: bool,
    /// Whether sends neither complete nor fail.
    pub(crate) stuck: bool,
    /// Whether the network is cut: sends fail after the last retry.
    pub(crate) cut: bool,
    /// Whether a queue pair in ERR flushes nothing and reports nothing.
    pub(crate) hung: bool,
    /// A queue pair in ERR flushes after this many polls of a completion queue.
    pub(crate) late: u32,
    /// Whether a queue pair in ERR does not report its last receive.
    pub(crate) mute: bool,
    /// Posting receives fails with this error number.
    pub(crate) refuse_receives: c_int,
    /// `refuse_receives` applies only to this queue pair, after this many receives.
    pub(crate) refuse_receives_of: Option<(u32, usize)>,
    /// Creating this many queue pairs fails for lack of memory.
    pub(crate) refuse_pairs: usize,
    /// Creating this many completion queues fails for lack of memory; below, the same for all shared receive queues.
    pub(crate) refuse_completion_queues: usize,
    pub(crate) no_receive_queues: bool,
    /// Limits on queue pairs and on completion queue entries.
    pub(crate) most_pairs: Option<usize>,
    pub(crate) most_completions: Option<c_int>,
    /// Whether arriving messages have no immediate value.
    pub(crate) no_number: bool,
    /// Whether sending datagrams fails.
    pub(crate) no_link: bool,
    /// Whether creating address handles fails: no port is reachable.
    pub(crate) no_way: bool,
    /// Creating address handles with these GID indices fails.
    pub(crate) dead_gids: Vec<u8>,
    /// Whether polling a completion queue fails.
    pub(crate) polls_fail: bool,
    /// This many polls of a completion queue find an additional receive without payload.
    pub(crate) chatter: u32,
    /// The limit on registered bytes in total.
    pub(crate) locked: Option<usize>,
    /// Addresses of read-only mappings.
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
