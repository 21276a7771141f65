//! Keys that a provider imports once for a whole interface, and why letting go of them is sound.
//!
//! *The key is its own, and nobody uses it afterwards.* Each use of one is counted here, by whose key it is and by its bytes; the
//! provider is told when the last of those who have counted has let go.

#![allow(unsafe_code)]

use super::InterfaceSlot;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

/// Whose key it is, by the number of the peer's context, and its bytes.
type Whose = ([u8; 16], Box<[u8]>);

/// What an interface has imported, and for how many keys of endpoints.
#[derive(Default)]
pub(super) struct SharedKeys(RefCell<HashMap<Whose, (usize, *mut c_void)>>);

impl InterfaceSlot {
    /// Makes a peer's key usable on every endpoint to that peer, or the negative status (AGAIN: ask again after progress).
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

    /// One that [`import_shared`](InterfaceSlot::import_shared) has counted lets go.
    pub(crate) fn drop_shared(&self, peer: [u8; 16], bytes: &[u8]) {
        let whose = (peer, Box::from(bytes));
        let mut keys = self.keys.0.borrow_mut();
        let Some((users, key)) = keys.get_mut(&whose) else { return };
        *users -= 1;
        if *users == 0 {
            // SAFETY: see above; the interface is open while there is a slot.
            unsafe { self.interface.drop_key(*key) };
            let _ = keys.remove(&whose);
        }
    }
}
