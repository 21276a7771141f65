use super::tests::{ALL, endpoint, key};
use super::*;
use crate::CmaDomain;
use tieline_plugin_api::abi::{Iov, RegisterParams};
use tieline_plugin_api::{Domain, ListPart, access};

fn post(endpoint: &CmaEndpoint, put: bool, parts: &[ListPart<'_, RemoteKey>]) -> (Posted, usize) {
    let mut taken = 0;
    let posted = endpoint.rma_list(&ListOp { put, parts, cookie: 0, flags: 0 }, &mut taken);
    (posted, taken)
}

fn part<'a>(bytes: &mut [u8], key: &'a RemoteKey, offset: usize) -> ListPart<'a, RemoteKey> {
    let local = Iov::new(bytes.as_mut_ptr(), bytes.len());
    ListPart { local, key, offset: offset as u64 }
}

proptest::proptest! {
    #[test]
    fn list_moves_the_same_bytes_whatever_the_limits_of_a_call_are(
        lengths in proptest::collection::vec(0usize..300, 1..150),
        regions in proptest::collection::vec(0usize..3, 150),
        limit_bytes in IMAGE_LEN + 1..2000,
        limit_pieces in 1usize..100,
    ) {
        let domain = CmaDomain::new(false).unwrap();
        let endpoint = endpoint(&domain, Limits { bytes: limit_bytes, pieces: limit_pieces });
        let mut targets = [(); 3].map(|()| vec![0u8; 50_000]);
        let registered = targets.each_mut().map(|target| {
            domain.register(&RegisterParams::new(target.as_mut_ptr(), target.len(), ALL)).unwrap()
        });
        let keys = registered.each_ref().map(|region| key(&domain, &endpoint, region));
        let total = lengths.iter().sum::<usize>();
        let mut sent: Vec<u8> = (0..total).map(|at| (at % 251) as u8 + 1).collect();
        let mut received = vec![0u8; total];
        for (put, buffer) in [(true, &mut sent), (false, &mut received)] {
            let (mut rest, mut at) = (&mut buffer[..], 7);
            let mut parts = Vec::new();
            for (len, region) in lengths.iter().zip(&regions) {
                let (here, behind) = rest.split_at_mut(*len);
                parts.push(part(here, &keys[*region], at));
                (rest, at) = (behind, at + len + 3);
            }
            proptest::prop_assert_eq!(
                post(&endpoint, put, &parts),
                (Ok(Posting::Done), lengths.len())
            );
        }
        proptest::prop_assert_eq!(received, sent);
        proptest::prop_assert!(targets.iter().all(|target| target[..7] == [0; 7]));
    }
}

#[test]
fn list_stops_before_the_first_bad_part_and_reports_it_when_called_again() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let (mut first, mut second, mut third) = (vec![0u8; 64], vec![0u8; 64], vec![0u8; 64]);
    let register = |memory: &mut Vec<u8>, rights| {
        domain.register(&RegisterParams::new(memory.as_mut_ptr(), memory.len(), rights)).unwrap()
    };
    let good = register(&mut first, ALL);
    let (gone, read) = (register(&mut second, ALL), register(&mut third, access::REMOTE_READ));
    let keys = [&good, &gone, &read].map(|region| key(&domain, &endpoint, region));
    domain.deregister(gone).unwrap();
    let mut buffer = [5u8; 8];
    let missing = Iov::new(std::ptr::without_provenance_mut(4096), 8);
    let bad = |n: usize, buffer: &mut [u8; 8]| match n {
        0 => (part(buffer, &keys[1], 0), Status::KeyRejected),
        1 => (part(buffer, &keys[2], 0), Status::KeyRejected),
        2 => (part(buffer, &keys[0], 57), Status::OutOfRange),
        3 => (part(buffer, &keys[0], usize::MAX), Status::OutOfRange),
        _ => (ListPart { local: missing, key: &keys[0], offset: 0 }, Status::Invalid),
    };
    for n in 0..5 {
        for before in [0, 1, 5] {
            let mut parts: Vec<_> =
                (0..before).map(|at| part(&mut buffer, &keys[0], at * 8)).collect();
            let (wrong, status) = bad(n, &mut buffer);
            parts.push(wrong);
            parts.push(part(&mut buffer, &keys[0], 56));
            let expected = if before > 0 { Ok(Posting::Done) } else { Err(status) };
            assert_eq!(post(&endpoint, true, &parts), (expected, before), "case {n}");
            assert_eq!(post(&endpoint, true, &parts[before..]), (Err(status), 0), "case {n}");
        }
    }
    assert_eq!(
        (&first[..40], &first[40..], &second[..]),
        (&[5; 40][..], &[0; 24][..], &[0; 64][..])
    );
    let revoked = [part(&mut buffer, &keys[1], 0)];
    assert_eq!(post(&endpoint, false, &revoked), (Err(Status::KeyRejected), 0));
}

#[test]
fn list_of_more_ranges_than_one_call_takes_is_complete() {
    let domain = CmaDomain::new(false).unwrap();
    let endpoint = endpoint(&domain, KERNEL);
    let mut target: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
    let region =
        domain.register(&RegisterParams::new(target.as_mut_ptr(), target.len(), ALL)).unwrap();
    let key = key(&domain, &endpoint, &region);
    let mut received = vec![0u8; 5000];
    let parts: Vec<_> = received
        .iter_mut()
        .enumerate()
        .map(|(at, byte)| part(std::slice::from_mut(byte), &key, at))
        .collect();
    assert_eq!(post(&endpoint, false, &parts), (Ok(Posting::Done), 5000));
    drop(parts);
    assert_eq!(received, target);
}
