//! Tests of the provider over the driver double: copies, keys, regions, cards, the self-test, and the statuses of failed calls.

use std::sync::Arc;

use tieline_plugin_api::abi::{Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Interface, Posting, Revoked, RmaOp};

use super::*;
use crate::double::Played;
use crate::{KnemDomain, KnemEndpoint, MODULE, RemoteKey};

const BOTH: u64 = access::REMOTE_READ | access::REMOTE_WRITE;

#[test]
fn note_states_the_words_for_a_missing_device() {
    let missing = no_device(&std::io::ErrorKind::NotFound.into());
    assert_eq!((missing.status, &*missing.text), (Status::NoDevice, crate::MISSING));
}

struct Pair {
    played: Arc<Played>,
    owner: KnemDomain,
    endpoint: KnemEndpoint,
    memory: Vec<u8>,
}

impl Pair {
    fn new(len: usize) -> Pair {
        let played = Arc::new(Played::default());
        let domain = || {
            let kernel: Arc<dyn Kernel> = played.clone();
            KnemDomain::new(kernel).unwrap()
        };
        let (owner, here) = (domain(), domain());
        let address = owner.open_interface(MODULE, [1; 16]).unwrap().address();
        let interface = here.open_interface(MODULE, [2; 16]).unwrap();
        interface.reachable(&address).unwrap();
        let endpoint = interface.connect(&address, b"", 0).unwrap();
        Pair { played, owner, endpoint, memory: (0..len).map(|n| n as u8).collect() }
    }

    fn register(&mut self, rights: u64) -> Result<Registration, Failure> {
        let (base, len) = (self.memory.as_mut_ptr(), self.memory.len());
        self.owner.register(&RegisterParams::new(base, len, rights))
    }

    fn packed(&self, region: &Registration) -> [u8; 40] {
        let mut key = [0; 40];
        assert_eq!(self.owner.pack_key(region, &KeyParams::empty(), &mut key), Ok(40));
        key
    }

    fn refused(&self, region: &Registration) -> Failure {
        self.owner.pack_key(region, &KeyParams::empty(), &mut [0; 40]).unwrap_err()
    }

    fn offered(&mut self, rights: u64) -> (Registration, RemoteKey) {
        let region = self.register(rights).unwrap();
        let key = self.endpoint.import_key(&self.packed(&region)).unwrap();
        (region, key)
    }
}

fn op(iov: &[Iov], offset: u64) -> RmaOp<'_> {
    let len = iov.iter().map(|piece| piece.len).sum();
    RmaOp { iov, len, offset, cookie: 1, flags: 0 }
}

#[test]
fn puts_and_gets_of_many_pieces_move_their_bytes_in_order() {
    let mut pair = Pair::new(1000);
    let (_region, key) = pair.offered(BOTH);
    let mut local = vec![0u8; 600];
    // 200 pieces of 0 to 5 bytes are too many for one call.
    let mut pieces = Vec::new();
    let mut at = 0;
    for n in 0..200 {
        let len = n % 6;
        pieces.push(Iov::new(local[at..].as_mut_ptr(), len));
        at += len;
    }
    let calls = pair.played.calls();
    assert_eq!(pair.endpoint.get(&key, &op(&pieces, 7)), Ok(Posting::Done));
    assert_eq!(pair.played.calls() - calls, 200usize.div_ceil(64));
    let theirs: Vec<u8> = (0..at).map(|n| (n + 7) as u8).collect();
    assert_eq!(local[..at], theirs[..]);
    local.fill(0xee);
    let piece = [Iov::new(local.as_mut_ptr(), 3)];
    assert_eq!(pair.endpoint.put(&key, &op(&piece, 997)), Ok(Posting::Done));
    assert_eq!(core::hint::black_box(&pair.memory)[995..], [227, 228, 0xee, 0xee, 0xee]);
    assert_eq!(pair.endpoint.put(&key, &op(&[], 1000)), Ok(Posting::Done), "nothing, at the end");
}

