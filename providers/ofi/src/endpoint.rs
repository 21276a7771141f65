//! The endpoint: the sending end of a channel.

use crate::engine::{Engine, RemoteKey};
use std::cell::RefCell;
use std::rc::Rc;
use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::{Endpoint, Failure, Packer, Posted, RmaOp, Status};

/// An endpoint: a channel to one peer.
pub struct OfiEndpoint {
    /// The engine of the interface; see [`super::interface::OfiInterface`].
    engine: Rc<RefCell<Engine>>,
    channel: usize,
}

impl OfiEndpoint {
    pub(crate) fn new(engine: Rc<RefCell<Engine>>, channel: usize) -> OfiEndpoint {
        OfiEndpoint { engine, channel }
    }
}

impl Drop for OfiEndpoint {
    fn drop(&mut self) {
        if let Ok(mut engine) = self.engine.try_borrow_mut() {
            engine.close(self.channel);
        }
    }
}

impl Endpoint for OfiEndpoint {
    type Key = RemoteKey;

    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        // The engine is already borrowed if a signal handler that calls `exit` has interrupted another call.
        let mut engine = self.engine.try_borrow_mut().map_err(|_| Status::Again)?;
        engine.send(self.channel, id, header, payload)
    }

    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        most: usize,
    ) -> Result<usize, Status> {
        let (packing, room) = {
            let mut engine = self.engine.borrow_mut();
            let packing = engine.begin(self.channel, most)?;
            let room = packing.room(&mut engine);
            (packing, room)
        };
        // No borrow is held while the application packs: its packer may send, also on this interface.
        let packed = room.pack(packer);
        let mut engine = self.engine.borrow_mut();
        match packed {
            Ok(len) => engine.finish(packing, id, header, len),
            Err(status) => {
                engine.give_up(packing);
                Err(status)
            }
        }
    }

    fn put(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.engine.borrow_mut().transfer(self.channel, true, key, op)
    }

    fn get(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.engine.borrow_mut().transfer(self.channel, false, key, op)
    }

    fn atomic(&self, key: &RemoteKey, op: &Atomic, _result: &mut u64) -> Posted {
        self.engine.borrow_mut().atomic(self.channel, key, op)
    }

    fn flush(&self, cookie: u64) -> Posted {
        self.engine.borrow_mut().flush(self.channel, cookie)
    }

    /// Returns an error, so that the core flushes instead: libfabric's providers guarantee little ordering and document little of
    /// it.
    fn fence(&self) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        self.engine.borrow_mut().import_key(self.channel, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::{Side, settings};

    /// A signal handler that calls `exit` may interrupt a call that changes the state.
    #[test]
    fn message_posted_within_another_call_finds_no_room() {
        let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
        let endpoint = near.connected(&mut far, 7);
        let call = endpoint.engine.borrow_mut();
        assert_eq!(endpoint.am_short(1, 7, b"inside").err(), Some(Status::Again));
        drop(call);
        assert!(endpoint.am_short(1, 8, b"after").is_ok());
    }
}
