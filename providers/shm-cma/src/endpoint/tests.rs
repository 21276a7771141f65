use super::*;
use crate::CmaDomain;
use tieline_plugin_api::abi::{Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Interface, access};

/// Makes an endpoint to this process itself, with small limits per system call.
pub(super) fn endpoint(domain: &CmaDomain, limits: Limits) -> CmaEndpoint {
    let interface = domain.open_interface(crate::MODULE, [0; 16]).unwrap();
    CmaEndpoint { limits, ..interface.connect(&interface.address(), b"", 0).unwrap() }
}

pub(super) fn key(
    domain: &CmaDomain,
    endpoint: &CmaEndpoint,
    region: &crate::Registration,
) -> RemoteKey {
    let mut packed = [0; crate::keys::PACKED_LEN];
    let len = domain.pack_key(region, &KeyParams::empty(), &mut packed).unwrap();
    endpoint.import_key(&packed[..len]).unwrap()
}

pub(super) const ALL: u64 = access::REMOTE_READ | access::REMOTE_WRITE;

/// Splits `buffer` into pieces of the given lengths, and one piece with the rest.
fn cut(buffer: &mut [u8], lengths: &[usize]) -> Vec<Iov> {
    let mut pieces = Vec::new();
    let mut rest = buffer;
    for &len in lengths {
        let (piece, behind) = rest.split_at_mut(len.min(rest.len()));
        pieces.push(Iov::new(piece.as_mut_ptr(), piece.len()));
        rest = behind;
    }
    pieces.push(Iov::new(rest.as_mut_ptr(), rest.len()));
    pieces
}

fn op(iov: &[Iov], offset: u64) -> RmaOp<'_> {
    RmaOp { iov, len: iov.iter().map(|p| p.len).sum(), offset, cookie: 0, flags: 0 }
}

proptest::proptest! {
    #[test]
    fn any_split_and_any_limit_moves_the_same_bytes(
        len in 0usize..3000,
        offset in 0usize..100,
        lengths in proptest::collection::vec(0usize..400, 0..100),
        limit_bytes in IMAGE_LEN + 1..600,
        limit_pieces in 1usize..20,
    ) {
        let domain = CmaDomain::new(false).unwrap();
        let endpoint = endpoint(&domain, Limits { bytes: limit_bytes, pieces: limit_pieces });
        let mut target = vec![0xee; offset + len + 50];
        let region = domain.register(&RegisterParams::new(target.as_mut_ptr(), target.len(), ALL)).unwrap();
        let key = key(&domain, &endpoint, &region);
        let mut sent: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
        let pieces = cut(&mut sent, &lengths);
        proptest::prop_assert_eq!(endpoint.put(&key, &op(&pieces, offset as u64)), Ok(Posting::Done));
        let mut received = vec![0; len];
        let pieces = cut(&mut received, &lengths);
        proptest::prop_assert_eq!(endpoint.get(&key, &op(&pieces, offset as u64)), Ok(Posting::Done));
        proptest::prop_assert_eq!(&received, &sent);
        proptest::prop_assert!(target[..offset].iter().all(|&b| b == 0xee));
        proptest::prop_assert!(target[offset + len..].iter().all(|&b| b == 0xee));
    }
}

/// The kernel rounds its limit down to whole pages, and cuts a longer call short.
#[test]
fn one_call_asks_for_no_more_than_the_kernel_copies_with_any_page_size() {
    for page in [4 << 10, 16 << 10, 64 << 10] {
        assert!(KERNEL.bytes <= i32::MAX as usize / page * page, "pages of {page}");
    }
}

#[test]
fn more_pieces_than_one_call_takes_are_split() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target = vec![0u8; 5000];
    let region =
        domain.register(&RegisterParams::new(target.as_mut_ptr(), target.len(), ALL)).unwrap();
    let key = key(&domain, &endpoint, &region);
    let mut sent: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let pieces = cut(&mut sent, &[1; 4000]);
    assert_eq!(endpoint.put(&key, &op(&pieces, 0)), Ok(Posting::Done));
    assert_eq!(target, sent);
}

