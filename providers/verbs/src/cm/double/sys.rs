//! A single-threaded double of librdmacm. Requests take effect immediately between the ids of the current thread and produce
//! events. The double provides the attributes that connect queue pairs of the device double.
//!
//! The double reproduces the behaviour on which the provider relies. Private data is padded with zeros. Destroying an id discards
//! its events. If an established connection is disconnected, the other side is notified.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::cm::abi::*;
use crate::cm::load::Library;
use crate::double::sys::{NAME, descriptor};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

/// The number of bytes of private data in a request, an answer and a rejection.
const REQUEST: usize = 56;
const ANSWER: usize = 196;
const REJECTION: usize = 148;
/// The reasons of a rejection: no listener, and a refusal by the listener.
const NO_SUCH_SERVICE: c_int = 8;
const CONSUMER: c_int = 28;

/// The injected faults of the connection manager.
#[derive(Default)]
pub(in crate::cm) struct Faults {
    /// The manager refuses calls to connect, accept, establish, disconnect and set options.
    pub(in crate::cm) refuses: bool,
    /// The results of the next address resolutions: events with error numbers.
    pub(in crate::cm) addresses: VecDeque<(c_uint, c_int)>,
    /// The results of the next route resolutions.
    pub(in crate::cm) routes: VecDeque<(c_uint, c_int)>,
    /// The reasons for which the next requests are rejected.
    pub(in crate::cm) rejections: VecDeque<c_int>,
    /// The device port to which addresses resolve; `None`: port 1.
    pub(in crate::cm) port: Option<u8>,
    /// Requests are lost.
    pub(in crate::cm) silent: bool,
    /// Reading events fails.
    pub(in crate::cm) deaf: bool,
}

/// An event that the library keeps until its acknowledgement.
#[repr(C)]
struct Kept {
    event: rdma_cm_event,
    data: Vec<u8>,
}

struct State {
    channel: usize,
    listens: bool,
    /// The other side of a connection or connection request.
    peer: Option<usize>,
    joined: bool,
    /// The queue pair on the other side.
    remote: u32,
    qpn: u32,
}

#[derive(Default)]
struct Manager {
    faults: Faults,
    asked: Vec<&'static str>,
    classes: Vec<u8>,
    channels: HashMap<usize, VecDeque<*mut Kept>>,
    ids: HashMap<usize, State>,
    /// The device context of the manager.
    device: Option<*mut ibv_context>,
    ports: u16,
}

thread_local! {
    static MANAGER: RefCell<Manager> = RefCell::default();
}

fn manager<R>(act: impl FnOnce(&mut Manager) -> R) -> R {
    MANAGER.with_borrow_mut(act)
}

/// Returns the names of this thread's calls to connect, accept, establish and disconnect since the last call of this function.
pub(in crate::cm) fn asked() -> Vec<&'static str> {
    manager(|manager| std::mem::take(&mut manager.asked))
}

/// Returns the types of service that were set on ids.
pub(in crate::cm) fn classes() -> Vec<u8> {
    manager(|manager| manager.classes.clone())
}

pub(in crate::cm) fn fault(change: impl FnOnce(&mut Faults)) {
    manager(|manager| change(&mut manager.faults));
}

/// Reports the removal of the device to all listeners.
pub(in crate::cm) fn remove_device() {
    manager(|manager| {
        let listeners: Vec<usize> =
            manager.ids.iter().filter(|(_, id)| id.listens).map(|(at, _)| *at).collect();
        for at in listeners {
            manager.tell(at, None, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, Vec::new());
        }
    });
}

impl Manager {
    fn ask(&mut self, what: &'static str) -> c_int {
        self.asked.push(what);
        if self.faults.refuses { -1 } else { 0 }
    }

    fn tell(
        &mut self,
        id: usize,
        listener: Option<usize>,
        kind: c_uint,
        status: c_int,
        data: Vec<u8>,
    ) {
        let Some(channel) = self.ids.get(&id).map(|state| state.channel) else { return };
        let conn = rdma_conn_param {
            private_data: ptr::null(),
            private_data_len: data.len() as u8,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        };
        let event = rdma_cm_event {
            id: ptr::with_exposed_provenance_mut(id),
            listen_id: ptr::with_exposed_provenance_mut(listener.unwrap_or(0)),
            event: kind,
            status,
            conn,
        };
        let mut kept = Box::new(Kept { event, data });
        if !kept.data.is_empty() {
            kept.event.conn.private_data = kept.data.as_ptr().cast();
        }
        self.channels.entry(channel).or_default().push_back(Box::into_raw(kept));
        wake(channel);
    }

