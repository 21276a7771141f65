//! Tests of messages, puts and gets: room, memory, order, completion and acknowledgement.

use super::*;
use crate::frame::MAX_MESSAGE;
use tieline_plugin_api::Packer;

#[test]
fn a_slow_receiver_stops_the_sender_with_bounded_memory_and_loses_nothing() {
    for streams in ["1", "2"] {
        let mut sides = pair(&[("TIELINE_TCP_STREAMS", streams)]);
        await_streams(&mut sides, streams.parse().unwrap());
        let payload = pattern(10_000, 9);
        let mut sent = 0;
        let mut refused = 0;
        while refused < 1000 {
            match sides[0].endpoint().am_short(7, sent, &payload) {
                Ok(_) => sent += 1,
                Err(Status::Again) => {
                    refused += 1;
                    sides[0].turn();
                }
                Err(status) => panic!("{status}"),
            }
        }
        let memory = sides[0].interface.memory();
        assert!(memory.base_bytes + memory.buffer_bytes < 2 << 20, "{memory:?}");
        for n in 0..sent {
            let (_, header, data) = receive(&mut sides);
            assert_eq!(header, n);
            assert!(data == payload);
        }
        let memory = sides[1].interface.memory();
        assert!(memory.base_bytes + memory.buffer_bytes < 2 << 20, "{memory:?}");
    }
}

/// The kernel takes a part of the message that fills its buffer; the rest is sent from a copy.
#[test]
fn in_place_send_arrives_complete_after_partial_kernel_write() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    let payload = |n: u64| pattern(50_000 + n as usize, n + 1);
    let mut sent = 0;
    loop {
        let bytes = payload(sent);
        match sides[0].endpoint().am_zcopy(7, sent, &[iov(sys::piece(&bytes))], 1) {
            Ok(_) => sent += 1,
            Err(status) => break assert_eq!(status, Status::Again),
        }
    }
    assert!(sent > 2, "the kernel holds more than one");
    for n in 0..sent {
        let (_, header, data) = receive(&mut sides);
        assert_eq!(header, n);
        assert!(data == payload(n), "message {n} of {sent}");
    }
}

/// A gathered message is treated like any other message.
#[test]
fn gathered_message_behind_queued_data_is_accepted_and_ordered() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    let bytes = pattern(3000, 7);
    for n in 0..5 {
        assert_eq!(sides[0].endpoint().am_short(7, n, b"8 bytes."), Ok(Posting::Done));
    }
    let pieces = [iov(sys::piece(&bytes[..1000])), iov(sys::piece(&bytes[1000..]))];
    assert_eq!(sides[0].endpoint().am_zcopy(7, 5, &pieces, 1), Ok(Posting::Done));
    for n in 0..5 {
        assert_eq!(receive(&mut sides), (7, n, b"8 bytes.".to_vec()));
    }
    assert_eq!(receive(&mut sides), (7, 5, bytes));
}

#[test]
fn fifth_short_message_of_burst_is_gathered_until_next_poll() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    for n in 0..10 {
        assert_eq!(sides[0].endpoint().am_short(7, n, b"8 bytes."), Ok(Posting::Done));
    }
    while sides[1].messages.len() < 4 {
        sides[1].turn();
    }
    (0..100).for_each(|_| sides[1].turn());
    assert_eq!(sides[1].messages.len(), 4);
    sides[0].turn();
    for n in 0..10 {
        assert_eq!(receive(&mut sides), (7, n, b"8 bytes.".to_vec()));
    }
    // An interface with gathered messages does not sleep. A flush sends them, and so does a large number of them.
    for n in 0..5 {
        assert_eq!(sides[0].endpoint().am_short(7, n, b""), Ok(Posting::Done));
    }
    assert_eq!(sides[0].interface.arm(), Ok(Armed::Ready));
    assert_eq!(sides[0].endpoint().flush(1), Ok(Posting::Pending));
    while sides[1].messages.len() < 5 {
        sides[1].turn();
    }
    sides[1].messages.clear();
    for n in 0..4000 {
        assert_eq!(sides[0].endpoint().am_short(7, n, b"8 bytes."), Ok(Posting::Done));
    }
    while sides[1].messages.len() < 2500 {
        sides[1].turn();
    }
}