#[test]
fn empty_pieces_in_front_do_not_stop_a_transfer() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, Limits { bytes: 1 << 20, pieces: 1 });
    let mut target = [0u8; 8];
    let region =
        domain.register(&RegisterParams::new(target.as_mut_ptr(), target.len(), ALL)).unwrap();
    let key = key(&domain, &endpoint, &region);
    let mut sent = [5u8; 8];
    let pieces = cut(&mut sent, &[0; 200]);
    assert_eq!(endpoint.put(&key, &op(&pieces, 0)), Ok(Posting::Done));
    assert_eq!(target, sent);
}

#[test]
fn memory_for_100000_short_lived_regions_is_bounded() {
    let (owner, here) = (CmaDomain::new(false).unwrap(), CmaDomain::new(false).unwrap());
    let there = owner.open_interface(crate::MODULE, [0; 16]).unwrap();
    let interface = here.open_interface(crate::MODULE, [1; 16]).unwrap();
    let alone = interface.memory();
    assert_eq!((alone.peers, alone.peer_bytes), (0, 0));
    assert!(alone.base_bytes > 4096, "a file for announcements: {alone:?}");
    let endpoint = interface.connect(&there.address(), b"", 0).unwrap();
    let (mut target, mut local) = ([7u8; 64], [0u8; 8]);
    let pieces = cut(&mut local, &[]);
    for _ in 0..100 {
        let register = |_| {
            let memory = RegisterParams::new(target.as_mut_ptr(), target.len(), ALL);
            owner.register(&memory).unwrap()
        };
        let regions: Vec<_> = (0..1000).map(register).collect();
        for region in regions {
            let key = key(&owner, &endpoint, &region);
            assert_eq!(endpoint.get(&key, &op(&pieces, 0)), Ok(Posting::Done));
            owner.deregister(region).unwrap();
        }
    }
    let memory = interface.memory();
    assert_eq!((memory.peers, memory.peer_bytes), (1, 4096));
    // The table holds 1000 entries of 64 bytes, and those of concurrent tests.
    let table = memory.base_bytes - 4096;
    assert!((64_000..1_000_000).contains(&table), "{memory:?}");
    drop(endpoint);
    assert_eq!((interface.memory().peers, interface.memory().peer_bytes), (0, 0));
}

#[test]
fn a_revoked_key_is_rejected_by_put_and_get() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target = vec![1u8; 64];
    let region =
        domain.register(&RegisterParams::new(target.as_mut_ptr(), target.len(), ALL)).unwrap();
    let key = key(&domain, &endpoint, &region);
    let mut buffer = [2u8; 64];
    let pieces = cut(&mut buffer, &[]);
    domain.deregister(region).unwrap();
    assert_eq!(endpoint.put(&key, &op(&pieces, 0)), Err(Status::KeyRejected));
    assert_eq!(endpoint.get(&key, &op(&pieces, 0)), Err(Status::KeyRejected));
    assert_eq!(endpoint.put(&key, &op(&[], 0)), Err(Status::KeyRejected), "even for nothing");
    assert_eq!(target, [1; 64]);
}

#[test]
fn put_reads_the_entry_again_only_after_a_revocation() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target = vec![1u8; 64];
    let mut register =
        || domain.register(&RegisterParams::new(target.as_mut_ptr(), target.len(), ALL)).unwrap();
    let (region, other) = (register(), register());
    let key = key(&domain, &endpoint, &region);
    let mut buffer = [2u8; 64];
    let pieces = cut(&mut buffer, &[]);
    let mut checked = Vec::new();
    let mut put = || {
        let outcome = endpoint.put(&key, &op(&pieces, 0));
        checked.push(key.matched.get());
        outcome
    };
    assert_eq!((put(), put()), (Ok(Posting::Done), Ok(Posting::Done)));
    domain.deregister(other).unwrap();
    assert_eq!((put(), put()), (Ok(Posting::Done), Ok(Posting::Done)));
    domain.deregister(region).unwrap();
    assert_eq!((put(), put()), (Err(Status::KeyRejected), Err(Status::KeyRejected)));
    assert_eq!(checked, [1, 1, 2, 2, 2, 2], "the number of revocations, plus one");
}

