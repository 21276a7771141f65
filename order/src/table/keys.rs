//! The requests for the keys of handles.

use super::*;

impl<B> Table<B> {
    /// Opens a key request of this endpoint. The request reports its outcome, and no flush
    /// does, because it accesses no memory.
    ///
    /// # Errors
    /// `Again` if the endpoint already has `limit` open operations; `NoMemory` if the table is full.
    pub fn open_key(&mut self, owner: usize, request: B) -> Result<Id, Status> {
        let id = self.open(owner, Kind::Key)?;
        if let Some(hot) = self.slab.get_mut(id) {
            hot.set(TOLD);
        }
        self.set_local_buffer(id, request);
        Ok(id)
    }

    /// Returns a key request that is open.
    pub fn key_asked(&self, id: Id) -> Option<&B> {
        let _ = self.asked(id).filter(|(_, kind)| *kind == Kind::Key)?;
        self.slab.cold(id)?.local_buffer.as_ref()
    }
}