#[test]
fn a_gigabyte_crosses_three_streams_unharmed() {
    let domain = domain(&[("TIELINE_TCP_STREAMS", "3")]);
    let mut sides = pair_in([&domain, &domain]);
    let mut source = pattern(1 << 30, 17);
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    await_streams(&mut sides, 3);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    rma(&mut sides, true, &key, &mut source, 0, 9);
    let mut echoes = 0;
    while sides[0].completions.is_empty() {
        // The long put does not delay messages.
        if echoes < 20 {
            send(&mut sides, echoes, b"between");
            assert_eq!(receive(&mut sides).1, echoes);
            echoes += 1;
        }
        turn(&mut sides);
    }
    assert_eq!((echoes, await_completion(&mut sides, 9)), (20, 0));
    assert!(source == target);
    domain.deregister(region).unwrap();
}

#[test]
fn deregistering_in_the_middle_of_a_transfer_cuts_it_off() {
    for put in [true, false] {
        let domain = domain(&[]);
        let mut sides = pair_in([&domain, &domain]);
        await_streams(&mut sides, 1);
        let mut local = vec![0x55u8; 64 << 20];
        let mut target = vec![0xaau8; local.len()];
        let (region, packed) = key_of(&domain, &mut target);
        let key = sides[0].endpoint().import_key(&packed).unwrap();
        rma(&mut sides, put, &key, &mut local, 0, 5);
        for _ in 0..3 {
            turn(&mut sides);
        }
        domain.deregister(region).unwrap();
        // From here on the memory is used for something else.
        target.fill(0xcc);
        assert_eq!(await_completion(&mut sides, 5), Status::KeyRejected as i32, "put: {put}");
        assert!(target.iter().all(|&byte| byte == 0xcc), "written after deregistering");
        if !put {
            assert!(!local.contains(&0xcc), "read after deregistering");
        }
        send(&mut sides, 1, b"the endpoint lives");
        assert_eq!(receive(&mut sides).2, b"the endpoint lives");
    }
}

#[test]
fn a_fence_holds_a_message_back_until_the_gets_before_it_are_done() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![1u8; 4 << 20];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut local = vec![0u8; target.len()];
    rma(&mut sides, false, &key, &mut local, 0, 5);
    sides[0].endpoint().fence().unwrap();
    assert_eq!(sides[0].endpoint().am_short(7, 1, b"after"), Err(Status::Again));
    send(&mut sides, 1, b"after");
    assert_eq!(sides[0].completions, [(5, 0)]);
    assert_eq!(receive(&mut sides).2, b"after");
    domain.deregister(region).unwrap();
}

/// The messages take all the room that messages may take, including that of pieces that have left.
#[test]
fn messages_without_end_keep_no_large_put_or_get_out() {
    for (streams, buffer) in [("2", "256k"), ("1", "1m")] {
        let domain =
            domain(&[("TIELINE_TCP_STREAMS", streams), ("TIELINE_TCP_SEND_BUFFER", buffer)]);
        let mut sides = pair_in([&domain, &domain]);
        await_streams(&mut sides, streams.parse().unwrap());
        let mut target = vec![1u8; 1 << 20];
        let (region, packed) = key_of(&domain, &mut target);
        let key = sides[0].endpoint().import_key(&packed).unwrap();
        let payload = pattern(if streams == "1" { 4000 } else { 8 }, 3);
        let fill = |sides: &mut [Side; 2]| {
            while sides[0].endpoint().am_short(7, 0, &payload).is_ok() {}
        };
        fill(&mut sides);
        let mut local = pattern(1 << 20, 5);
        rma(&mut sides, true, &key, &mut local, 0, 5);
        let mut polls = 0;
        while !sides[0].completions.contains(&(5, 0)) {
            // One side sends as fast as it can, and the peer polls only occasionally.
            fill(&mut sides);
            sides[0].turn();
            fill(&mut sides);
            sides[1].turn();
            polls += 1;
            assert!(polls < 100_000, "{streams} streams: the put does not get on");
        }
        assert!(target == local, "{streams} streams");
        domain.deregister(region).unwrap();
    }
}

