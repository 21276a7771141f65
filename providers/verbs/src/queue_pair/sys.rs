//! Owned queue pairs, shared receive queues and address handles. Every object is destroyed on drop.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::shared::INLINE_MOST;
use crate::sys::{Cq, Pd, check, made};
use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use std::sync::Arc;
use tieline_plugin_api::Failure;

/// A shared receive queue.
pub(crate) struct Srq {
    pd: Arc<Pd>,
    raw: NonNull<ibv_srq>,
}

/// A receive to post: the id and the target memory.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) sge: ibv_sge,
}

/// The maximum number of receives per post call.
const RECEIVE_BATCH: usize = 32;

/// The error of a partly accepted list of receives, and the number that the device accepted.
#[derive(Debug)]
pub(crate) struct NotReceived {
    pub(crate) taken: usize,
    pub(crate) failure: Failure,
}

impl From<NotReceived> for Failure {
    fn from(untaken: NotReceived) -> Failure {
        untaken.failure
    }
}

/// Chains receives and passes each chain to `post`, which returns an error number and the first receive that the device did not
/// accept.
fn chain(
    list: &[Receive],
    mut post: impl FnMut(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<(), NotReceived> {
    for (before, part) in list.chunks(RECEIVE_BATCH).enumerate() {
        let mut sges = [ibv_sge::default(); RECEIVE_BATCH];
        let mut wrs = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; RECEIVE_BATCH];
        let mut next = ptr::null_mut();
        for (at, receive) in part.iter().enumerate().rev() {
            sges[at] = receive.sge;
            let sg_list = &raw mut sges[at];
            next = ptr::from_mut(wrs[at].write(ibv_recv_wr {
                wr_id: receive.id,
                next,
                sg_list,
                num_sge: 1,
            }));
        }
        let mut bad = ptr::null_mut();
        if let Err(failure) = check(post(next, &raw mut bad), "posting receives") {
            // If the driver names no request, the device accepted none of the chain.
            let here = wrs[..part.len()].iter().position(|wr| ptr::eq(wr.as_ptr(), bad));
            let taken = before * RECEIVE_BATCH + here.unwrap_or(0);
            return Err(NotReceived { taken, failure });
        }
    }
    Ok(())
}

impl Srq {
    pub(crate) fn new(pd: &Arc<Pd>, depth: usize) -> Result<Srq, Failure> {
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            max_wr: depth as u32,
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: the protection domain is live.
        let raw = unsafe { (pd.device.api.ibv_create_srq)(pd.raw.as_ptr(), &raw mut init) };
        let raw = made(raw, || format!("a shared receive queue of {depth} cannot be made"))?;
        Ok(Srq { pd: pd.clone(), raw })
    }

    /// Checks whether `queue` in an event is this queue.
    pub(crate) fn is(&self, queue: Option<usize>) -> bool {
        queue == Some(self.raw.as_ptr().addr())
    }

    /// Posts receives in chains, with one doorbell per chain.
    pub(crate) fn post(&self, list: &[Receive]) -> Result<(), NotReceived> {
        // SAFETY: the queue is live; the chain lives on the stack for the call; the memory is registered and belongs to the receive
        // pool, which outlives the queue.
        chain(list, |first, bad| unsafe {
            let post = (*self.raw.as_ref().context).ops.post_srq_recv;
            post(self.raw.as_ptr(), first, bad)
        })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that used the queue have been destroyed.
        let _ = unsafe { (self.pd.device.api.ibv_destroy_srq)(self.raw.as_ptr()) };
    }
}

/// The route to a peer's port, for datagrams: an address handle.
pub(crate) struct AddressHandle {
    pd: Arc<Pd>,
    raw: NonNull<ibv_ah>,
}

impl AddressHandle {
    pub(crate) fn new(pd: &Arc<Pd>, mut attr: ibv_ah_attr) -> Result<AddressHandle, Failure> {
        // SAFETY: the protection domain is live, and the record is filled.
        let raw = unsafe { (pd.device.api.ibv_create_ah)(pd.raw.as_ptr(), &raw mut attr) };
        let raw = made(raw, || "an address handle cannot be made".to_string())?;
        Ok(AddressHandle { pd: pd.clone(), raw })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: the requests posted with the handle have been sent, or their queue pair has been destroyed.
        let _ = unsafe { (self.pd.device.api.ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}

/// The parameters of a new queue pair.
pub(crate) struct QpShape<'a> {
    /// The type of the queue pair, `IBV_QPT_*`.
    pub(crate) kind: c_uint,
    pub(crate) cq: &'a Cq,
    /// The shared receive queue; `None` for a queue pair with a receive queue of its own.
    pub(crate) srq: Option<&'a Srq>,
    pub(crate) send_depth: usize,
    pub(crate) receive_depth: usize,
    pub(crate) sges: usize,
    pub(crate) inline: usize,
}

/// A queue pair.
pub(crate) struct Qp {
    pd: Arc<Pd>,
    raw: NonNull<ibv_qp>,
    /// The longest payload that the device copies during the post.
    pub(crate) inline: usize,
}

/// The operation of a send request.
#[derive(Clone, Copy)]
pub(crate) enum Work<'a> {
    Send { imm: u32 },
    Datagram { to: &'a AddressHandle, qpn: u32, qkey: u32 },
    Write { address: u64, rkey: u32 },
    WriteNotify { address: u64, rkey: u32, word: u32 },
    Read { address: u64, rkey: u32 },
    FetchAdd { address: u64, rkey: u32, add: u64 },
    CompareSwap { address: u64, rkey: u32, compare: u64, swap: u64 },
}

impl Qp {
    pub(crate) fn new(pd: &Arc<Pd>, shape: &QpShape<'_>) -> Result<Qp, Failure> {
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: shape.cq.raw.as_ptr(),
            recv_cq: shape.cq.raw.as_ptr(),
            srq: shape.srq.map_or(ptr::null_mut(), |srq| srq.raw.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: shape.send_depth as u32,
                max_recv_wr: shape.receive_depth as u32,
                max_send_sge: shape.sges as u32,
                max_recv_sge: 1,
                max_inline_data: shape.inline as u32,
            },
            qp_type: shape.kind,
            sq_sig_all: 0,
        };
        // SAFETY: the protection domain is live, and the queues belong to the same device.
        let raw = unsafe { (pd.device.api.ibv_create_qp)(pd.raw.as_ptr(), &raw mut init) };
        let raw =
            made(raw, || format!("a queue pair with {} sends cannot be made", shape.send_depth))?;
        Ok(Qp { pd: pd.clone(), raw, inline: (init.cap.max_inline_data as usize).min(INLINE_MOST) })
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { self.raw.as_ref().qp_num }
    }

    pub(crate) fn modify(
        &self,
        mut attr: ibv_qp_attr,
        mask: c_uint,
        what: &str,
    ) -> Result<(), Failure> {
        // SAFETY: the queue pair is live, and the record is filled.
        let code = unsafe {
            (self.pd.device.api.ibv_modify_qp)(self.raw.as_ptr(), &raw mut attr, mask as c_int)
        };
        check(code, what)
    }

    /// Posts one send with `IBV_SEND_*` flags. The device reads (or writes) the memory of the pieces until the completion. With
    /// `IBV_SEND_INLINE` the device copies the memory before this call returns.
    #[inline(always)]
    pub(crate) fn post(
        &self,
        id: u64,
        work: Work<'_>,
        sges: &[ibv_sge],
        flags: c_uint,
    ) -> Result<(), i32> {
        self.hand_over(&mut Qp::request(id, work, sges, flags)).map_err(|(errno, _)| errno)
    }

    /// Builds the device's request for a send.
    #[inline(always)]
    fn request(id: u64, work: Work<'_>, sges: &[ibv_sge], flags: c_uint) -> ibv_send_wr {
        let rdma = |address, rkey| wr_target { rdma: wr_rdma { remote_addr: address, rkey } };
        let (opcode, imm_data, wr) = match work {
            Work::Send { imm } => {
                (IBV_WR_SEND_WITH_IMM, imm.to_be(), wr_target { atomic: wr_atomic::default() })
            }
            Work::Datagram { to, qpn, qkey } => {
                let ud = wr_ud { ah: to.raw.as_ptr(), remote_qpn: qpn, remote_qkey: qkey };
                (IBV_WR_SEND, 0, wr_target { ud })
            }
            Work::Write { address, rkey } => (IBV_WR_RDMA_WRITE, 0, rdma(address, rkey)),
            Work::WriteNotify { address, rkey, word } => {
                (IBV_WR_RDMA_WRITE_WITH_IMM, word.to_be(), rdma(address, rkey))
            }
            Work::Read { address, rkey } => (IBV_WR_RDMA_READ, 0, rdma(address, rkey)),
            Work::FetchAdd { address, rkey, add } => {
                let atomic = wr_atomic { remote_addr: address, compare_add: add, swap: 0, rkey };
                (IBV_WR_ATOMIC_FETCH_AND_ADD, 0, wr_target { atomic })
            }
            Work::CompareSwap { address, rkey, compare, swap } => {
                let atomic = wr_atomic { remote_addr: address, compare_add: compare, swap, rkey };
                (IBV_WR_ATOMIC_CMP_AND_SWP, 0, wr_target { atomic })
            }
        };
        ibv_send_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: sges.as_ptr().cast_mut(),
            num_sge: sges.len() as c_int,
            opcode,
            send_flags: flags,
            imm_data,
            wr,
            rest: [0; 7],
        }
    }

    /// Posts a chain of requests. On failure returns the error number and the first request that the device did not accept.
    #[inline(always)]
    fn hand_over(&self, first: *mut ibv_send_wr) -> Result<(), (i32, *mut ibv_send_wr)> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, whose context has the function. The function only reads the requests and their lists of
        // pieces, which the caller owns. The pieces carry keys of live registrations (the device checks each), or are inline:
        // then they are bytes of the caller, or of an operation that has not ended.
        let code = unsafe {
            let post = (*self.raw.as_ref().context).ops.post_send;
            post(self.raw.as_ptr(), first, &raw mut bad)
        };
        if code == 0 { Ok(()) } else { Err((code.abs(), bad)) }
    }

    /// Posts receives to a queue pair that has a receive queue of its own.
    pub(crate) fn post_receives(&self, list: &[Receive]) -> Result<(), NotReceived> {
        // SAFETY: the queue pair is live; the chain lives on the stack for the call; the memory is registered and belongs to a
        // receive pool that outlives the queue pair.
        chain(list, |first, bad| unsafe {
            let post = (*self.raw.as_ref().context).ops.post_recv;
            post(self.raw.as_ptr(), first, bad)
        })
    }
}

