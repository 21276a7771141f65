//! The endpoint: the sending end of a channel.

use super::state::State;
use std::cell::RefCell;
use std::rc::Rc;
use tieline_plugin_api::{Packer, Posted, Status};

/// A channel to one peer.
pub struct UdEndpoint {
    /// The state shared with the interface; see [`super::interface::UdInterface`].
    state: Rc<RefCell<State>>,
    number: u32,
}

impl Drop for UdEndpoint {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.close(self.number);
        }
    }
}

impl UdEndpoint {
    pub(crate) fn new(state: Rc<RefCell<State>>, number: u32) -> UdEndpoint {
        UdEndpoint { state, number }
    }

    pub(crate) fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        // The state is already borrowed if a signal handler that calls `exit` has interrupted another call.
        let mut state = self.state.try_borrow_mut().map_err(|_| Status::Again)?;
        state.send(self.number, id, header, payload)
    }

    pub(crate) fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        self.state.borrow_mut().begin_packing(self.number, max)?;
        // No borrow is held while the application packs: the packer may post on other channels and make progress. No other message
        // is posted on this channel meanwhile, so the place in the window stays reserved.
        let mut payload = vec![0; max];
        let packed = packer.pack(&mut payload);
        let bytes = packed.map(|len| &payload[..len]);
        self.state.borrow_mut().end_packing(self.number, id, header, bytes)?;
        packed
    }

    pub(crate) fn flush(&self, cookie: u64) -> Posted {
        self.state.borrow_mut().flush(self.number, cookie)
    }

    pub(crate) fn healthy(&self) -> Result<(), Status> {
        self.state.borrow().healthy(self.number)
    }
}

#[cfg(test)]
mod tests {
    use crate::double::side_of;
    use crate::{UD, VerbsEndpoint};
    use tieline_plugin_api::{Endpoint, Interface, Status};

    /// A signal handler that calls `exit` may interrupt a call that changes the state.
    #[test]
    fn message_posted_within_another_call_finds_no_room() {
        let (a, b) = (side_of(UD, &[]), side_of(UD, &[]));
        let endpoint = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
        let VerbsEndpoint::Ud(ud) = &endpoint else { panic!("a datagram module") };
        let call = ud.state.borrow_mut();
        assert_eq!(endpoint.am_short(1, 7, b"inside"), Err(Status::Again));
        drop(call);
        assert!(endpoint.am_short(1, 8, b"after").is_ok());
    }
}