#[test]
fn a_closed_endpoint_leaves_its_operations_memory_alone() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut source = pattern(32 << 20, 23);
    let original = source.clone();
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    rma(&mut sides, true, &key, &mut source, 0, 5);
    sides[0].endpoint = None;
    source.fill(0xee);
    while sides[1].failed.is_none() {
        turn(&mut sides);
    }
    assert_eq!(sides[1].failed.as_ref().unwrap().0, Status::Closed);
    for (n, (got, was)) in target.iter().zip(&original).enumerate() {
        assert!(got == was || *got == 0, "byte {n} is of the memory that was given back");
    }
    domain.deregister(region).unwrap();
}

#[test]
fn a_sleeping_interface_wakes_for_room_and_for_messages() {
    let mut sides = pair(&[]);
    send(&mut sides, 0, b"first");
    let _ = receive(&mut sides);
    let payload = vec![1u8; 60_000];
    let mut sent = 1;
    while sides[0].endpoint().am_short(7, sent, &payload).is_ok() {
        sent += 1;
    }
    let fd = sides[0].interface.event_fd().unwrap();
    while sides[0].interface.arm().unwrap() == Armed::Ready {
        sides[0].turn();
    }
    assert!(!readable(fd, 0), "nothing happens");
    for n in 1..sent {
        while sides[1].messages.is_empty() {
            sides[1].turn();
            if readable(fd, 0) {
                sides[0].turn();
            }
        }
        assert_eq!(sides[1].messages.pop_front().unwrap().1, n);
    }
}

pub(super) fn readable(fd: i32, millis: u64) -> bool {
    let poller = tieline_net::Poller::new().unwrap();
    poller.watch(fd, tieline_net::Interest::READ, 0).unwrap();
    let mut ready = Vec::new();
    poller.wait(&mut ready, Some(Duration::from_millis(millis))).unwrap();
    !ready.is_empty()
}

#[test]
fn an_idle_connection_costs_little_memory() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    let mut more = Vec::new();
    for n in 0..100u64 {
        let ends = [2, 3]
            .map(|c| (c, &sides[c as usize - 2].interface))
            .map(|(_, interface)| interface.connect(&[], &[], 1).unwrap());
        ends[0].connect(&ends[1].address()).unwrap();
        ends[1].connect(&ends[0].address()).unwrap();
        while ends[0].am_short(1, n, b"one message").is_err() {
            turn(&mut sides);
        }
        let _ = receive(&mut sides);
        more.push(ends);
    }
    for side in &mut sides {
        while side.interface.arm().unwrap() == Armed::Ready {
            side.turn();
        }
        side.turn();
        let memory = side.interface.memory();
        assert_eq!(memory.peers, 101);
        let each = (memory.peer_bytes + memory.buffer_bytes) / memory.peers;
        println!("{each} bytes for an idle endpoint: {memory:?}");
        assert!(memory.peer_bytes / memory.peers < 2500, "{memory:?}");
        assert!(memory.buffer_bytes < 1 << 20, "{memory:?}");
    }
    drop(more);
}

