//! The tables of the simulated library.

#![allow(unsafe_code)]

use super::memory::sys::{map_key, reg};
use super::messages::sys::{deliver, recvmsg, sendmsg};
use super::notices::sys::eq_open;
use super::offer::sys::{dupinfo, freeinfo, getinfo};
use super::rma::sys::{readmsg, writemsg};
use super::standing::sys::{bind_end, close_below, close_domain_below, close_fabric, stands};
use super::world::{End, Entry, World, world};
use crate::abi::*;
use crate::load::Library;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use tieline_plugin_api::abi::Event;

const NAME: &[u8] = b"played-0";

/// An object with the function table of a provider, and the object's number.
#[repr(C)]
struct Object<T> {
    public: T,
    number: u64,
}

pub(super) unsafe extern "C" fn close<T>(fid: *mut fid) -> c_int {
    // SAFETY: `new` made the object, and it is closed once.
    unsafe { drop(Box::from_raw(fid.cast::<Object<T>>())) };
    0
}

unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    0
}

pub(super) fn new<T>(public: T, number: u64) -> *mut T {
    Box::into_raw(Box::new(Object { public, number })).cast()
}

pub(super) fn number<T>(object: *mut T) -> u64 {
    // SAFETY: `new` made the object, and it is open.
    unsafe { (*object.cast::<Object<T>>()).number }
}

pub(super) fn table<T>(table: T) -> *mut T {
    Box::into_raw(Box::new(table))
}

pub(super) fn ops<T>() -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: close::<T>,
        bind: no_bind,
        control: no_control,
        ops_open: None,
        tostr: None,
        ops_set: None,
    }
}

pub(super) fn head(ops: fi_ops) -> fid {
    fid { fclass: 0, context: ptr::null_mut(), ops: table(ops) }
}

/// Returns the functions of the library.
pub(crate) fn library() -> Library {
    Library {
        getinfo,
        dupinfo,
        freeinfo,
        fabric,
        version: version(2, 0),
        took: Duration::ZERO,
        signals: Vec::new(),
    }
}

unsafe extern "C" fn fabric(
    _: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    _: *mut c_void,
) -> c_int {
    let fabric = fid_fabric {
        fid: head(fi_ops { close: close_fabric, ..ops::<fid_fabric>() }),
        ops: table(fi_ops_fabric {
            size: size_of::<fi_ops_fabric>(),
            domain,
            passive_ep: None,
            eq_open: Some(eq_open),
            wait_open: None,
            trywait,
            domain2: None,
        }),
        api_version: API,
    };
    // SAFETY: the target has room for one pointer.
    unsafe { *out = new(fabric, 0) };
    0
}

unsafe extern "C" fn trywait(_: *mut fid_fabric, _: *mut *mut fid, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    _: *mut fi_info,
    out: *mut *mut fid_domain,
    _: *mut c_void,
) -> c_int {
    let domain = fid_domain {
        fid: head(fi_ops { close: close_domain_below, control: map_key, ..ops::<fid_domain>() }),
        ops: table(fi_ops_domain {
            size: size_of::<fi_ops_domain>(),
            av_open,
            cq_open,
            endpoint,
            scalable_ep: None,
            cntr_open: None,
            poll_open: None,
            stx_ctx: None,
            srx_ctx: None,
            query_atomic: None,
            query_collective: None,
            endpoint2: None,
        }),
        mr: table(fi_ops_mr { size: size_of::<fi_ops_mr>(), reg, regv: None, regattr: None }),
    };
    // SAFETY: the target has room for one pointer.
    unsafe { *out = new(domain, 0) };
    // SAFETY: the target has room for one pointer.
    world(|world| stands(world, unsafe { *out }, fabric));
    0
}

unsafe extern "C" fn av_open(
    _: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the record is filled.
    if unsafe { (*attr).kind } != world(|world| world.manners.av_type) {
        return -libc::EINVAL;
    }
    let av = fid_av {
        fid: head(fi_ops { close: close_below::<fid_av>, ..ops::<fid_av>() }),
        ops: table(fi_ops_av {
            size: size_of::<fi_ops_av>(),
            insert,
            insertsvc: None,
            insertsym: None,
            remove,
            lookup: None,
            straddr: None,
            av_set: None,
        }),
    };
    // SAFETY: the target has room for one pointer.
    unsafe { *out = new(av, 0) };
    0
}

unsafe extern "C" fn insert(
    _: *mut fid_av,
    at: *const c_void,
    _: usize,
    out: *mut u64,
    _: u64,
    _: *mut c_void,
) -> c_int {
    // SAFETY: an address of this format has the length of an endpoint's name; `out` has room for one number.
    unsafe {
        let name = core::slice::from_raw_parts(at.cast::<u8>(), NAME.len());
        if !name.starts_with(b"played-") {
            world(|world| world.complaints.push(format!("a name of another format: {name:?}")));
            return -libc::EINVAL;
        }
        *out = u64::from(name[7] - b'0');
    }
    1
}

