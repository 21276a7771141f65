//! Tests of keys in flight (requested regions, and answers that are late, truncated, or not needed any more), and of accesses by
//! keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{Endpoint, Interface, Posting, RmaOp, Status, access, atomic_op};

use crate::config::Settings;
use crate::copies::fill_piece;
use crate::endpoint::RingEndpoint;
use crate::hang_up_tests::look;
use crate::hello::{MAX_RECORD, Record};
use crate::hostile_tests::{domain, greet, open};
use crate::imports::ImportedKey;
use crate::interface::RingInterface;
use crate::keys::Region;
use crate::order::tests::ENDED;
use crate::shared::DomainState;
use crate::sys::{self, Mapping};

/// An owner of regions, with an interface.
struct Owner {
    domain: Arc<DomainState>,
    interface: RingInterface,
}

impl Owner {
    fn new() -> Owner {
        let domain = domain(4);
        let interface = RingInterface::open(domain.clone(), Settings::defaults()).unwrap();
        Owner { domain, interface }
    }

    fn region(&self) -> Region {
        self.domain.exports.alloc(self.domain.id, 4096, access::REMOTE_WRITE).unwrap()
    }
}

#[test]
fn an_answer_for_which_there_was_no_room_is_given_later() {
    let interface = open(Settings::defaults());
    let peer = greet(&interface);
    let socket = peer.socket.as_ref().unwrap();
    let last = 3000;
    for segment in 1..=last {
        while sys::send(socket, &Record::KeyRequest { segment }.pack(), &[]).is_err() {
            let _ = look(&interface);
        }
    }
    for _ in 0..last {
        let _ = look(&interface); // all requests are read, and the socket stays full
    }
    let (start, mut answered, mut count) = (Instant::now(), 0, 0);
    while answered != last {
        let mut buffer = [0; MAX_RECORD];
        while let Ok(got) = sys::receive(socket, &mut buffer) {
            if let Ok(Record::KeyReply { segment, .. }) = Record::parse(&buffer[..got.len]) {
                answered = segment;
                count += 1;
            }
        }
        let _ = look(&interface);
        assert!(start.elapsed() < Duration::from_secs(60), "{answered} was answered last");
    }
    assert!(count < last, "the socket was never full");
}

#[test]
fn unclaimed_regions_are_unmapped_when_their_owner_ends_them() {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    let to = asker.connect(&owner.interface.address(), b"", 1).unwrap();
    for _ in 0..200 {
        let region = owner.region();
        let imported = to.import_key(&region.key().pack());
        assert_eq!(imported.err().map(|failure| failure.status), Some(Status::Again));
        let _ = look(&owner.interface);
        let _ = look(&asker);
        owner.domain.exports.free(&region);
    }
    assert!(
        to.channel().asking().regions() <= 16,
        "{} are mapped",
        to.channel().asking().regions()
    );
}

#[test]
fn many_who_ask_in_turn_all_get_their_regions() {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    let to = asker.connect(&owner.interface.address(), b"", 1).unwrap();
    let regions: Vec<Region> = (0..100).map(|_| owner.region()).collect();
    let mut keys: Vec<_> = regions.iter().map(|_| None).collect();
    for _ in 0..3 {
        for (region, key) in regions.iter().zip(&mut keys) {
            if key.is_none() {
                *key = to.import_key(&region.key().pack()).ok();
            }
            let _ = (look(&owner.interface), look(&asker));
        }
    }
    assert!(keys.iter().all(Option::is_some));
    drop(keys);
    assert_eq!(to.channel().asking().regions(), 0);
}

