//! Tests of long payloads in a row.

use super::*;

/// The first payload arrives behind its head in one read. The later ones do not, whether or not the stream was empty between.
#[test]
fn long_payloads_in_a_row_are_read_into_their_destination() {
    const LEN: usize = 64 << 10;
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    let mut target = vec![0u8; LEN];
    let (_region, packed) = key_of(&domain, &mut target);
    await_streams(&mut sides, 1);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut sources = [7, 8, 9, 10].map(|seed| pattern(LEN, seed));
    for round in 0..20 {
        for (cookie, source) in sources.iter_mut().enumerate() {
            rma(&mut sides, true, &key, source, 0, cookie as u64);
        }
        for cookie in 0..4 {
            assert_eq!(await_completion(&mut sides, cookie), 0, "{round}");
        }
    }
    assert!(target == sources[3]);
    let copied = sides[1].interface.shared().copied.get();
    assert!(copied <= 3 * LEN, "{copied} of {}", 80 * LEN);
    // A message between them is read with all that has arrived.
    for n in 0..3 {
        send(&mut sides, n, b"between");
        assert_eq!(receive(&mut sides).1, n);
    }
    for (index, put) in [(0, true), (1, false)] {
        rma(&mut sides, put, &key, &mut sources[index], 0, 9);
        assert_eq!(await_completion(&mut sides, 9), 0);
    }
    assert!(sources[1] == sources[0]);
}
