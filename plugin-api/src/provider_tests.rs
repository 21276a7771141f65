//! Tests of the defaults of a provider that implements only the required methods.

use super::*;
use crate::abi::Event;
use core::mem::MaybeUninit;

struct Bare;

impl Provider for Bare {
    type Domain = Bare;
    fn open(_: HostHandle) -> Result<Bare, Failure> {
        Ok(Bare)
    }
    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        Ok(Vec::new())
    }
    fn open_domain(&self, _: &str, _: [u8; 16]) -> Result<Bare, Failure> {
        Ok(Bare)
    }
}

impl Domain for Bare {
    type Interface = Bare;
    type Connector = Bare;
    type Region = ();
    fn modules(&self) -> Vec<ModuleAttr> {
        Vec::new()
    }
    fn open_interface(&self, _: &str, _: [u8; 16]) -> Result<Bare, Failure> {
        Ok(Bare)
    }
}

impl Interface for Bare {
    type Endpoint = Bare;
    fn address(&self) -> Vec<u8> {
        Vec::new()
    }
    fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
    fn connect(&self, _: &[u8], _: &[u8], _: u64) -> Result<Bare, Failure> {
        Ok(Bare)
    }
    fn poll(&self, _: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Endpoint for Bare {
    type Key = ();
}

impl Connector for Bare {
    fn address(&self) -> Vec<u8> {
        Vec::new()
    }
    fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
    fn send(&self, _: &[u8], _: &[u8]) -> Result<(), Status> {
        Ok(())
    }
    fn poll(&self, _: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }
}

const NONE: Status = Status::Unsupported;

fn refused<T>(result: Result<T, Failure>) -> Option<Status> {
    result.err().map(|failure| failure.status)
}

#[test]
fn an_interface_that_cannot_hang_up_or_sleep_says_so() {
    let bare = Bare;
    assert_eq!(Interface::hang_up(&bare, 7), Err(NONE));
    assert_eq!(Interface::arm(&bare), Err(NONE));
    assert_eq!(Interface::event_fd(&bare), None);
    assert_eq!(refused(Interface::import_key(&bare, b"")), Some(NONE));
    assert_eq!(Interface::flush(&bare, 1), Err(NONE));
    assert_eq!(bare.memory(), MemoryReport::default());
    bare.release(7);
    let mut slots = [const { MaybeUninit::<Event>::uninit() }; 1];
    let mut events = Events::new(&mut slots);
    assert_eq!((Interface::poll(&bare, &mut events), events.len()), (Ok(()), 0));
}

#[test]
fn a_connector_that_cannot_sleep_says_so() {
    assert_eq!(Connector::arm(&Bare), Err(NONE));
    assert_eq!(Connector::event_fd(&Bare), None);
}

#[test]
fn an_endpoint_without_an_operation_refuses_it() {
    let op = RmaOp { iov: &[], len: 0, offset: 0, cookie: 1, flags: 0 };
    let mut pack = |_: *mut u8, _: usize| -> Result<usize, Status> { panic!("it is not asked") };
    assert_eq!(Bare.am_short(1, 2, b""), Err(NONE));
    assert_eq!(Bare.am_packed(1, 2, Packer::new(&mut pack), 10), Err(NONE));
    assert_eq!(Bare.am_zcopy(1, 2, &[], 3), Err(NONE));
    assert_eq!((Bare.put(&(), &op), Bare.get(&(), &op)), (Err(NONE), Err(NONE)));
    assert_eq!(Bare.put_notify(&(), &op, 1), Err(NONE));
    assert_eq!(Endpoint::cancel(&Bare, 1), Err(NONE));
    assert_eq!(refused(Bare.key_pointer(&(), 0, 1)), Some(NONE));
    assert_eq!(refused(Endpoint::import_key(&Bare, b"")), Some(NONE));
    assert_eq!(refused(Endpoint::connect(&Bare, b"")), Some(NONE));
}

#[test]
fn default_flush_and_fence_complete_immediately() {
    assert_eq!((Endpoint::flush(&Bare, 1), Bare.fence()), (Ok(Posting::Done), Ok(())));
    assert_eq!(Endpoint::address(&Bare), b"");
}

#[test]
fn domain_without_memory_or_connectors_refuses_them() {
    let out = &mut [0; 8];
    assert_eq!(refused(Bare.open_connector("x", [0; 16])), Some(NONE));
    assert_eq!(Bare.revoke(&()), Revoked::Quiet);
    assert_eq!(Bare.deregister(()).err().map(|failure| failure.status), None);
    let key = KeyParams { size: size_of::<KeyParams>(), ..KeyParams::empty() };
    assert_eq!(refused(Bare.pack_key(&(), &key, out)), Some(NONE));
    assert_eq!(refused(Bare.alloc(&AllocParams::empty())), Some(NONE));
    assert_eq!(refused(Bare.register(&RegisterParams::empty())), Some(NONE));
}

#[test]
fn a_packer_that_claims_more_than_there_is_room_for_is_not_believed() {
    for (claims, ends) in [(0, Ok(0)), (4, Ok(4)), (5, Err(Status::Invalid))] {
        let mut pack = |_: *mut u8, _: usize| Ok(claims);
        assert_eq!(Packer::new(&mut pack).pack(&mut [0; 4]), ends);
    }
    let mut pack = |_: *mut u8, _: usize| Err(Status::Canceled);
    assert_eq!(Packer::new(&mut pack).pack(&mut [0; 4]), Err(Status::Canceled));
}
