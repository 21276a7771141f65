//! Tests of send buffers, and of streams that epoll does not watch.

use super::moving::readable;
use super::*;

/// The next operation without the hint, or the next poll, writes the puts before it.
#[test]
fn puts_and_gets_that_others_follow_are_written_together() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0; 64];
    let (_region, bytes) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&bytes).unwrap();
    let (mut source, mut landing) = ([7u8; 4], [0u8; 4]);
    for ends_by_poll in [true, false] {
        for cookie in 0..12 {
            let put = cookie < 8;
            let memory = if put { &mut source[..] } else { &mut landing[..] };
            let iov = [iov(sys::piece_mut(memory))];
            let more = if cookie < 11 || ends_by_poll { op_flags::MORE } else { 0 };
            let flags = op_flags::REMOTE_COMPLETION | more;
            let op = RmaOp { iov: &iov, len: 4, offset: 4 * cookie, cookie, flags };
            let end = sides[0].endpoint();
            let posted = if put { end.put(&key, &op) } else { end.get(&key, &op) };
            assert_eq!(posted, Ok(Posting::Pending));
            let waiting = end.conn().inner.borrow().outbox.waiting();
            assert_eq!(waiting > 0, more != 0, "operation {cookie}");
        }
        for cookie in 0..12 {
            assert_eq!(await_completion(&mut sides, cookie), 0);
        }
        assert_eq!(landing, [0; 4], "the target has zeros behind the eight puts");
    }
    drop(sides);
    assert_eq!((&target[..32], &target[32..]), (&[7; 32][..], &[0; 32][..]));
}

/// The sender has received nothing, so its stream is not one of the recently active ones.
#[test]
fn send_buffer_of_pure_sender_is_freed_when_it_sleeps() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    let payload = pattern(10_000, 9);
    let mut sent = 0;
    while sides[0].endpoint().am_short(7, sent, &payload).is_ok() {
        sent += 1;
    }
    assert!(sides[0].interface.memory().buffer_bytes > 10_000);
    for n in 0..sent {
        assert_eq!(receive(&mut sides).1, n);
    }
    while sides[0].interface.arm().unwrap() == Armed::Ready {
        turn(&mut sides);
    }
    assert_eq!(sides[0].interface.memory().buffer_bytes, 0);
    // The connection goes on.
    send(&mut sides, sent, &payload);
    assert_eq!(receive(&mut sides).1, sent);
}

/// The limit on watched descriptors may be reached, for example.
#[test]
fn stream_that_epoll_does_not_watch_is_visited_regularly() {
    let domain = domain(&[]);
    let mut sides = [Side::new(&domain), Side::new(&domain)];
    for side in &sides {
        side.endpoint().conn().inner.borrow().shared.watches_none.set(true);
    }
    let addresses = [sides[0].endpoint().address(), sides[1].endpoint().address()];
    sides[0].endpoint().connect(&addresses[1]).unwrap();
    sides[1].endpoint().connect(&addresses[0]).unwrap();
    await_streams(&mut sides, 1);
    let payload = pattern(10_000, 9);
    let mut sent = 0;
    while sides[0].endpoint().am_short(7, sent, &payload).is_ok() {
        sent += 1;
    }
    for n in 0..sent {
        assert_eq!(receive(&mut sides).1, n);
    }
    // The timer wakes a process that sleeps.
    while sides[1].interface.arm().unwrap() == Armed::Ready {
        sides[1].turn();
    }
    send(&mut sides, sent, b"to a sleeper");
    while sides[1].messages.is_empty() {
        assert!(readable(sides[1].interface.event_fd().unwrap(), 10_000), "nothing wakes it");
        sides[1].turn();
    }
    // When epoll accepts the descriptors again, nothing is visited any more.
    for side in &sides {
        side.endpoint().conn().inner.borrow().shared.watches_none.set(false);
    }
    let unwatched = |side: &Side| {
        let conn = side.endpoint().conn();
        !conn.inner.borrow().shared.unwatched.borrow().is_empty()
    };
    while sides.iter().any(unwatched) {
        turn(&mut sides);
    }
}
