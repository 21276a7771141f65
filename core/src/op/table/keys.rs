//! The requests for the keys of handles.

use super::*;
use crate::op::Memory;

impl Table {
    /// Opens a key request of one endpoint (`of`) that the same or another endpoint (`owner`) sends. The request reports its
    /// outcome, and no flush does, because it accesses no memory. `Again`: that endpoint already has `limit` open operations.
    pub(crate) fn open_key(&mut self, owner: usize, of: Id, handle: u64) -> Result<Id, Status> {
        let id = self.open(owner, Kind::Key)?;
        if let Some(hot) = self.slab.get_mut(id) {
            hot.set(TOLD);
        }
        // The request is stored in the operation, so it stays there when another endpoint takes the operation over.
        let asks = [of.raw().to_le_bytes(), handle.to_le_bytes()].concat();
        self.set_local_buffer(id, LocalBuffer::held(Memory::Bytes(asks.into()), 0, 16));
        Ok(id)
    }

    /// Returns the id of the requesting endpoint, and the handle.
    pub(crate) fn key_asked(&self, id: Id) -> Option<(u64, u64)> {
        let _ = self.asked(id).filter(|(_, kind)| *kind == Kind::Key)?;
        let Memory::Bytes(asks) = &self.slab.cold(id)?.local_buffer.as_ref()?.memory else {
            return None;
        };
        let (of, handle) = asks.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*of), u64::from_le_bytes(handle.try_into().ok()?)))
    }
}
