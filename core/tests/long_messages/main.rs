//! Tests of messages longer than their lane carries eagerly, and of transient registrations, over the available transports of one
//! host.

mod pair;

use pair::{Came, ID, Pair, bytes, pending, transports};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tieline::{After, Close, CompletionError, KeyLookup, Outcome, PostError, SendOptions, Status};

#[test]
fn messages_of_any_length_arrive_in_order_in_receivers_buffers() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let max = pair.endpoint().max_message().unwrap();
        let lengths = [max, max + 1, 8, 300_000, 0, (4 << 20) + 3, max];
        let sent: Vec<Outcome> = lengths
            .iter()
            .enumerate()
            .map(|(at, len)| {
                pair.until(|| match pair.endpoint().send(ID, at as u64, &bytes(at as u64, *len)) {
                    Err(PostError::Retry(_)) => None,
                    sent => Some(sent.unwrap()),
                })
            })
            .collect();
        let came = pair.until(|| {
            let all = pair.came.borrow().len() == lengths.len();
            all.then(|| std::mem::take(&mut *pair.came.borrow_mut()))
        });
        for (at, (came, len)) in came.into_iter().zip(lengths).enumerate() {
            let at = at as u64;
            let got = match came {
                Came::Whole(header, got) => {
                    assert!(len <= max && header == at, "{name}: {header} has {}", got.len());
                    got
                }
                Came::Announced(announcement) => {
                    assert!(len > max && announcement.header() == at, "{name}: {announcement:?}");
                    assert_eq!(announcement.len(), len);
                    let memory = pair.there.register_transient(vec![0xee; len + 32]).unwrap();
                    let taken = announcement.receive_into(&memory, 16..len + 16).unwrap();
                    let _ = pair.end(&pair.receiver, taken).unwrap();
                    let all = memory.into_buffer().unwrap();
                    assert!(all[..16].iter().chain(&all[len + 16..]).all(|byte| *byte == 0xee));
                    all[16..len + 16].to_vec()
                }
            };
            assert!(got == bytes(at, len), "{name}: message {at}");
        }
        for sent in sent {
            let _ = pair.end(&pair.sender, sent).unwrap();
        }
        let counters = [pair.sender.counters(), pair.receiver.counters()];
        assert!(counters.iter().all(|c| c.malformed == 0 && c.unknown_ids == 0), "{counters:?}");
    }
}

/// All of a message is received, its first byte, more than it has, and nothing. The message is shorter than those of which the sender
/// copies a part.
#[test]
#[allow(unsafe_code)]
fn message_is_received_into_memory_that_is_not_registered() {
    const LEN: usize = 100_000;
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let sent = bytes(3, LEN);
        let lent = pair.here.register_transient(sent.clone()).unwrap();
        let mut times = 0;
        for len in [LEN, 1, LEN + 1, 0, LEN] {
            let outcome = pair.endpoint().send_regions(ID, 5, &[(&lent, 0..LEN)]).unwrap();
            let mut to = vec![0; len + 8];
            // SAFETY: the vector has `len` bytes, and nothing else accesses them.
            let received = unsafe { pair.announced().receive_at_once(to.as_mut_ptr(), len) };
            times += u32::from(received.is_ok());
            let got = match received {
                Ok(()) => len,
                Err(unchanged) => {
                    let got = len.min(LEN);
                    let memory = pair.there.register_transient(vec![0; got]).unwrap();
                    let taken = unchanged.receive_into(&memory, 0..got).unwrap();
                    let _ = pair.end(&pair.receiver, taken).unwrap();
                    assert_eq!(to, vec![0; len + 8], "{name}");
                    to[..got].copy_from_slice(&memory.into_buffer().unwrap());
                    got
                }
            };
            assert!(to[..got] == sent[..got] && to[got..].iter().all(|b| *b == 0), "{name}: {len}");
            let _ = pair.end(&pair.sender, outcome).unwrap();
        }
        // A transport that copies between processes does so within the call, unless the length is not one of the message.
        let copies = settings.iter().any(|(_, value)| value.contains("shm-cma"));
        assert_eq!(times, if copies { 3 } else { 0 }, "{name}");
    }
}

