//! What is sent: room for it, the memory it takes, the order it comes in.

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

/// The one that fills the kernel's buffer is taken in part, and the rest of it from a copy.
#[test]
fn what_is_sent_from_where_it_lies_arrives_whole_when_the_kernel_takes_a_part_of_it() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    let payload = |n: u64| pattern(50_000 + n as usize, n + 1);
    let mut sent = 0;
    loop {
        let bytes = payload(sent);
        match sides[0].endpoint().am_zcopy(7, sent, &[sys::piece(&bytes)], 1) {
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

#[test]
fn the_fifth_of_a_burst_of_short_messages_waits_for_company_until_the_next_poll() {
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
    // Nobody sleeps on them, and who asks whether they have arrived sends them; so does their sheer number.
    for n in 0..5 {
        assert_eq!(sides[0].endpoint().am_short(7, n, b""), Ok(Posting::Done));
    }
    assert_eq!(sides[0].interface.arm(), Ok(Armed::Ready));
    assert_eq!(sides[0].endpoint().flush(1), Ok(Posting::Pending));
    while sides[1].messages.len() < 5 {
        sides[1].turn();
    }
    sides[1].messages.clear();
    for n in 0..1000 {
        assert_eq!(sides[0].endpoint().am_short(7, n, b"8 bytes."), Ok(Posting::Done));
    }
    while sides[1].messages.len() < 800 {
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
        // Messages are not held up by it.
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
        // From here on the memory belongs to somebody else.
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
fn a_piece_of_an_operation_may_be_empty() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 100_000];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut local = pattern(50_000, 2);
    let (a, b) = local.split_at_mut(20_000);
    let empty = Iov { base: std::ptr::null_mut(), len: 0 };
    let iov = [empty, sys::piece_mut(a), empty, sys::piece_mut(b), empty];
    let op =
        RmaOp { iov: &iov, len: 50_000, offset: 10, cookie: 3, flags: op_flags::REMOTE_COMPLETION };
    assert_eq!(post(&mut sides, |e| e.put(&key, &op)), Posting::Pending);
    assert_eq!(await_completion(&mut sides, 3), 0);
    assert!(target[10..50_010] == local);
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

fn readable(fd: i32, millis: u64) -> bool {
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
    // How much the kernel takes: what is sent then goes there in part, or not at all.
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
