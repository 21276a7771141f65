//! A single-threaded double of libibverbs. Requests are executed immediately between queue pairs of this thread (`world.rs`),
//! unless a fault delays them.
//!
//! The double follows the specification in the points on which the provider relies. These are queue pair states, keys, ranges and
//! rights; in-order completions, only for signalled or failed sends; and receivers without a buffer. A rejected access ends both
//! queue pairs. As with most drivers, unread completions are lost with their queue pair (`Nature::purges`).

#![allow(unsafe_code)]

use super::faults::be_interrupted;
pub(crate) use super::host::sys::host;
use super::posts::sys::{post_recv, post_send, post_srq_recv};
use super::world::{Area, IBV_QPS_SQE, Pair, world};
use crate::abi::*;
use crate::load::Library;
use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::zeroed;
use core::ptr;
use std::collections::VecDeque;

/// The name of the only device.
pub(crate) const NAME: &CStr = c"double0";
/// Returns the bytes of a registration or of an inline piece.
pub(super) fn bytes_at<'a>(address: u64, len: u32) -> &'a [u8] {
    // SAFETY: the caller has found the range in a live registration, whose memory the registering side keeps mapped, or the range
    // is an inline piece, borrowed for the call; no other code runs meanwhile.
    unsafe {
        core::slice::from_raw_parts(ptr::with_exposed_provenance(address as usize), len as usize)
    }
}

/// Writes into a registration.
pub(crate) fn write_at(address: u64, bytes: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the caller has found the range in a live registration with the write right, whose memory the registering side keeps
    // mapped; no other code runs meanwhile.
    unsafe { ptr::copy(bytes.as_ptr(), to, bytes.len()) };
}

/// Returns a dummy kernel descriptor for channels.
pub(crate) fn descriptor() -> c_int {
    // SAFETY: the call involves no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
}

