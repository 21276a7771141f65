//! Owned verbs objects. Every object is destroyed on drop; references, and the order of fields in the owners, enforce the order.
//!
//! libibverbs may be called from any thread. A [`Device`] and the objects of a domain are shared. Completion queues, and the queue
//! pairs of `queue_pair/sys.rs`, belong to one interface or connector and therefore to one thread at a time.

#![allow(unsafe_code)]

mod quiet;

pub(crate) use quiet::QuietPolls;

use crate::abi::*;
use crate::load::{Library, library};
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::Arc;
use tieline_plugin_api::process::Calls;
use tieline_plugin_api::{Failure, Status};

/// Checks the result of a libibverbs call that returns an error number, or a negative number and sets `errno`.
pub(crate) fn check(code: c_int, what: &str) -> Result<(), Failure> {
    let error = match code {
        0 => return Ok(()),
        ..0 => io::Error::last_os_error(),
        code => io::Error::from_raw_os_error(code),
    };
    Err(Failure::from_io(what, &error))
}

/// Checks the result of a libibverbs call that returns a pointer.
pub(crate) fn made<T>(
    pointer: *mut T,
    what: impl FnOnce() -> String,
) -> Result<NonNull<T>, Failure> {
    NonNull::new(pointer).ok_or_else(|| Failure::last_os_error(&what()))
}

/// An open device.
pub(crate) struct Device {
    pub(crate) api: &'static Library,
    raw: NonNull<ibv_context>,
}

// SAFETY: libibverbs locks the data that its calls on a context share.
unsafe impl Send for Device {}
// SAFETY: libibverbs locks the data that its calls on a context share.
unsafe impl Sync for Device {}

/// An asynchronous event of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    /// The kind of event, `IBV_EVENT_*`.
    pub(crate) kind: c_uint,
    /// The number of the affected queue pair.
    pub(crate) qp: Option<u32>,
    /// The address of the library's object: the affected completion queue or shared receive queue, or the completion queue of the
    /// affected queue pair.
    pub(crate) queue: Option<usize>,
    /// The affected port.
    pub(crate) port: Option<u8>,
}

/// The calls that load the library or use its device list, which the library locks. A child process begins no such call if a thread
/// of its parent was inside one.
pub(crate) static LISTING: Calls = Calls::new();

impl Device {
    pub(crate) fn open(name: &str) -> Result<Arc<Device>, Failure> {
        let _call = LISTING.begin().ok_or_else(|| {
            let text = "this is a forked child, and a thread of its parent was inside libibverbs at the fork, so its locks \
                        stay held here. Fork while no other thread opens a context, or start the child by exec";
            Failure::new(Status::Unsupported, text)
        })?;
        let api = library()?;
        let mut count = 0;
        // SAFETY: the function only writes the count.
        let list = unsafe { (api.ibv_get_device_list)(&mut count) };
        let list = made(list, || "the devices cannot be listed".to_string())?;
        let mut opened = None;
        // SAFETY: the list has that many entries; names are NUL-terminated; the device is opened before the list is freed.
        unsafe {
            for &device in
                std::slice::from_raw_parts(list.as_ptr(), usize::try_from(count).unwrap_or(0))
            {
                let this = CStr::from_ptr((api.ibv_get_device_name)(device));
                if this.to_bytes() == name.as_bytes() {
                    opened = Some(made((api.ibv_open_device)(device), || {
                        format!(
                            "{name} cannot be opened, see who may read and write /dev/infiniband/uverbs*"
                        )
                    }));
                    break;
                }
            }
            (api.ibv_free_device_list)(list.as_ptr());
        }
        let raw = opened.unwrap_or_else(|| {
            let text = format!(
                "libibverbs does not know the device {name}: its driver's library (ibverbs-providers) may be missing"
            );
            Err(Failure::new(Status::NoDevice, text))
        })?;
        let device = Device { api, raw };
        device.set_nonblocking(device.async_fd())?;
        Ok(Arc::new(device))
    }

    fn set_nonblocking(&self, fd: c_int) -> Result<(), Failure> {
        // SAFETY: fcntl on a descriptor that this object owns.
        let code = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if code < 0 { Err(Failure::last_os_error("fcntl of a verbs descriptor")) } else { Ok(()) }
    }

    pub(crate) fn async_fd(&self) -> c_int {
        // SAFETY: the context is open.
        unsafe { self.raw.as_ref().async_fd }
    }

