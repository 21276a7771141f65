//! The queue for events that belong to no operation. Providers without such a queue are used, too. EFA aborts the process if an
//! event finds no queue (source: efa_base_ep.c).

#![allow(unsafe_code)]

use crate::abi::*;
use crate::sys::{Domain, close};
use core::ffi::{c_char, c_int};
use core::ptr;
use std::sync::Arc;

pub(crate) struct Notices {
    pub(crate) raw: *mut fid_eq,
    _domain: Arc<Domain>,
}

// SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
unsafe impl Send for Notices {}
// SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
unsafe impl Sync for Notices {}

impl Drop for Notices {
    fn drop(&mut self) {
        // SAFETY: the endpoint holds the queue, so the endpoint is already closed.
        let _ = unsafe { close(self.raw.cast()) };
    }
}

impl Notices {
    /// Opens a queue, if the provider supports one.
    pub(crate) fn open(domain: &Arc<Domain>) -> Option<Notices> {
        let fabric = domain.fabric();
        let mut attr = fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: FI_WAIT_NONE,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
            spare: [0; 8],
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the fabric is open; the record is filled, with spare room after it for longer versions of the record; `raw` has
        // room for one pointer.
        let code = unsafe {
            let open = (*(*fabric).ops).eq_open?;
            open(fabric, &raw mut attr, &raw mut raw, ptr::null_mut())
        };
        (code == 0 && !raw.is_null()).then(|| Notices { raw, _domain: domain.clone() })
    }

    /// Describes an error since the last call, if any.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (mut event, mut room) = (0u32, [0u64; 32]);
        // SAFETY: the queue is open; the buffer has room for an event of the stated length. The details of an error are read
        // immediately.
        unsafe {
            let ops = &*(*self.raw).ops;
            let len = size_of_val(&room);
            let code = (ops.read)(self.raw, &raw mut event, room.as_mut_ptr().cast(), len, 0);
            if code != -(FI_EAVAIL as isize) {
                return None; // there is no event, or the event is no error
            }
            let mut entry: fi_eq_err_entry = core::mem::zeroed();
            if (ops.readerr)(self.raw, &raw mut entry, 0) <= 0 {
                return None;
            }
            let mut text = [0 as c_char; 256];
            let (at, len) = (text.as_mut_ptr(), text.len());
            let said = (ops.strerror)(self.raw, entry.prov_errno, entry.err_data, at, len);
            let error = std::io::Error::from_raw_os_error(entry.err as c_int);
            Some(format!("{error} ({})", crate::offers::sys::text(said)))
        }
    }
}