#[test]
fn transient_buffer_is_sent_in_place_and_returned_after_receive() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let buffer = bytes(1, 1 << 20).into_boxed_slice();
        let at = buffer.as_ptr();
        let lent = pair.here.register_transient(buffer).unwrap();
        let sent = pair.endpoint().send_regions(ID, 5, &[(&lent, 1000..901_000)]).unwrap();
        let announcement = pair.announced();
        let not = lent.into_buffer().unwrap_err();
        assert_eq!(not.error.status(), Status::Busy, "{name}: {not}");
        let memory = pair.there.alloc(900_000).unwrap();
        let taken = announcement.receive_into(&memory, 0..900_000).unwrap();
        let _ = pair.end(&pair.receiver, taken).unwrap();
        let _ = pair.end(&pair.sender, sent).unwrap();
        let back = not.region.into_buffer().unwrap();
        assert_eq!(back.as_ptr(), at, "{name}");
        assert!(memory.to_vec(0..900_000).unwrap() == back[1000..901_000], "{name}");
    }
}

#[test]
fn heads_arrive_and_pieces_receive_the_first_part_over_every_transport() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let options = SendOptions::new().header_bytes(b"header").delivered();
        let sent = pair.endpoint().send_with(ID, 4, b"short", &options).unwrap();
        assert_eq!(pair.end(&pair.sender, sent), Ok(0), "{name}");
        let came = pair.came.borrow_mut().pop();
        assert!(matches!(came, Some(Came::Whole(4, short)) if short == b"short"), "{name}");
        let content = bytes(1, 900_000);
        let sent = pair.endpoint().send_with(ID, 5, &content, &options).unwrap();
        let announcement = pair.announced();
        assert_eq!((announcement.header_bytes(), announcement.header()), (&b"header"[..], 5));
        let (one, two) = (pair.there.alloc(900_000).unwrap(), pair.there.alloc(900_000).unwrap());
        let pieces = [(&one, 10..300_010), (&two, 0..1), (&two, 77..400_077)];
        let taken = announcement.receive_into_pieces(&pieces).unwrap();
        let _ = pair.end(&pair.receiver, taken).unwrap();
        assert_eq!(pair.end(&pair.sender, sent), Ok(0), "{name}");
        assert!(one.to_vec(10..300_010).unwrap() == content[..300_000], "{name}");
        assert!(two.to_vec(0..1).unwrap() == content[300_000..300_001], "{name}");
        assert!(two.to_vec(77..400_077).unwrap() == content[300_001..700_001], "{name}");
        assert_eq!(one.to_vec(300_010..300_020).unwrap(), [0; 10], "{name}");
        assert_eq!(two.to_vec(400_077..400_087).unwrap(), [0; 10], "{name}");
    }
}

#[test]
fn notification_and_key_by_number_work_over_every_transport() {
    for (name, settings) in transports() {
        let pair = Pair::with(&settings, true);
        let (target, len) = (pair.there.alloc(400_000).unwrap(), 300_000);
        target.write(len, &[9; 8]).unwrap();
        target.publish(17).unwrap();
        let key = loop {
            match pair.endpoint().key_by_number(17).unwrap() {
                KeyLookup::Known(key) => break key,
                KeyLookup::Asked(asked) => _ = pair.end(&pair.sender, asked).unwrap(),
            }
        };
        let (content, found) = (bytes(3, len), pair.here.alloc(8).unwrap());
        let source = pair.here.register(&content[..]).unwrap();
        let put = pair.endpoint().put(&source, 0..len, &key, 0).unwrap();
        let get = pair.endpoint().get(&found, 0..8, &key, len as u64).unwrap();
        let after = After::Operations(&[&put, &get]);
        let told = pair.endpoint().notify(after, ID, 6, b"both").unwrap();
        let last = pair.endpoint().notify(After::Everything, ID, 7, b"all").unwrap();
        for outcome in [told, last, put, get] {
            assert_eq!(pair.end(&pair.sender, outcome), Ok(0), "{name}");
        }
        while pair.came.borrow().len() < 2 {
            let _ = (pair.sender.progress(), pair.receiver.progress());
        }
        let words = pair.came.take().into_iter().map(|came| match came {
            Came::Whole(word, bytes) => (word, bytes.len()),
            Came::Announced(_) => panic!("a short message"),
        });
        let words: std::collections::BTreeSet<_> = words.collect();
        assert!(words.into_iter().eq([(6, 4), (7, 3)]), "{name}");
        assert!(target.to_vec(0..len).unwrap() == content, "{name}");
        assert_eq!(found.to_vec(0..8).unwrap(), [9; 8], "{name}");
    }
}