/// Records a complaint, because entries must not be removed. EFA's two sides number their packets, and removing an entry aborts the
/// other side's process (source: efa_rdm_msg.c, efa_base_ep.c).
unsafe extern "C" fn remove(_: *mut fid_av, _: *mut u64, _: usize, _: u64) -> c_int {
    world(|world| world.complaints.push("a peer was taken out of the table".into()));
    0
}

/// Returns a descriptor that is never readable, one for each thread.
unsafe extern "C" fn descriptor(_: *mut fid, _: c_int, out: *mut c_void) -> c_int {
    thread_local! {
        static SILENT: tieline_net::Waker = tieline_net::Waker::new().unwrap();
    }
    let fd = SILENT.with(|silent| silent.as_fd().as_raw_fd());
    // SAFETY: `out` has room for a descriptor.
    unsafe { out.cast::<c_int>().write(fd) };
    0
}

unsafe extern "C" fn cq_open(
    _: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the record is filled.
    if unsafe { (*attr).wait_obj } != FI_WAIT_NONE && !world(|world| world.manners.waits) {
        return -libc::ENOSYS;
    }
    let cq = fid_cq {
        fid: head(fi_ops { close: close_below::<fid_cq>, control: descriptor, ..ops::<fid_cq>() }),
        ops: table(fi_ops_cq {
            size: size_of::<fi_ops_cq>(),
            read,
            readfrom: None,
            readerr,
            sread: None,
            sreadfrom: None,
            signal: None,
            strerror,
        }),
    };
    // SAFETY: the record is filled, and `out` has room for one pointer. The queue's number becomes that of the endpoint that is
    // bound to it.
    let (size, cq) = unsafe {
        *out = new(cq, u64::MAX);
        ((*attr).size, *out)
    };
    let _ = world(|world| world.rooms.insert(cq.addr(), size));
    0
}

/// Sets the number of a queue to that of its endpoint.
///
/// # Safety
/// `queue` is an open queue.
pub(super) unsafe fn name_queue(queue: *mut fid, at: usize) {
    // SAFETY: see above.
    unsafe { (*queue.cast::<Object<fid_cq>>()).number = at as u64 };
}

/// Copies bytes within this process.
pub(super) fn copy(from: usize, to: usize, len: usize) {
    let (from, to) =
        (ptr::with_exposed_provenance::<u8>(from), ptr::with_exposed_provenance_mut(to));
    // SAFETY: the memory is posted or registered; its posting or registration was looked up.
    unsafe { ptr::copy(from, to, len) };
}

