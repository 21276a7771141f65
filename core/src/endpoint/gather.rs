//! Messages gathered from regions.

use super::EndpointState;
use super::post::Posted;
use super::queued::{Failed, GatheredMessage};
use crate::Status;

impl EndpointState {
    /// Sends a message of pieces: in place if its lane gathers this length and this number of pieces in one call, otherwise packed.
    pub(crate) fn attempt_gather(&self, op: &GatheredMessage) -> Result<bool, Failed> {
        let &GatheredMessage { id, header, ref pieces, len, request } = op;
        // The message was queued for a lane with a larger limit.
        if len > self.most() {
            return Err(self.by_message_lane(Status::TooLarge));
        }
        let done = || {
            self.shared.part(request, Ok(0));
            true
        };
        let gathered = self.message.max_gathered();
        let pair = self.route.message().filter(|_| gathered > 0 && len <= gathered);
        let attr = pair.map(|pair| (pair.interface, &self.shared.interfaces[pair.interface].attr));
        let gathers = |max_iov: u32| pieces.within(0, len, max_iov as usize) == len;
        let Some((interface, attr)) = attr.filter(|(_, attr)| gathers(attr.max_iov)) else {
            return match self.pack_now(id, header, len, |out| pieces.pack(0, len, out)) {
                Ok(()) => Ok(done()),
                Err(Status::Again) => Ok(false),
                Err(status) => Err(self.by_message_lane(status)),
            };
        };
        let code = self.gather_now(op, (attr.caps, interface)).map_err(Failed::by_nobody)?;
        let posted = self.posted(request, interface, code, 0)?;
        Ok(match posted {
            Posted::Done(_) => done(),
            Posted::Pending => true,
            Posted::NoRoom => false,
        })
    }
}
