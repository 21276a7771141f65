//! The endpoint: the application's handle of one outgoing channel.

use std::rc::Rc;

use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{
    AtOnce, Endpoint, Failure, ListOp, Packer, Posted, Posting, RmaOp, Status,
};

use crate::imports::ImportedKey;
use crate::keys::Key;
use crate::sender::SendChannel;
use crate::shared::Shared;

/// A connection from an interface to one peer.
pub struct RingEndpoint {
    channel: Rc<SendChannel>,
    shared: Rc<Shared>,
}

impl RingEndpoint {
    pub(crate) fn new(channel: Rc<SendChannel>, shared: Rc<Shared>) -> RingEndpoint {
        RingEndpoint { channel, shared }
    }

    #[cfg(test)]
    pub(crate) fn channel(&self) -> &SendChannel {
        &self.channel
    }

    #[cfg(test)]
    pub(crate) fn channel_memory(&self) -> &crate::sys::Mapping {
        self.channel.memory_map()
    }
}

impl Endpoint for RingEndpoint {
    type Key = ImportedKey;

    #[inline]
    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        // The caller has tried `am_short_at_once`.
        self.channel.send_at_length(id, header, payload)
    }

    const SENDS_AT_ONCE: bool = true;

    #[inline(always)]
    fn am_short_at_once(&self, id: u32, header: u64, payload: &[u8]) -> AtOnce {
        self.channel.send_at_once(id, header, payload)
    }

    #[inline]
    fn after_at_once(&self) {
        self.channel.after_send();
    }

    #[inline]
    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        self.channel.send_packed(id, header, packer, max)
    }

    #[inline]
    fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], _cookie: u64) -> Posted {
        self.channel.send_gathered(id, header, iov)
    }

    #[inline]
    fn put(&self, key: &ImportedKey, op: &RmaOp<'_>) -> Posted {
        self.channel.status()?;
        key.put(op)
    }

    #[inline]
    fn put_notify(&self, key: &ImportedKey, op: &RmaOp<'_>, word: u32) -> Posted {
        self.channel.put_notify(word, || key.put(op))
    }

    #[inline]
    fn get(&self, key: &ImportedKey, op: &RmaOp<'_>) -> Posted {
        self.channel.status()?;
        key.get(op)
    }

    fn rma_list(&self, list: &ListOp<'_, ImportedKey>, taken: &mut usize) -> Posted {
        self.channel.status()?;
        let &ListOp { put, parts, cookie, flags } = list;
        for part in parts {
            let (iov, len) = (std::slice::from_ref(&part.local), part.local.len);
            let op = RmaOp { iov, len, offset: part.offset, cookie, flags };
            match if put { part.key.put(&op) } else { part.key.get(&op) } {
                Ok(_) => *taken += 1,
                Err(status) if *taken == 0 => return Err(status),
                // The call for the rest reports the failure.
                Err(_) => break,
            }
        }
        Ok(Posting::Done)
    }

    #[inline]
    fn atomic(&self, key: &ImportedKey, op: &Atomic, result: &mut u64) -> Posted {
        self.channel.status()?;
        key.atomic(op, result)
    }

    fn key_pointer(&self, key: &ImportedKey, offset: u64, len: u64) -> Result<*mut u8, Failure> {
        self.channel.status()?;
        key.pointer(offset, len)
    }

    fn import_key(&self, bytes: &[u8]) -> Result<ImportedKey, Failure> {
        let Some(key) = Key::parse(bytes) else {
            return Err(Failure::new(Status::KeyRejected, "a malformed shm key"));
        };
        if key.domain != self.channel.peer_domain {
            let text = "the key belongs to another process than this endpoint leads to";
            return Err(Failure::new(Status::KeyRejected, text));
        }
        match self.channel.find_key(key) {
            Err(failure) if failure.status == Status::Again => {
                let status = self.channel.request_key(key);
                // The answer may have arrived meanwhile.
                match self.channel.find_key(key) {
                    Err(failure) if failure.status == Status::Again => {}
                    found => return found,
                }
                let text = match status {
                    Status::KeyRejected => {
                        "the peer knows no such region: the key is forged or stale"
                    }
                    Status::NoMemory => {
                        "this process has no descriptor left to get the peer's memory with: raise its limit (ulimit -n)"
                    }
                    _ => "",
                };
                Err(Failure::new(status, text))
            }
            other => other,
        }
    }
}

impl Drop for RingEndpoint {
    fn drop(&mut self) {
        self.channel.close();
        self.shared.call_attention();
    }
}
