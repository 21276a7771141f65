//! Tests of rendezvous messages that both ends copy: the memory that the sender may access, late help, and the end of the transfer.

use super::*;

cases! {
    fn helping_sender_writes_only_granted_range_during_receive() {
        let Copying { world, at_a, at_b, a, b, ab, came, .. } = &Copying::new();
        let turn = || a.progress() + b.progress();
        let (len, from) = (1 << 20, 4160);
        let long = at_a.register_transient(vec![7; len]).unwrap();
        let room = || vec![0xee; from + len + 64];
        // The destination is memory that peers can access anyway, or transiently registered memory (`lend`).
        for region in [at_b.register_with(room(), Access::ALL), at_b.register_transient(room())] {
            let (region, mut lent) = (region.unwrap(), Vec::new());
            // A receive may request no help: a lane has to be formed first, and peers that do not help get fewer requests.
            for _ in 0..TAKES {
                if lent.len() == 2 {
                    break;
                }
                let sent = pending(ab.send_regions(5, 0, &[(&long, 0..len)]));
                while came.borrow().is_empty() {
                    let _ = turn();
                }
                let announcement = came.borrow_mut().pop().unwrap();
                let taken = announcement.receive_into(&region, from..from + len).unwrap();
                if let Some(asked) = world.on_the_way(ASSIST) {
                    lent.push(key_of_memory(&asked));
                    let key = ab.import_key(lent.last().unwrap()).unwrap();
                    assert_eq!(key.len(), len as u64);
                    let beyond = ab.put_bytes(&[1; 8], &key, len as u64).unwrap_err();
                    assert_eq!(beyond.status(), Status::OutOfRange);
                    let got = ab.get(&long, 0..8, &key, 0).unwrap_err();
                    assert_eq!(got.status(), Status::KeyRejected, "it may be written, not read");
                }
                while matches!(&taken, tieline::Outcome::Pending(taken) if b.test(taken).is_none()) {
                    let _ = turn();
                }
                while a.test(&sent).is_none() {
                    let _ = turn();
                }
                while world.on_the_way(ASSIST).is_some() {
                    let _ = turn();
                }
            }
            assert!(lent.len() == 2 && lent[0] != lent[1], "each has a key of its own");
            let there = region.to_vec(0..from + len + 64).unwrap();
            assert!(there[from..from + len].iter().all(|byte| *byte == 7));
            assert!(there[..from].iter().chain(&there[from + len..]).all(|byte| *byte == 0xee));
            // The keys that were granted for the transfer have ended with the transfer.
            for key in lent {
                let key = ab.import_key(&key).unwrap();
                let put = ab.put_bytes(&[1; 8], &key, 0).map_err(|error| error.status());
                let ended = match put {
                    Ok(tieline::Outcome::Pending(put)) => loop {
                        let _ = turn();
                        if let Some(ended) = a.test(&put) {
                            break ended.map_err(|error| error.status());
                        }
                    },
                    done => done.map(|_| 0),
                };
                assert_eq!(ended, Err(Status::KeyRejected));
            }
            region.close().expect("nobody has anything of it");
        }
        assert_eq!((a.counters().malformed, b.counters().malformed), (0, 0));
    }

    fn concurrent_receives_copied_by_both_ends_arrive_in_place() {
        let Copying { world, at_a, at_b, a, b, ab, came, .. } = &Copying::new();
        let len = 1 << 20;
        let registered = || world.calls(Slot::Register).len();
        let asks = || {
            let calls = [Slot::Short, Slot::Packed].map(|slot| world.calls(slot));
            calls.iter().flatten().filter(|call| call.id == ASSIST).count()
        };
        let turn = || a.progress() + b.progress();
        // In the first transfers each side learns which memory the other's keys name. Afterwards more transfers are in flight than
        // there are slots.
        for many in [1, 1, 3, 40] {
            let out: Vec<_> = (1..=many).map(|n| at_a.register_transient(vec![n; len]).unwrap()).collect();
            let sent: Vec<_> =
                out.iter().map(|out| pending(ab.send_regions(5, 0, &[(out, 0..len)]))).collect();
            while came.borrow().len() < out.len() {
                let _ = turn();
            }
            let room = at_b.register_transient(vec![0; out.len() * len]).unwrap();
            let before = (registered(), asks());
            let takes = came.take().into_iter().zip(0..);
            let taken: Vec<_> = takes
                .map(|(one, n)| one.receive_into(&room, n * len..(n + 1) * len).unwrap())
                .collect();
            // The first transfers allocate the slots; a transfer without a slot registers nothing.
            if many == 40 {
                let asked = asks() - before.1;
                assert!((1..=16).contains(&asked), "{asked}");
                assert_eq!(registered() - before.0, asked);
            }
            for taken in &taken {
                while matches!(taken, tieline::Outcome::Pending(taken) if b.test(taken).is_none()) {
                    let _ = turn();
                }
            }
            for sent in &sent {
                while a.test(sent).is_none() {
                    let _ = turn();
                }
            }
            let there = room.into_buffer().unwrap();
            for (n, bytes) in (1..=many).zip(there.chunks_exact(len)) {
                assert!(bytes.iter().all(|byte| *byte == n), "message {n} of {many}");
            }
            out.into_iter().for_each(|out| out.close().unwrap());
        }
        assert!(a.counters().assisted_chunks > 0, "the sender has not helped");
        assert_eq!((a.counters().malformed, b.counters().malformed), (0, 0));
    }

    /// Several messages wait, so both ends have other work.
    fn while_others_wait_a_shorter_message_is_copied_by_its_receiver_alone() {
        let copying = Copying::new();
        let Copying { world, at_a, at_b, a, ab, came, .. } = &copying;
        let len = 512 << 10;
        let asks = || {
            let calls = [Slot::Short, Slot::Packed].map(|slot| world.calls(slot));
            calls.iter().flatten().filter(|call| call.id == ASSIST).count()
        };
        let (out, room) = (at_a.register_transient(vec![7; len]).unwrap(), at_b.register_transient(vec![0; len]).unwrap());
        let (sent, taken) = copying.a_take_that_asks_for_help(&out, &room);
        assert_eq!(copying.end_of(&taken), Ok(0));
        let mut sent = vec![sent];
        sent.extend((0..3).map(|_| pending(ab.send_regions(5, 0, &[(&out, 0..len)]))));
        while came.borrow().len() < 3 {
            let _ = copying.turn();
        }
        let (before, mut waiting) = (asks(), came.take());
        for announcement in waiting.drain(..2) {
            assert!(announcement.receive_into(&room, 0..len).unwrap().is_done());
        }
        assert_eq!(asks(), before);
        drop(waiting);
        for sent in &sent {
            while a.test(sent).is_none() {
                let _ = copying.turn();
            }
        }
        assert!(room.into_buffer().unwrap().iter().all(|byte| *byte == 7));
    }

    fn receive_without_room_midway_continues_later() {
        let copying = Copying::new();
        let len = 8 << 20;
        let out = copying.at_a.register_transient(vec![7; len]).unwrap();
        let room = copying.at_b.register_transient(vec![0; len]).unwrap();
        let (sent, taken) = copying.a_take_that_asks_for_help(&out, &room);
        let refused = Rule { skip: 1, ..Rule::next(Slot::Get, Act::Refuse(Status::Again)) };
        copying.world.rule(refused.on("copy"));
        assert_eq!(copying.end_of(&taken), Ok(0));
        assert!(copying.world.was_refused(Slot::Get));
        while copying.a.test(&sent).is_none() {
            let _ = copying.turn();
        }
        assert!(room.into_buffer().unwrap().iter().all(|byte| *byte == 7));
    }

    /// A request for help is still unread when its 16-bit number recurs.
    fn stale_help_request_with_reused_number_changes_nothing() {
        let copying = Copying::new();
        let Copying { world, at_a, at_b, a, b, ba, .. } = &copying;
        let len = 8 << 20;
        let out = at_a.register_transient(vec![7; len]).unwrap();
        let room = at_b.register_transient(vec![0; len]).unwrap();
        // Both sides transfer until each knows which memory the other's keys name.
        while a.counters().assisted_chunks == 0 {
            let (sent, taken) = copying.a_take_that_asks_for_help(&out, &room);
            assert_eq!(copying.end_of(&taken), Ok(0));
            while a.test(&sent).is_none() {
                let _ = copying.turn();
            }
        }
        let far = at_a.register_with(vec![0; len], Access::ALL).unwrap();
        let near = at_b.register_with(vec![3; len], Access::ALL).unwrap();
        let key = ba.import_key(&far.remote_key().unwrap()).unwrap();
        while key.is_settling() {
            let _ = copying.turn();
        }
        let old = loop {
            let put = ba.put(&near, 0..len, &key, 0).unwrap();
            assert!(matches!(put, tieline::Outcome::Done(0)), "nobody helps: {put:?}");
            if let Some(asked) = world.on_the_way(ASSIST) {
                break asked;
            }
        };
        while world.on_the_way(ASSIST).is_some() {
            let _ = copying.turn();
        }
        room.write(0, &vec![0; len]).unwrap();
        let (sent, taken) = copying.a_take_that_asks_for_help(&out, &room);
        let asked = world.on_the_way(ASSIST).unwrap();
        // The forged request combines the old request's number and slot with the new request.
        let again = [&old[..1], &asked[1..5], &old[5..]].concat();
        let [at, from] = [0, 1].map(|nth| world.interface(nth, "wire"));
        // No interface has imported the key in the new request.
        for slot in [Slot::ImportKey, Slot::ImportShared] {
            world.rule(Rule::every(slot, Act::Refuse(Status::NoMemory)).on("copy"));
        }
        world.forge(from, at, ASSIST, 0, &again);
        while world.on_the_way(ASSIST).is_some() {
            let _ = a.progress();
        }
        assert_eq!(copying.end_of(&taken), Ok(0));
        while a.test(&sent).is_none() {
            let _ = copying.turn();
        }
        drop((sent, taken));
        let there = room.to_vec(0..len).unwrap();
        let wrong = there.iter().filter(|byte| **byte != 7).count();
        assert_eq!(wrong, 0, "bytes that nobody has copied");
        assert_eq!((a.counters().malformed, b.counters().malformed), (0, 0));
    }

    fn receive_copied_by_both_ends_ends_with_sender_and_releases_memory() {
        let Copying { at_a, at_b, a, b, ab, ba, came, world } = Copying::new();
        let len = 8 << 20;
        let out = at_a.register_transient(vec![7; len]).unwrap();
        let room = at_b.register_transient(vec![0; len]).unwrap();
        let mut taken = None;
        // The loop runs until help was requested with a key.
        while world.on_the_way(ASSIST).is_none() {
            let sent = pending(ab.send_regions(5, 0, &[(&out, 0..len)]));
            while came.borrow().is_empty() {
                let _ = a.progress() + b.progress();
            }
            let announcement = came.borrow_mut().pop().unwrap();
            taken = Some(announcement.receive_into(&room, 0..len).unwrap());
            if world.on_the_way(ASSIST).is_none() {
                while a.test(&sent).is_none() {
                    let _ = a.progress() + b.progress();
                }
            }
        }
        let taken = pending(Ok(taken.unwrap()));
        let _ = b.progress();
        assert!(b.test(&taken).is_none(), "more is left than one progress call copies");
        drop((ab, a, out, at_a));
        let wait = tieline_testing::Wait::new("the end of the take");
        while b.test(&taken).is_none() {
            wait.goes_on();
            let _ = b.progress();
        }
        drop((ba, taken));
        let mut room = room;
        while let Err(not) = room.close() {
            wait.goes_on();
            let _ = b.progress();
            room = not.region;
        }
    }
}

