//! Tests of a peer's memory: keys, put, get and atomics.

use super::*;
use tieline_plugin_api::atomic_op;

/// Imports a key, making progress until the owner has answered.
fn import(
    endpoint: &Endpoint<'_>,
    own: &Interface<'_>,
    peer: &Interface<'_>,
    key: &[u8],
) -> Result<sys::Key, sys::Error> {
    loop {
        match endpoint.import(key) {
            Err(error) if error.status == Status::Again => {
                let _ = (poll(own), poll(peer));
            }
            other => return other,
        }
    }
}

#[test]
fn memory_of_another_domain_is_reached_by_put_get_and_atomics() {
    let provider = Provider::open(&[]).unwrap();
    let (here, there) = (provider.domain(), provider.domain());
    for (owner, user) in [(&here, &there), (&here, &here)] {
        let (a, b) = (user.interface().unwrap(), owner.interface().unwrap());
        let endpoint = a.connect(&b.address(), b"", 0).unwrap();
        let memory = owner.alloc(100_000, all_rights()).unwrap();
        let key = import(&endpoint, &a, &b, &owner.key(&memory)).unwrap();
        let bytes = pattern(70_000, 1);
        assert_eq!(endpoint.put(&key, 1003, &bytes), Ok(0));
        assert_eq!(&memory.bytes()[1003..71_003], &bytes[..]);
        let mut back = vec![0; 70_000];
        assert_eq!(endpoint.get(&key, 1003, &mut back), Ok(0));
        assert!(back == bytes);
        assert_eq!(endpoint.put(&key, 99_999, b"ab"), Err(Status::OutOfRange));
        assert_eq!(endpoint.put(&key, u64::MAX, b"ab"), Err(Status::OutOfRange));
        assert_eq!(endpoint.get(&key, 100_000, &mut [0]), Err(Status::OutOfRange));
        assert_eq!(endpoint.get(&key, 100_000, &mut []), Ok(0));
        atomics(&endpoint, &key, &memory);
        owner.deregister(memory);
        assert_eq!(endpoint.put(&key, 0, b"late"), Err(Status::KeyRejected));
        let add = (atomic_op::ADD, 8);
        assert_eq!(endpoint.atomic(&key, add, 0, 1, 0), Err(Status::KeyRejected));
        endpoint.drop_key(key);
    }
}

