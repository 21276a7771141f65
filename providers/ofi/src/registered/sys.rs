//! Registrations, and keys of peers that must be mapped before use.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::keys::MOST_RAW;
use crate::sys::{Domain, Ep, close};
use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Domain {
    /// Registers memory. A registration for an endpoint is bound to the endpoint and enabled if the provider demands that.
    pub(crate) fn register(
        self: &Arc<Domain>,
        base: *mut u8,
        len: usize,
        access: u64,
        key: u64,
        ep: Option<&Arc<Ep>>,
    ) -> Result<Mr, c_int> {
        let domain = ep.map_or(self, |ep| ep.domain());
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open; the provider's caller guarantees the memory until the registration ends.
        let code = unsafe {
            let reg = (*(*domain.raw).mr).reg;
            let (fid, none) = (domain.raw.cast(), ptr::null_mut());
            reg(fid, base.cast(), len, access, 0, key, 0, &raw mut raw, none)
        };
        if code != 0 {
            return Err(-code);
        }
        let mr = Mr { raw, ep: ep.cloned(), domain: domain.clone(), over: false };
        let demanded = self.info.domain().mr_mode & FI_MR_ENDPOINT != 0;
        if let Some(ep) = ep.filter(|_| demanded) {
            // SAFETY: the registration and the endpoint belong to one domain, and both are alive.
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
    /// The endpoint to which the registration is bound; it closes after the registration.
    ep: Option<Arc<Ep>>,
    domain: Arc<Domain>,
    /// Whether the library was asked to end the registration.
    over: bool,
}

impl Mr {
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: the registration is live.
        unsafe { (*self.raw).key }
    }

    /// Returns the bytes of the registration's key, which peers must map (`FI_MR_RAW`), and the address for the mapping.
    pub(crate) fn raw_key(&self) -> Result<(u64, Vec<u8>), c_int> {
        let (mut base, mut bytes) = (0, vec![0; MOST_RAW]);
        let mut len = bytes.len();
        let mut attr = fi_mr_raw_attr {
            flags: 0,
            base_addr: &raw mut base,
            raw_key: bytes.as_mut_ptr(),
            key_size: &raw mut len,
        };
        // SAFETY: the registration is live; the buffer has the stated length.
        let code = unsafe {
            let control = (*(*self.raw).fid.ops).control;
            control(self.raw.cast(), FI_GET_RAW_MR, (&raw mut attr).cast())
        };
        match code {
            0 if (1..=bytes.len()).contains(&len) => {
                bytes.truncate(len);
                Ok((base, bytes))
            }
            0 => Err(libc::EMSGSIZE),
            code => Err(-code),
        }
    }

    pub(crate) fn desc(&self) -> *mut c_void {
        // SAFETY: the registration is live.
        unsafe { (*self.raw).mem_desc }
    }
}

impl Mr {
    /// Ends the registration.
    ///
    /// # Errors
    /// The library refuses (EBUSY if a device still uses it): holders of the key may reach the memory for ever.
    pub(crate) fn end(mut self) -> Result<(), c_int> {
        self.close()
    }

    fn close(&mut self) -> Result<(), c_int> {
        if core::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        // SAFETY: the registration was made once, and is closed once; operations that use it have completed, or the library fails
        // them.
        let code = unsafe { close(self.raw.cast()) };
        if code == 0 {
            return Ok(());
        }
        // The registration depends on these objects, so they are kept, too.
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

// SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
unsafe impl Send for Mr {}
// SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
unsafe impl Sync for Mr {}

/// A peer's key, mapped for this domain. It is dropped after the last operation that uses it.
pub(crate) struct Mapped {
    domain: Arc<Domain>,
    key: u64,
}

impl Mapped {
    /// Maps the bytes of a key, with the address that came with them.
    pub(crate) fn new(domain: &Arc<Domain>, base: u64, raw: &[u8]) -> Result<Mapped, c_int> {
        // The library takes a mutable pointer.
        let (mut raw, mut key) = (raw.to_vec(), 0);
        let mut map = fi_mr_map_raw {
            flags: 0,
            base_addr: base,
            raw_key: raw.as_mut_ptr(),
            key_size: raw.len(),
            key: &raw mut key,
        };
        match control(domain, FI_MAP_RAW_MR, (&raw mut map).cast()) {
            0 => Ok(Mapped { domain: domain.clone(), key }),
            code => Err(-code),
        }
    }

    /// Returns the key for operations.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let mut key = self.key;
        let _ = control(&self.domain, FI_UNMAP_KEY, (&raw mut key).cast());
    }
}

fn control(domain: &Domain, command: c_int, record: *mut c_void) -> c_int {
    // SAFETY: the domain is open; the record of this command is filled, and its sub-records live for the call.
    unsafe { ((*(*domain.raw).fid.ops).control)(domain.raw.cast(), command, record) }
}