#[test]
fn short_message_is_a_rendezvous_message_on_request() {
    for (name, settings) in transports() {
        let mut pair = Pair::new(&settings);
        let limits = pair.endpoint().limits().unwrap();
        assert!(limits.eager_limit <= limits.max_message, "{name}");
        let memory = pair.here.alloc(8192).unwrap();
        memory.write(100, &bytes(3, 64)).unwrap();
        let how = SendOptions::new().rendezvous();
        // Repeated, since a repeated message takes other ways.
        for turn in 0..4 {
            let sent =
                pair.endpoint().send_regions_with(ID, turn, &[(&memory, 100..164)], &how).unwrap();
            let what = pair.announced();
            assert_eq!((what.header(), what.len()), (turn, 64), "{name}");
            let room = pair.there.register_transient(vec![0; 64]).unwrap();
            let taken = what.receive_into(&room, 0..64).unwrap();
            let receiver = &pair.receiver;
            let _ = pair.end(receiver, taken).unwrap();
            let _ = pair.end(&pair.sender, sent).unwrap();
            assert_eq!(room.into_buffer().unwrap().into_vec(), bytes(3, 64), "{name}");
        }
        // A copy is sent, too, with header bytes; an empty message is eager.
        let sent = pair.endpoint().send_with(ID, 9, b"short", &how.header_bytes(b"head")).unwrap();
        let what = pair.announced();
        assert_eq!((what.len(), what.header_bytes()), (5, &b"head"[..]), "{name}");
        drop(what);
        let refused = pair.end(&pair.sender, sent);
        assert!(matches!(refused, Err(CompletionError::Refused(_))), "{name}: {refused:?}");
        let sent = pair.endpoint().send_with(ID, 10, b"", &how).unwrap();
        let came = pair.until(|| pair.came.borrow_mut().pop());
        assert!(matches!(came, Came::Whole(10, none) if none.is_empty()), "{name}");
        let _ = pair.end(&pair.sender, sent).unwrap();
        drop(pair.endpoint.take());
    }
}

#[test]
fn repeated_transient_registrations_of_one_buffer_send_its_present_bytes() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let mut buffers: Vec<Vec<u8>> = (0..12).map(|_| vec![0; 200_000]).collect();
        let room = pair.there.alloc(200_000).unwrap();
        for turn in 0..36 {
            let mut buffer = buffers.remove(0);
            buffer.copy_from_slice(&bytes(turn, 200_000));
            // The same memory has messages of different lengths.
            let from = if turn % 5 == 0 { 100_000 } else { 0 };
            let region = pair.here.register_transient(buffer).unwrap();
            let pieces = [(&region, from..200_000)];
            let sent = pair.endpoint().send_regions(ID, turn, &pieces).unwrap();
            let what = pair.announced();
            let taken = what.receive_into(&room, 0..200_000 - from).unwrap();
            let _ = pair.end(&pair.receiver, taken).unwrap();
            let _ = pair.end(&pair.sender, sent).unwrap();
            let content = bytes(turn, 200_000);
            assert!(room.to_vec(0..200_000 - from).unwrap() == content[from..], "{name} {turn}");
            let buffer = region.into_buffer().unwrap().into_vec();
            // Most turns use one buffer, the others more than an endpoint remembers.
            let at = if turn % 3 == 0 { buffers.len() } else { 0 };
            buffers.insert(at, buffer);
        }
    }
}

