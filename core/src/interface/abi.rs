//! Keys that a provider imports once for a whole interface, and the reason why dropping them is sound.
//!
//! *The key belongs to the interface and is not used after its release.* The users of a key are counted by the key's owner and
//! bytes. The provider drops the key when the last user has released it.

#![allow(unsafe_code)]

use super::InterfaceSlot;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

/// The owner of a key, by the number of the peer's context, and the key's bytes.
type Whose = ([u8; 16], Box<[u8]>);

/// The keys that an interface has imported, each with the number of its users.
#[derive(Default)]
pub(super) struct SharedKeys(RefCell<HashMap<Whose, (usize, *mut c_void)>>);

impl InterfaceSlot {
    /// Imports a peer's key for all endpoints to that peer. Returns the provider's key, or the negative status (AGAIN: retry after
    /// progress).
    pub(crate) fn import_shared(&self, peer: [u8; 16], bytes: &[u8]) -> Result<*mut c_void, i32> {
        let whose = (peer, Box::from(bytes));
        let mut keys = self.keys.0.borrow_mut();
        if let Some((users, key)) = keys.get_mut(&whose) {
            *users += 1;
            return Ok(*key);
        }
        let key = self.interface.import_key(bytes)?;
        let _ = keys.insert(whose, (1, key));
        Ok(key)
    }

    /// Releases a key that [`import_shared`](InterfaceSlot::import_shared) has counted.
    pub(crate) fn drop_shared(&self, peer: [u8; 16], bytes: &[u8]) {
        let whose = (peer, Box::from(bytes));
        let mut keys = self.keys.0.borrow_mut();
        let Some((users, key)) = keys.get_mut(&whose) else { return };
        *users -= 1;
        if *users == 0 {
            // SAFETY: see the module documentation; the interface is open as long as the slot exists.
            unsafe { self.interface.drop_key(*key) };
            let _ = keys.remove(&whose);
        }
    }
}