#[test]
fn missing_descriptors_for_region_are_reported_and_not_as_forged_key() {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    let to = asker.connect(&owner.interface.address(), b"", 1).unwrap();
    let region = owner.region();
    let (packed, segment) = (region.key().pack(), region.key().segment);
    let (start, mut asked) = (Instant::now(), 0);
    let failure = loop {
        match to.import_key(&packed) {
            Err(failure) if failure.status == Status::Again => {}
            other => break other.err().unwrap(),
        }
        if to.channel().asking().awaits_an_answer() {
            // The kernel drops descriptors without a free place.
            let reply = Record::KeyReply { segment, len: 4096, table_len: 4096, writable: true };
            to.channel().handle(reply, &[], true).unwrap();
            asked += 1;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it is asked for without end");
    };
    assert_eq!(failure.status, Status::NoMemory);
    assert!(failure.text.contains("ulimit -n"), "{}", failure.text);
    assert!(asked > 1, "the descriptors may have come back meanwhile");
}

/// Returns an imported key of a region whose owner grants these rights.
fn imported(
    asker: &RingInterface,
    owner: &Owner,
    rights: u64,
) -> (RingEndpoint, ImportedKey, Region) {
    let to = asker.connect(&owner.interface.address(), b"", 1).unwrap();
    let region = owner.domain.exports.alloc(owner.domain.id, 4096, rights).unwrap();
    let packed = region.key().pack();
    let key = loop {
        match to.import_key(&packed) {
            Ok(key) => break key,
            Err(failure) => assert_eq!(failure.status, Status::Again, "{failure}"),
        }
        let _ = (look(&owner.interface), look(asker));
    };
    (to, key, region)
}

#[test]
fn pointer_reaches_owner_memory_within_range_until_revoked() {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    let both = access::REMOTE_READ | access::REMOTE_WRITE;
    let (to, key, region) = imported(&asker, &owner, both);
    let refused = |offset, len| to.key_pointer(&key, offset, len).map_err(|failure| failure.status);
    let first = refused(0, 4096).unwrap();
    assert_eq!(refused(100, 3996), Ok(first.wrapping_add(100)));
    assert_ne!(first, region.base(), "it is mapped a second time");
    for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(refused(offset, len), Err(Status::OutOfRange), "{offset} {len}");
    }
    owner.domain.exports.free(&region);
    assert_eq!(refused(0, 4096), Err(Status::KeyRejected));
}

#[test]
fn a_key_that_does_not_grant_reading_and_writing_gives_no_pointer() {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    for rights in [access::REMOTE_READ, access::REMOTE_WRITE | access::REMOTE_ATOMIC] {
        let (to, key, _region) = imported(&asker, &owner, rights);
        let failure = to.key_pointer(&key, 0, 8).unwrap_err();
        assert_eq!(failure.status, Status::KeyRejected);
        assert!(failure.text.contains("reading and writing"), "{}", failure.text);
    }
}

/// Returns a key of another owner's region, whose bytes are 0 to 255 repeatedly, and the objects to keep alive for it.
fn filled() -> (Owner, RingInterface, RingEndpoint, ImportedKey, Region) {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    let rights = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let (to, key, region) = imported(&asker, &owner, rights);
    let mut bytes: Vec<u8> = (0..4096).map(|n| n as u8).collect();
    let all = [Iov::new(bytes.as_mut_ptr(), bytes.len())];
    assert_eq!(to.put(&key, &op(&all, 4096, 0)), Ok(Posting::Done));
    (owner, asker, to, key, region)
}

fn op(iov: &[Iov], len: usize, offset: u64) -> RmaOp<'_> {
    RmaOp { iov, len, offset, cookie: 0, flags: 0 }
}

#[test]
fn pieces_are_read_and_written_one_behind_the_other() {
    let (_owner, _asker, to, key, _region) = filled();
    let (mut first, mut none, mut second) = ([1u8; 3], [0u8; 0], [2u8; 5]);
    let pieces = [
        Iov::new(first.as_mut_ptr(), 3),
        Iov::new(none.as_mut_ptr(), 0),
        Iov::new(second.as_mut_ptr(), 5),
    ];
    assert_eq!(to.put(&key, &op(&pieces, 8, 100)), Ok(Posting::Done));
    assert_eq!(to.get(&key, &op(&pieces, 8, 99)), Ok(Posting::Done));
    assert_eq!((first, second), ([99, 1, 1], [1, 2, 2, 2, 2]));
}