/// Sends that are held back because more sends follow. One call posts them all.
#[derive(Default)]
pub(crate) struct Held {
    requests: Vec<ibv_send_wr>,
    /// The pieces of all requests, in order.
    sges: Vec<ibv_sge>,
}

impl Held {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Appends a send.
    pub(crate) fn push(&mut self, id: u64, work: Work<'_>, sges: &[ibv_sge], flags: c_uint) {
        self.requests.push(Qp::request(id, work, sges, flags));
        self.sges.extend_from_slice(sges);
    }

    /// Posts all held sends. Requests that the device does not accept stay held; the error is the device's error number.
    pub(crate) fn tell(&mut self, qp: &Qp) -> Result<(), i32> {
        let (first, mut pieces) = (self.requests.as_mut_ptr(), self.sges.as_mut_ptr());
        for at in 0..self.requests.len() {
            let last = at + 1 == self.requests.len();
            // SAFETY: both lists belong to this object alone and have room for each request and all of its pieces.
            unsafe {
                let request = first.add(at);
                (*request).next = if last { ptr::null_mut() } else { first.add(at + 1) };
                (*request).sg_list = pieces;
                pieces = pieces.add((*request).num_sge as usize);
            }
        }
        let told = qp.hand_over(first);
        let taken = told.map_or_else(|(_, bad)| self.place(bad), |()| self.requests.len());
        let pieces: usize =
            self.requests.drain(..taken).map(|request| request.num_sge as usize).sum();
        drop(self.sges.drain(..pieces));
        told.map_err(|(errno, _)| errno)
    }