    pub(crate) fn attributes(&self) -> Result<ibv_device_attr, Failure> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and `attr` is a record of plain numbers.
        unsafe {
            check(
                (self.api.ibv_query_device)(self.raw.as_ptr(), attr.as_mut_ptr()),
                "query_device",
            )?;
            Ok(attr.assume_init())
        }
    }

    pub(crate) fn port(&self, port: u8) -> Result<ibv_port_attr, Failure> {
        let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and more room than the function writes (see `ibv_port_attr`).
        unsafe {
            check(
                (self.api.ibv_query_port)(self.raw.as_ptr(), port, attr.as_mut_ptr()),
                "query_port",
            )?;
            Ok(attr.assume_init())
        }
    }

    /// Returns the next asynchronous event, if any.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        let mut raw = ibv_async_event { element: ptr::null_mut(), event_type: 0 };
        // SAFETY: the context is open and has a non-blocking descriptor, and `raw` has room. The object to which the event points
        // stays until the event is acknowledged: destroying a queue pair waits for that.
        unsafe {
            if (self.api.ibv_get_async_event)(self.raw.as_ptr(), &raw mut raw) != 0 {
                return None;
            }
            let kind = raw.event_type;
            let about_qp = matches!(
                kind,
                IBV_EVENT_QP_FATAL
                    | IBV_EVENT_QP_REQ_ERR
                    | IBV_EVENT_QP_ACCESS_ERR
                    | IBV_EVENT_QP_LAST_WQE_REACHED
            );
            let about_queue = matches!(kind, IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR);
            let about_port = matches!(
                kind,
                IBV_EVENT_PORT_ACTIVE
                    | IBV_EVENT_PORT_ERR
                    | IBV_EVENT_LID_CHANGE
                    | IBV_EVENT_PKEY_CHANGE
                    | IBV_EVENT_SM_CHANGE
                    | IBV_EVENT_CLIENT_REREGISTER
                    | IBV_EVENT_GID_CHANGE
            );
            let qp = about_qp.then(|| &*raw.element.cast::<ibv_qp>());
            let event = AsyncEvent {
                kind,
                qp: qp.map(|qp| qp.qp_num),
                queue: about_queue.then(|| raw.element.addr()).or(qp.map(|qp| qp.recv_cq.addr())),
                port: about_port.then(|| raw.element.addr() as u8),
            };
            (self.api.ibv_ack_async_event)(&raw mut raw);
            Some(event)
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: no object of the context exists any more, because each holds a reference to this object.
        let _ = unsafe { (self.api.ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain: the common parent of queue pairs and registrations that are used together.
pub(crate) struct Pd {
    pub(crate) device: Arc<Device>,
    pub(crate) raw: NonNull<ibv_pd>,
    /// Whether the device failed to destroy a queue pair of this domain.
    kept: AtomicBool,
}

// SAFETY: libibverbs locks the data that its calls on a context and its protection domains share.
unsafe impl Send for Pd {}
// SAFETY: libibverbs locks the data that its calls on a context and its protection domains share.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(device: Arc<Device>) -> Result<Arc<Pd>, Failure> {
        // SAFETY: the context is open.
        let raw = unsafe { (device.api.ibv_alloc_pd)(device.raw.as_ptr()) };
        let raw = made(raw, || "a protection domain cannot be made".to_string())?;
        Ok(Arc::new(Pd { device, raw, kept: AtomicBool::new(false) }))
    }

    /// Records that a queue pair could not be destroyed. The buffers of this queue pair must never be reused.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Registers `len` bytes at `base` with `IBV_ACCESS_*` rights. The device can access the bytes until the registration is
    /// dropped. The caller guarantees that the bytes stay mapped until then, or that nothing is posted to them any more.
    pub(crate) fn register(
        self: &Arc<Pd>,
        base: *mut u8,
        len: usize,
        rights: c_uint,
    ) -> Result<Mr, i32> {
        let (pd, start) = (self.raw.as_ptr(), base.expose_provenance() as u64);
        let hint = rights & IBV_ACCESS_RELAXED_ORDERING != 0;
        let (api, base) = (self.device.api, base.cast::<c_void>());
        // SAFETY: the protection domain is live; the kernel checks and pins the range. The newer function removes hints that are
        // unknown to the kernel; an older library gets no hint.
        self.made(unsafe {
            match api.ibv_reg_mr_iova2 {
                Some(register) if hint => register(pd, base, len, start, rights),
                _ => {
                    let rights = rights & !IBV_ACCESS_RELAXED_ORDERING;
                    (api.ibv_reg_mr)(pd, base, len, rights as c_int)
                }
            }
        })
    }

    /// Registers `len` bytes of a DMA buffer from `offset` on. Peers and pieces address these bytes from `start` on. The caller
    /// keeps ownership of the descriptor.
    pub(crate) fn register_dmabuf(
        self: &Arc<Pd>,
        descriptor: c_int,
        offset: u64,
        (start, len): (u64, usize),
        rights: c_uint,
    ) -> Result<Mr, i32> {
        let register = self.device.api.ibv_reg_dmabuf_mr.ok_or(libc::EOPNOTSUPP)?;
        let rights = (rights & !IBV_ACCESS_RELAXED_ORDERING) as c_int;
        // SAFETY: the protection domain is live; the kernel checks the descriptor and the range, and no memory of this process is
        // involved.
        self.made(unsafe { register(self.raw.as_ptr(), offset, len, start, descriptor, rights) })
    }

    fn made(self: &Arc<Pd>, raw: *mut ibv_mr) -> Result<Mr, i32> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Mr { pd: self.clone(), raw }),
            None => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: no object of the protection domain exists any more.
        let _ = unsafe { (self.device.api.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A registration.
pub(crate) struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<ibv_mr>,
}

// SAFETY: only the constant keys are read, and the registration is dropped once.
unsafe impl Send for Mr {}
// SAFETY: only the constant keys are read, and the registration is dropped once.
unsafe impl Sync for Mr {}

impl Mr {
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the registration is live.
        unsafe { self.raw.as_ref().lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the registration is live.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Mr {
    /// Checks whether a queue pair that could not be destroyed may still use this registration.
    pub(crate) fn keeps_buffers(&self) -> bool {
        self.pd.kept.load(Ordering::Relaxed)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the registration is live and is deregistered only here.
        let _ = unsafe { (self.pd.device.api.ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}

/// A completion queue and its completion channel, which wakes a sleeping thread.
pub(crate) struct Cq {
    device: Arc<Device>,
    channel: NonNull<ibv_comp_channel>,
    pub(crate) raw: NonNull<ibv_cq>,
}

/// One completion.
pub(crate) type Wc = ibv_wc;

/// The maximum number of completions per poll call.
pub(crate) const WC_BATCH: usize = 32;

impl Cq {
    pub(crate) fn new(device: &Arc<Device>, entries: usize) -> Result<Cq, Failure> {
        let api = device.api;
        // SAFETY: the context is open.
        let channel = unsafe { (api.ibv_create_comp_channel)(device.raw.as_ptr()) };
        let channel = made(channel, || "a completion channel cannot be made".to_string())?;
        // SAFETY: the context and its channel are open; completion vector 0 always exists.
        let raw = unsafe {
            (api.ibv_create_cq)(
                device.raw.as_ptr(),
                c_int::try_from(entries).unwrap_or(c_int::MAX),
                ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let raw = match made(raw, || format!("a completion queue of {entries} cannot be made")) {
            Ok(raw) => raw,
            Err(failure) => {
                // SAFETY: nothing uses the channel yet.
                let _ = unsafe { (api.ibv_destroy_comp_channel)(channel.as_ptr()) };
                return Err(failure);
            }
        };
        let cq = Cq { device: device.clone(), channel, raw };
        device.set_nonblocking(cq.fd())?;
        Ok(cq)
    }

    /// Returns the descriptor that becomes readable when a completion arrives after [`Cq::arm`].
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: the channel is live.
        unsafe { self.channel.as_ref().fd }
    }

    /// Checks whether `queue` in an event is this queue.
    pub(crate) fn is(&self, queue: Option<usize>) -> bool {
        queue == Some(self.raw.as_ptr().addr())
    }

    pub(crate) fn capacity(&self) -> usize {
        // SAFETY: the queue is live.
        unsafe { self.raw.as_ref().cqe.max(0) as usize }
    }

    pub(crate) fn resize(&self, entries: usize) -> Result<(), Failure> {
        // SAFETY: the queue is live; no completion is lost by resizing.
        let code = unsafe { (self.device.api.ibv_resize_cq)(self.raw.as_ptr(), entries as c_int) };
        check(code, &format!("growing the completion queue to {entries}"))
    }

    /// Polls completions into `room` and returns their number.
    pub(crate) fn poll(&self, room: &mut [Wc]) -> Result<usize, Failure> {
        let most = room.len();
        let count = usize::try_from(self.fetch(room)).map_err(|_| Cq::not_polled())?;
        Ok(count.min(most))
    }

    #[cold]
    pub(crate) fn not_polled() -> Failure {
        Failure::new(Status::NoDevice, "the completion queue cannot be polled any more")
    }

    /// Polls like [`Cq::poll`], but returns the device's result. A negative value means that the queue cannot be polled any more.
    #[inline(always)]
    pub(crate) fn fetch(&self, room: &mut [Wc]) -> c_int {
        // SAFETY: the queue is live, and its context has the function, which writes no more records than `room` takes.
        unsafe {
            let poll = (*self.raw.as_ref().context).ops.poll_cq;
            poll(self.raw.as_ptr(), room.len() as c_int, room.as_mut_ptr())
        }
    }

    /// Consumes up to 1024 pending notifications of the channel.
    pub(crate) fn drain_channel(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let mut count = 0;
        // SAFETY: the channel is live, with a non-blocking descriptor; every event belongs to its only queue.
        unsafe {
            while count < 1024
                && (self.device.api.ibv_get_cq_event)(
                    self.channel.as_ptr(),
                    &raw mut cq,
                    &raw mut context,
                ) == 0
            {
                count += 1;
            }
            if count > 0 {
                (self.device.api.ibv_ack_cq_events)(self.raw.as_ptr(), count);
            }
        }
    }

    /// Requests a notification for the next completion.
    pub(crate) fn arm(&self) -> Result<(), Failure> {
        // SAFETY: the queue is live, whose context has the function.
        let code = unsafe {
            let notify = (*self.raw.as_ref().context).ops.req_notify_cq;
            notify(self.raw.as_ptr(), 0)
        };
        check(code, "asking for a notification")
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.drain_channel();
        // SAFETY: the queue pairs that used the queue have been destroyed (see the order of fields in the owner).
        unsafe {
            let _ = (self.device.api.ibv_destroy_cq)(self.raw.as_ptr());
            let _ = (self.device.api.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}
