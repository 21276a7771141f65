//! Tests of the handshake against itself, against other versions, and against hostile bytes.

use super::*;
use proptest::prelude::*;

fn dialler(secret: &[u8], hello: &Hello) -> Dialler {
    Dialler::new(Key::derive(secret, &[9; 16]), hello, [1; 32])
}

fn acceptor(secret: &[u8]) -> Acceptor {
    Acceptor::new(Key::derive(secret, &[9; 16]), [2; 32])
}

fn a_hello() -> Hello {
    Hello::new(3, [4; 16], b"payload").expect("short")
}

/// The results of both sides.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    hello: Option<Hello>,
    accepted: bool,
    refusal: Option<Refusal>,
    error: Option<HandshakeError>,
}

/// Passes bytes in pieces of `piece` bytes between both sides until neither has more. `verdict` is the acceptor's.
fn run(
    dialler: &mut Dialler,
    acceptor: &mut Acceptor,
    piece: usize,
    verdict: Result<(), Refusal>,
    tamper: &mut dyn FnMut(bool, &mut Vec<u8>),
) -> Outcome {
    let mut outcome = Outcome::default();
    loop {
        let before = (dialler.output().len(), acceptor.output().len());
        let count = dialler.output().len().min(piece).min(acceptor.expects());
        let mut bytes = dialler.output()[..count].to_vec();
        dialler.sent(count);
        tamper(true, &mut bytes);
        if outcome.error.is_none() && !bytes.is_empty() {
            match acceptor.receive(&bytes) {
                Ok(Some(hello)) => {
                    outcome.hello = Some(hello);
                    acceptor.answer(verdict);
                }
                Ok(None) => {}
                Err(error) => outcome.error = Some(error),
            }
        }
        let count = acceptor.output().len().min(piece).min(dialler.expects());
        let mut bytes = acceptor.output()[..count].to_vec();
        acceptor.sent(count);
        tamper(false, &mut bytes);
        if outcome.refusal.is_none() && !bytes.is_empty() {
            match dialler.receive(&bytes) {
                Ok(done) => outcome.accepted |= done,
                Err(refusal) => outcome.refusal = Some(refusal),
            }
        }
        let after = (dialler.output().len(), acceptor.output().len());
        if before == (0, 0) && after == (0, 0) || outcome.error.is_some() && after.1 == 0 {
            return outcome;
        }
        if before == after && count == 0 {
            return outcome;
        }
    }
}

fn untouched(_: bool, _: &mut Vec<u8>) {}

#[test]
fn both_sides_prove_themselves_whatever_the_pieces() {
    for piece in [1, 2, 7, 33, 36, 1000] {
        let (mut d, mut a) = (dialler(b"s", &a_hello()), acceptor(b"s"));
        let outcome = run(&mut d, &mut a, piece, Ok(()), &mut untouched);
        let expected = Outcome { hello: Some(a_hello()), accepted: true, ..Outcome::default() };
        assert_eq!(outcome, expected, "pieces of {piece}");
        assert_eq!((d.expects(), a.expects()), (0, 0), "what follows is not ours to read");
    }
}

#[test]
fn another_secret_is_a_stranger_and_hears_it() {
    let (mut d, mut a) = (dialler(b"one", &a_hello()), acceptor(b"other"));
    let outcome = run(&mut d, &mut a, 64, Ok(()), &mut untouched);
    assert_eq!(outcome.error, Some(HandshakeError::BadProof));
    assert_eq!(outcome.refusal, Some(Refusal::WrongSecret));
    assert!(!outcome.accepted && outcome.hello.is_none());
}

#[test]
fn another_cookie_is_another_key() {
    let mut d = Dialler::new(Key::derive(b"s", &[8; 16]), &a_hello(), [1; 32]);
    let outcome = run(&mut d, &mut acceptor(b"s"), 64, Ok(()), &mut untouched);
    assert_eq!(outcome.error, Some(HandshakeError::BadProof));
}

#[test]
fn a_refusal_says_why() {
    for refusal in [Refusal::UnknownTarget, Refusal::Busy] {
        let (mut d, mut a) = (dialler(b"s", &a_hello()), acceptor(b"s"));
        let outcome = run(&mut d, &mut a, 64, Err(refusal), &mut untouched);
        assert_eq!(outcome.refusal, Some(refusal));
        assert!(!outcome.accepted);
    }
}

