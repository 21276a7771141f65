//! Atomics that libfabric's provider executes: the supported ones, and libfabric's names for them.
//!
//! These atomics are advertised as atomics of a device. They need not be atomic towards the processor's atomics, so one executor
//! handles all atomics of a region. They are requested only of providers with one executor for all interfaces of a domain.
//! `selftest` detects atomics that a provider claims without supporting them. If `TIELINE_OFI_TRUST` names `atomics`, neither
//! condition applies. They are used only if the request has no other cost (`offers`).

pub(crate) mod sys;

use crate::abi::*;
use crate::config::Settings;
use crate::offers::core_name;
use core::ffi::c_int;
use tieline_plugin_api::atomic_op;

/// The providers with one executor for all interfaces: the device (cxi), or one thread of the domain (sockets; source:
/// sock_progress.c). With other providers each endpoint's owner may execute atomics while polling (`ofi_rxm`; source: rxm_cq.c;
/// EFA, opx), possibly two threads of a process concurrently. A build need not use the processor's atomics for that (util_atomic.c,
/// HAVE_BUILTIN_MM_ATOMICS), and no query tells whether it does.
const ONE_EXECUTOR: &[&str] = &["cxi", "sockets"];

/// Checks whether this provider requests atomics of a libfabric provider.
pub(crate) fn are_wanted(provider: &str, settings: &Settings) -> bool {
    let native = !provider.contains("ofi_rx") && ONE_EXECUTOR.contains(&core_name(provider));
    native || settings.trusts("atomics")
}

/// The library call that posts an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Post,
    Fetch,
    /// The call for compare operations, which also fetches; libfabric has no call that only compares.
    Compare,
}

/// The library's encoding of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Native {
    pub(crate) form: Form,
    /// The type, `FI_UINT32` or `FI_UINT64`.
    pub(crate) datatype: c_int,
    /// The operation, `FI_SUM` and so on.
    pub(crate) op: c_int,
}

/// The supported operations, each a bit `1 << TIELINE_ATOMIC_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    pub(crate) post32: u32,
    pub(crate) post64: u32,
    pub(crate) fetch32: u32,
    pub(crate) fetch64: u32,
}

impl Masks {
    fn of(&mut self, width: u32, fetch: bool) -> &mut u32 {
        match (width, fetch) {
            (4, false) => &mut self.post32,
            (4, true) => &mut self.fetch32,
            (_, false) => &mut self.post64,
            (_, true) => &mut self.fetch64,
        }
    }

    pub(crate) fn add(&mut self, op: u32, width: u32, fetch: bool) {
        *self.of(width, fetch) |= 1 << op;
    }

    pub(crate) fn remove(&mut self, op: u32, width: u32, fetch: bool) {
        *self.of(width, fetch) &= !(1 << op);
    }

    pub(crate) fn has(mut self, op: u32, width: u32, fetch: bool) -> bool {
        op < 32 && matches!(width, 4 | 8) && *self.of(width, fetch) & 1 << op != 0
    }

    /// Checks whether a 64-bit compare-and-swap is among the operations: the core builds missing operations from it.
    pub(crate) fn are_enough(self) -> bool {
        self.has(atomic_op::COMPARE_SWAP, 8, true)
    }

    /// Lists every atomic of the ABI: operation, width, and whether it fetches.
    pub(crate) fn each() -> impl Iterator<Item = (u32, u32, bool)> {
        let ops = atomic_op::ADD..=atomic_op::MAX;
        ops.flat_map(|op| [(op, 4, false), (op, 4, true), (op, 8, false), (op, 8, true)])
    }
}

/// Translates an atomic of the ABI.
pub(crate) fn native(op: u32, width: u32, fetch: bool) -> Option<Native> {
    let datatype = match width {
        4 => FI_UINT32,
        8 => FI_UINT64,
        _ => return None,
    };
    let form = match (op, fetch) {
        (atomic_op::COMPARE_SWAP, _) => Form::Compare,
        (_, true) => Form::Fetch,
        (_, false) => Form::Post,
    };
    let op = match op {
        atomic_op::ADD => FI_SUM,
        atomic_op::AND => FI_BAND,
        atomic_op::OR => FI_BOR,
        atomic_op::XOR => FI_BXOR,
        atomic_op::SWAP => FI_ATOMIC_WRITE,
        atomic_op::COMPARE_SWAP => FI_CSWAP,
        atomic_op::MIN => FI_MIN,
        atomic_op::MAX => FI_MAX,
        _ => return None,
    };
    Some(Native { form, datatype, op })
}

/// Returns the value in memory after an atomic.
pub(crate) fn applied(op: u32, width: u32, old: u64, operand: u64, compare: u64) -> u64 {
    let mask = if width == 4 { u64::from(u32::MAX) } else { u64::MAX };
    let (old, operand, compare) = (old & mask, operand & mask, compare & mask);
    mask & match op {
        atomic_op::ADD => old.wrapping_add(operand),
        atomic_op::AND => old & operand,
        atomic_op::OR => old | operand,
        atomic_op::XOR => old ^ operand,
        atomic_op::SWAP => operand,
        atomic_op::COMPARE_SWAP if old == compare => operand,
        atomic_op::MIN => old.min(operand),
        atomic_op::MAX => old.max(operand),
        _ => old,
    }
}

/// The layout of an atomic's slot: the offsets of its parts, and their total length.
pub(crate) const OPERAND: usize = 0;
pub(crate) const COMPARE: usize = 8;
pub(crate) const RESULT: usize = 16;
pub(crate) const PARTS: usize = 24;

/// Returns the bytes of a value in memory.
pub(crate) fn bytes(value: u64, width: u32) -> Vec<u8> {
    match width {
        4 => (value as u32).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

/// Returns the value of bytes in memory.
pub(crate) fn value(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<8>(), bytes.first_chunk::<4>()) {
        (Some(wide), _) => u64::from_ne_bytes(*wide),
        (None, Some(narrow)) => u64::from(u32::from_ne_bytes(*narrow)),
        (None, None) => 0,
    }
}