#[test]
fn access_beyond_region_or_rights_is_refused_without_driver_call() {
    let mut pair = Pair::new(100);
    let (_region, key) = pair.offered(access::REMOTE_READ);
    let calls = pair.played.calls();
    let mut local = [0u8; 101];
    let piece = |len| [Iov::new(local.as_ptr().cast_mut(), len)];
    for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 2), (101, 0)] {
        assert_eq!(pair.endpoint.get(&key, &op(&piece(len), offset)), Err(Status::OutOfRange));
    }
    assert_eq!(pair.endpoint.put(&key, &op(&piece(1), 0)), Err(Status::KeyRejected));
    let lies = [Iov::new(local.as_mut_ptr(), 5)];
    let lying = RmaOp { len: 4, ..op(&lies, 0) };
    assert_eq!(pair.endpoint.get(&key, &lying), Err(Status::Invalid));
    assert_eq!(pair.played.calls(), calls);
}

#[test]
fn revoked_key_is_refused_although_the_driver_would_copy() {
    let mut pair = Pair::new(64);
    let cards = pair.played.regions();
    let (region, key) = pair.offered(BOTH);
    assert_eq!(pair.played.regions(), cards + 1);
    let packed = pair.packed(&region);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
    assert_eq!(pair.played.regions(), cards + 1, "the driver still has it");
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::KeyRejected));
    assert_eq!(pair.endpoint.put(&key, &op(&piece, 0)), Err(Status::KeyRejected));
    let refused = pair.endpoint.import_key(&packed).unwrap_err();
    assert_eq!(refused.status, Status::KeyRejected);
    pair.owner.deregister(region).unwrap();
    assert_eq!(pair.played.regions(), cards);
    let (_next, _) = pair.offered(BOTH);
    assert!(pair.endpoint.import_key(&packed).is_err(), "the entry is another registration's now");
}

#[test]
fn memory_is_pinned_at_its_first_key_but_not_after_revocation() {
    let mut pair = Pair::new(64);
    let cards = pair.played.regions();
    let local = pair.register(BOTH).unwrap();
    assert_eq!(pair.played.regions(), cards, "nobody outside knows it");
    let first = pair.packed(&local);
    assert_eq!(pair.played.regions(), cards + 1);
    assert_eq!(pair.packed(&local), first, "every key is the same");
    assert_eq!(pair.played.regions(), cards + 1);
    pair.owner.deregister(local).unwrap();
    let region = pair.register(BOTH).unwrap();
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
    assert_eq!(pair.refused(&region).status, Status::Closed);
    pair.owner.deregister(region).unwrap();
    assert_eq!(pair.played.regions(), cards);
}

#[test]
fn access_in_progress_keeps_the_region_busy() {
    let mut pair = Pair::new(64);
    let (region, key) = pair.offered(BOTH);
    let inside = pair.endpoint.accessor().enter(key.place.generation);
    assert_eq!(pair.owner.revoke(&region), Revoked::Busy);
    drop(inside);
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
}

#[test]
fn driver_results_map_to_statuses() {
    let mut pair = Pair::new(64);
    let (_region, key) = pair.offered(BOTH);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    let answers = [
        (Miss::Copy, Status::Invalid),
        (Miss::Call(libc::EFAULT), Status::Invalid),
        (Miss::Call(libc::ENOMEM), Status::NoMemory),
        (Miss::Call(libc::EPERM), Status::Unreachable),
        (Miss::Call(libc::EACCES), Status::Unreachable),
        (Miss::Call(libc::EINVAL), Status::PeerFailed),
        (Miss::Call(libc::EBADF), Status::Io),
        // The driver reports `pending` although no asynchronous copy was requested.
        (Miss::Status(0), Status::Io),
        (Miss::Status(7), Status::Io),
    ];
    for (answer, status) in answers {
        pair.played.miss(answer);
        assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(status), "{answer:?}");
    }
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done), "it goes on");
}

