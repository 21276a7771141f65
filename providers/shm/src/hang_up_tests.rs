//! Hanging up on a peer: it hears why, and may come again.

use std::time::{Duration, Instant};

use tieline_plugin_api::{Endpoint, Interface, Status, event};

use crate::config::Settings;
use crate::hostile_tests::{open, poll};
use crate::interface::RingInterface;

/// Polls until something of this kind comes: from whom, and its status.
fn until(interface: &RingInterface, wanted: u32) -> (u64, i32) {
    let start = Instant::now();
    loop {
        if let Some(seen) = poll(interface).iter().find(|seen| seen.0 == wanted) {
            return (seen.1, seen.2);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing of kind {wanted} came");
    }
}

#[test]
fn who_is_hung_up_on_hears_why_and_may_come_again() {
    let (asker, owner) = (open(Settings::defaults()), open(Settings::defaults()));
    for round in 0..3 {
        let endpoint = asker.connect(&owner.address(), b"", round).unwrap();
        let _ = endpoint.am_short(1, 1, b"what does it say?").unwrap();
        let (peer, _) = until(&owner, event::MESSAGE);
        // What comes between is not handed on any more.
        let _ = endpoint.am_short(1, 2, b"and there?").unwrap();
        owner.hang_up(peer).unwrap();
        assert_eq!(until(&owner, event::PEER_LEFT), (peer, Status::NoMemory as i32));
        let (_, status) = until(&asker, event::ENDPOINT_FAILED);
        assert_eq!(status, Status::NoMemory as i32);
        assert_eq!(endpoint.am_short(1, 3, b"hello?"), Err(Status::NoMemory));
        assert_eq!(owner.hang_up(peer), Ok(()), "it has left already");
        assert!(poll(&owner).is_empty());
    }
    assert_eq!(owner.hang_up(u64::MAX), Err(Status::Invalid));
}
