//! The objects of libfabric, each closed once and in the right order, and the calls through their tables.
//!
//! Any thread may call any object, because `FI_THREAD_SAFE` is requested. The library uses the memory and the context of a call
//! until the operation completes; the poster keeps them alive (`engine/ops.rs`).

#![allow(unsafe_code)]

use crate::abi::*;
use crate::notices::sys::Notices;
use crate::offers::{self, sys::Info};
pub(crate) use crate::queue::sys::{BATCH, Cq, Looked, Read, Room};
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_plugin_api::Failure;

macro_rules! shared {
    ($($type:ident),*) => { $(
        // SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
        unsafe impl Send for $type {}
        // SAFETY: the library's object was opened for use by any thread (FI_THREAD_SAFE), and is closed once.
        unsafe impl Sync for $type {}
    )* };
}
shared!(Fabric, Domain, Av, Ep);

fn failed(what: &str, code: isize) -> Failure {
    let error = std::io::Error::from_raw_os_error((-code) as i32);
    Failure::from_io(&format!("{what} of libfabric"), &error)
}

pub(crate) fn checked(what: &str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(failed(what, code as isize)) }
}

/// Adds an explanation to an error of opening an endpoint. `verbs;ofi_rxm` requires a completion queue for FI_UNIVERSE_SIZE peers,
/// which many devices do not support (observed: soft RoCE). It also registers buffers of its own, 16 MiB at a time (source:
/// rxm_ep.c).
fn explained(why: Failure, code: c_int, domain: &Domain) -> Failure {
    let is_layered = offers::sys::text(domain.info.fabric().prov_name) == "verbs;ofi_rxm";
    let advice = match -code {
        libc::EINVAL if is_layered => {
            "the device's queues may be too short for the 1024 peers that ofi_rxm reckons with; set FI_UNIVERSE_SIZE to how many there are"
        }
        libc::ENOMEM => crate::memory::NO_MEMORY,
        _ => return why,
    };
    Failure::new(why.status, format!("{}: {advice}", why.text))
}

/// Closes an object of the library.
///
/// # Safety
/// `fid` is a live object of the library that nothing uses any more.
pub(crate) unsafe fn close(fid: *mut fid) -> c_int {
    // SAFETY: the caller guarantees a live object, which begins with its table.
    unsafe { ((*(*fid).ops).close)(fid) }
}

pub(crate) struct Fabric {
    pub(crate) raw: *mut fid_fabric,
    /// The record whose name and attributes this object borrows.
    _info: Info,
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: every dependent object holds this one, so all of them are closed.
        let _ = unsafe { close(self.raw.cast()) };
    }
}

pub(crate) struct Domain {
    pub(crate) raw: *mut fid_domain,
    /// The fabric, closed after the domain.
    pub(crate) fabric: ManuallyDrop<Fabric>,
    /// Whether a registration has not ended: its memory may still be reached.
    pub(crate) keeps: AtomicBool,
    pub(crate) info: Info,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: every dependent object holds this one, so all of them are closed.
        if unsafe { close(self.raw.cast()) } != 0 {
            return core::mem::forget(self.info.clone()); // the domain depends on the fabric and its info, so they are kept, too
        }
        // SAFETY: the field is dropped only here.
        unsafe { ManuallyDrop::drop(&mut self.fabric) };
    }
}

impl Domain {
    /// Returns the fabric, for calls that need it.
    pub(crate) fn fabric(&self) -> *mut fid_fabric {
        self.fabric.raw
    }

    pub(crate) fn open(info: &Info) -> Result<Arc<Domain>, Failure> {
        let mut fabric = ptr::null_mut();
        // SAFETY: the attributes are in a list that `Fabric` keeps; `raw` has room for one pointer.
        let code = unsafe {
            let attributes = ptr::from_ref(info.fabric()).cast_mut();
            (info.library().fabric)(attributes, &raw mut fabric, ptr::null_mut())
        };
        checked("fi_fabric", code)?;
        let fabric = Fabric { raw: fabric, _info: info.clone() };
        let mut raw = ptr::null_mut();
        // SAFETY: the fabric and its info are alive.
        let code = unsafe {
            let ops = &*(*fabric.raw).ops;
            (ops.domain)(fabric.raw, info.raw(), &raw mut raw, ptr::null_mut())
        };
        checked("fi_domain", code)?;
        let (fabric, keeps) = (ManuallyDrop::new(fabric), false.into());
        Ok(Arc::new(Domain { raw, fabric, keeps, info: info.clone() }))
    }
}

