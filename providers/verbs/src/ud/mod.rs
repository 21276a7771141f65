//! Module `ud`: datagrams. Connects to an interface; small messages, reliable by sequence numbers of its own.

use crate::domain::DomainState;
use std::sync::Arc;
use tieline_plugin_api::{Armed, Events, Failure, MemoryReport, Posted, Status};

pub(crate) const ADDRESS_LEN: usize = 64;
pub(crate) fn max_message(mtu: u8) -> usize {
    crate::port::mtu_bytes(mtu) - 40
}
pub(crate) fn max_identity(_mtu: u8) -> usize {
    64
}

/// To come.
pub struct UdInterface;
/// To come.
pub struct UdEndpoint;

impl UdInterface {
    pub(crate) fn open(_: Arc<DomainState>) -> Result<UdInterface, Failure> {
        Err(Status::Unsupported.into())
    }
    pub(crate) fn address(&self) -> Vec<u8> {
        Vec::new()
    }
    pub(crate) fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        Err(Status::Unsupported.into())
    }
    pub(crate) fn connect(&self, _: &[u8], _: &[u8], _: u64) -> Result<UdEndpoint, Failure> {
        Err(Status::Unsupported.into())
    }
    pub(crate) fn poll(&self, _: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }
    pub(crate) fn arm(&self) -> Result<Armed, Status> {
        Err(Status::Unsupported)
    }
    pub(crate) fn event_fd(&self) -> i32 {
        -1
    }
    pub(crate) fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }
}
impl UdEndpoint {
    pub(crate) fn am_short(&self, _: u32, _: u64, _: &[u8]) -> Posted {
        Err(Status::Unsupported)
    }
    pub(crate) fn flush(&self, _: u64) -> Posted {
        Err(Status::Unsupported)
    }
    pub(crate) fn healthy(&self) -> Result<(), Status> {
        Ok(())
    }
}