#[test]
fn another_version_is_named_on_both_sides() {
    let (mut d, mut a) = (dialler(b"s", &a_hello()), acceptor(b"s"));
    let mut first = true;
    let mut newer = |outgoing: bool, bytes: &mut Vec<u8>| {
        if outgoing && std::mem::take(&mut first) {
            bytes[3] = 7;
        }
    };
    let outcome = run(&mut d, &mut a, 64, Ok(()), &mut newer);
    assert_eq!(outcome.error, Some(HandshakeError::OtherVersion(7)));
    let mut d = dialler(b"s", &a_hello());
    let mut challenge = greeting(&[2; 32]);
    challenge[3] = 7;
    assert_eq!(d.receive(&challenge), Err(Refusal::OtherVersion(7)));
}

#[test]
fn another_version_is_known_by_its_number_whatever_it_says_behind_that() {
    for behind in [&[][..], &[0; 7]] {
        let said = [&b"TLN\x02"[..], behind].concat();
        let mut a = acceptor(b"s");
        assert_eq!(a.receive(&said), Err(HandshakeError::OtherVersion(2)));
        assert_eq!(a.output()[..4], *b"TLN\x01");
        assert_eq!(dialler(b"s", &a_hello()).receive(&said), Err(Refusal::OtherVersion(2)));
    }
    let mut d = dialler(b"s", &a_hello());
    assert_eq!(d.receive(b"TLN"), Ok(false));
    assert_eq!(d.receive(b"\x02"), Err(Refusal::OtherVersion(2)));
}

#[test]
fn foreign_greeting_is_refused_before_it_is_complete() {
    assert_eq!(dialler(b"s", &a_hello()).receive(b"220 mail\r\n"), Err(Refusal::NotOurs));
    assert_eq!(dialler(b"s", &a_hello()).receive(b"TL"), Ok(false));
}

#[test]
fn an_acceptor_without_the_key_is_not_believed() {
    let mut d = dialler(b"s", &a_hello());
    assert_eq!(d.receive(&greeting(&[2; 32])), Ok(false));
    let forged = [&[ACCEPTED][..], &[0; TAG]].concat();
    assert_eq!(d.receive(&forged), Err(Refusal::NotOurs));
}

#[test]
fn an_answer_cannot_be_played_again() {
    // A recorded answer of one connection is invalid in another: the nonces differ.
    let (mut d, mut a) = (dialler(b"s", &a_hello()), acceptor(b"s"));
    let mut recorded = Vec::new();
    let mut record = |outgoing: bool, bytes: &mut Vec<u8>| {
        if !outgoing {
            recorded.extend_from_slice(bytes);
        }
    };
    assert!(run(&mut d, &mut a, 64, Ok(()), &mut record).accepted);
    let mut d = Dialler::new(Key::derive(b"s", &[9; 16]), &a_hello(), [77; 32]);
    assert_eq!(d.receive(&recorded[..GREETING]), Ok(false));
    assert_eq!(d.receive(&recorded[GREETING..]), Err(Refusal::NotOurs));
}

#[test]
fn a_scanner_is_known_by_its_first_byte() {
    assert_eq!(acceptor(b"s").receive(b"GET / HTTP/1.1"), Err(HandshakeError::NotOurs));
    assert_eq!(acceptor(b"s").receive(&[0x16]), Err(HandshakeError::NotOurs));
    assert_eq!(acceptor(b"s").receive(b"TL"), Ok(None));
}

#[test]
fn a_payload_beyond_the_limit_is_no_hello() {
    assert!(Hello::new(0, [0; 16], &[0; MAX_HELLO_PAYLOAD + 1]).is_err());
    let mut a = acceptor(b"s");
    assert_eq!(a.receive(&greeting(&[1; 32])), Ok(None));
    let mut head = [0u8; HELLO_HEAD];
    head[17..].copy_from_slice(&(MAX_HELLO_PAYLOAD as u16 + 1).to_le_bytes());
    assert_eq!(a.receive(&head), Err(HandshakeError::BadHello));
}