#[test]
fn gathered_pieces_form_one_long_message() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let (one, two) = (bytes(1, 200_000), bytes(2, 100_000));
        let regions = (
            pair.here.register_transient(&one[..]).unwrap(),
            pair.here.register(&two[..]).unwrap(),
        );
        let pieces = [(&regions.0, 7..199_999), (&regions.1, 1..100_000), (&regions.0, 0..1)];
        let sent = pair.endpoint().send_regions(ID, 0, &pieces).unwrap();
        let announcement = pair.announced();
        let len = announcement.len();
        let memory = pair.there.register_transient(vec![0; len]).unwrap();
        let taken = announcement.receive_into(&memory, 0..len).unwrap();
        let _ = pair.end(&pair.receiver, taken).unwrap();
        let _ = pair.end(&pair.sender, sent).unwrap();
        let all = [&one[7..199_999], &two[1..100_000], &one[..1]].concat();
        assert!(memory.into_buffer().unwrap()[..] == all[..], "{name}");
    }
}

#[test]
fn sender_of_rejected_rendezvous_is_notified_and_regains_its_memory() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let send = |id| {
            let lent = pair.here.register_transient(vec![3; 1 << 20]).unwrap();
            let sent = pair.endpoint().send_regions(id, 0, &[(&lent, 0..1 << 20)]).unwrap();
            (lent, sent)
        };
        let (refused, dropped, nobody) = (send(ID), send(ID), send(ID + 1));
        pair.announced().refuse();
        drop(pair.announced());
        for (lent, sent) in [refused, dropped, nobody] {
            let ended = pair.end(&pair.sender, sent).unwrap_err();
            assert!(matches!(ended, CompletionError::Refused(_)), "{name}: {ended}");
            assert_eq!(lent.into_buffer().unwrap().len(), 1 << 20, "{name}");
        }
        assert_eq!(pair.receiver.counters().unknown_ids, 1);
        let fine = pair.endpoint().send(ID, 0, b"still here").unwrap();
        let _ = pair.end(&pair.sender, fine).unwrap();
    }
}

#[test]
fn a_handler_that_panics_has_refused_what_was_announced() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        pair.receiver
            .on_message(9, |message| assert!(!message.is_rendezvous(), "too long"))
            .unwrap();
        let sent = pending(pair.endpoint().send(9, 0, &bytes(1, 1 << 20)).unwrap());
        let mut panics = 0;
        let ended = loop {
            let _ = pair.sender.progress();
            let progress = AssertUnwindSafe(|| pair.receiver.progress());
            panics += usize::from(catch_unwind(progress).is_err());
            if let Some(ended) = pair.sender.test(&sent) {
                break ended.unwrap_err();
            }
        };
        assert!(matches!(ended, CompletionError::Refused(_)), "{name}: {ended}");
        assert_eq!(panics, 1, "{name}");
    }
}

#[test]
fn rendezvous_canceled_by_sender_ends_on_both_sides_before_receive() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let sent = pending(pair.endpoint().send(ID, 0, &bytes(1, 1 << 20)).unwrap());
        let announcement = pair.announced();
        pair.sender.cancel(&sent).unwrap();
        pair.sender.cancel(&sent).unwrap(); // the completion is reported once
        let ended = pair.until(|| pair.sender.test(&sent)).unwrap_err();
        assert!(matches!(ended, CompletionError::Canceled(_)), "{name}: {ended}");
        let memory = pair.there.register_transient(vec![0; 1 << 20]).unwrap();
        let taken = announcement.receive_into(&memory, 0..1 << 20).unwrap();
        let ended = pair.end(&pair.receiver, taken).unwrap_err();
        assert!(matches!(ended, CompletionError::Canceled(_)), "{name}: {ended}");

        let sent = pending(pair.endpoint().send(ID, 0, &bytes(2, 1 << 20)).unwrap());
        let announcement = pair.announced();
        let taken = announcement.receive_into(&memory, 0..1 << 20).unwrap();
        pair.sender.cancel(&sent).unwrap();
        let _ = pair.end(&pair.receiver, taken).unwrap();
        let _ = pair.until(|| pair.sender.test(&sent)).unwrap();
        assert!(memory.into_buffer().unwrap()[..] == bytes(2, 1 << 20), "{name}");
        assert_eq!(pair.sender.counters().malformed + pair.receiver.counters().malformed, 0);
    }
}

