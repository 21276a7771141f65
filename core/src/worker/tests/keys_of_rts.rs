//! Tests of the form of the key in an RTS, by the version of the peer's messages.

use super::*;
use crate::address::{BARE_KEYS, WorkerAddress};
use crate::mem::key::{KeyRecord, is_short, region_of_rts};

/// The forms of keys in the RTS of three messages with the same bytes: sealed, bare or short.
fn forms(minor: u8) -> Vec<&'static str> {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").open().unwrap();
    let (sender, receiver) = (context.worker().unwrap(), context.worker().unwrap());
    let mut address = WorkerAddress::parse(&receiver.address().unwrap()).unwrap();
    address.messages.1 = minor;
    let endpoint = sender.connect(&address.pack().unwrap()).unwrap();
    let came = Rc::new(RefCell::new(None));
    let slot = came.clone();
    receiver.on_message(7, move |message| *slot.borrow_mut() = message.rendezvous()).unwrap();
    let len = endpoint.max_message().unwrap() + 1;
    let (from, to) = (context.alloc(len).unwrap(), context.alloc(len).unwrap());
    let mut seen = Vec::new();
    for mark in 1..=3 {
        from.write(0, &[mark; 16]).unwrap();
        let sent = endpoint.send_regions(7, 0, &[(&from, 0..len)]).unwrap();
        let rendezvous = loop {
            let _ = (sender.progress(), receiver.progress());
            if let Some(rendezvous) = came.take() {
                break rendezvous;
            }
        };
        let known = receiver.inner.announcements.all();
        let key = known[0].key.borrow().clone();
        seen.push(match region_of_rts(&key) {
            Some(_) if is_short(&key) => "short",
            Some(_) => "bare",
            None => KeyRecord::parse(&key).map(|_| "sealed").unwrap(),
        });
        let taken = rendezvous.receive_into(&to, 0..len).unwrap();
        let _ = receiver.finish(taken).unwrap();
        let _ = sender.finish(sent).unwrap();
        assert_eq!(to.to_vec(0..16).unwrap(), [mark; 16]);
    }
    seen
}

#[test]
fn peer_before_1_4_gets_sealed_keys_and_later_one_bare_and_short_ones() {
    assert_eq!(forms(BARE_KEYS - 1), ["sealed"; 3]);
    assert_eq!(forms(BARE_KEYS), ["bare", "short", "short"]);
    assert_eq!(forms(BARE_KEYS + 1), ["bare", "short", "short"]);
}