/// The maximum number of reads to empty a queue, because peers may keep sending.
const MOST_LOOKS: usize = 4096;

pub(crate) struct Av {
    raw: *mut fid_av,
    _domain: Arc<Domain>,
}

impl Drop for Av {
    fn drop(&mut self) {
        // SAFETY: the endpoint holds the table, so the endpoint is already closed.
        let _ = unsafe { close(self.raw.cast()) };
    }
}

impl Av {
    pub(crate) fn open(domain: &Arc<Domain>) -> Result<Av, Failure> {
        let mut attr = fi_av_attr {
            // The kind makes no difference to this provider; not every libfabric provider has tables (opx before 2.6; source:
            // fi_opx_av.c).
            kind: if domain.info.domain().av_type == FI_AV_MAP { FI_AV_MAP } else { FI_AV_TABLE },
            rx_ctx_bits: 0,
            count: 64,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open and the record is filled.
        let code = unsafe {
            let ops = &*(*domain.raw).ops;
            (ops.av_open)(domain.raw, &raw mut attr, &raw mut raw, ptr::null_mut())
        };
        checked("fi_av_open", code)?;
        Ok(Av { raw, _domain: domain.clone() })
    }

    /// Inserts an address and returns the library's number for it.
    pub(crate) fn insert(&self, name: &[u8]) -> Result<u64, Failure> {
        // The library may read an address as a socket address, so it is aligned like one.
        let mut aligned = vec![0u64; name.len().div_ceil(8)];
        for (to, from) in aligned.iter_mut().zip(name.chunks(8)) {
            let mut word = [0; 8];
            word[..from.len()].copy_from_slice(from);
            *to = u64::from_ne_bytes(word);
        }
        let mut number = u64::MAX;
        // SAFETY: the table is open, the address has its format, and the result has room for one number.
        let code = unsafe {
            let (at, none) = (aligned.as_ptr().cast(), ptr::null_mut());
            ((*(*self.raw).ops).insert)(self.raw, at, 1, &raw mut number, 0, none)
        };
        if code == 1 && number != u64::MAX {
            return Ok(number);
        }
        Err(failed("fi_av_insert", if code < 0 { code as isize } else { -(libc::EINVAL as isize) }))
    }
}

/// A piece of local memory and its registration's descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
    pub(crate) desc: *mut c_void,
}

/// The maximum number of pieces of one operation.
pub(crate) const MAX_IOV: usize = 16;

/// The pieces of an operation in the library's format.
struct Pieces<const MOST: usize> {
    iov: [libc::iovec; MOST],
    desc: [*mut c_void; MOST],
    len: usize,
}

impl<const MOST: usize> Pieces<MOST> {
    #[inline]
    fn of(pieces: &[Local]) -> Pieces<MOST> {
        let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut out = Pieces { iov: [none; MOST], desc: [ptr::null_mut(); MOST], len: 0 };
        for piece in pieces.iter().take(MOST) {
            out.iov[out.len] = libc::iovec { iov_base: piece.base.cast(), iov_len: piece.len };
            out.desc[out.len] = piece.desc;
            out.len += 1;
        }
        out
    }
}

/// The target of an operation in a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) peer: u64,
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// An enabled endpoint with its queue and its table of peers.
pub(crate) struct Ep {
    pub(crate) raw: *mut fid_ep,
    enabled: bool,
    shut: AtomicBool,
    /// Whether the library has refused to close the object, or the object cannot be closed safely.
    stays: AtomicBool,
    pub(crate) cq: ManuallyDrop<Cq>,
    pub(crate) av: ManuallyDrop<Av>,
    /// The events that belong to no operation, if the provider has a queue for them.
    pub(crate) notices: ManuallyDrop<Option<Notices>>,
    domain: Arc<Domain>,
}

impl Drop for Ep {
    fn drop(&mut self) {
        if !self.shut() {
            // The endpoint depends on all of these objects, so they are kept, too. `ofi_rxm` frees its queue even if it reports
            // EBUSY (rxm_cq_close).
            return core::mem::forget(self.domain.clone());
        }
        // SAFETY: the fields are dropped only here, and after the endpoint.
        unsafe {
            ManuallyDrop::drop(&mut self.cq);
            ManuallyDrop::drop(&mut self.av);
            ManuallyDrop::drop(&mut self.notices);
        }
    }
}