#[test]
fn neither_fence_nor_flush_waits_until_a_long_message_is_taken() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let target = pair.there.alloc(64).unwrap();
        let key = pair.endpoint().import_key(&target.remote_key().unwrap()).unwrap();
        let sent = pair.endpoint().send(ID, 0, &bytes(1, 1 << 20)).unwrap();
        let put = pair.endpoint().put_bytes(&[1; 8], &key, 0).unwrap();
        pair.endpoint().fence().unwrap();
        let behind = pair.endpoint().put_bytes(&[2; 8], &key, 8).unwrap();
        for outcome in [put, behind, pair.endpoint().flush().unwrap()] {
            let _ = pair.end(&pair.sender, outcome).unwrap();
        }
        let flushed = pair.endpoint().flush_messages().unwrap();
        let _ = pair.end(&pair.sender, flushed).unwrap();
        assert_eq!(target.to_vec(0..16).unwrap(), [[1; 8], [2; 8]].concat(), "{name}");
        drop(pair.announced());
        let ended = pair.end(&pair.sender, sent).unwrap_err();
        assert!(matches!(ended, CompletionError::Refused(_)), "{name}: {ended}");
    }
}

#[test]
fn receiver_may_take_prefix_or_nothing_but_not_more() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let send = |mark| pair.endpoint().send(ID, 0, &bytes(mark, 1 << 20)).unwrap();
        let (first, second) = (send(1), send(2));
        let memory = pair.there.register_transient(vec![0; 2 << 20]).unwrap();
        let not = pair.announced().receive_into(&memory, 0..(1 << 20) + 1).unwrap_err();
        assert!(matches!(not.error, PostError::Correct(_)), "{name}: {not}");
        let not = not.announcement.receive_into(&memory, (2 << 20) - 1..2 << 20 | 1).unwrap_err();
        assert!(matches!(not.error, PostError::Correct(_)), "{name}: {not}");
        let taken = not.announcement.receive_into(&memory, 10..1010).unwrap();
        let _ = pair.end(&pair.receiver, taken).unwrap();
        assert_eq!(memory.to_vec(10..1011).unwrap(), [&bytes(1, 1000)[..], &[0]].concat());
        let _ = pair.end(&pair.sender, first).unwrap();
        let taken = pair.announced().receive_into(&memory, 0..0).unwrap();
        let _ = pair.end(&pair.receiver, taken).unwrap();
        let _ = pair.end(&pair.sender, second).unwrap();
    }
}

#[test]
fn rendezvous_ends_with_senders_endpoint_and_receive_is_canceled() {
    for (name, settings) in transports() {
        let mut pair = Pair::new(&settings);
        let sent = pending(pair.endpoint().send(ID, 0, &bytes(1, 1 << 20)).unwrap());
        let announcement = pair.announced();
        pair.endpoint = None;
        let ended = pair.until(|| pair.sender.test(&sent)).unwrap_err();
        assert!(matches!(ended, CompletionError::Canceled(_)), "{name}: {ended}");
        let memory = pair.there.register_transient(vec![0; 1 << 20]).unwrap();
        let status = match announcement.receive_into(&memory, 0..1 << 20) {
            Err(not) => not.error.status(),
            Ok(taken) => pair.end(&pair.receiver, taken).unwrap_err().status(),
        };
        assert!(matches!(status, Status::Canceled | Status::KeyRejected), "{name}: {status:?}");
        assert_eq!(memory.into_buffer().unwrap().len(), 1 << 20);
    }
}