#[test]
fn put_and_get_end_with_fences_that_order_later_accesses() {
    let (_owner, _asker, to, key, _region) = filled();
    let _ = ENDED.take();
    let mut bytes = [0u8; 24];
    for len in [8, 24] {
        let piece = [Iov::new(bytes.as_mut_ptr(), len)];
        assert_eq!(to.put(&key, &op(&piece, len, 0)), Ok(Posting::Done));
        assert_eq!(to.get(&key, &op(&piece, len, 0)), Ok(Posting::Done));
        assert_eq!(ENDED.take(), ["put", "get"], "{len} bytes");
    }
}

#[test]
fn pieces_longer_than_their_operation_are_refused() {
    let (_owner, _asker, to, key, _region) = filled();
    let (mut first, mut second) = ([7u8; 4], [7u8; 4]);
    let pieces = [Iov::new(first.as_mut_ptr(), 4), Iov::new(second.as_mut_ptr(), 4)];
    for len in [0, 3, 4, 7] {
        assert_eq!(to.get(&key, &op(&pieces, len, 4088)), Err(Status::Invalid), "{len}");
        assert_eq!(second, [7; 4], "nothing is read beyond the length of {len}");
        assert_eq!(to.put(&key, &op(&pieces, len, 0)), Err(Status::Invalid), "{len}");
    }
    let (mut back, zero) = ([0u8; 8], 0);
    let whole = [Iov::new(back.as_mut_ptr(), 8)];
    assert_eq!(to.get(&key, &op(&whole, 8, zero)), Ok(Posting::Done));
    assert_eq!(back[4..], [4, 5, 6, 7], "nothing is written beyond the length");
}

#[test]
fn an_operation_ends_at_the_end_of_its_key_and_no_byte_later() {
    let (owner, _asker, to, key, region) = filled();
    let mut byte = [0u8; 1];
    let one = [Iov::new(byte.as_mut_ptr(), 1)];
    assert_eq!(to.get(&key, &op(&one, 1, 4095)), Ok(Posting::Done));
    assert_eq!(byte, [255]);
    for offset in [4096, u64::MAX] {
        assert_eq!(to.get(&key, &op(&one, 1, offset)), Err(Status::OutOfRange), "{offset}");
        assert_eq!(to.put(&key, &op(&one, 1, offset)), Err(Status::OutOfRange), "{offset}");
    }
    assert_eq!(to.get(&key, &op(&[], 0, 4096)), Ok(Posting::Done), "nothing is read there");
    owner.domain.exports.free(&region);
    assert_eq!(to.get(&key, &op(&one, 1, 0)), Err(Status::KeyRejected));
    assert_eq!(to.put(&key, &op(&one, 1, 0)), Err(Status::KeyRejected));
}

#[test]
fn a_word_goes_where_any_piece_goes_and_is_refused_where_any_piece_is() {
    let (owner, _asker, to, key, region) = filled();
    let mut word = [9u8; 8];
    let one = [Iov::new(word.as_mut_ptr(), 8)];
    for offset in [0, 3, 4088] {
        assert_eq!(to.put(&key, &op(&one, 8, offset)), Ok(Posting::Done), "{offset}");
    }
    for offset in [4089, 4096, u64::MAX - 7, u64::MAX] {
        assert_eq!(to.put(&key, &op(&one, 8, offset)), Err(Status::OutOfRange), "{offset}");
        assert_eq!(to.get(&key, &op(&one, 8, offset)), Err(Status::OutOfRange), "{offset}");
    }
    assert_eq!(to.get(&key, &op(&one, 8, 5)), Ok(Posting::Done));
    assert_eq!(word, [9, 9, 9, 9, 9, 9, 11, 12], "the words at 0 and 3, and what lies behind");
    assert_eq!(to.get(&key, &op(&one, 8, 4088)), Ok(Posting::Done));
    assert_eq!(word, [9; 8], "the last word of the region");
    assert_eq!(to.put(&key, &op(&one, 7, 0)), Err(Status::Invalid), "longer than its operation");
    assert_eq!(to.put(&key, &op(&one, 4096, 8)), Err(Status::OutOfRange), "as long as it says");
    word = [1; 8];
    owner.domain.exports.free(&region);
    assert_eq!(to.put(&key, &op(&one, 8, 0)), Err(Status::KeyRejected));
    assert_eq!(to.get(&key, &op(&one, 8, 4088)), Err(Status::KeyRejected));
    assert_eq!(word, [1; 8], "nothing was read");
}