    /// Returns the index of a request among the held sends; 0 if the request is not one of them.
    fn place(&self, request: *mut ibv_send_wr) -> usize {
        self.requests.iter().position(|held| ptr::eq(held, request)).unwrap_or(0)
    }

    /// Removes the last held send, which the device did not accept.
    pub(crate) fn pop(&mut self) {
        if let Some(request) = self.requests.pop() {
            self.sges.truncate(self.sges.len() - request.num_sge as usize);
        }
    }
}

impl Qp {
    /// Destroys the queue pair. After success the device accesses nothing that was posted.
    ///
    /// # Errors
    /// The device fails to destroy the queue pair. The device may then access the posted memory for the life of the process, so the
    /// provider keeps its buffers.
    pub(crate) fn destroy(self) -> Result<(), Failure> {
        let mut this = core::mem::ManuallyDrop::new(self);
        let ended = this.end();
        // SAFETY: no other part of the object is dropped, and the object is not used again.
        unsafe { ptr::drop_in_place(&raw mut this.pd) };
        ended
    }

    fn end(&mut self) -> Result<(), Failure> {
        // SAFETY: the queue pair is live and ended once: by `destroy`, which skips the drop, or by `drop`.
        let code = unsafe { (self.pd.device.api.ibv_destroy_qp)(self.raw.as_ptr()) };
        check(code, "destroying a queue pair").inspect_err(|_| self.pd.keep())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let _ = self.end(); // a failure is recorded in the protection domain
    }
}
