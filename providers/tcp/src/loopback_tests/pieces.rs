//! Tests of operations whose memory consists of several pieces.

use super::*;

#[test]
fn a_piece_of_an_operation_may_be_empty() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 100_000];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut local = pattern(50_000, 2);
    let (a, b) = local.split_at_mut(20_000);
    let empty = Iov::new(std::ptr::null_mut(), 0);
    let iov = [empty, iov(sys::piece_mut(a)), empty, iov(sys::piece_mut(b)), empty];
    let op =
        RmaOp { iov: &iov, len: 50_000, offset: 10, cookie: 3, flags: op_flags::REMOTE_COMPLETION };
    assert_eq!(post(&mut sides, |e| e.put(&key, &op)), Posting::Pending);
    assert_eq!(await_completion(&mut sides, 3), 0);
    assert!(target[10..50_010] == local);
    domain.deregister(region).unwrap();
}

/// The bytes of a short get arrive together, after the frame that announces them.
#[test]
fn get_into_many_pieces_fills_all_of_them() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = pattern(600, 3);
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut local = [0u8; 600];
    let iov: Vec<Iov> = local.chunks_mut(1).map(|piece| iov(sys::piece_mut(piece))).collect();
    let op = RmaOp { iov: &iov, len: 600, offset: 0, cookie: 3, flags: 0 };
    assert_eq!(post(&mut sides, |e| e.get(&key, &op)), Posting::Pending);
    assert_eq!(await_completion(&mut sides, 3), 0);
    assert!(local[..] == target);
    domain.deregister(region).unwrap();
}
