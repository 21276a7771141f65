//! The function table of an endpoint.

#![allow(unsafe_code)]

use crate::abi::Guarded;
use crate::interface::Interface;
use crate::report::{Verdict, fail};
use crate::sys::{CANARY, Provider, bytes, overrun, status};
use crate::watch::{call, end};
use core::cell::RefCell;
use core::ffi::c_void;
use core::ptr;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::OnceLock;
use tieline_host::abi::{EndpointTable, RawEndpoint};
use tieline_plugin_api::abi::*;
use tieline_plugin_api::{Failure, Status, rma_kind};

struct OpenEndpoint {
    interface: Interface,
    raw: RawEndpoint,
}

impl Drop for OpenEndpoint {
    fn drop(&mut self) {
        let _call = call("close");
        // SAFETY: keys hold an `Rc` of the endpoint, so all of them are dropped.
        unsafe { self.raw.close() }
    }
}

#[derive(Clone)]
pub(crate) struct Endpoint(Rc<OpenEndpoint>);

/// Pieces, and the record that names them, valid while a call borrows them; afterwards they are overwritten. They lie in separate
/// memory, so a provider that reads them later does not crash but gets wrong bytes.
struct Borrowed<'a>(&'a mut Lent);

#[derive(Default)]
struct Lent {
    iov: Vec<Iov>,
    rma: Option<Rma>,
}

/// The length of the decoy that overwritten pieces name, which must not be accessed.
const NOWHERE: usize = 4096;

impl Borrowed<'_> {
    fn of(iov: &[Iov]) -> Borrowed<'static> {
        // A few hundred of them are kept and reused in turn, so that an overwritten one stays overwritten for a while.
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
            // SAFETY: the value is boxed, so it keeps its address when the queue grows; 500 more are borrowed before it is dropped.
            Borrowed(unsafe { &mut *at })
        })
    }

    fn iov(&self) -> &[Iov] {
        &self.0.iov
    }

    fn rma(&mut self, target: Target<'_>) -> &Rma {
        let op = target.with(&self.0.iov);
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

impl Target<'_> {
    fn with(&self, iov: &[Iov]) -> Rma {
        Rma {
            iov: iov.as_ptr(),
            iov_count: iov.len(),
            len: iov.iter().map(|piece| piece.len).sum(),
            key: self.key.handle,
            offset: self.offset,
            cookie: self.cookie,
            flags: self.flags,
            reserved: 0,
        }
    }
}

/// A part of a list that a check describes.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) piece: Iov,
    pub(crate) key: &'a Key,
    pub(crate) offset: u64,
}

/// The possible answers of an endpoint's call besides 0 (or a length) and an error.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    /// The call completes or fails.
    AtOnce,
    /// The call may also return PENDING: the operation has a cookie.
    Pends,
    /// The call may also return PENDING or DECLINED.
    Declines,
}

/// Checks the answer of a call. An answer that the ABI does not allow for the slot fails the check.
fn answered(slot: &str, code: i32, answers: Answers) -> Result<i64, Status> {
    let answer = status(code.into());
    let wrong = match answer {
        Ok(1..) if answers == Answers::AtOnce => {
            "PENDING, or more: it has no cookie, so it is done"
        }
        Ok(2..) => "more than PENDING",
        Err(Status::OutcomeUnknown) => "OUTCOME_UNKNOWN, which is how a completion may end",
        Err(Status::Declined) if answers != Answers::Declines => {
            "DECLINED, as only put and get may"
        }
        _ => return answer,
    };
    end(&Verdict::from(Err(fail(format!("what {slot} answers"), "0 or a reason", wrong)))
        .to_string());
    answer
}

/// The maximum number of attempts of an operation that is declined.
const DECLINES: usize = 100;

fn until_taken(post: impl Fn() -> Result<i64, Status>) -> Result<i64, Status> {
    let answer = (0..DECLINES).map(|_| post()).find(|answer| *answer != Err(Status::Declined));
    answer.unwrap_or_else(|| {
        let why = "the module declines it each time, and leaves it to another lane";
        end(&Verdict::Skipped(why.to_string()).to_string());
        Err(Status::Declined)
    })
}

impl Endpoint {
    pub(crate) fn of(interface: Interface, handle: *mut c_void) -> Endpoint {
        let raw = RawEndpoint::new(handle, &interface.provider().tables.endpoint);
        Endpoint(Rc::new(OpenEndpoint { interface, raw }))
    }

    pub(crate) fn handle(&self) -> *mut c_void {
        self.raw().handle()
    }

    fn raw(&self) -> &RawEndpoint {
        &self.0.raw
    }