#[test]
fn rights_are_the_regions_own() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target = vec![1u8; 64];
    let region = domain
        .register(&RegisterParams::new(target.as_mut_ptr(), 64, access::REMOTE_READ))
        .unwrap();
    let mut packed = [0; crate::keys::PACKED_LEN];
    let _ = domain.pack_key(&region, &KeyParams::empty(), &mut packed).unwrap();
    let mut buffer = [2u8; 64];
    let pieces = cut(&mut buffer, &[]);
    let honest = endpoint.import_key(&packed).unwrap();
    assert_eq!(endpoint.put(&honest, &op(&pieces, 0)), Err(Status::KeyRejected));
    assert_eq!(endpoint.get(&honest, &op(&pieces, 0)), Ok(Posting::Done));
    // A key with an added right does not match the table.
    packed[48] |= access::REMOTE_WRITE as u8;
    let forged = endpoint.import_key(&packed).unwrap();
    assert_eq!(endpoint.put(&forged, &op(&pieces, 0)), Err(Status::KeyRejected));
    assert_eq!(target, [1; 64]);
}

#[test]
fn a_key_with_any_byte_changed_writes_nothing() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target = vec![1u8; 256];
    let region =
        domain.register(&RegisterParams::new(target[64..].as_mut_ptr(), 128, ALL)).unwrap();
    let mut packed = [0; crate::keys::PACKED_LEN];
    let _ = domain.pack_key(&region, &KeyParams::empty(), &mut packed).unwrap();
    let mut buffer = [2u8; 128];
    let pieces = cut(&mut buffer, &[]);
    for bit in 0..packed.len() * 8 {
        let mut forged = packed;
        forged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(key) = endpoint.import_key(&forged) {
            let put = endpoint.put(&key, &op(&pieces, 0)).unwrap_err();
            let get = endpoint.get(&key, &op(&pieces, 0)).unwrap_err();
            for status in [put, get] {
                assert!(
                    matches!(status, Status::KeyRejected | Status::OutOfRange),
                    "bit {bit}: {status}"
                );
            }
        }
    }
    assert!(target.iter().all(|&b| b == 1));
}

#[test]
fn a_closed_domain_is_a_failed_peer() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target = [1u8; 8];
    let region = domain.register(&RegisterParams::new(target.as_mut_ptr(), 8, ALL)).unwrap();
    let key = key(&domain, &endpoint, &region);
    domain.deregister(region).unwrap();
    drop(domain);
    let mut buffer = [2u8; 8];
    assert_eq!(endpoint.put(&key, &op(&cut(&mut buffer, &[]), 0)), Err(Status::PeerFailed));
}

#[test]
fn faults_are_attributed_to_the_right_side() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    // The memory of this registration is unmapped, so the target violated its contract.
    let region = domain
        .register(&RegisterParams::new(core::ptr::without_provenance_mut(4096), 64, ALL))
        .unwrap();
    let unmapped = key(&domain, &endpoint, &region);
    let mut buffer = [2u8; 64];
    let pieces = cut(&mut buffer, &[]);
    assert_eq!(endpoint.put(&unmapped, &op(&pieces, 0)), Err(Status::Permission));
    assert_eq!(endpoint.get(&unmapped, &op(&pieces, 0)), Err(Status::Permission));
    // Unmapped local memory is an error of the caller.
    let mut target = [1u8; 64];
    let region = domain.register(&RegisterParams::new(target.as_mut_ptr(), 64, ALL)).unwrap();
    let good = key(&domain, &endpoint, &region);
    let nowhere = [Iov::new(core::ptr::without_provenance_mut(4096), 64)];
    assert_eq!(endpoint.put(&good, &op(&nowhere, 0)), Err(Status::Invalid));
    assert_eq!(endpoint.get(&good, &op(&nowhere, 0)), Err(Status::Invalid));
}

#[test]
fn a_length_that_is_not_the_sum_of_the_pieces_is_refused() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target = [1u8; 64];
    let region = domain.register(&RegisterParams::new(target.as_mut_ptr(), 64, ALL)).unwrap();
    let key = key(&domain, &endpoint, &region);
    let mut buffer = [2u8; 8];
    let pieces = cut(&mut buffer, &[]);
    let lying = RmaOp { len: 64, ..op(&pieces, 0) };
    assert_eq!(endpoint.put(&key, &lying), Err(Status::Invalid));
    assert_eq!(endpoint.get(&key, &lying), Err(Status::Invalid));
}
