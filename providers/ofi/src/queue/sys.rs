//! The completion queue.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::sys::{Domain, checked, close};
use core::ffi::{c_char, c_int};
use core::ptr;
use std::sync::Arc;
use tieline_plugin_api::Failure;

pub(crate) struct Cq {
    pub(crate) raw: *mut fid_cq,
    fd: Option<i32>,
    domain: Arc<Domain>,
}

// SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
unsafe impl Send for Cq {}
// SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
unsafe impl Sync for Cq {}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the endpoint holds the queue, so the endpoint is already closed.
        let _ = unsafe { close(self.raw.cast()) };
    }
}

/// The maximum number of completions of one read.
pub(crate) const BATCH: usize = 16;

/// The completions of one read.
pub(crate) struct Room([fi_cq_data_entry; BATCH]);

impl Default for Room {
    fn default() -> Room {
        let none = fi_cq_data_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
        };
        Room([none; BATCH])
    }
}

impl Room {
    /// Returns a completion of the last read.
    #[inline]
    pub(crate) fn entry(&self, at: usize) -> fi_cq_data_entry {
        self.0[at]
    }
}

/// The library's result of a read.
#[derive(Clone, Copy)]
pub(crate) struct Read(isize);

impl Read {
    /// Checks whether there was no completion and no error.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        [0, -(FI_EAGAIN as isize)].contains(&self.0)
    }
}

/// The meaning of a read of the queue.
pub(crate) enum Looked {
    /// The number of completions, at least one; if there are `BATCH`, more may be queued.
    Entries(usize),
    Nothing,
    /// One operation has failed.
    Failed(fi_cq_err_entry),
    /// The queue has failed.
    Broken(c_int),
}

impl Cq {
    /// Opens a queue, with a descriptor to wait on if requested.
    pub(crate) fn open(domain: &Arc<Domain>, size: usize, wait: bool) -> Result<Cq, Failure> {
        let mut attr = fi_cq_attr {
            size,
            flags: 0,
            format: FI_CQ_FORMAT_DATA,
            wait_obj: if wait { FI_WAIT_FD } else { FI_WAIT_NONE },
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
            spare: [0; 8],
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open and the record is filled, with spare room after it for longer versions of the record.
        let code = unsafe {
            let ops = &*(*domain.raw).ops;
            (ops.cq_open)(domain.raw, &raw mut attr, &raw mut raw, ptr::null_mut())
        };
        checked("fi_cq_open", code)?;
        let mut cq = Cq { raw, fd: None, domain: domain.clone() };
        if wait {
            let mut fd: c_int = -1;
            // SAFETY: the queue is open; FI_GETWAIT writes a descriptor.
            let code = unsafe {
                let ops = &*(*raw).fid.ops;
                (ops.control)(raw.cast(), FI_GETWAIT, (&raw mut fd).cast())
            };
            checked("FI_GETWAIT", code)?;
            cq.fd = (fd >= 0).then_some(fd);
        }
        Ok(cq)
    }

    pub(crate) fn fd(&self) -> Option<i32> {
        self.fd
    }

    /// Reads completions.
    #[inline]
    pub(crate) fn read(&self, room: &mut Room) -> Read {
        // SAFETY: the queue is open and has the format of these records; the array has room for the requested number. Any bytes are
        // a record of integers and pointers.
        Read(unsafe { ((*(*self.raw).ops).read)(self.raw, room.0.as_mut_ptr().cast(), BATCH) })
    }

    /// Tells the meaning of a read.
    #[inline]
    pub(crate) fn look(&self, read: Read) -> Looked {
        match read.0 {
            1.. => Looked::Entries((read.0 as usize).min(BATCH)),
            _ if read.is_empty() => Looked::Nothing,
            code if code == -(FI_EAVAIL as isize) => self.failed(),
            code => Looked::Broken((-code) as c_int),
        }
    }

    #[cold]
    fn failed(&self) -> Looked {
        // SAFETY: the record consists of integers and pointers, for which zero is valid; the details of an error are not requested.
        let mut entry: fi_cq_err_entry = unsafe { core::mem::zeroed() };
        // SAFETY: the queue is open; the record has spare room after it for longer versions of the record.
        let code = unsafe { ((*(*self.raw).ops).readerr)(self.raw, &raw mut entry, 0) };
        match code {
            1.. => Looked::Failed(entry),
            code if code == -(FI_EAGAIN as isize) => Looked::Nothing,
            0 => Looked::Nothing,
            code => Looked::Broken((-code) as c_int),
        }
    }

    /// Returns the text of an error, with the provider's own words if it has any.
    pub(crate) fn words(&self, entry: &fi_cq_err_entry) -> String {
        let mut room = [0 as c_char; 256];
        // SAFETY: the queue is open; the details are those of the entry that was read last; the text is terminated and copied.
        let said = unsafe {
            let words = (*(*self.raw).ops).strerror;
            let (at, len) = (room.as_mut_ptr(), room.len());
            crate::offers::sys::text(words(self.raw, entry.prov_errno, entry.err_data, at, len))
        };
        let error = std::io::Error::from_raw_os_error(entry.err);
        let error = match entry.err {
            FI_ENOKEY => "required key not available".to_owned(),
            err if err > FI_ENOKEY - 10 => format!("error {err} of libfabric"),
            _ => error.to_string(),
        };
        if said.is_empty() { error } else { format!("{error} ({said})") }
    }

    /// Checks whether the descriptor will wake a sleeper for every new completion.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut fids = [self.raw.cast::<fid>()];
        let fabric = self.domain.fabric.raw;
        // SAFETY: the fabric that the queue belongs to is open, and `fids` has one object.
        let code = unsafe { ((*(*fabric).ops).trywait)(fabric, fids.as_mut_ptr(), 1) };
        code == 0
    }
}