#[test]
fn again_means_that_the_packer_did_not_run_whatever_it_sends_itself() {
    let mut sides = pair(&[("TIELINE_TCP_SEND_BUFFER", "128k")]);
    await_streams(&mut sides, 1);
    let large = pattern(MAX_MESSAGE, 3);
    let is_idle = |side: &Side| side.endpoint().conn().inner.borrow().outbox.is_empty();
    let drain = |sides: &mut [Side; 2]| {
        while !is_idle(&sides[0]) || !sides[1].messages.is_empty() {
            turn(sides);
            sides[1].messages.clear();
        }
    };
    // Fills the kernel's buffer up to a limit: later data enters the buffer in part, or not at all.
    let fill = |sides: &mut [Side; 2], most: usize| {
        let sent = (0..most).take_while(|_| {
            is_idle(&sides[0]) && sides[0].endpoint().am_short(7, 1, &large[..1000]).is_ok()
        });
        sent.count()
    };
    for round in 0..10 {
        drain(&mut sides);
        let most = fill(&mut sides, usize::MAX);
        for less in 0..30 {
            drain(&mut sides);
            let _ = fill(&mut sides, most.saturating_sub(less));
            let endpoint = sides[0].endpoint();
            let mut ran = false;
            let mut pack = |_: *mut u8, most: usize| {
                ran = true;
                let _ = endpoint.am_short(7, 1, &large);
                Ok(most)
            };
            let packed = endpoint.am_packed(7, 2, Packer::new(&mut pack), MAX_MESSAGE);
            assert!(packed.is_ok() || !ran, "round {round}, {less}: it has to pack again");
        }
    }
}

#[test]
fn a_reply_acknowledges_what_it_answers() {
    let mut sides = pair(&[("TIELINE_TCP_RECONNECT", "on")]);
    await_streams(&mut sides, 1);
    send(&mut sides, 1, b"a question");
    while sides[1].messages.is_empty() {
        sides[1].turn();
    }
    // This happens before the poll that would acknowledge the question on its own.
    assert_eq!(sides[1].endpoint().am_short(7, 2, b"its answer"), Ok(Posting::Done));
    while sides[0].messages.is_empty() {
        sides[0].turn();
    }
    let is_kept = !sides[0].endpoint().conn().inner.borrow().outbox.is_empty();
    assert!(!is_kept, "who has the answer need not keep the question");
}

#[test]
fn sixty_four_frames_or_kilobytes_are_acknowledged_in_the_same_poll() {
    for in_frames in [true, false] {
        let domain = domain(&[("TIELINE_TCP_RECONNECT", "on")]);
        let mut sides = pair_in([&domain, &domain]);
        await_streams(&mut sides, 1);
        let mut target = vec![0u8; 64];
        let (region, packed) = key_of(&domain, &mut target);
        let key = sides[0].endpoint().import_key(&packed).unwrap();
        if in_frames {
            for offset in 0..64 {
                let iov = [iov(sys::piece(&[7]))];
                let op = RmaOp { iov: &iov, len: 1, offset, cookie: 1, flags: 0 };
                assert_eq!(sides[0].endpoint().put(&key, &op), Ok(Posting::Done));
            }
        } else {
            // The length includes the head.
            send(&mut sides, 1, &[7; MAX_MESSAGE - crate::frame::HEAD]);
        }
        // The loop ends when the peer's kernel has all of the data, so that one poll finds it.
        while sys::unanswered(streams_of(&sides[0])[0]).unwrap().is_busy() {
            sides[0].turn();
        }
        while target[63] == 0 && sides[1].messages.is_empty() {
            sides[1].turn();
        }
        while sys::unanswered(streams_of(&sides[1])[0]).unwrap().is_busy() {
            sides[0].turn();
        }
        (0..100).for_each(|_| sides[0].turn());
        let is_kept = !sides[0].endpoint().conn().inner.borrow().outbox.is_empty();
        assert!(!is_kept, "64 frames: {in_frames}");
        domain.deregister(region).unwrap();
    }
}