proptest! {
    #[test]
    fn every_hello_arrives_whole(purpose: u8, target: [u8; 16],
                                 payload in prop::collection::vec(any::<u8>(), 0..=MAX_HELLO_PAYLOAD),
                                 piece in 1usize..200, secret: Vec<u8>) {
        let hello = Hello::new(purpose, target, &payload).expect("within the limit");
        let (mut d, mut a) = (dialler(&secret, &hello), acceptor(&secret));
        let outcome = run(&mut d, &mut a, piece, Ok(()), &mut untouched);
        prop_assert!(outcome.accepted);
        prop_assert_eq!(outcome.hello, Some(hello));
    }

    #[test]
    fn garbage_is_never_accepted_and_costs_bounded_memory(
        bytes in prop::collection::vec(any::<u8>(), 0..4000), magic: bool, version: bool,
    ) {
        let mut bytes = bytes;
        if magic && bytes.len() > 4 { bytes[..3].copy_from_slice(&MAGIC); }
        if version && bytes.len() > 4 { bytes[3] = VERSION; }
        let mut a = acceptor(b"s");
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let count = a.expects().min(rest.len());
            if count == 0 { break; }
            match a.receive(&rest[..count]) {
                Ok(hello) => prop_assert_eq!(hello, None),
                Err(_) => break,
            }
            rest = &rest[count..];
            prop_assert!(a.pipe.inbox.len() + a.pipe.outbox.len() <= 2 * MAX_HELLO_PAYLOAD);
        }
        let mut d = dialler(b"s", &a_hello());
        let mut rest = &bytes[..];
        while d.expects() > 0 && !rest.is_empty() {
            let count = d.expects().min(rest.len());
            match d.receive(&rest[..count]) {
                Ok(done) => prop_assert!(!done),
                Err(_) => break,
            }
            rest = &rest[count..];
        }
    }

    #[test]
    fn a_change_of_any_bit_is_noticed(at in 0usize..400, bit in 0u8..8, outgoing: bool) {
        let (mut d, mut a) = (dialler(b"s", &a_hello()), acceptor(b"s"));
        let (mut seen, mut changed) = (0, false);
        let mut flip = |direction: bool, bytes: &mut Vec<u8>| {
            if direction == outgoing {
                for byte in bytes {
                    if seen == at { *byte ^= 1 << bit; changed = true; }
                    seen += 1;
                }
            }
        };
        let outcome = run(&mut d, &mut a, 64, Ok(()), &mut flip);
        prop_assert!(!(changed && outcome.accepted));
    }
}

/// The bytes of both sides of [`a_hello`] with the secret `secret`. A separate program computed them: integers are little-endian on
/// every processor.
const START: &str = "544c4e010101010101010101010101010101010101010101010101010101010101010101";
const CHALLENGE: &str = "544c4e010202020202020202020202020202020202020202020202020202020202020202";
const HELLO_WITH_PROOF: &str = "030404040404040404040404040404040407007061796c6f6164\
                     f15682682bea2f4bba80164e33faa4a422be30910e79a3a83931f5a73e23dd98";
const ACCEPTANCE: &str = "00f620b2c28f2afab488fdb7f038b4c4be86b562a23f4131994eb003469fdda615";

fn recorded(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[test]
fn recorded_handshake_of_another_processor_is_understood_on_both_sides() {
    let mut dialler = dialler(b"secret", &a_hello());
    assert_eq!(dialler.output(), recorded(START));
    dialler.sent(dialler.output().len());
    assert_eq!(dialler.receive(&recorded(CHALLENGE)), Ok(false));
    assert_eq!(dialler.output(), recorded(HELLO_WITH_PROOF));
    assert_eq!(dialler.receive(&recorded(ACCEPTANCE)), Ok(true));

    let mut acceptor = acceptor(b"secret");
    assert_eq!(acceptor.receive(&recorded(START)), Ok(None));
    assert_eq!(acceptor.output(), recorded(CHALLENGE));
    acceptor.sent(acceptor.output().len());
    let hello = recorded(HELLO_WITH_PROOF);
    let (head, rest) = hello.split_at(acceptor.expects());
    assert_eq!(acceptor.receive(head), Ok(None));
    assert_eq!(acceptor.receive(rest), Ok(Some(a_hello())));
    acceptor.answer(Ok(()));
    assert_eq!(acceptor.output(), recorded(ACCEPTANCE));
}

#[test]
fn hello_with_its_length_in_the_other_byte_order_is_refused() {
    let mut acceptor = acceptor(b"secret");
    assert_eq!(acceptor.receive(&recorded(START)), Ok(None));
    let mut hello = recorded(HELLO_WITH_PROOF);
    hello[17..19].reverse();
    let head = hello[..acceptor.expects()].to_vec();
    assert_eq!(acceptor.receive(&head), Err(HandshakeError::BadHello));
}