#[test]
fn memory_for_100000_short_lived_regions_is_bounded() {
    let mut pair = Pair::new(64);
    let cards = pair.played.regions();
    let kernel: Arc<dyn Kernel> = pair.played.clone();
    let here = KnemDomain::new(kernel).unwrap();
    let there = pair.owner.open_interface(MODULE, [3; 16]).unwrap();
    let interface = here.open_interface(MODULE, [4; 16]).unwrap();
    let alone = interface.memory();
    assert_eq!((alone.peers, alone.peer_bytes), (0, 0));
    assert!(alone.base_bytes > 2 * 4096, "a table and a file for announcements: {alone:?}");
    let endpoint = interface.connect(&there.address(), b"", 0).unwrap();
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    let mut memory = Vec::new();
    for _ in 0..100 {
        let offer = |_| {
            let region = pair.register(BOTH).unwrap();
            (pair.packed(&region), region)
        };
        let offered: Vec<_> = (0..1000).map(offer).collect();
        for (packed, region) in offered {
            let key = endpoint.import_key(&packed).unwrap();
            assert_eq!(endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
            pair.owner.deregister(region).unwrap();
        }
        memory.push((there.memory(), interface.memory()));
    }
    let (owner, accessor) = memory[0];
    assert_eq!(accessor.peers, 1);
    // The mappings are 1000 entries of 32 bytes, and a page for announcements.
    assert_eq!(accessor.peer_bytes, 9 * 4096);
    assert!(memory.iter().all(|later| *later == (owner, accessor)), "{:?}", memory.last());
    assert_eq!(pair.played.regions(), cards + 1, "the other domain's card");
    drop(endpoint);
    assert_eq!((interface.memory().peers, interface.memory().peer_bytes), (0, 0));
}

#[test]
fn malformed_keys_and_addresses_are_refused() {
    let mut pair = Pair::new(64);
    let (region, _) = pair.offered(BOTH);
    let good = pair.packed(&region);
    assert!(pair.endpoint.import_key(&good).is_ok());
    for at in 0..40 {
        let mut wrong = good;
        wrong[at] ^= 0x40;
        let refused = pair.endpoint.import_key(&wrong).unwrap_err();
        assert_eq!(refused.status, Status::KeyRejected, "byte {at}");
    }
    assert!(pair.endpoint.import_key(&good[..39]).is_err());
    let short = pair.owner.pack_key(&region, &KeyParams::empty(), &mut [0; 39]).unwrap_err();
    assert_eq!(short.status, Status::TooLarge);

    let interface = pair.owner.open_interface(MODULE, [1; 16]).unwrap();
    let address = interface.address();
    assert_eq!((address.len(), &address[..4]), (84, &b"knm\x01"[..]));
    for cut in 0..address.len() {
        let refused = interface.reachable(&address[..cut]).unwrap_err();
        assert_eq!(refused.status, Status::BadData);
    }
    let mut other = address.clone();
    other[3] ^= 1;
    assert_eq!(interface.reachable(&other).unwrap_err().status, Status::BadData);
    assert!(pair.owner.open_interface("other", [0; 16]).is_err());
}

#[test]
fn region_without_rights_is_not_pinned_and_its_key_has_no_access() {
    let mut pair = Pair::new(64);
    let before = pair.played.regions();
    let (_region, key) = pair.offered(0);
    assert_eq!(pair.played.regions(), before);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::KeyRejected));
    pair.memory.clear();
    let (_empty, key) = pair.offered(BOTH);
    assert_eq!(pair.played.regions(), before);
    assert_eq!(pair.endpoint.get(&key, &op(&[], 0)), Ok(Posting::Done));
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::OutOfRange));
}

