//! The unsafe call that closes an endpoint of a provider's which belongs to the worker.

#![allow(unsafe_code)]

use crate::registry::abi::RawEndpoint;

/// Closes an endpoint of a circuit, or one that carries datagrams.
pub(super) fn close(raw: RawEndpoint) {
    // SAFETY: whoever calls this has just taken it out of the one place that knows it as open (the circuits, `Carried`), when no
    // endpoint uses it any more: keys and operations over a circuit hold such an endpoint.
    unsafe { raw.close() }
}
