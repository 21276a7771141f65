//! What the device is told to do wrong.

use core::ffi::{c_int, c_uint};

/// What the device is told to do wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Posting a send fails with this error number.
    pub(crate) refuse_sends: c_int,
    /// So many are posted before.
    pub(crate) sends_before: usize,
    /// After so many more of them a send fails with this status.
    pub(crate) fails_after: Option<(usize, c_uint)>,
    /// No queue pair can be destroyed.
    pub(crate) keeps_pairs: bool,
    /// Sends neither complete nor fail.
    pub(crate) stuck: bool,
    /// Nothing comes through: sends fail after the last try.
    pub(crate) cut: bool,
    /// A queue pair in ERR gives nothing back, and says nothing.
    pub(crate) hung: bool,
    /// One gives back what it has when a completion queue has been looked at so often.
    pub(crate) late: u32,
    /// A queue pair in ERR does not say that it has taken its last receive.
    pub(crate) mute: bool,
    /// Posting receives fails with this error number.
    pub(crate) refuse_receives: c_int,
    /// To this queue pair alone, after so many.
    pub(crate) refuse_receives_of: Option<(u32, usize)>,
    /// There is no memory for so many of the next queue pairs.
    pub(crate) refuse_pairs: usize,
    /// There is no memory for so many of the next completion queues, nor for shared receive queues.
    pub(crate) refuse_completion_queues: usize,
    pub(crate) no_receive_queues: bool,
    /// Queue pairs that there may be, and completions that a queue may be made for.
    pub(crate) most_pairs: Option<usize>,
    pub(crate) most_completions: Option<c_int>,
    /// What arrives carries no immediate number, whatever stands in its place.
    pub(crate) no_number: bool,
    /// No datagram can be sent.
    pub(crate) no_link: bool,
    /// No address handle can be made: no way leads to any port.
    pub(crate) no_way: bool,
    /// Nor with these GIDs, by their index.
    pub(crate) dead_gids: Vec<u8>,
    /// No completion queue can be polled.
    pub(crate) polls_fail: bool,
    /// So often a look at a completion queue finds one more receive that brought nothing of use.
    pub(crate) chatter: u32,
    /// Bytes that may be registered in all.
    pub(crate) locked: Option<usize>,
    /// Addresses of memory that is mapped to be read.
    pub(crate) read_only: core::ops::Range<u64>,
}

impl Faults {
    /// Whether the next send is refused.
    pub(super) fn refuses_send(&mut self) -> bool {
        let refuses = self.sends_before == 0 && self.refuse_sends != 0;
        self.sends_before = self.sends_before.saturating_sub(1);
        refuses
    }
}
