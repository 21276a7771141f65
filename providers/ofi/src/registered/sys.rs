//! Registrations.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::sys::{Domain, Ep, close};
use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Domain {
    /// Registers memory; with an endpoint it is bound to that and enabled.
    pub(crate) fn register(
        self: &Arc<Domain>,
        base: *mut u8,
        len: usize,
        access: u64,
        key: u64,
        ep: Option<&Arc<Ep>>,
    ) -> Result<Mr, c_int> {
        let (mut raw, ops) = (ptr::null_mut(), self.raw);
        // SAFETY: an open domain; the caller of the provider vouches for the memory until the registration ends.
        let code = unsafe {
            let reg = (*(*ops).mr).reg;
            let (fid, none) = (self.raw.cast(), ptr::null_mut());
            reg(fid, base.cast(), len, access, 0, key, 0, &raw mut raw, none)
        };
        if code != 0 {
            return Err(-code);
        }
        let mr = Mr { raw, ep: ep.cloned(), domain: self.clone(), over: false };
        if let Some(ep) = ep {
            // SAFETY: a registration and an endpoint of one domain, both alive.
            let code = unsafe {
                let ops = &*(*raw).fid.ops;
                match (ops.bind)(raw.cast(), ep.raw.cast(), 0) {
                    0 => (ops.control)(raw.cast(), FI_ENABLE, ptr::null_mut()),
                    code => code,
                }
            };
            if code != 0 {
                return Err(-code);
            }
        }
        Ok(mr)
    }
}

/// A registration.
pub(crate) struct Mr {
    raw: *mut fid_mr,
    /// Closed behind the registration that is bound to it.
    ep: Option<Arc<Ep>>,
    domain: Arc<Domain>,
    /// The library was asked to end it.
    over: bool,
}

impl Mr {
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: a live registration.
        unsafe { (*self.raw).key }
    }

    pub(crate) fn desc(&self) -> *mut c_void {
        // SAFETY: a live registration.
        unsafe { (*self.raw).mem_desc }
    }
}

impl Mr {
    /// Ends it.
    ///
    /// # Errors
    /// The library refuses (EBUSY where a device still uses it): whoever has the key may reach the memory for ever.
    pub(crate) fn end(mut self) -> Result<(), c_int> {
        self.close()
    }

    fn close(&mut self) -> Result<(), c_int> {
        if core::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        // SAFETY: made once, and closed once; operations that use it have ended, or the library fails them.
        let code = unsafe { close(self.raw.cast()) };
        if code == 0 {
            return Ok(());
        }
        // It stands on these, which stay with it.
        self.domain.keeps.store(true, Ordering::Release);
        core::mem::forget((self.domain.clone(), self.ep.clone()));
        Err(-code)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

// SAFETY: an object of the library's, opened for use by any thread (FI_THREAD_SAFE), and closed once.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}