thread_local! {
    static OBJECTS: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of live objects of this thread's devices.
pub(crate) fn objects() -> usize {
    OBJECTS.get()
}

fn made<T>(object: T) -> *mut T {
    OBJECTS.set(OBJECTS.get() + 1);
    Box::into_raw(Box::new(object))
}

/// Returns the result of a failed constructor with this error number.
fn refused<T>(errno: c_int) -> *mut T {
    // SAFETY: the pointer leads to the thread's own error number.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}

/// # Safety
/// `object` came from [`made`] and is destroyed once.
unsafe fn unmade<T>(object: *mut T) -> c_int {
    OBJECTS.set(OBJECTS.get() - 1);
    // SAFETY: by this function's contract.
    drop(unsafe { Box::from_raw(object) });
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let list = [NAME.as_ptr().cast_mut().cast::<ibv_device>(), ptr::null_mut()];
    if !count.is_null() {
        // SAFETY: the caller guarantees the out-pointer.
        unsafe { *count = 1 };
    }
    made(list).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the pointer came from `get_device_list`.
    let _ = unsafe { unmade(list.cast::<[*mut ibv_device; 2]>()) };
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    device.cast()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let ops = ibv_context_ops {
        unused_0: [ptr::null_mut(); 11],
        poll_cq,
        req_notify_cq,
        unused_13: [ptr::null_mut(); 7],
        post_srq_recv,
        unused_21: [ptr::null_mut(); 4],
        post_send,
        post_recv,
        unused_27: [ptr::null_mut(); 5],
    };
    let (cmd_fd, async_fd) = (-1, descriptor());
    let context = made(ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors: 1 });
    let _ = world(|world| world.async_events.insert(context.addr(), VecDeque::new()));
    context
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    let _ = world(|world| world.async_events.remove(&context.addr()));
    // SAFETY: the pointer came from `open_device`.
    unsafe {
        let _ = libc::close((*context).async_fd);
        unmade(context)
    }
}

/// Returns the limit on completion queue entries.
fn most_completions() -> c_int {
    world(|world| world.faults.most_completions).unwrap_or(1 << 20)
}

unsafe extern "C" fn query_device(_: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller guarantees the record, and its fields are plain numbers.
    unsafe {
        *out = ibv_device_attr {
            max_sge: world(|world| world.nature.pieces),
            max_sge_rd: world(|world| world.nature.pieces_read),
            max_srq: world(|world| c_int::from(world.nature.shares_receives) << 16),
            max_qp: 1 << 17,
            max_cqe: most_completions(),
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            atomic_cap: 1,
            ..zeroed()
        };
    }
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, out: *mut ibv_port_attr) -> c_int {
    let nature = world(|world| world.nature);
    let infiniband = nature.link_layer == IBV_LINK_LAYER_INFINIBAND;
    // SAFETY: the caller guarantees the record, and its fields are plain numbers.
    unsafe {
        *out = ibv_port_attr {
            state: 4,
            max_mtu: 5,
            active_mtu: nature.mtu,
            max_msg_sz: 1 << 30,
            lid: if infiniband { 7 } else { 0 },
            link_layer: nature.link_layer as u8,
            flags: if nature.needs_grh { IBV_QPF_GRH_REQUIRED as u8 } else { 0 },
            ..zeroed()
        };
    }
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    let next = world(|world| world.async_events.get_mut(&context.addr())?.pop_front());
    let Some((event_type, element)) = next else { return -1 };
    // SAFETY: the caller guarantees the record.
    unsafe {
        *out = ibv_async_event { element: ptr::with_exposed_provenance_mut(element), event_type }
    };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    made(ibv_pd { context, handle: 0 })
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the pointer came from `alloc_pd`.
    unsafe { unmade(pd) }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let key = world(|world| {
        let held: u64 = world.memory.values().map(|area| area.len).sum();
        if world.faults.locked.is_some_and(|most| held as usize + length > most) {
            return Err(libc::ENOMEM);
        }
        let start = addr.expose_provenance() as u64;
        let kept = &world.faults.read_only;
        let overlaps = start < kept.end && kept.start < start + length as u64;
        if overlaps && access as c_uint & IBV_ACCESS_LOCAL_WRITE != 0 {
            return Err(libc::EFAULT);
        }
        world.counts.registrations += 1;
        let key = world.number();
        let area = Area { start, len: length as u64, rights: access as c_uint, foreign: false };
        let _ = world.memory.insert(key, area);
        Ok(key)
    });
    let key = match key {
        Ok(key) => key,
        Err(errno) => return refused(errno),
    };
    made(ibv_mr { context: ptr::null_mut(), pd, addr, length, handle: key, lkey: key, rkey: key })
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    assert_eq!(iova, addr.addr() as u64, "nothing is named by other addresses");
    // SAFETY: the same contract as the caller's.
    unsafe { reg_mr(pd, addr, length, access as c_int) }
}

/// Registers a DMA buffer, which is memory of this process at its stated address; only the device may access that memory.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if descriptor < 0 || offset % 8 != 0 {
        return refused(libc::EBADF);
    }
    // SAFETY: the caller's contract is that of `reg_mr`.
    let mr = unsafe { reg_mr(pd, ptr::with_exposed_provenance_mut(iova as usize), length, access) };
    // SAFETY: the pointer is null, or was just made.
    let key = unsafe { mr.as_ref() }.map(|mr| mr.lkey);
    world(|world| {
        let area = key.and_then(|key| world.memory.get_mut(&key));
        area.into_iter().for_each(|area| area.foreign = true);
    });
    mr
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the pointer came from `reg_mr`.
    let key = unsafe { (*mr).lkey };
    let _ = world(|world| world.memory.remove(&key));
    // SAFETY: the pointer came from `reg_mr`.
    unsafe { unmade(mr) }
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    made(ibv_comp_channel { context, fd: descriptor(), refcnt: 0 })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the pointer came from `create_comp_channel`.
    unsafe {
        let _ = libc::close((*channel).fd);
        unmade(channel)
    }
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    if !(1..=most_completions()).contains(&cqe) {
        return refused(libc::EINVAL);
    }
    let fewer = world(|world| {
        let left = world.faults.refuse_completion_queues.checked_sub(1);
        left.map(|left| world.faults.refuse_completion_queues = left)
    });
    if fewer.is_some() {
        return refused(libc::ENOMEM);
    }
    let cq = made(ibv_cq { context, channel, cq_context, handle: 0, cqe });
    let _ = world(|world| world.room.insert(cq.addr(), cqe as usize));
    cq
}

unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    if !world(|world| world.nature.resizes) {
        return libc::EOPNOTSUPP;
    }
    if !(1..=most_completions()).contains(&cqe) {
        return libc::EINVAL;
    }
    // SAFETY: the pointer came from `create_cq`.
    unsafe { (*cq).cqe = cqe };
    let _ = world(|world| world.room.insert(cq.addr(), cqe as usize));
    0
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let _ = world(|world| (world.done.remove(&cq.addr()), world.room.remove(&cq.addr())));
    // SAFETY: the pointer came from `create_cq`.
    unsafe { unmade(cq) }
}