    fn ops(&self) -> &'static EndpointTable {
        &self.provider().tables.endpoint
    }

    fn provider(&self) -> &'static Provider {
        self.0.interface.provider()
    }

    pub(crate) fn am_short(&self, id: u32, header: u64, data: &[u8]) -> Result<i64, Status> {
        let _call = call("am_short");
        answered("am_short", self.raw().am_short(id, header, data), Answers::AtOnce)
    }

    /// Sends a packed message. The result of `pack`, which gets the buffer, is that of the C callback.
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
            // SAFETY: the argument is the closure below, alive through the call; the provider's buffer is initialised and writable
            // for `capacity` bytes.
            unsafe { (*argument.cast::<F>())(core::slice::from_raw_parts_mut(at, capacity)) }
        }
        fn thunk<F: FnMut(&mut [u8]) -> i64>(_: &F) -> PackFn {
            Some(run::<F>)
        }
        let _call = call("am_packed");
        let packer = thunk(&pack);
        let argument = ptr::from_mut(&mut pack).cast();
        // SAFETY: the endpoint is open; the callback and its argument live through the call.
        status(unsafe { (self.ops().am_packed)(self.handle(), id, header, packer, argument, max) })
    }

    pub(crate) fn am_zcopy(
        &self,
        id: u32,
        header: u64,
        iov: &[Iov],
        cookie: u64,
    ) -> Result<i64, Status> {
        let _call = call("am_zcopy");
        let array = Borrowed::of(iov);
        // SAFETY: the endpoint is open; the checks keep the pieces alive until completion.
        let code = unsafe { self.raw().am_zcopy(id, header, array.iov(), cookie) };
        answered("am_zcopy", code, Answers::Pends)
    }

    /// Posts a put or get. If the operation is declined, it is retried, as on an only lane; a check whose operation is always
    /// declined is skipped.
    pub(crate) fn rma(&self, put: bool, iov: &[Iov], target: Target<'_>) -> Result<i64, Status> {
        let post = || self.rma_once(put, iov, target);
        until_taken(post)
    }

    pub(crate) fn rma_once(
        &self,
        put: bool,
        iov: &[Iov],
        target: Target<'_>,
    ) -> Result<i64, Status> {
        let mut array = Borrowed::of(iov);
        let op = array.rma(target);
        let _call = call(if put { "put" } else { "get" });
        // SAFETY: the endpoint is open, the key belongs to it, and the local pieces live until completion.
        let code = unsafe { if put { self.raw().put(op) } else { self.raw().get(op) } };
        answered("put or get", code, Answers::Declines)
    }

    /// Posts a list of puts or gets. Returns the answer, and the number of parts that the provider says it took.
    pub(crate) fn list(
        &self,
        put: bool,
        parts: &[Part<'_>],
        cookie: u64,
        flags: u64,
    ) -> (Result<i64, Status>, usize) {
        let _call = call("rma_list");
        let record = |part: &Part<'_>| RmaPart {
            local: part.piece,
            key: part.key.handle,
            offset: part.offset,
        };
        let records: Vec<RmaPart> = parts.iter().map(record).collect();
        let kind = if put { rma_kind::PUT } else { rma_kind::GET };
        let (array, count) = (records.as_ptr(), records.len());
        let list = RmaList { parts: array, count, cookie, flags, kind, ..RmaList::empty() };
        // SAFETY: the endpoint is open, the keys belong to it, and the local pieces live until completion.
        let (code, taken) = unsafe { self.raw().rma_list(&list) };
        (answered("rma_list", code, Answers::Declines), taken)
    }

    pub(crate) fn put_notify(
        &self,
        iov: &[Iov],
        target: Target<'_>,
        word: u32,
    ) -> Result<i64, Status> {
        let _call = call("put_notify");
        let post = || {
            let mut array = Borrowed::of(iov);
            // SAFETY: as in `rma`.
            let code = unsafe { self.raw().put_notify(array.rma(target), word) };
            answered("put_notify", code, Answers::Declines)
        };
        until_taken(post)
    }

    /// Posts an atomic after it has filled in `op.key` and `op.result`. Returns the code and the result.
    pub(crate) fn atomic(
        &self,
        key: &Key,
        mut op: Atomic,
        result: &RefCell<u64>,
    ) -> Result<i64, Status> {
        let _call = call("atomic");
        op.key = key.handle;
        op.result = result.as_ptr();
        // SAFETY: the endpoint is open, the key belongs to it, and the place for the result outlives the call.
        let code = unsafe { self.raw().atomic(&op) };
        answered("atomic", code, Answers::Pends)
    }

    /// Posts a flush. A module with messages only may have no flush: then accepted messages are delivered anyway, and a flush
    /// completes immediately.
    pub(crate) fn flush(&self, cookie: u64) -> Result<i64, Status> {
        match self.flush_itself(cookie) {
            Err(Status::Unsupported) => Ok(0),
            said => said,
        }
    }

    pub(crate) fn flush_itself(&self, cookie: u64) -> Result<i64, Status> {
        let _call = call("flush");
        answered("flush", self.raw().flush(cookie), Answers::Pends)
    }

    pub(crate) fn fence(&self) -> Result<i64, Status> {
        let _call = call("fence");
        answered("fence", self.raw().fence(), Answers::AtOnce)
    }

    pub(crate) fn import(&self, packed: &[u8]) -> Result<Key, Failure> {
        let _call = call("import_key");
        let handle = self.raw().import_key(Guarded::bytes(packed).contents());
        let handle = handle.map_err(|code| self.provider().failure(Status::from_code(code)))?;
        Ok(Key { holder: Holder::Endpoint(self.clone()), handle })
    }

    /// Returns the address at which `len` bytes of a peer's memory are mapped.
    pub(crate) fn pointer<'a>(
        &self,
        key: &'a Key,
        offset: u64,
        len: u64,
    ) -> Result<Mapped<'a>, Status> {
        let _call = call("key_pointer");
        // SAFETY: the endpoint is open, and the key belongs to it.
        let base = unsafe { self.raw().key_pointer(key.handle, offset, len) };
        let base = base.map_err(Status::from_code)?;
        Ok(Mapped { base, _key: key })
    }

    pub(crate) fn cancel(&self, cookie: u64) -> Result<i64, Status> {
        let _call = call("cancel");
        status(self.raw().cancel(cookie).into())
    }

    /// Returns the stated limits, in a record of `size` bytes, and whether the bytes after the record stayed unchanged.
    pub(crate) fn limits(&self, size: usize) -> Result<(EndpointLimits, bool), Status> {
        let _call = call("limits");
        let mut record = [EndpointLimits { size: usize::MAX, ..EndpointLimits::empty() }; 2];
        let bytes = ptr::from_mut(&mut record).cast::<u8>();
        // SAFETY: the endpoint is open; the record has more room than it states, and `size` covers at least its first field.
        let code = unsafe {
            ptr::write_bytes(bytes, CANARY, size_of_val(&record));
            bytes.cast::<usize>().write(size);
            (self.ops().limits)(self.handle(), bytes.cast())
        };
        let _ = status(code.into())?;
        // SAFETY: the bytes are plain bytes of the array above; any bytes are a valid value of its fields.
        let (told, behind) = unsafe {
            let all = core::slice::from_raw_parts_mut(bytes, size_of_val(&record));
            let behind = all[size..].iter().any(|&byte| byte != CANARY);
            all[size..].fill(0);
            (bytes.cast::<EndpointLimits>().read(), behind)
        };
        Ok((told, behind))
    }

    pub(crate) fn address(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let _call = call("address");
        // SAFETY: the endpoint is open, and the buffer has that capacity.
        bytes(|out, room| unsafe { (self.ops().address)(self.handle(), out, room) }, capacity)
    }

    /// Returns the length of the address, and whether a buffer of `capacity` bytes was overrun.
    pub(crate) fn address_into(&self, capacity: usize) -> (i64, bool) {
        // SAFETY: the endpoint is open, and the buffer is larger than stated.
        overrun(|out, room| unsafe { (self.ops().address)(self.handle(), out, room) }, capacity)
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        let _call = call("connect");
        let code = self.raw().connect(Guarded::bytes(address).contents());
        self.provider().check(code).map(|_| ())
    }
}

