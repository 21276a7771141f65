//! Tests in which a requester waits as long as its peer's kernel answers, and is notified if a stream is damaged.

use super::hostile::{withheld, withhold};
use super::*;
use crate::frame::HEAD;

/// A request, and the number of its bytes that sums protect.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Put,
    Get,
    Flush,
    Message,
}

#[test]
fn requester_on_damaged_stream_is_notified() {
    let domain = domain(&[]);
    let mut target = vec![0u8; 64];
    let (region, packed) = key_of(&domain, &mut target);
    for asked in [Asked::Put, Asked::Get, Asked::Flush, Asked::Message] {
        let long = matches!(asked, Asked::Put | Asked::Get);
        for at in 0..if long { 2 * HEAD } else { HEAD } {
            let mut sides = pair_in([&domain, &domain]);
            await_streams(&mut sides, 1);
            let mut memory = [7u8; 8];
            send(&mut sides, 0, b"something to flush");
            let _ = receive(&mut sides);
            withhold(&sides[0]);
            match asked {
                Asked::Put | Asked::Get => {
                    let put = matches!(asked, Asked::Put);
                    let key = sides[0].endpoint().import_key(&packed).unwrap();
                    rma(&mut sides, put, &key, &mut memory, 0, 5);
                }
                Asked::Flush => {
                    assert_eq!(sides[0].endpoint().flush(5), Ok(Posting::Pending));
                }
                // The application waits for an answer.
                Asked::Message => {
                    assert_eq!(sides[0].endpoint().am_short(7, 1, b"please"), Ok(Posting::Done));
                }
            }
            let mut bytes = withheld(&sides[0]);
            bytes[at] ^= 1 << (at % 8);
            assert_eq!(sys::send(streams_of(&sides[0])[0], &bytes).unwrap(), bytes.len());
            // The receiver detects the damage, and the sender sees the end.
            while sides.iter().any(|side| side.failed.is_none()) {
                turn(&mut sides);
            }
            let (status, words) = sides[1].failed.clone().unwrap();
            assert_eq!(status, Status::BadData, "{asked:?}, byte {at}: {words}");
            let waited = !matches!(asked, Asked::Message);
            assert_eq!(sides[0].completions.len(), usize::from(waited), "{asked:?}, byte {at}");
            assert!(sides[0].completions.iter().all(|(_, status)| *status != 0));
        }
    }
    domain.deregister(region).unwrap();
}

#[test]
fn a_peer_that_computes_and_does_not_poll_is_waited_for() {
    let variables = [("TIELINE_FAILURE_TIMEOUT", "100ms")];
    let domain = domain(&variables);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![3u8; 1 << 20];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut memory = vec![0u8; target.len()];
    rma(&mut sides, false, &key, &mut memory, 0, 5);
    send(&mut sides, 1, b"meanwhile");
    // Only the answers of the peer's kernel matter. The wait is thirty times the limit.
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        sides[0].turn();
        assert_eq!(sides[0].failed, None);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(await_completion(&mut sides, 5), 0);
    assert!(memory == target);
    domain.deregister(region).unwrap();
}

/// A signal handler that calls `exit` may interrupt a call that changes the connection.
#[test]
fn message_posted_within_another_call_finds_no_room() {
    let mut sides = pair(&[]);
    let call = sides[0].endpoint().conn().inner.borrow_mut();
    assert_eq!(sides[0].endpoint().am_short(1, 7, b"inside").err(), Some(Status::Again));
    drop(call);
    send(&mut sides, 8, b"after");
    assert_eq!(receive(&mut sides).1, 8);
}