#[test]
fn refused_pinning_is_reported_and_leaves_nothing_behind() {
    let mut pair = Pair::new(64);
    let before = pair.played.regions();
    pair.played.refuse(libc::EFAULT);
    let region = pair.register(BOTH).unwrap();
    let failure = pair.refused(&region);
    assert_eq!(failure.status, Status::Invalid);
    assert!(failure.text.contains("64 bytes") && failure.text.contains("not mapped"), "{failure}");
    pair.played.refuse(libc::ENOMEM);
    assert_eq!(pair.refused(&region).status, Status::NoMemory);
    assert_eq!(pair.played.regions(), before);
    let nowhere = RegisterParams::new(core::ptr::null_mut(), 64, BOTH);
    assert_eq!(pair.owner.register(&nowhere).err().unwrap().status, Status::Invalid);
}

#[test]
fn unreadable_card_is_reported_with_the_reason() {
    let pair = Pair::new(64);
    let interface = pair.owner.open_interface(MODULE, [1; 16]).unwrap();
    let address = interface.address();
    let refused = |address: &[u8]| interface.reachable(address).unwrap_err();
    let mut other_nonce = address.clone();
    other_nonce[52] ^= 1;
    assert_eq!(refused(&other_nonce).status, Status::PeerFailed);
    pair.played.miss(Miss::Call(libc::EPERM));
    let failure = refused(&address);
    assert_eq!(failure.status, Status::Permission);
    assert!(failure.text.contains("user namespaces may differ"), "{failure}");
    let mut other_user = address.clone();
    other_user[8] ^= 1;
    pair.played.miss(Miss::Call(libc::EPERM));
    assert!(refused(&other_user).text.contains("run both as the same user"));
    pair.played.forget();
    let failure = refused(&address);
    assert_eq!(failure.status, Status::PeerFailed);
    assert!(failure.text.contains("has closed the domain"), "{failure}");
}

#[test]
fn self_test_detects_a_faulty_driver_at_each_step() {
    let played = Played::default();
    assert!(on_oneself(&played).is_ok());
    assert_eq!(played.regions(), 0);
    played.pass();
    played.miss(Miss::Call(libc::EINVAL));
    assert!(on_oneself(&played).unwrap_err().text.contains("copying to a region"));
    played.miss(Miss::Copy);
    let failure = on_oneself(&played).unwrap_err();
    assert!(failure.text.contains("copying from a region"), "{failure}");
    assert_eq!(played.regions(), 0, "and nothing is left");
    played.refuse(libc::EPERM);
    assert!(on_oneself(&played).unwrap_err().text.contains("creating a region"));
}

#[test]
fn memory_without_hold_gets_no_key_and_holds_outlive_regions() {
    let mut pair = Pair::new(64);
    let (regions, holds) = (pair.played.regions(), pair.played.holds());
    assert_eq!(regions, holds, "the cards are held, too");
    let (region, _) = pair.offered(access::REMOTE_READ);
    assert_eq!((pair.played.regions(), pair.played.holds()), (regions + 1, holds + 1));
    pair.owner.deregister(region).unwrap();
    assert_eq!((pair.played.regions(), pair.played.holds()), (regions, holds));
    // The driver would pin the range, but the range's pages could move away from their owner.
    pair.played.refuse_to_hold(libc::EFAULT);
    let region = pair.register(access::REMOTE_READ).unwrap();
    let failure = pair.refused(&region);
    assert_eq!(failure.status, Status::Unsupported);
    assert!(failure.text.contains("64 bytes"), "{failure}");
    pair.played.refuse_to_hold(libc::ENOMEM);
    assert!(pair.refused(&region).text.contains("ulimit -l"));
    assert_eq!((pair.played.regions(), pair.played.holds()), (regions, holds));
    assert!(on_oneself(&*pair.played).unwrap_err().text.contains("holding pages"));
}

#[test]
fn region_refused_by_the_driver_is_not_held() {
    let mut pair = Pair::new(64);
    let holds = pair.played.holds();
    let region = pair.register(BOTH).unwrap();
    pair.played.refuse(libc::ENOMEM);
    assert_eq!(pair.refused(&region).status, Status::NoMemory);
    assert!(on_oneself(&*pair.played).is_err());
    assert_eq!(pair.played.holds(), holds);
}
