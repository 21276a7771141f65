//! The table of an endpoint.

#![allow(unsafe_code)]

use crate::abi::Guarded;
use crate::interface::Interface;
use crate::sys::{Provider, bytes, status};
use crate::watch::call;
use core::cell::RefCell;
use core::ffi::c_void;
use core::ptr;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::OnceLock;
use tieline_plugin_api::abi::*;
use tieline_plugin_api::{Failure, Status};

struct OpenEndpoint {
    interface: Interface,
    handle: *mut c_void,
}

impl Drop for OpenEndpoint {
    fn drop(&mut self) {
        if let Some(f) = self.interface.provider().endpoint.close {
            let _call = call("close");
            // SAFETY: keys hold an `Rc` of it, so they are dropped.
            unsafe { f(self.handle) }
        }
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Endpoint(Rc<OpenEndpoint>);

/// Pieces, and the record that names them, as long as a call borrows them; then they say something else. They lie where no
/// other data goes: who looks at them later finds no crash but the wrong bytes.
struct Borrowed<'a>(&'a mut Lent);

#[derive(Default)]
struct Lent {
    iov: Vec<Iov>,
    rma: Option<Rma>,
}

/// What pieces lead to that nobody may look at any more.
const NOWHERE: usize = 4096;

impl Borrowed<'_> {
    fn of(iov: &[Iov]) -> Borrowed<'static> {
        // A few hundred are kept, in turns, so that one that was written over stays so.
        thread_local!(static LENT: RefCell<VecDeque<Box<Lent>>> = const { RefCell::new(VecDeque::new()) });
        LENT.with_borrow_mut(|kept| {
            let mut lent = match kept.len() < 500 {
                true => Box::default(),
                false => kept.pop_front().unwrap_or_default(),
            };
            lent.iov.clear();
            lent.iov.extend_from_slice(iov);
            let at: *mut Lent = &mut *lent;
            kept.push_back(lent);
            // SAFETY: boxed, so it stays where it is when the queue grows; 500 more are borrowed before it goes.
            Borrowed(unsafe { &mut *at })
        })
    }

    fn iov(&mut self) -> *const Iov {
        self.0.iov.as_ptr()
    }

    fn rma(&mut self, op: Rma) -> *const Rma {
        self.0.rma.insert(op)
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        static DECOY: OnceLock<usize> = OnceLock::new();
        let decoy =
            *DECOY.get_or_init(|| Box::leak(Box::new([0xdbu8; NOWHERE])).as_mut_ptr().addr());
        let decoy = ptr::with_exposed_provenance_mut(decoy);
        for piece in &mut self.0.iov {
            *piece = Iov::new(decoy, piece.len.min(NOWHERE));
        }
        if let Some(rma) = &mut self.0.rma {
            (rma.len, rma.offset, rma.cookie) = (0, 0, u64::MAX);
        }
    }
}

/// A put, get or atomic that a check describes.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) key: &'a Key,
    pub(crate) offset: u64,
    pub(crate) cookie: u64,
    pub(crate) flags: u64,
}

impl Endpoint {
    /// What an interface has connected.
    pub(crate) fn of(interface: Interface, handle: *mut c_void) -> Endpoint {
        Endpoint(Rc::new(OpenEndpoint { interface, handle }))
    }