#[test]
fn message_of_16_kib_is_gathered_and_a_longer_one_is_sent_alone() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    for n in 0..6 {
        assert_eq!(sides[0].endpoint().am_short(7, n, &[1; (16 << 10) + 1]), Ok(Posting::Done));
    }
    while sides[1].messages.len() < 6 {
        sides[1].turn();
    }
    sides[1].messages.clear();
    sides[0].turn();
    for n in 0..7 {
        assert_eq!(sides[0].endpoint().am_short(7, n, &[1; 16 << 10]), Ok(Posting::Done));
    }
    while sides[1].messages.len() < 4 {
        sides[1].turn();
    }
    (0..100).for_each(|_| sides[1].turn());
    assert_eq!(sides[1].messages.len(), 4);
    // A message that is gathered from pieces follows them; there is room for it.
    let pieces = [iov(sys::piece(b"to")), iov(sys::piece(b"gether"))];
    assert_eq!(sides[0].endpoint().am_zcopy(7, 7, &pieces, 1), Ok(Posting::Done));
    sides[0].turn();
    for n in 0..7 {
        assert_eq!(receive(&mut sides), (7, n, vec![1; 16 << 10]));
    }
    assert_eq!(receive(&mut sides), (7, 7, b"together".to_vec()));
}

#[test]
fn pending_operations_are_bounded_and_a_completion_admits_the_next() {
    use crate::ops::{MAX_FLUSHES, MAX_GETS, MAX_PUTS};
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![5u8; 8];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut memory = [5u8; 8];
    let iov = [iov(sys::piece_mut(&mut memory))];
    let op =
        |cookie| RmaOp { iov: &iov, len: 8, offset: 0, cookie, flags: op_flags::REMOTE_COMPLETION };
    type Call<'a> = &'a dyn Fn(&StreamEndpoint, u64) -> Posted;
    let calls: [Call<'_>; 3] = [
        &|endpoint, cookie| endpoint.put(&key, &op(cookie)),
        &|endpoint, cookie| endpoint.get(&key, &op(cookie)),
        &|endpoint, cookie| endpoint.flush(cookie),
    ];
    super::hostile::withhold(&sides[0]);
    let mut cookie = 0;
    for (call, most) in calls.iter().zip([MAX_PUTS, MAX_GETS, MAX_FLUSHES]) {
        for _ in 0..most {
            assert_eq!(call(sides[0].endpoint(), cookie), Ok(Posting::Pending), "{cookie}");
            cookie += 1;
        }
        assert_eq!(call(sides[0].endpoint(), cookie), Err(Status::Again), "after {most}");
    }
    {
        let mut inner = sides[0].endpoint().conn().inner.borrow_mut();
        inner.unblock(0);
        inner.flush();
    }
    for ended in 0..cookie {
        assert_eq!(await_completion(&mut sides, ended), 0);
    }
    for call in calls {
        assert_eq!(call(sides[0].endpoint(), cookie), Ok(Posting::Pending));
        assert_eq!(await_completion(&mut sides, cookie), 0);
    }
    domain.deregister(region).unwrap();
}

#[test]
fn a_put_that_was_complete_here_and_is_refused_there_is_told_by_one_flush() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 8];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    domain.deregister(region).unwrap();
    let mut memory = [5u8; 8];
    let iov = [iov(sys::piece_mut(&mut memory))];
    let op = |flags| RmaOp { iov: &iov, len: 8, offset: 0, cookie: 9, flags };
    let rejected = Status::KeyRejected as i32;
    let is_late = |side: &Side| {
        let inner = side.endpoint().conn().inner.borrow();
        inner.ops.as_ref().is_some_and(|ops| ops.late.is_some())
    };
    for (n, flush_first) in (1..).zip([true, false]) {
        assert_eq!(sides[0].endpoint().put(&key, &op(0)), Ok(Posting::Done));
        while !flush_first && !is_late(&sides[0]) {
            turn(&mut sides);
        }
        assert_eq!(sides[0].endpoint().flush(n), Ok(Posting::Pending));
        assert_eq!(await_completion(&mut sides, n), rejected, "flush first: {flush_first}");
        assert_eq!(sides[0].endpoint().flush(n), Ok(Posting::Done), "it was told");
    }
    // With remote completion, the put itself reports the failure.
    let remote = op(op_flags::REMOTE_COMPLETION);
    assert_eq!(sides[0].endpoint().put(&key, &remote), Ok(Posting::Pending));
    assert_eq!(await_completion(&mut sides, 9), rejected);
    assert_eq!(sides[0].endpoint().flush(3), Ok(Posting::Pending), "nobody has flushed it");
    assert_eq!(await_completion(&mut sides, 3), 0);
    assert!(target.iter().all(|byte| *byte == 0));
}