/// The put is made in the cold ring and in the fast box, with bytes and without.
#[test]
fn put_word_follows_its_bytes_and_without_room_nothing_is_written() {
    let provider = Provider::open(&[]).unwrap();
    let (here, there) = (provider.domain(), provider.domain());
    let (a, b) = (here.interface().unwrap(), there.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    let memory = there.alloc(4096, all_rights()).unwrap();
    let key = import(&endpoint, &a, &b, &there.key(&memory)).unwrap();
    let told = || poll_until(&b, |seen| seen.kind == event::NOTIFIED);
    for round in 0..100u32 {
        let word = if round == 0 { u32::MAX } else { round };
        let bytes = pattern(1000 * (round as usize % 4), round as usize);
        assert_eq!(endpoint.put_notify(&key, 8, &bytes, word), Ok(0));
        assert_eq!(told().header, u64::from(word));
        assert_eq!(memory.bytes()[8..8 + bytes.len()], bytes);
        let _ = poll(&a);
    }
    // The loop sends until there is no more room.
    let mut sent = 0u32;
    while endpoint.put_notify(&key, 0, &sent.to_ne_bytes(), sent) == Ok(0) {
        sent += 1;
    }
    assert!(sent > 16, "{sent}");
    assert_eq!(endpoint.put_notify(&key, 0, b"none", 7), Err(Status::Again));
    assert_eq!(memory.bytes()[..4], (sent - 1).to_ne_bytes());
    let mut heard = Vec::new();
    while heard.len() < sent as usize {
        heard.extend(poll(&b).iter().filter(|seen| seen.kind == event::NOTIFIED).map(|s| s.header));
    }
    assert_eq!(heard, (0..u64::from(sent)).collect::<Vec<_>>());
    while endpoint.put_notify(&key, 0, b"more", 8) == Err(Status::Again) {
        let _ = (poll(&a), poll(&b));
    }
    assert_eq!((told().header, &memory.bytes()[..4]), (8, &b"more"[..]));
    assert_eq!(endpoint.put_notify(&key, 4000, &[1; 97], 9), Err(Status::OutOfRange));
    there.deregister(memory);
    assert_eq!(endpoint.put_notify(&key, 0, b"late", 9), Err(Status::KeyRejected));
    assert_eq!(poll(&b), [], "a put that is refused tells nobody");
    endpoint.drop_key(key);
}

/// Returns `bytes` with `old` replaced by `new`.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}

#[test]
fn a_peer_that_claims_the_domain_of_another_gets_nothing_of_it() {
    let provider = Provider::open(&[]).unwrap();
    let (owner, impostor, victim) = (provider.domain(), provider.domain(), provider.domain());
    let (a, b) = (owner.interface().unwrap(), impostor.interface().unwrap());
    let c = victim.interface().unwrap();
    let (real, fake) =
        (owner.alloc(4096, all_rights()).unwrap(), impostor.alloc(4096, all_rights()).unwrap());
    let (real_key, fake_key) = (owner.key(&real), impostor.key(&fake));
    // The impostor's address and key name the owner's domain; the same number, length and rights are easy to obtain.
    let (real_domain, fake_domain) = (&real_key[1..17], &fake_key[1..17]);
    let address = replaced(&b.address(), fake_domain, real_domain);
    assert_eq!(replaced(&fake_key, fake_domain, real_domain), real_key);
    for impostor_first in [true, false] {
        let wrong = c.connect(&address, b"", 1).unwrap();
        let right = c.connect(&a.address(), b"", 2).unwrap();
        let import_wrong = || import(&wrong, &c, &b, &real_key).unwrap();
        let import_right = || import(&right, &c, &a, &real_key).unwrap();
        let (wrong_key, right_key) = if impostor_first {
            let first = import_wrong();
            (first, import_right())
        } else {
            let first = import_right();
            (import_wrong(), first)
        };
        assert_eq!(right.put(&right_key, 0, b"a secret"), Ok(0));
        assert_eq!(&real.bytes()[..8], b"a secret");
        assert!(fake.bytes()[..8].iter().all(|&byte| byte == 0), "the secret went to the impostor");
        assert_eq!(wrong.put(&wrong_key, 8, b"for you!"), Ok(0));
        assert!(real.bytes()[8..16].iter().all(|&byte| byte == 0), "the impostor's is the owner's");
        wrong.drop_key(wrong_key);
        right.drop_key(right_key);
    }
}

#[test]
fn an_import_is_answered_without_a_poll_of_the_initiators() {
    let provider = Provider::open(&[]).unwrap();
    let (here, there) = (provider.domain(), provider.domain());
    let (a, b) = (here.interface().unwrap(), there.interface().unwrap());
    let memory = there.alloc(4096, all_rights()).unwrap();
    let bytes = there.key(&memory);
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    let start = Instant::now();
    let key = loop {
        match endpoint.import(&bytes) {
            Ok(key) => break key,
            Err(error) => assert_eq!(error.status, Status::Again),
        }
        let _ = poll(&b);
        assert!(start.elapsed() < Duration::from_secs(60), "the answer was never looked for");
    };
    assert_eq!(endpoint.put(&key, 0, b"mapped"), Ok(0));
    assert_eq!(&memory.bytes()[..6], b"mapped");
    endpoint.drop_key(key);
}

fn atomics(endpoint: &Endpoint<'_>, key: &sys::Key, memory: &sys::Memory) {
    use atomic_op::*;
    assert_eq!(endpoint.put(key, 64, &10u64.to_ne_bytes()), Ok(0));
    let steps = [
        (ADD, 5, 0, 15),
        (AND, 12, 0, 12),
        (OR, 3, 0, 15),
        (XOR, 5, 0, 10),
        (SWAP, 40, 0, 40),
        (COMPARE_SWAP, 1, 41, 40),
        (COMPARE_SWAP, 1, 40, 1),
        (MIN, 7, 0, 1),
        (MAX, 7, 0, 7),
        (ADD, u64::MAX, 0, 6),
        (SWAP, 10, 0, 10),
    ];
    for width in [8u32, 4] {
        let mut before = 10;
        for (op, operand, compare, after) in steps {
            let result = endpoint.atomic(key, (op, width), 64, operand, compare);
            assert_eq!(result, Ok(before), "{op} {width}");
            assert_eq!(memory.load(64), after);
            before = after;
        }
    }
    assert_eq!(endpoint.atomic(key, (ADD, 8), 68, 1, 0), Err(Status::Misaligned));
    assert_eq!(endpoint.atomic(key, (ADD, 4), 66, 1, 0), Err(Status::Misaligned));
    assert_eq!(endpoint.atomic(key, (ADD, 8), 100_000, 1, 0), Err(Status::OutOfRange));
    assert_eq!(endpoint.atomic(key, (9, 8), 64, 1, 0), Err(Status::Unsupported));
    assert_eq!(endpoint.atomic(key, (ADD, 2), 64, 1, 0), Err(Status::Unsupported));
}

#[test]
fn a_key_that_is_forged_foreign_or_cut_is_rejected() {
    let provider = Provider::open(&[]).unwrap();
    let (here, there, third) = (provider.domain(), provider.domain(), provider.domain());
    let (a, b) = (here.interface().unwrap(), there.interface().unwrap());
    let endpoint = a.connect(&b.address(), b"", 0).unwrap();
    let memory = there.alloc(4096, access::REMOTE_READ).unwrap();
    let good = there.key(&memory);
    let rejected = |key: &[u8]| {
        let error = import(&endpoint, &a, &b, key).err().map(|error| error.status);
        assert_eq!(error, Some(Status::KeyRejected), "{key:?}");
    };
    for at in 0..good.len() {
        let mut forged = good.clone();
        forged[at] ^= 4;
        rejected(&forged);
        rejected(&good[..at]);
    }
    let elsewhere = third.alloc(4096, all_rights()).unwrap();
    rejected(&third.key(&elsewhere));
    let key = import(&endpoint, &a, &b, &good).unwrap();
    assert_eq!(endpoint.get(&key, 0, &mut [0; 8]), Ok(0));
    assert_eq!(endpoint.put(&key, 0, &[1; 8]), Err(Status::KeyRejected));
    let add = (atomic_op::ADD, 8);
    assert_eq!(endpoint.atomic(&key, add, 0, 1, 0), Err(Status::KeyRejected));
    endpoint.drop_key(key);
}