unsafe extern "C" fn get_cq_event(
    _: *mut ibv_comp_channel,
    _: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    world(|world| {
        let Some(left) = world.wakes.checked_sub(1) else { return -1 };
        (world.wakes, world.taken) = (left, world.taken + 1);
        0
    })
}

unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, count: c_uint) {
    world(|world| world.taken -= i64::from(count));
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if !world(|world| world.nature.shares_receives) {
        return refused(libc::EOPNOTSUPP);
    }
    if world(|world| world.faults.no_receive_queues) {
        return refused(libc::ENOMEM);
    }
    // SAFETY: the protection domain is live, and the record is filled.
    let (context, depth) = unsafe { ((*pd).context, (*init).max_wr as usize) };
    let srq = made(ibv_srq { context });
    let _ = world(|world| world.depths.insert(srq.addr(), depth));
    srq
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let _ = world(|world| (world.receives.remove(&srq.addr()), world.depths.remove(&srq.addr())));
    // SAFETY: the pointer came from `create_srq`.
    unsafe { unmade(srq) }
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the record is filled, and the protection domain is live.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    let nature = world(|world| world.nature);
    if init.cap.max_inline_data > nature.inline
        || init.cap.max_send_sge > nature.pieces as u32
        || (init.srq.is_null() && init.cap.max_recv_wr == 0)
    {
        return refused(libc::EINVAL);
    }
    if world(|world| {
        world.faults.refuse_pairs.checked_sub(1).map(|left| world.faults.refuse_pairs = left)
    })
    .is_some()
    {
        return refused(libc::ENOMEM);
    }
    if world(|world| world.faults.most_pairs.is_some_and(|most| world.pairs.len() >= most)) {
        return refused(libc::ENOMEM);
    }
    world(|world| {
        let qp_num = world.number();
        let object = made(ibv_qp {
            context,
            qp_context: init.qp_context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: 0,
            qp_num,
        });
        let receives = if init.srq.is_null() { object.addr() } else { init.srq.addr() };
        if init.srq.is_null() {
            let _ = world.depths.insert(object.addr(), init.cap.max_recv_wr as usize);
        }
        let pair = Pair {
            object,
            context: context.addr(),
            datagrams: init.qp_type == IBV_QPT_UD,
            peer: 0,
            depth: init.cap.max_send_wr as usize,
            inline: init.cap.max_inline_data,
            pieces: init.cap.max_send_sge as usize,
            attr: ibv_qp_attr::default(),
            waiting: VecDeque::new(),
            receives,
            cq: init.send_cq.addr(),
            taken: Vec::new(),
            owes_last: false,
        };
        let _ = world.pairs.insert(qp_num, pair);
        object
    })
}