impl Ep {
    /// Closes the endpoint and returns whether it has closed: if so, the library accesses no memory of its operations. Queue and
    /// table stay open.
    pub(crate) fn shut(&self) -> bool {
        if !self.shut.swap(true, Ordering::AcqRel) {
            self.empty_queue();
            // SAFETY: the swap ensures that the endpoint is closed once; queue and table are closed after it.
            if unsafe { close(self.raw.cast()) } != 0 {
                self.stays.store(true, Ordering::Release);
            }
        }
        !self.stays.load(Ordering::Acquire)
    }

    /// Drains the queue before the endpoint closes. When a connection closes, `ofi_rxm` would return the remaining entries to that
    /// connection, which it has already freed (`rxm_close_conn`; observed: SIGSEGV with verbs;ofi_rxm of 1.17; over `tcp`
    /// connections share their receives). The completions themselves are not needed any more.
    fn empty_queue(&self) {
        let provider = offers::sys::text(self.domain.info.fabric().prov_name);
        if !self.enabled || !provider.ends_with(";ofi_rxm") || provider.starts_with("tcp") {
            return;
        }
        let (mut room, mut nothing) = (Room::default(), 0);
        for _ in 0..MOST_LOOKS {
            match self.cq.look(self.cq.read(&mut room)) {
                Looked::Entries(_) | Looked::Failed(_) => nothing = 0,
                // A read may have advanced work that is internal to the library.
                Looked::Nothing if nothing < 16 => nothing += 1,
                Looked::Nothing | Looked::Broken(_) => break,
            }
        }
    }

    /// Checks whether a registration of the endpoint's domain has not ended although the library was asked to end it.
    pub(crate) fn is_reached(&self) -> bool {
        self.domain.keeps.load(Ordering::Acquire)
    }

    /// Returns the domain on which the endpoint was opened.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Checks whether the endpoint can be used.
    pub(crate) fn is_open(&self) -> Result<(), c_int> {
        if self.shut.load(Ordering::Acquire) { Err(libc::ESHUTDOWN) } else { Ok(()) }
    }

    pub(crate) fn open(
        domain: &Arc<Domain>,
        cq: Cq,
        av: Av,
        least_room: usize,
    ) -> Result<Ep, Failure> {
        let mut raw = ptr::null_mut();
        // SAFETY: the domain and its info are open.
        let code = unsafe {
            let ops = &*(*domain.raw).ops;
            (ops.endpoint)(domain.raw, domain.info.raw(), &raw mut raw, ptr::null_mut())
        };
        checked("fi_endpoint", code)?;
        let mut ep = Ep {
            raw,
            enabled: false,
            shut: false.into(),
            stays: false.into(),
            cq: ManuallyDrop::new(cq),
            av: ManuallyDrop::new(av),
            notices: ManuallyDrop::new(Notices::open(domain)),
            domain: domain.clone(),
        };
        // SAFETY: the endpoint, the queue and the table belong to one domain; the option is one size.
        unsafe {
            let ops = &*(*raw).fid.ops;
            // The table is bound first: `ofi_rxm` before 1.18 reads it as the endpoint closes, even if there is none (866fd5498).
            let bound = (ops.bind)(raw.cast(), ep.av.raw.cast(), 0);
            if bound != 0 {
                ep.shut.store(true, Ordering::Release);
                ep.stays.store(true, Ordering::Release);
            }
            checked("binding a table", bound)?;
            checked(
                "binding a queue",
                (ops.bind)(raw.cast(), ep.cq.raw.cast(), FI_SEND | FI_RECV),
            )?;
            // psm3 accepts no event queue.
            let notices = ep.notices.take();
            let is_bound = |notices: &Notices| (ops.bind)(raw.cast(), notices.raw.cast(), 0) == 0;
            *ep.notices = notices.filter(is_bound);
            let (at, len) = ((&raw const least_room).cast(), size_of::<usize>());
            let set = (*(*raw).ops).setopt;
            let code = set(raw.cast(), FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, at, len);
            checked("FI_OPT_MIN_MULTI_RECV", code)?;
            let code = (ops.control)(raw.cast(), FI_ENABLE, ptr::null_mut());
            checked("FI_ENABLE", code).map_err(|why| explained(why, code, domain))?;
        }
        ep.enabled = true;
        Ok(ep)
    }