/// Two workers whose transfers are copied by both ends.
struct Copying {
    came: Came,
    ab: Endpoint,
    ba: Endpoint,
    a: Worker,
    b: Worker,
    at_a: Context,
    at_b: Context,
    world: &'static World,
}

impl Copying {
    fn new() -> Copying {
        let world = World::new(1, over_wire());
        let (at_a, at_b) = (over_three(world), over_three(world));
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let (ab, ba) = (a.connect(&b.address().unwrap()), b.connect(&a.address().unwrap()));
        let (ab, ba) = (ab.unwrap(), ba.unwrap());
        let came = Came::default();
        let log = came.clone();
        b.on_message(5, move |message| log.borrow_mut().extend(message.rendezvous())).unwrap();
        let met = pending(ba.flush_messages());
        while b.test(&met).is_none() {
            let _ = a.progress() + b.progress();
        }
        Copying { came, ab, ba, a, b, at_a, at_b, world }
    }

    fn turn(&self) -> usize {
        self.a.progress() + self.b.progress()
    }

    /// Starts the receive of a long message from `a` at `b`. The request that `a` should copy a part is sent, and `a` has not read
    /// it.
    fn a_take_that_asks_for_help(&self, out: &Region, room: &Region) -> (Request, Request) {
        loop {
            let sent = pending(self.ab.send_regions(5, 0, &[(out, 0..out.len())]));
            while self.came.borrow().is_empty() {
                let _ = self.turn();
            }
            let announcement = self.came.borrow_mut().pop().unwrap();
            let taken = announcement.receive_into(room, 0..out.len()).unwrap();
            if self.world.on_the_way(ASSIST).is_some() {
                return (sent, pending(Ok(taken)));
            }
            while self.a.test(&sent).is_none() {
                let _ = self.turn();
            }
        }
    }

    fn end_of(&self, request: &Request) -> Result<u64, CompletionError> {
        loop {
            if let Some(ended) = self.b.test(request) {
                return ended;
            }
            let _ = self.turn();
        }
    }
}

/// Returns the key of the memory in a request for help, which follows the plan and the key of the slots.
fn key_of_memory(asked: &[u8]) -> Vec<u8> {
    let blob = |at: usize| {
        let len = usize::from(u16::from_le_bytes([asked[at], asked[at + 1]]));
        at + 2..at + 2 + len
    };
    let slots = blob(1 + 2 + 2 + 8 + 8 + 24);
    asked[blob(slots.end)].to_vec()
}