#[test]
fn sender_regains_memory_when_receiver_closes_its_worker() {
    for (name, settings) in transports() {
        for drops in [true, false] {
            let Pair { came, endpoint, sender, receiver, here, there } = Pair::new(&settings);
            let lent = here.register_transient(vec![3; 1 << 20]).unwrap();
            let endpoint = endpoint.unwrap();
            let sent = pending(endpoint.send_regions(ID, 0, &[(&lent, 0..1 << 20)]).unwrap());
            while came.borrow().is_empty() {
                let _ = (sender.progress(), receiver.progress());
            }
            match drops {
                true => drop(receiver),
                false => receiver.close(Duration::from_secs(5)).unwrap(),
            }
            let ended = loop {
                let _ = sender.progress();
                if let Some(ended) = sender.test(&sent) {
                    break ended;
                }
            };
            assert!(ended.is_err(), "{name}");
            assert_eq!(lent.into_buffer().unwrap().len(), 1 << 20, "{name}");
            let Some(Came::Announced(announcement)) = came.borrow_mut().pop() else { panic!() };
            let memory = there.register_transient(vec![0; 8]).unwrap();
            let not = announcement.receive_into(&memory, 0..8).unwrap_err();
            assert_eq!(not.error.status(), Status::Closed, "{name}");
        }
    }
}

#[test]
fn a_worker_that_is_closed_names_the_long_message_that_nobody_took() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let sent = pending(pair.endpoint().send(ID, 0, &bytes(1, 1 << 20)).unwrap());
        let announcement = pair.announced();
        let undelivered = pair.sender.close(Duration::from_millis(50)).unwrap_err();
        assert_eq!(
            undelivered.losses.iter().map(|loss| loss.operations).sum::<usize>(),
            1,
            "{name}"
        );
        drop((announcement, sent));
    }
}

#[test]
fn long_messages_are_copied_up_to_the_bound_and_one_alone_of_any_length() {
    for (name, mut settings) in transports() {
        settings.push(("TIELINE_QUEUE_BYTES", "256k".to_string()));
        let pair = Pair::new(&settings);
        let first = pair.endpoint().send(ID, 0, &bytes(1, 1 << 20)).unwrap();
        let refused = pair.endpoint().send(ID, 1, &bytes(2, 1 << 20)).unwrap_err();
        assert!(matches!(refused, PostError::Retry(_)), "{name}: {refused}");
        drop(pair.announced());
        let _ = pair.end(&pair.sender, first).unwrap_err();
        let second = pair.endpoint().send(ID, 2, &bytes(3, 1 << 20)).unwrap();
        let _ = pair.announced();
        let _ = pair.end(&pair.sender, second).unwrap_err();
    }
}

#[test]
fn rendezvous_is_received_without_endpoint_to_sender() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let back = pair.receiver.connect(&pair.sender.address().unwrap()).unwrap();
        let hello = back.flush_messages().unwrap();
        let _ = pair.end(&pair.receiver, hello).unwrap();
        let sent = pair.endpoint().send(ID, 0, &bytes(1, 1 << 20)).unwrap();
        let announcement = pair.announced();
        let closed = back.close(Close::Flush).unwrap();
        let memory = pair.there.register_transient(vec![0; 1 << 20]).unwrap();
        let taken = announcement.receive_into(&memory, 0..1 << 20).unwrap();
        let _ = pair.end(&pair.receiver, taken).unwrap();
        let _ = pair.end(&pair.receiver, closed).unwrap();
        let _ = pair.end(&pair.sender, sent).unwrap();
        assert!(memory.into_buffer().unwrap()[..] == bytes(1, 1 << 20), "{name}");
    }
}

#[test]
fn receiver_confirms_last_message_before_immediate_close() {
    // Over tcp, a close waits for the other side, whose progress this same thread would have to make.
    for (name, settings) in transports().into_iter().filter(|(name, _)| name.starts_with("shm")) {
        for round in 0..20 {
            let Pair { came, endpoint, sender, receiver, here, there } = Pair::new(&settings);
            let endpoint = endpoint.unwrap();
            let sent = pending(endpoint.send(ID, 0, &bytes(1, 300_000)).unwrap());
            let announcement = loop {
                let _ = (sender.progress(), receiver.progress());
                if let Some(Came::Announced(announcement)) = came.borrow_mut().pop() {
                    break announcement;
                }
            };
            let memory = there.register_transient(vec![0; 300_000]).unwrap();
            let taken = announcement.receive_into(&memory, 0..300_000).unwrap();
            if let Outcome::Pending(request) = taken {
                while receiver.test(&request).is_none() {
                    let _ = (sender.progress(), receiver.progress());
                }
            }
            receiver.close(Duration::from_secs(10)).unwrap();
            drop((receiver, memory, there));
            let ended = sender.finish(Outcome::Pending(sent));
            assert!(ended.is_ok(), "{name}, round {round}: {ended:?}");
            drop((endpoint, sender, here));
        }
    }
}