/// Returns the attributes required for a state transition, besides the state. Returns `None` if there is no such transition.
fn needed(from: c_uint, to: c_uint, datagrams: bool) -> Option<c_uint> {
    Some(match (from, to, datagrams) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR, _)
        | (IBV_QPS_INIT, IBV_QPS_RTR, true)
        | (IBV_QPS_SQE, IBV_QPS_RTS, true) => 0,
        (IBV_QPS_RESET, IBV_QPS_INIT, true) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        (IBV_QPS_RTR, IBV_QPS_RTS, true) => IBV_QP_SQ_PSN,
        (IBV_QPS_RESET, IBV_QPS_INIT, false) => {
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
        }
        (IBV_QPS_INIT, IBV_QPS_RTR, false) => {
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        (IBV_QPS_RTR, IBV_QPS_RTS, false) => {
            IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => return None,
    })
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the queue pair is live, and the record is filled.
    let (qpn, new, mask) = unsafe { ((*qp).qp_num, *attr, mask as c_uint) };
    world(|world| {
        let Some(pair) = world.pairs.get_mut(&qpn) else { return libc::EINVAL };
        let needed = needed(pair.attr.qp_state, new.qp_state, pair.datagrams);
        if needed.is_none_or(|needed| mask != needed | IBV_QP_STATE) {
            return libc::EINVAL;
        }
        if new.qp_state == IBV_QPS_ERR {
            world.enter_error(qpn, None);
            world.run();
            return 0;
        }
        let known = &mut pair.attr;
        let old = *known;
        *known = new;
        if new.qp_state == IBV_QPS_RTR && !pair.datagrams {
            pair.peer = new.dest_qp_num;
            (known.pkey_index, known.port_num) = (old.pkey_index, old.port_num);
        }
        if new.qp_state == IBV_QPS_RTS {
            // The earlier attributes stay; this transition adds the attributes of the sender.
            let sender = new;
            *known = old;
            known.qp_state = IBV_QPS_RTS;
            (known.timeout, known.retry_cnt) = (sender.timeout, sender.retry_cnt);
            (known.rnr_retry, known.max_rd_atomic) = (sender.rnr_retry, sender.max_rd_atomic);
        }
        if new.qp_state == IBV_QPS_RESET {
            world.purge(qpn);
        }
        if new.qp_state != IBV_QPS_INIT {
            world.run();
        }
        0
    })
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the pointer came from `create_qp`.
    let qpn = unsafe { (*qp).qp_num };
    if world(|world| world.faults.keeps_pairs) {
        return libc::EBUSY;
    }
    world(|world| {
        world.purge(qpn);
        let _ = world.pairs.remove(&qpn);
        // The next queue pair may be allocated at the same address.
        let _ = (world.receives.remove(&qp.addr()), world.depths.remove(&qp.addr()));
        for async_events in world.async_events.values_mut() {
            async_events.retain(|(_, element)| *element != qp.addr());
        }
    });
    // SAFETY: the pointer came from `create_qp`.
    unsafe { unmade(qp) }
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's filled record.
    let gid = unsafe { (*attr).grh.sgid_index };
    let refused = world(|world| {
        world.counts.handles += 1;
        world.faults.no_way || world.faults.dead_gids.contains(&gid)
    });
    if refused {
        return ptr::null_mut();
    }
    // SAFETY: the protection domain is live.
    made(ibv_ah { context: unsafe { (*pd).context } })
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the pointer came from `create_ah`.
    unsafe { unmade(ah) }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    be_interrupted();
    world(|world| {
        world.counts.looks += 1;
        if world.faults.polls_fail {
            return -1;
        }
        world.chatter(cq.addr());
        if let Some(late) = world.faults.late.checked_sub(1) {
            world.faults.late = late;
            world.run();
        }
        let done = world.done.entry(cq.addr()).or_default();
        let count = done.len().min(room.max(0) as usize);
        for (at, wc) in done.drain(..count).enumerate() {
            // SAFETY: the caller has room for `room` records.
            unsafe { out.add(at).write(wc) };
        }
        count as c_int
    })
}

unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    world(|world| world.counts.asks += 1);
    0
}

/// Returns the double's function table, in place of the real library.
pub(crate) fn library() -> Library {
    Library {
        ibv_get_device_list: get_device_list,
        ibv_free_device_list: free_device_list,
        ibv_get_device_name: get_device_name,
        ibv_open_device: open_device,
        ibv_close_device: close_device,
        ibv_query_device: query_device,
        ibv_query_port: query_port,
        ibv_get_async_event: get_async_event,
        ibv_ack_async_event: ack_async_event,
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_reg_mr: reg_mr,
        ibv_dereg_mr: dereg_mr,
        ibv_create_comp_channel: create_comp_channel,
        ibv_destroy_comp_channel: destroy_comp_channel,
        ibv_create_cq: create_cq,
        ibv_resize_cq: resize_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_get_cq_event: get_cq_event,
        ibv_ack_cq_events: ack_cq_events,
        ibv_create_srq: create_srq,
        ibv_destroy_srq: destroy_srq,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_create_ah: create_ah,
        ibv_destroy_ah: destroy_ah,
        ibv_reg_mr_iova2: Some(reg_mr_iova2),
        ibv_reg_dmabuf_mr: Some(reg_dmabuf_mr),
    }
}

/// Returns the events that a poll has pushed into `room`.
pub(crate) fn pushed(
    room: &[core::mem::MaybeUninit<tieline_plugin_api::abi::Event>],
    len: usize,
) -> Vec<tieline_plugin_api::abi::Event> {
    // SAFETY: the first `len` slots were written.
    room[..len].iter().map(|slot| unsafe { slot.assume_init_read() }).collect()
}

/// Returns the bytes to which an event of the latest poll points.
pub(crate) fn payload(event: &tieline_plugin_api::abi::Event) -> Vec<u8> {
    if event.len == 0 {
        return Vec::new();
    }
    // SAFETY: a provider's event points to bytes that stay valid until the next poll.
    unsafe { core::slice::from_raw_parts(event.data, event.len) }.to_vec()
}