    /// The provider's handle, for calls with records of other sizes.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.0.handle
    }

    fn ops(&self) -> &'static EndpointOps {
        &self.provider().endpoint
    }

    fn provider(&self) -> &'static Provider {
        self.0.interface.provider()
    }

    pub(crate) fn am_short(&self, id: u32, header: u64, data: &[u8]) -> Result<i64, Status> {
        let _call = call("am_short");
        let f = self.ops().am_short.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint; the payload is borrowed for the call.
        status(unsafe { f(self.0.handle, id, header, data.as_ptr(), data.len()) }.into())
    }

    /// `pack` gets the buffer and answers like the C callback.
    pub(crate) fn am_packed(
        &self,
        id: u32,
        header: u64,
        max: usize,
        mut pack: impl FnMut(&mut [u8]) -> i64,
    ) -> Result<i64, Status> {
        unsafe extern "C" fn run<F: FnMut(&mut [u8]) -> i64>(
            argument: *mut c_void,
            at: *mut u8,
            capacity: usize,
        ) -> i64 {
            // SAFETY: the argument is the closure below, alive through the call; the provider's buffer is
            // initialised and writable for `capacity` bytes.
            unsafe { (*argument.cast::<F>())(core::slice::from_raw_parts_mut(at, capacity)) }
        }
        fn thunk<F: FnMut(&mut [u8]) -> i64>(_: &F) -> PackFn {
            Some(run::<F>)
        }
        let _call = call("am_packed");
        let f = self.ops().am_packed.ok_or(Status::Unsupported)?;
        let packer = thunk(&pack);
        // SAFETY: an open endpoint; the callback and its argument live through the call.
        status(unsafe {
            f(self.0.handle, id, header, packer, ptr::from_mut(&mut pack).cast(), max)
        })
    }

    pub(crate) fn am_zcopy(
        &self,
        id: u32,
        header: u64,
        iov: &[Iov],
        cookie: u64,
    ) -> Result<i64, Status> {
        let _call = call("am_zcopy");
        let f = self.ops().am_zcopy.ok_or(Status::Unsupported)?;
        let mut array = Borrowed::of(iov);
        // SAFETY: an open endpoint; the checks keep the pieces alive until completion.
        status(unsafe { f(self.0.handle, id, header, array.iov(), iov.len(), cookie) }.into())
    }

    pub(crate) fn rma(&self, put: bool, iov: &[Iov], target: Target<'_>) -> Result<i64, Status> {
        let mut array = Borrowed::of(iov);
        let op = Rma {
            iov: array.iov(),
            iov_count: iov.len(),
            len: iov.iter().map(|piece| piece.len).sum(),
            key: target.key.handle,
            offset: target.offset,
            cookie: target.cookie,
            flags: target.flags,
            reserved: 0,
        };
        let _call = call(if put { "put" } else { "get" });
        let slot = if put { self.ops().put } else { self.ops().get };
        let f = slot.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint, a key of it, local pieces that live until completion.
        status(unsafe { f(self.0.handle, array.rma(op)) }.into())
    }

    pub(crate) fn put_notify(
        &self,
        iov: &[Iov],
        target: Target<'_>,
        word: u32,
    ) -> Result<i64, Status> {
        let mut array = Borrowed::of(iov);
        let op = Rma {
            iov: array.iov(),
            iov_count: iov.len(),
            len: iov.iter().map(|piece| piece.len).sum(),
            key: target.key.handle,
            offset: target.offset,
            cookie: target.cookie,
            flags: target.flags,
            reserved: 0,
        };
        let _call = call("put_notify");
        let f = self.ops().put_notify.ok_or(Status::Unsupported)?;
        // SAFETY: as in `rma`.
        status(unsafe { f(self.0.handle, array.rma(op), word) }.into())
    }

    /// `op.key` and `op.result` are filled in here; returns the code and the result.
    pub(crate) fn atomic(
        &self,
        key: &Key,
        mut op: Atomic,
        result: &RefCell<u64>,
    ) -> Result<i64, Status> {
        let _call = call("atomic");
        let f = self.ops().atomic.ok_or(Status::Unsupported)?;
        op.key = key.handle;
        op.result = result.as_ptr();
        // SAFETY: an open endpoint, a key of it, a place for the result that outlives the call.
        status(unsafe { f(self.0.handle, &op) }.into())
    }

    pub(crate) fn flush(&self, cookie: u64) -> Result<i64, Status> {
        let _call = call("flush");
        let f = self.ops().flush.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint.
        status(unsafe { f(self.0.handle, cookie) }.into())
    }

    pub(crate) fn fence(&self) -> Result<i64, Status> {
        let _call = call("fence");
        let f = self.ops().fence.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint.
        status(unsafe { f(self.0.handle) }.into())
    }

    pub(crate) fn import(&self, packed: &[u8]) -> Result<Key, Failure> {
        let _call = call("import_key");
        let f = self.ops().import_key.ok_or(Status::Unsupported)?;
        let mut handle = ptr::null_mut();
        let guarded = Guarded::bytes(packed);
        let params =
            ImportParams { bytes: guarded.as_ptr(), len: packed.len(), ..ImportParams::empty() };
        // SAFETY: an open endpoint; the record and the bytes are borrowed for the call.
        let code = unsafe { f(self.0.handle, &params, &mut handle) };
        let _ = self.provider().check(code)?;
        Ok(Key { endpoint: self.clone(), handle })
    }

    pub(crate) fn address(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let _call = call("address");
        let f = self.ops().address.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint and a buffer of that capacity.
        bytes(|out, capacity| unsafe { f(self.0.handle, out, capacity) }, capacity)
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        let _call = call("connect");
        let f = self.ops().connect.ok_or(Status::Unsupported)?;
        let params = ConnectParams {
            address: address.as_ptr(),
            address_len: address.len(),
            ..ConnectParams::empty()
        };
        // SAFETY: an open endpoint; the record and the bytes are borrowed for the call.
        self.provider().check(unsafe { f(self.0.handle, &params) }).map(|_| ())
    }
}

/// An imported key.
pub(crate) struct Key {
    endpoint: Endpoint,
    handle: *mut c_void,
}

impl Drop for Key {
    fn drop(&mut self) {
        if let Some(f) = self.endpoint.ops().drop_key {
            let _call = call("drop_key");
            // SAFETY: an open endpoint (the field holds it) and a key of it, dropped once.
            unsafe { f(self.endpoint.0.handle, self.handle) }
        }
    }
}