#[test]
fn puts_and_gets_use_lent_memory_in_place_and_it_has_no_key() {
    for (name, settings) in transports() {
        let pair = Pair::new(&settings);
        let target = pair.there.register(vec![0; 1 << 20]).unwrap();
        let key = pair.endpoint().import_key(&target.remote_key().unwrap()).unwrap();
        for len in [1, 100, 10_000, 1 << 20] {
            let from = pair.here.register_transient(bytes(len as u64, len)).unwrap();
            assert_eq!(from.remote_key().unwrap_err().status(), Status::Invalid);
            let into = pair.here.register_transient(vec![0; len + 2]).unwrap();
            let put = pair.endpoint().put(&from, 0..len, &key, 0).unwrap();
            let _ = pair.end(&pair.sender, put).unwrap();
            let get = pair.endpoint().get(&into, 1..len + 1, &key, 0).unwrap();
            let _ = pair.end(&pair.sender, get).unwrap();
            let got = into.into_buffer().unwrap();
            assert!(got[1..=len] == from.into_buffer().unwrap()[..], "{name}: {len} bytes");
            assert_eq!((got[0], got[len + 1]), (0, 0));
        }
        let empty = pair.here.register_transient(Vec::new()).unwrap();
        let put = pair.endpoint().put(&empty, 0..0, &key, 0).unwrap();
        let _ = pair.end(&pair.sender, put).unwrap();
        assert!(empty.into_buffer().unwrap().is_empty());
        let shared = pair.here.alloc(100).unwrap().into_buffer();
        let not = shared.expect_err("it was given none");
        assert_eq!(not.error.status(), Status::Invalid);
        assert_eq!(not.region.to_vec(0..100).unwrap(), [0; 100], "it is there as before");
        not.region.close().unwrap();
    }
}

#[test]
fn rendezvous_is_received_after_sender_closes_and_drops_endpoint() {
    for (name, settings) in transports() {
        for refused in [false, true] {
            let mut pair = Pair::new(&settings);
            let sent = pair.endpoint().send(ID, 3, &bytes(3, 200_000)).unwrap();
            let closed = pair.endpoint().close(Close::Flush).unwrap();
            let late = pair.endpoint().send(ID, 4, &bytes(4, 200_000)).unwrap_err();
            assert_eq!(late.status(), Status::Closed);
            drop(pair.endpoint.take());
            let _ = pair.end(&pair.sender, closed).unwrap();
            let announcement = pair.announced();
            for _ in 0..10_000 {
                let _ = (pair.sender.progress(), pair.receiver.progress());
            }
            let sent = pending(sent);
            assert!(pair.sender.test(&sent).is_none(), "{name}: nobody has taken it");
            if refused {
                announcement.refuse();
                let ended = pair.end(&pair.sender, Outcome::Pending(sent));
                assert!(matches!(ended, Err(CompletionError::Refused(_))), "{name}: {ended:?}");
            } else {
                let memory = pair.there.register_transient(vec![0; 200_000]).unwrap();
                let taken = announcement.receive_into(&memory, 0..200_000).unwrap();
                let _ = pair.end(&pair.receiver, taken).unwrap();
                assert_eq!(pair.end(&pair.sender, Outcome::Pending(sent)), Ok(0), "{name}");
                assert!(memory.into_buffer().unwrap()[..] == bytes(3, 200_000), "{name}");
            }
            pair.sender.flush().unwrap();
        }
    }
}