/// Memory of a peer that is mapped in this process until the key is dropped.
pub(crate) struct Mapped<'a> {
    base: *mut u8,
    _key: &'a Key,
}

impl Mapped<'_> {
    pub(crate) fn load(&self, len: usize) -> Vec<u8> {
        // SAFETY: the provider states that `len` bytes are mapped; bytes that other processes write are read one by one.
        (0..len).map(|at| unsafe { self.base.add(at).read_volatile() }).collect()
    }

    pub(crate) fn store(&self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `load`.
            unsafe { self.base.add(at).write_volatile(*byte) }
        }
    }
}

enum Holder {
    Endpoint(Endpoint),
    Interface(Interface),
}

pub(crate) struct Key {
    holder: Holder,
    handle: *mut c_void,
}

impl Key {
    /// Returns a key that serves all endpoints of an interface that lead to its owner.
    pub(crate) fn for_all_endpoints(interface: &Interface, packed: &[u8]) -> Result<Key, Failure> {
        let _call = call("import_key of the interface");
        let provider = interface.provider();
        let mut handle = ptr::null_mut();
        let guarded = Guarded::bytes(packed);
        let params =
            ImportParams { bytes: guarded.as_ptr(), len: packed.len(), ..ImportParams::empty() };
        // SAFETY: the interface is open; the record and the bytes are borrowed for the call.
        let _ = provider.check(unsafe {
            (provider.tables.interface.import_key)(interface.handle(), &params, &mut handle)
        })?;
        Ok(Key { holder: Holder::Interface(interface.clone()), handle })
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let _call = call("drop_key");
        // SAFETY: the object on which the key was imported is open (the field holds it), and the key is dropped once.
        unsafe {
            match &self.holder {
                Holder::Endpoint(of) => of.raw().drop_key(self.handle),
                Holder::Interface(of) => {
                    (of.provider().tables.interface.drop_key)(of.handle(), self.handle);
                }
            }
        }
    }
}
