//! The message lane of an endpoint, as a part that owns its state.

use super::lane::Lane;
use crate::Status;
use crate::interface::LaneLimits;
use std::cell::Cell;
use tieline_host::abi::{PackBuffer, RawEndpoint};
use tieline_plugin_api::OK;

/// The lane that carries an endpoint's messages. Before a lane is open, the limits are those of the lanes that may be opened.
pub(super) struct MessageLane {
    raw: Cell<RawEndpoint>,
    max_short: Cell<usize>,
    max_packed: Cell<usize>,
    max_zcopy: Cell<usize>,
    /// The module may keep sent messages until its next poll, to write several of them with one system call.
    keeps: Cell<bool>,
}

impl MessageLane {
    /// Returns the state without a lane, with the limits of the lanes that may be opened.
    pub(super) fn unopened(limits: Option<LaneLimits>) -> MessageLane {
        MessageLane {
            raw: Cell::new(RawEndpoint::nowhere()),
            max_short: Cell::new(limits.map_or(0, |limits| limits.max_short)),
            max_packed: Cell::new(limits.map_or(0, |limits| limits.max_packed)),
            max_zcopy: Cell::new(0),
            keeps: Cell::new(false),
        }
    }

    /// Uses this lane from this call on. `keeps`: its module may keep messages until its next poll.
    pub(super) fn open(&self, lane: Lane, keeps: bool) {
        self.raw.set(lane.raw);
        self.max_short.set(lane.limits.max_short);
        self.max_packed.set(lane.limits.max_packed);
        self.max_zcopy.set(lane.limits.max_zcopy);
        self.keeps.set(keeps);
    }

    /// Stops using the lane. The limits stay.
    pub(super) fn leave(&self) {
        self.raw.set(RawEndpoint::nowhere());
    }

    /// Calls no function of the lane's provider any more.
    pub(super) fn cut_off(&self) {
        let mut raw = self.raw.get();
        raw.fail();
        self.raw.set(raw);
    }

    /// Returns the lane's provider endpoint.
    #[inline(always)]
    pub(super) fn raw(&self) -> RawEndpoint {
        self.raw.get()
    }

    /// Checks whether the lane's module may keep sent messages until its next poll.
    #[inline]
    pub(super) fn keeps_until_poll(&self) -> bool {
        self.keeps.get()
    }

    /// Returns the length of the longest message that the lane sends inline.
    #[inline(always)]
    pub(super) fn max_short(&self) -> usize {
        self.max_short.get()
    }

    /// Returns the length of the longest message that the lane packs.
    #[inline]
    pub(super) fn max_packed(&self) -> usize {
        self.max_packed.get()
    }

    /// Returns the length of the longest message that the open lane gathers in place.
    pub(super) fn max_gathered(&self) -> usize {
        self.max_zcopy.get()
    }

    /// Returns the length of the longest eager message.
    pub(super) fn most(&self) -> usize {
        self.max_packed.get().max(self.max_short.get())
    }

    /// Posts a message in the form that the lane supports for its length.
    #[inline]
    pub(super) fn post(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Status> {
        if payload.len() <= self.max_short.get() {
            return match self.raw.get().am_short(u32::from(id), header, payload) {
                OK => Ok(()),
                code => Err(Status::from_code(code)),
            };
        }
        self.pack(id, header, payload.len(), |out| out.put(payload))
    }

    /// Posts a packed message of at most `max` bytes.
    #[inline]
    pub(super) fn pack(
        &self,
        id: u16,
        header: u64,
        max: usize,
        mut pack: impl FnMut(&mut PackBuffer<'_>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.raw.get().am_packed(u32::from(id), header, max, &mut pack).map(|_| ())
    }
}