    /// Returns the address by which peers reach the endpoint.
    pub(crate) fn name(&self) -> Result<Vec<u8>, Failure> {
        let mut room = [0u64; 64];
        let mut len = size_of_val(&room);
        // SAFETY: the endpoint is enabled; the buffer has the stated length.
        let code = unsafe {
            let get = (*(*self.raw).cm).getname;
            get(self.raw.cast(), room.as_mut_ptr().cast(), &raw mut len)
        };
        checked("fi_getname", code)?;
        let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(bytes[..len.min(bytes.len())].to_vec())
    }

    /// Posts a receive buffer, for one message or for many messages one after another.
    pub(crate) fn post_buffer(
        &self,
        room: Local,
        many: bool,
        context: *mut c_void,
    ) -> Result<(), c_int> {
        self.is_open()?;
        let mut pieces = Pieces::<1>::of(&[room]);
        let message = fi_msg {
            msg_iov: pieces.iov.as_ptr(),
            desc: pieces.desc.as_mut_ptr(),
            iov_count: pieces.len,
            addr: u64::MAX,
            context,
            data: 0,
        };
        let flags = FI_COMPLETION | if many { FI_MULTI_RECV } else { 0 };
        // SAFETY: the endpoint is enabled; the record and its arrays live for the call, the memory until the completion.
        let code = unsafe { ((*(*self.raw).msg).recvmsg)(self.raw, &raw const message, flags) };
        posted(code)
    }

    #[inline]
    pub(crate) fn send(&self, peer: u64, piece: Local, context: *mut c_void) -> Result<(), c_int> {
        self.is_open()?;
        let mut pieces = Pieces::<1>::of(&[piece]);
        let message = fi_msg {
            msg_iov: pieces.iov.as_ptr(),
            desc: pieces.desc.as_mut_ptr(),
            iov_count: pieces.len,
            addr: peer,
            context,
            data: 0,
        };
        // SAFETY: the endpoint is enabled; the record and its arrays live for the call, the memory until the completion.
        let code =
            unsafe { ((*(*self.raw).msg).sendmsg)(self.raw, &raw const message, FI_COMPLETION) };
        posted(code)
    }

    /// Posts a put, which completes when its data is in the target's memory, or a get.
    #[inline]
    pub(crate) fn transfer(
        &self,
        put: bool,
        local: &[Local],
        to: Remote,
        context: *mut c_void,
    ) -> Result<(), c_int> {
        match local.len() {
            1 => self.transfer_pieces(put, Pieces::<1>::of(local), to, context),
            _ => self.transfer_pieces(put, Pieces::<MAX_IOV>::of(local), to, context),
        }
    }

    #[inline(always)]
    fn transfer_pieces<const MOST: usize>(
        &self,
        put: bool,
        mut pieces: Pieces<MOST>,
        to: Remote,
        context: *mut c_void,
    ) -> Result<(), c_int> {
        self.is_open()?;
        let len = pieces.iov[..pieces.len].iter().map(|piece| piece.iov_len).sum();
        let there = fi_rma_iov { addr: to.address, len, key: to.key };
        let message = fi_msg_rma {
            msg_iov: pieces.iov.as_ptr(),
            desc: pieces.desc.as_mut_ptr(),
            iov_count: pieces.len,
            addr: to.peer,
            rma_iov: &raw const there,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        // SAFETY: the endpoint was opened for RMA and is enabled; the record and its arrays live for the call, the memory until the
        // completion.
        let code = unsafe {
            let ops = &*(*self.raw).rma;
            match put {
                true => (ops.writemsg)(
                    self.raw,
                    &raw const message,
                    FI_COMPLETION | FI_DELIVERY_COMPLETE,
                ),
                false => (ops.readmsg)(self.raw, &raw const message, FI_COMPLETION),
            }
        };
        posted(code)
    }
}

#[inline]
pub(crate) fn posted(code: isize) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err((-code) as c_int) }
}

/// Fills `bytes` with random bytes.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Failure> {
    tieline_net::random(bytes).map_err(|error| Failure::from_io("random numbers", &error))
}

/// Yields the processor: a closing interface may wait for a peer's poll.
pub(crate) fn yield_now() {
    // SAFETY: the call involves no memory.
    let _ = unsafe { libc::sched_yield() };
}