#[test]
fn a_word_is_put_or_got_only_with_a_key_that_grants_it() {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    let (read, write) = (access::REMOTE_READ, access::REMOTE_WRITE);
    for rights in [read, write, access::REMOTE_ATOMIC] {
        let (to, key, _region) = imported(&asker, &owner, rights);
        let mut word = [0u8; 8];
        let one = [Iov::new(word.as_mut_ptr(), 8)];
        let expected = |right| match rights == right {
            true => Ok(Posting::Done),
            false => Err(Status::KeyRejected),
        };
        assert_eq!(to.get(&key, &op(&one, 8, 0)), expected(read), "{rights}");
        assert_eq!(to.put(&key, &op(&one, 8, 0)), expected(write), "{rights}");
    }
}

#[test]
fn an_atomic_is_refused_where_it_does_not_lie_or_is_none() {
    let (_owner, _asker, to, key, _region) = filled();
    let atomic = |op: u32, width: u32, offset: u64| {
        let record = Atomic {
            op,
            width,
            key: std::ptr::null_mut(),
            offset,
            operand: 1,
            compare: 0,
            result: std::ptr::null_mut(),
            cookie: 0,
            flags: 0,
        };
        let mut before = 0;
        to.atomic(&key, &record, &mut before).map(|_| before)
    };
    assert_eq!(atomic(atomic_op::ADD, 4, 4), Ok(0x0706_0504));
    assert_eq!(atomic(atomic_op::ADD, 4, 4), Ok(0x0706_0505));
    assert_eq!(
        atomic(atomic_op::ADD, 8, 4088),
        Ok(u64::from_le_bytes([248, 249, 250, 251, 252, 253, 254, 255]))
    );
    for (width, offset, why) in [
        (4, 6, Status::Misaligned),
        (8, 4, Status::Misaligned),
        (8, 4092, Status::OutOfRange),
        (4, 4096, Status::OutOfRange),
        (2, 0, Status::Unsupported),
    ] {
        assert_eq!(atomic(atomic_op::ADD, width, offset), Err(why), "{width} at {offset}");
    }
    assert_eq!(atomic(atomic_op::MAX + 1, 8, 0), Err(Status::Unsupported));
}