    /// Disconnects an id. Returns its former peer, and whether the connection was established.
    fn part(&mut self, id: usize) -> Option<(usize, bool)> {
        let state = self.ids.get_mut(&id)?;
        let joined = std::mem::take(&mut state.joined);
        let peer = state.peer.take()?;
        let other = self.ids.get_mut(&peer)?;
        (other.peer, other.joined) = (None, false);
        Some((peer, joined))
    }

    /// Returns the device context that ids refer to.
    fn device(&mut self) -> *mut ibv_context {
        *self.device.get_or_insert_with(|| {
            let api = crate::load::library().expect("it is played");
            // SAFETY: the device is the double, which stays open for the life of the thread.
            unsafe { (api.ibv_open_device)(NAME.as_ptr().cast_mut().cast()) }
        })
    }

    fn made(&mut self, channel: usize) -> *mut rdma_cm_id {
        // SAFETY: the record consists of numbers and pointers, for which zero is valid.
        let id = Box::into_raw(Box::new(unsafe { core::mem::zeroed::<rdma_cm_id>() }));
        let state = State { channel, listens: false, peer: None, joined: false, remote: 0, qpn: 0 };
        let _ = self.ids.insert(id.expose_provenance(), state);
        id
    }
}

fn errno(code: c_int) -> c_int {
    // SAFETY: the pointer leads to the thread's own error number.
    unsafe { *libc::__errno_location() = code };
    -1
}

/// Makes the channel's descriptor readable.
fn wake(channel: usize) {
    let channel = ptr::with_exposed_provenance::<rdma_event_channel>(channel);
    // SAFETY: a channel outlives its ids, and the event is for one of these ids; eight bytes are written.
    let _ = unsafe { libc::write((*channel).fd, (&raw const ONE).cast(), 8) };
}

static ONE: u64 = 1;

/// Checks whether a descriptor is readable, so that it wakes a sleeper.
pub(in crate::cm) fn is_readable(fd: c_int) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `asked` is one record.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
}

unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    let channel = Box::into_raw(Box::new(rdma_event_channel { fd: descriptor() }));
    let _ = channel.expose_provenance();
    channel
}

unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    let _ = manager(|manager| manager.channels.remove(&channel.addr()));
    // SAFETY: the pointer came from `create_event_channel`, and ends once.
    let _ = unsafe { libc::close(Box::from_raw(channel).fd) };
}

unsafe extern "C" fn get_cm_event(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_event,
) -> c_int {
    let next = manager(|manager| {
        if manager.faults.deaf {
            return Err(libc::EIO);
        }
        let told = manager.channels.get_mut(&channel.addr()).and_then(VecDeque::pop_front);
        told.ok_or(libc::EAGAIN)
    });
    match next {
        Ok(kept) => {
            // SAFETY: the caller guarantees the out-pointer.
            unsafe { *out = kept.cast() };
            0
        }
        Err(code) => {
            let mut count = 0u64;
            // SAFETY: the channel is live, and `count` has eight bytes.
            let _ = unsafe { libc::read((*channel).fd, (&raw mut count).cast(), 8) };
            errno(code)
        }
    }
}

unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: the pointer came from `get_cm_event`, and is acknowledged once.
    drop(unsafe { Box::from_raw(event.cast::<Kept>()) });
    0
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    _: *mut c_void,
    _: c_uint,
) -> c_int {
    let id = manager(|manager| manager.made(channel.addr()));
    // SAFETY: the caller guarantees the out-pointer.
    unsafe { *out = id };
    0
}

unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    let lost = manager(|manager| {
        match manager.part(id.addr()) {
            Some((peer, true)) => {
                manager.tell(peer, None, RDMA_CM_EVENT_DISCONNECTED, 0, Vec::new());
            }
            // The connection request has no answer yet.
            Some((peer, false)) => {
                manager.tell(peer, None, RDMA_CM_EVENT_REJECTED, CONSUMER, vec![0; REJECTION]);
            }
            None => {}
        }
        let channel = manager.ids.remove(&id.addr()).map_or(0, |state| state.channel);
        let told = manager.channels.get_mut(&channel).map(std::mem::take).unwrap_or_default();
        let (lost, stay): (VecDeque<_>, VecDeque<_>) = told.into_iter().partition(|kept| {
            // SAFETY: a pending event belongs to its channel.
            unsafe { (**kept).event.id == id }
        });
        let _ = manager.channels.insert(channel, stay);
        lost
    });
    // SAFETY: the removed events can no longer be fetched; the id came from `made`, and is destroyed once.
    unsafe {
        lost.into_iter().for_each(|kept| drop(Box::from_raw(kept)));
        drop(Box::from_raw(id));
    }
    0
}

fn port(room: &sockaddr_room) -> u16 {
    u16::from_be_bytes([room.bytes[2], room.bytes[3]])
}

unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, to: *mut sockaddr_room) -> c_int {
    manager(|manager| {
        manager.ports += 1;
        // SAFETY: the id is live, and the caller guarantees the address.
        unsafe {
            let id = &mut *id;
            id.src_addr = *to;
            id.src_addr.bytes[2..4].copy_from_slice(&(7000 + manager.ports).to_be_bytes());
            id.verbs = manager.device();
            id.port_num = manager.faults.port.unwrap_or(1);
        }
    });
    0
}

unsafe extern "C" fn listen(id: *mut rdma_cm_id, _: c_int) -> c_int {
    manager(|manager| {
        if let Some(state) = manager.ids.get_mut(&id.addr()) {
            state.listens = true;
        }
    });
    0
}

unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr_room,
    to: *mut sockaddr_room,
    _: c_int,
) -> c_int {
    manager(|manager| {
        let (kind, status) =
            manager.faults.addresses.pop_front().unwrap_or((RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        // SAFETY: the id is live, and the caller guarantees the addresses.
        unsafe {
            ((*id).src_addr, (*id).dst_addr) = (*from, *to);
            (*id).verbs = manager.device();
            (*id).port_num = manager.faults.port.unwrap_or(1);
        }
        manager.tell(id.addr(), None, kind, status, Vec::new());
    });
    0
}

unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _: c_int) -> c_int {
    manager(|manager| {
        let (kind, status) =
            manager.faults.routes.pop_front().unwrap_or((RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        manager.tell(id.addr(), None, kind, status, Vec::new());
    });
    0
}

unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the id is live, and the caller guarantees the records.
    let (attr, mask, bound) = unsafe { (&mut *attr, &mut *mask, !(*id).verbs.is_null()) };
    let remote = manager(|manager| manager.ids.get(&id.addr()).map_or(0, |state| state.remote));
    if !bound {
        return errno(libc::EINVAL);
    }
    attr.port_num = 1;
    attr.dest_qp_num = remote;
    let said = match attr.qp_state {
        IBV_QPS_INIT => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QPS_RTR => {
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        _ => {
            IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
    };
    *mask = (said | IBV_QP_STATE) as c_int;
    0
}

/// Returns the queue pair number and the private data of one side, padded with zeros to `room` bytes.
///
/// # Safety
/// `param` is a filled record.
unsafe fn said(param: *mut rdma_conn_param, room: usize) -> (u32, Vec<u8>) {
    // SAFETY: by this function's contract.
    unsafe {
        let param = &*param;
        (param.qp_num, private(param.private_data, param.private_data_len, room))
    }
}

/// # Safety
/// `data` points to `len` bytes; `len` may be 0.
unsafe fn private(data: *const c_void, len: u8, room: usize) -> Vec<u8> {
    assert!(usize::from(len) <= room, "{len} bytes do not fit");
    let mut bytes = vec![0; room];
    if len > 0 {
        // SAFETY: by this function's contract.
        let given = unsafe { core::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) };
        bytes[..given.len()].copy_from_slice(given);
    }
    bytes
}

unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's record, and a live id.
    let ((qpn, data), to) = unsafe { (said(param, REQUEST), port(&(*id).dst_addr)) };
    manager(|manager| {
        if manager.ask("connect") != 0 {
            return errno(libc::EINVAL);
        }
        if let Some(state) = manager.ids.get_mut(&id.addr()) {
            state.qpn = qpn;
        }
        if manager.faults.silent {
            return 0;
        }
        let at = |at: usize| ptr::with_exposed_provenance::<rdma_cm_id>(at);
        let listener = manager.ids.iter().find(|(address, state)| {
            // SAFETY: every known id is live.
            state.listens && unsafe { port(&(*at(**address)).src_addr) } == to
        });
        let listener = listener.map(|(address, state)| (*address, state.channel));
        let reason = manager.faults.rejections.pop_front();
        let (Some((listener, channel)), None) = (listener, reason) else {
            let reason = reason.unwrap_or(NO_SUCH_SERVICE);
            manager.tell(id.addr(), None, RDMA_CM_EVENT_REJECTED, reason, vec![0; REJECTION]);
            return 0;
        };
        let child = manager.made(channel);
        // SAFETY: the id was just made.
        unsafe { ((*child).verbs, (*child).port_num) = (manager.device(), 1) };
        for (one, other) in [(child.addr(), id.addr()), (id.addr(), child.addr())] {
            if let Some(state) = manager.ids.get_mut(&one) {
                state.peer = Some(other);
            }
        }
        if let Some(state) = manager.ids.get_mut(&child.addr()) {
            state.remote = qpn;
        }
        manager.tell(child.addr(), Some(listener), RDMA_CM_EVENT_CONNECT_REQUEST, 0, data);
        0
    })
}

unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller guarantees the record.
    let (qpn, data) = unsafe { said(param, ANSWER) };
    manager(|manager| {
        if manager.ask("accept") != 0 {
            return errno(libc::EINVAL);
        }
        let peer = manager.ids.get_mut(&id.addr()).and_then(|state| {
            (state.qpn, state.joined) = (qpn, true);
            state.peer
        });
        let Some(peer) = peer else { return 0 };
        if let Some(state) = manager.ids.get_mut(&peer) {
            (state.remote, state.joined) = (qpn, true);
        }
        manager.tell(peer, None, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, data);
        0
    })
}

unsafe extern "C" fn establish(_: *mut rdma_cm_id) -> c_int {
    manager(|manager| manager.ask("establish"))
}

unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's bytes.
    let data = unsafe { private(data, len, REJECTION) };
    manager(|manager| {
        if let Some((peer, _)) = manager.part(id.addr()) {
            manager.tell(peer, None, RDMA_CM_EVENT_REJECTED, CONSUMER, data);
        }
    });
    0
}

unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    manager(|manager| {
        if let Some((peer, true)) = manager.part(id.addr()) {
            manager.tell(peer, None, RDMA_CM_EVENT_DISCONNECTED, 0, Vec::new());
        }
        manager.ask("disconnect")
    })
}

unsafe extern "C" fn set_option(
    _: *mut rdma_cm_id,
    _: c_int,
    _: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    assert_eq!(len, 1, "the type of service is one byte");
    // SAFETY: the caller's byte.
    let class = unsafe { *value.cast::<u8>() };
    manager(|manager| {
        manager.classes.push(class);
        if manager.faults.refuses { errno(libc::EINVAL) } else { 0 }
    })
}

/// Returns the double's function table, in place of the real library.
pub(in crate::cm) fn library() -> Library {
    Library {
        rdma_create_event_channel: create_event_channel,
        rdma_destroy_event_channel: destroy_event_channel,
        rdma_get_cm_event: get_cm_event,
        rdma_ack_cm_event: ack_cm_event,
        rdma_create_id: create_id,
        rdma_destroy_id: destroy_id,
        rdma_bind_addr: bind_addr,
        rdma_listen: listen,
        rdma_resolve_addr: resolve_addr,
        rdma_resolve_route: resolve_route,
        rdma_init_qp_attr: init_qp_attr,
        rdma_connect: connect,
        rdma_establish: establish,
        rdma_accept: accept,
        rdma_reject: reject,
        rdma_disconnect: disconnect,
        rdma_set_option: set_option,
    }
}