pub(super) fn progress(world: &mut World, at: usize) {
    if world.manners.hold_ways {
        return;
    }
    for way in core::mem::take(&mut world.ends[at].ways) {
        let mut remote = way.remote;
        if let Some(native) = way.atomic {
            super::atomics::sys::apply(world.manners.atomics, native, &way.local, remote);
        }
        let pieces = if way.atomic.is_some() { Vec::new() } else { way.local };
        for (base, len) in pieces {
            if way.put {
                copy(base, remote, len)
            } else {
                copy(remote, base, len)
            }
            remote += len;
        }
        if let Some(context) = way.context {
            world.complete(way.from, Entry { context, flags: 0, at: 0, len: 0, error: 0 });
        }
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, out: *mut c_void, room: usize) -> isize {
    let at = number(cq) as usize;
    super::world::act_beside(at);
    world(|world| {
        world.reads += 1;
        if core::mem::take(&mut world.manners.overrun) {
            return -(libc::EOVERFLOW as isize);
        }
        progress(world, at);
        if world.manners.noise {
            world.early_noise(at, room);
            deliver(world, at);
        }
        let entries = &mut world.ends[at].entries;
        let mut count = 0;
        while count < room {
            match entries.front() {
                Some(entry) if entry.error != 0 && count == 0 => return -(FI_EAVAIL as isize),
                Some(entry) if entry.error == 0 => {
                    let record = fi_cq_data_entry {
                        op_context: ptr::with_exposed_provenance_mut(entry.context),
                        flags: entry.flags,
                        len: entry.len,
                        buf: ptr::with_exposed_provenance_mut(entry.at),
                        data: 0,
                    };
                    // SAFETY: `out` has room for the number of records that the caller asked for.
                    unsafe { out.cast::<fi_cq_data_entry>().add(count).write(record) };
                    count += 1;
                    let _ = entries.pop_front();
                }
                _ => break,
            }
        }
        if count == 0 { -(FI_EAGAIN as isize) } else { count as isize }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _: u64) -> isize {
    let at = number(cq) as usize;
    let Some(entry) = world(|world| world.ends[at].entries.pop_front()) else { return 0 };
    // SAFETY: the record is complete.
    unsafe {
        (*out).op_context = ptr::with_exposed_provenance_mut(entry.context);
        ((*out).flags, (*out).err) = (entry.flags, entry.error);
    }
    1
}

unsafe extern "C" fn strerror(
    _: *mut fid_cq,
    _: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    c"as played".as_ptr()
}

unsafe extern "C" fn close_end(fid: *mut fid) -> c_int {
    let at = number(fid.cast::<fid_ep>()) as usize;
    if world(|world| world.manners.stays_open) {
        return -libc::EBUSY;
    }
    world(|world| {
        if !world.ends[at].has_table {
            world.complaints.push("an endpoint without a table was closed".into());
        }
        let bound = world.memory.values().filter(|memory| memory.bound == Some(at)).count();
        if bound > 0 {
            world.complaints.push(format!("endpoint {at} was closed before {bound} registrations"));
        }
        let closed = core::mem::take(&mut world.ends[at]);
        // The layer accesses freed memory with these entries, which ends the process (verbs;ofi_rxm of 1.17: run, and read in
        // `rxm_close_conn`).
        let came =
            closed.entries.iter().any(|entry| entry.error == 0 && entry.flags & FI_RECV != 0);
        if came && world.manners.provider.to_bytes().ends_with(b"ofi_rxm") {
            world.complaints.push("an endpoint was closed with messages in its queue".into());
        }
        for end in &mut world.ends {
            end.ways.retain(|way| way.from != at);
        }
        // Operations to this endpoint fail (tcp;ofi_rxm, observed).
        for (from, context) in closed.ways.iter().filter_map(|way| Some((way.from, way.context?))) {
            let error = libc::ENOTCONN;
            world.complete(from, Entry { context, flags: 0, at: 0, len: 0, error });
        }
    });
    // SAFETY: the object is closed once.
    unsafe { close::<fid_ep>(fid) }
}

unsafe extern "C" fn endpoint(
    domain: *mut fid_domain,
    _: *mut fi_info,
    out: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    if let Some(signal) = world(|world| world.manners.kills) {
        // SAFETY: the signal ends this process, or its child, unless there is a handler.
        let _ = unsafe { libc::raise(signal) };
    }
    let at = world(|world| {
        let free = world.ends.iter().position(|end| !end.open).unwrap_or(world.ends.len());
        if free == world.ends.len() {
            world.ends.push(End::default());
        }
        world.serial += 1;
        let (domain, serial) = (domain.addr(), world.serial);
        world.ends[free] = End { open: true, domain, serial, ..End::default() };
        free
    });
    let ep = fid_ep {
        fid: head(fi_ops { close: close_end, bind: bind_end, ..ops::<fid_ep>() }),
        ops: table(fi_ops_ep {
            size: 0,
            cancel: None,
            getopt: None,
            setopt,
            tx_ctx: None,
            rx_ctx: None,
            rx_size_left: None,
            tx_size_left: None,
        }),
        cm: table(fi_ops_cm {
            size: 0,
            setname: None,
            getname,
            getpeer: None,
            connect: None,
            listen: None,
            accept: None,
            reject: None,
            shutdown: None,
            join: None,
        }),
        msg: table(fi_ops_msg {
            size: 0,
            recv: None,
            recvv: None,
            recvmsg,
            send: None,
            sendv: None,
            sendmsg,
            inject: None,
            senddata: None,
            injectdata: None,
        }),
        rma: table(fi_ops_rma {
            size: 0,
            read: None,
            readv: None,
            readmsg,
            write: None,
            writev: None,
            writemsg,
            inject: None,
            writedata: None,
            injectdata: None,
        }),
        tagged: ptr::null_mut(),
        atomic: super::atomics::sys::table_of(),
        collective: ptr::null_mut(),
    };
    // SAFETY: the target has room for one pointer.
    unsafe { *out = new(ep, at as u64) };
    0
}

unsafe extern "C" fn setopt(
    fid: *mut fid,
    _: c_int,
    _: c_int,
    at: *const c_void,
    _: usize,
) -> c_int {
    let end = number(fid.cast::<fid_ep>()) as usize;
    // SAFETY: the option is a record of one size.
    let room = unsafe { *at.cast::<usize>() };
    world(|world| world.ends[end].least_room = room);
    0
}

unsafe extern "C" fn getname(fid: *mut fid, out: *mut c_void, len: *mut usize) -> c_int {
    let mut name = NAME.to_vec();
    name[7] = b'0' + number(fid.cast::<fid_ep>()) as u8;
    // SAFETY: the caller's buffer is longer than a name.
    unsafe {
        ptr::copy_nonoverlapping(name.as_ptr(), out.cast(), name.len());
        *len = name.len();
    }
    0
}

/// Returns the events that a poll has written.
pub(crate) fn pushed(room: &[core::mem::MaybeUninit<Event>], len: usize) -> Vec<Event> {
    // SAFETY: the poll has written `len` events.
    room[..len].iter().map(|event| unsafe { event.assume_init_read() }).collect()
}

/// Returns the bytes that an event points to.
pub(crate) fn payload(event: &Event) -> Vec<u8> {
    if event.len == 0 {
        return Vec::new();
    }
    // SAFETY: the event's bytes stay until the next poll.
    unsafe { core::slice::from_raw_parts(event.data, event.len) }.to_vec()
}

/// Writes the bytes that a packer must write.
pub(crate) fn write(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the provider provides the room that was requested.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