#[test]
fn part_of_a_region_is_read_within_its_range_until_it_ends() {
    let (asker, owner) = (open(Settings::defaults()), Owner::new());
    let to = asker.connect(&owner.interface.address(), b"", 1).unwrap();
    let exports = &owner.domain.exports;
    let region = exports.alloc(owner.domain.id, 8192, 0).unwrap();
    let part = |at: usize, len| {
        let base = region.base().wrapping_add(at);
        exports.register(owner.domain.id, (base, len), access::REMOTE_READ)
    };
    let (first, second) = (part(4096, 24).unwrap(), part(4112, 8).unwrap());
    region.word(4112).store(7, Ordering::Relaxed);
    let import = |region: &Region| loop {
        match to.import_key(&region.key().pack()) {
            Ok(key) => break key,
            Err(failure) => assert_eq!(failure.status, Status::Again, "{failure}"),
        }
        let _ = (look(&owner.interface), look(&asker));
    };
    let (one, two) = (import(&first), import(&second));
    assert_eq!(to.channel().asking().regions(), 1, "both parts are in one file");
    let read = |key: &ImportedKey, offset, len: usize| {
        let mut bytes = [9; 32];
        let iov = [Iov::new(bytes.as_mut_ptr(), len)];
        to.get(key, &op(&iov, len, offset)).map(|_| bytes[len - 8..len].to_vec())
    };
    let seven = Ok(7u64.to_le_bytes().to_vec());
    assert_eq!(
        (read(&one, 16, 8), read(&two, 0, 8), read(&one, 8, 16)),
        (seven.clone(), seven.clone(), seven.clone())
    );
    assert_eq!(read(&one, 16, 9), Err(Status::OutOfRange));
    assert_eq!(read(&two, 1, 8), Err(Status::OutOfRange));
    let mut word = 5u64.to_le_bytes();
    let iov = [Iov::new(word.as_mut_ptr(), 8)];
    assert_eq!(to.put(&one, &op(&iov, 8, 0)).err(), Some(Status::KeyRejected));
    // The part ends while its bytes are read, and its owner may write to them.
    let mut bytes = [0; 16];
    let ends = |map: &Mapping, offset, piece| {
        let filled = fill_piece(map, offset, piece);
        exports.free(&first);
        filled
    };
    let torn = one.get_by(&[Iov::new(bytes.as_mut_ptr(), 16)], 8, 16, ends);
    assert_eq!(torn, Err(Status::KeyRejected));
    assert_eq!(read(&one, 16, 8), Err(Status::KeyRejected));
    assert_eq!(read(&two, 0, 8), seven, "the other part is unaffected");
    exports.free(&second);
    assert_eq!(read(&two, 0, 8), Err(Status::KeyRejected));
}

#[test]
fn end_of_a_part_is_fenced_before_what_its_owner_writes_later() {
    let owner = Owner::new();
    let exports = &owner.domain.exports;
    let region = exports.alloc(owner.domain.id, 4096, 0).unwrap();
    let base = region.base();
    let part = exports.register(owner.domain.id, (base, 8), access::REMOTE_READ).unwrap();
    let _ = ENDED.take();
    exports.revoke(&part);
    assert_eq!(ENDED.take(), ["key"]);
    exports.free(&part);
    assert_eq!(ENDED.take(), ["key"]);
    exports.free(&region);
}

#[test]
fn only_own_memory_is_registered_and_only_for_reading() {
    let owner = Owner::new();
    let exports = &owner.domain.exports;
    let mut other = [0u64; 8];
    let register = |base: *mut u8, len, rights| {
        let registered = exports.register(owner.domain.id, (base, len), rights);
        registered.map(|part| exports.free(&part)).map_err(|failure| failure.status)
    };
    let refused = Err(Status::Unsupported);
    assert_eq!(register(other.as_mut_ptr().cast(), 8, access::REMOTE_READ), refused);
    let region = exports.alloc(owner.domain.id, 4096, access::REMOTE_READ).unwrap();
    let base = region.base();
    assert_eq!(register(other.as_mut_ptr().cast(), 8, access::REMOTE_READ), refused);
    assert_eq!(register(base.wrapping_add(4090), 8, access::REMOTE_READ), refused);
    assert_eq!(register(base.wrapping_add(4096), 1, access::REMOTE_READ), refused);
    assert_eq!(register(base, 0, access::REMOTE_READ), refused);
    assert_eq!(register(base, 8, access::REMOTE_READ | access::REMOTE_WRITE), refused);
    assert_eq!(register(base, 8, access::REMOTE_ATOMIC), refused);
    assert_eq!(register(base, 4096, access::REMOTE_READ), Ok(()));
    assert_eq!(register(base.wrapping_add(4090), 6, 0), Ok(()));
    exports.free(&region);
    assert_eq!(register(base, 8, access::REMOTE_READ), refused);
}