#[test]
fn closing_endpoint_answers_completed_puts_of_the_peer() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 8];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    // The kernel has no room for the answer when the put has landed.
    super::hostile::withhold(&sides[1]);
    rma(&mut sides, true, &key, &mut [5u8; 8], 0, 1);
    let has_landed = |side: &Side| {
        let inner = side.endpoint().conn().inner.borrow();
        inner.ops.as_ref().is_some_and(|ops| ops.done.is_some())
    };
    while !has_landed(&sides[1]) {
        sides[1].turn();
    }
    let conn = std::rc::Rc::clone(sides[1].endpoint().conn());
    sides[1].endpoint = None;
    conn.inner.borrow_mut().unblock(0);
    assert_eq!(await_completion(&mut sides, 1), 0, "it is done");
    domain.deregister(region).unwrap();
}

#[test]
fn memory_report_is_split_by_purpose() {
    use crate::{conn::Conn, link::Link, poll::State, shared::Shared, stream::Stream};
    let domain = domain(&[("TIELINE_CLOSE_TIMEOUT", "1ms")]);
    let interface = domain.open_interface(MODULE, [0; 16]).unwrap();
    let none = interface.memory();
    assert_eq!((none.peers, none.peer_bytes, none.buffer_bytes), (0, 0, 0));
    assert!(none.base_bytes >= (size_of::<State>() + size_of::<Shared>()) as u64, "{none:?}");
    let many: Vec<_> = (0..100).map(|_| interface.connect(&[], &[], 1).unwrap()).collect();
    let some = interface.memory();
    assert_eq!((some.peers, some.buffer_bytes), (100, 0));
    assert_eq!(some.peer_bytes, 100 * size_of::<Conn>() as u64);
    // The base memory includes the tables of connections by index and by name.
    assert!(some.base_bytes >= none.base_bytes + 100 * (8 + 17), "{none:?}, {some:?}");
    drop(many);

    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let before = sides[0].interface.memory();
    let parts = size_of::<Conn>() + size_of::<Link>() + size_of::<Stream>();
    assert!(before.peer_bytes >= (parts + size_of::<crate::conn::Peer>()) as u64, "{before:?}");
    // Data waits for the kernel at side 0, and a frame waits for its end at side 1.
    super::hostile::withhold(&sides[0]);
    send(&mut sides, 1, &vec![1; 60_000]);
    let waiting = sides[0].interface.memory();
    assert!(waiting.buffer_bytes >= before.buffer_bytes + 60_000, "{waiting:?}");
    let bytes = super::hostile::withheld(&sides[0]);
    assert_eq!(sys::send(streams_of(&sides[0])[0], &bytes[..10_000]).unwrap(), 10_000);
    let held = |side: &Side| {
        let inner = side.endpoint().conn().inner.borrow();
        inner.links[0].stream.as_ref().map_or(0, |stream| stream.committed())
    };
    while held(&sides[1]) == 0 {
        sides[1].turn();
    }
    let buffer = crate::buffer::BUFFER as u64;
    assert!(sides[1].interface.memory().buffer_bytes >= buffer);
    // A sleeping side holds only the bytes that have arrived.
    while sides[1].interface.arm().unwrap() == Armed::Ready {
        sides[1].turn();
    }
    assert_eq!(held(&sides[1]), 10_000);
    sides[1].turn();
    assert!((10_000..buffer).contains(&sides[1].interface.memory().buffer_bytes));
}
