//! Tests of messages with header bytes or a request for an acknowledgement.

use crate::cases;
use crate::notify::with_minor;
use crate::stage::{Stage, pending};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use tieline::{
    Acknowledgement, CompletionError, KeptMessage, MAX_HEADER_BYTES, Outcome, Rendezvous,
    SendOptions, Status,
};
use tieline_fake::{Act, Lane, Rule, Slot};

const HEADED: u32 = 0xf010;
const DELIVER: u32 = 0xf011;
const DELIVERED: u32 = 0xf012;
const ANNOUNCE_HEADED: u32 = 0xf013;
const ID: u16 = 5;

const DELIVERY: fn() -> SendOptions<'static> = || SendOptions::new().delivered();

/// A message as the handler of `b` got it: word, header bytes, payload, and whether it was a rendezvous message.
type Came = (u64, Vec<u8>, Vec<u8>, bool);

fn log_at_b(stage: &Stage) -> Rc<RefCell<Vec<Came>>> {
    let log: Rc<RefCell<Vec<Came>>> = Rc::default();
    let seen = log.clone();
    let handler = move |m: &tieline::Message<'_>| {
        assert_eq!(m.id(), ID);
        let came = (m.header(), m.header_bytes().to_vec(), m.payload().to_vec(), m.is_rendezvous());
        seen.borrow_mut().push(came);
    };
    stage.b.on_message(ID, handler).unwrap();
    log
}

fn lanes() -> Vec<Vec<Lane>> {
    let all = Lane::whole("all");
    vec![
        vec![all.clone()],
        vec![Lane { lends: true, again: 300, ..all.clone() }],
        vec![Lane { max_packed: 600, max_short: 200, ..Lane::messages("short") }],
    ]
}

/// A stage whose handler stores the acknowledgements.
fn with_tokens() -> (Stage, Rc<RefCell<Vec<Acknowledgement>>>) {
    let stage = Stage::new(vec![Lane::messages("all")]);
    let tokens: Rc<RefCell<Vec<Acknowledgement>>> = Rc::default();
    let kept = tokens.clone();
    let handler = move |m: &tieline::Message<'_>| {
        kept.borrow_mut().extend(m.acknowledgement());
        assert!(m.acknowledgement().is_none(), "it exists once");
    };
    stage.b.on_message(ID, handler).unwrap();
    (stage, tokens)
}

fn messages(stage: &Stage) -> usize {
    [Slot::Short, Slot::Packed].iter().map(|slot| stage.world.calls(*slot).len()).sum()
}

cases! {
    fn header_bytes_arrive_with_each_length_in_order_with_other_messages() {
        for lanes in lanes() {
            let stage = Stage::new(lanes);
            let log = log_at_b(&stage);
            let mut expected = Vec::new();
            for n in [0, 1, 7, MAX_HEADER_BYTES] {
                for len in [0, 1, 40, 150, 400] {
                    let (bytes, payload) = (vec![n as u8; n], vec![len as u8; len]);
                    let word = (n * 1000 + len) as u64;
                    let options = SendOptions::new().header_bytes(&bytes);
                    let sent = stage.ab.send_with(ID, word, &payload, &options).unwrap();
                    let _ = stage.finish(sent).unwrap();
                    let _ = stage.finish(stage.ab.send(ID, word, &payload).unwrap()).unwrap();
                    expected.push((word, bytes, payload.clone(), false));
                    expected.push((word, Vec::new(), payload, false));
                }
            }
            assert!(stage.until(|| log.borrow().len() == expected.len()));
            assert_eq!(*log.borrow(), expected);
            stage.assert_no_faults();
        }
    }

    fn header_bytes_cost_eight_more_and_long_messages_carry_them() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let log = log_at_b(&stage);
        let most = stage.ab.max_message().unwrap();
        let bytes = [9; 20];
        let options = SendOptions::new().header_bytes(&bytes);
        for (len, long) in [(most - 28, false), (most - 27, true), (4 * most, true)] {
            let sent = stage.ab.send_with(ID, 3, &vec![1; len], &options).unwrap();
            let refused = stage.finish(sent).map_err(|error| error.status());
            assert_eq!(refused, if long { Err(Status::Unsupported) } else { Ok(0) }, "{len}");
            let payload = if long { Vec::new() } else { vec![1; len] };
            assert!(stage.until(|| !log.borrow().is_empty()));
            assert_eq!(log.borrow_mut().pop(), Some((3, bytes.to_vec(), payload, long)));
        }
        // The next rendezvous message has none.
        let _ = stage.finish(stage.ab.send(ID, 4, &vec![1; 2 * most]).unwrap());
        assert_eq!(log.borrow_mut().pop(), Some((4, Vec::new(), Vec::new(), true)));
        let many = [0; MAX_HEADER_BYTES + 1];
        let refused = stage.ab.send_with(ID, 5, b"", &SendOptions::new().header_bytes(&many));
        assert_eq!(refused.unwrap_err().status(), Status::Invalid);
    }

    fn kept_and_gathered_messages_have_their_header_bytes() {
        let stage = Stage::new(vec![Lane { lends: true, ..Lane::whole("all") }]);
        type Kept = (Vec<KeptMessage>, Vec<Rendezvous>);
        let kept: Rc<RefCell<Kept>> = Rc::default();
        let log = kept.clone();
        let handler = move |m: &tieline::Message<'_>| {
            let mut log = log.borrow_mut();
            log.0.extend([m.keep(), m.keep()]);
            log.1.extend(m.rendezvous());
        };
        stage.b.on_message(ID, handler).unwrap();
        let local = stage.local((0..=255).cycle().take(8192).collect());
        let pieces = [(&local, 1..3), (&local, 10..13)];
        let options = SendOptions::new().header_bytes(b"kept");
        let sent = stage.ab.send_regions_with(ID, 1, &pieces, &options).unwrap();
        let _ = stage.finish(sent).unwrap();
        assert!(stage.until(|| kept.borrow().0.len() == 2));
        for message in &kept.borrow().0 {
            assert_eq!((message.header_bytes(), message.payload()), (&b"kept"[..], &[1, 2, 10, 11, 12][..]));
        }
        let sent = pending(stage.ab.send_regions_with(ID, 1, &[(&local, 0..8192)], &options));
        assert!(stage.until(|| !kept.borrow().1.is_empty()));
        let announced = kept.borrow_mut().1.pop().unwrap();
        assert_eq!((announced.header_bytes(), announced.len()), (&b"kept"[..], 8192));
        let taken = stage.at_b.register_transient(vec![0; 8192]).unwrap();
        let _receives = announced.receive_into(&taken, 0..8192).unwrap();
        assert_eq!(stage.end_of(&sent), Some(Ok(0)));
        assert_eq!(taken.to_vec(0..8192).unwrap(), local.to_vec(0..8192).unwrap());
        kept.borrow_mut().0.clear();
        stage.settle();
        assert_eq!(stage.world.left()[4], 0, "lent payloads are lost");
        stage.assert_no_faults();
    }

    fn delivery_ends_after_the_handler_and_not_before() {
        for lanes in lanes() {
            let stage = Stage::new(lanes);
            let log = log_at_b(&stage);
            let options = DELIVERY().header_bytes(b"x");
            let sent = pending(stage.ab.send_with(ID, 8, b"payload", &options));
            for _ in 0..100 {
                let _ = stage.a.progress();
            }
            assert_eq!((stage.a.test(&sent), log.borrow().len()), (None, 0));
            assert_eq!(stage.end_of(&sent), Some(Ok(0)));
            assert_eq!(*log.borrow(), [(8, b"x".to_vec(), b"payload".to_vec(), false)]);
            stage.assert_no_faults();
        }
    }

    fn acknowledgement_may_come_late_and_out_of_order_and_no_flush_waits() {
        let (stage, tokens) = with_tokens();
        let sent = [0; 4].map(|_| pending(stage.ab.send_with(ID, 0, b"", &DELIVERY())));
        let ended = || sent.each_ref().map(|sent| stage.a.test(sent));
        assert!(stage.until(|| tokens.borrow().len() == 4));
        let _ = stage.finish(stage.ab.flush().unwrap()).unwrap();
        let _ = stage.finish(stage.ab.flush_messages().unwrap()).unwrap();
        assert_eq!(ended(), [None, None, None, None]);
        let mut given = tokens.take();
        given.swap_remove(2).give();
        stage.settle();
        assert_eq!(ended(), [None, None, Some(Ok(0)), None]);
        drop(given.swap_remove(0));
        given.into_iter().for_each(Acknowledgement::give);
        stage.settle();
        let [first, second, _, last] = ended();
        assert!(matches!(first, Some(Err(CompletionError::Canceled(_)))), "{first:?}");
        assert_eq!((second, last), (Some(Ok(0)), Some(Ok(0))));
        stage.assert_no_faults();
    }

    fn acknowledgements_of_a_progress_call_are_one_message() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let log = log_at_b(&stage);
        let sent = [0; 10].map(|_| pending(stage.ab.send_with(ID, 0, b"", &DELIVERY())));
        let before = messages(&stage);
        while log.borrow().is_empty() {
            let _ = stage.b.progress();
        }
        assert_eq!((log.borrow().len(), messages(&stage) - before), (10, 1));
        let numbers = stage.world.on_the_way(DELIVERED).unwrap();
        assert_eq!(numbers.len(), 80);
        sent.iter().for_each(|sent| assert_eq!(stage.end_of(sent), Some(Ok(0))));
    }

    fn panicking_handler_cancels_delivery_and_missing_handler_refuses_it() {
        for lends in [false, true] {
            let stage = Stage::new(vec![Lane { lends, ..Lane::messages("all") }]);
            stage.b.on_message(ID, |_| resume_unwind(Box::new("a handler that panics"))).unwrap();
            let panicked = pending(stage.ab.send_with(ID, 0, b"payload", &DELIVERY()));
            let nobody = pending(stage.ab.send_with(ID + 1, 0, b"payload", &DELIVERY()));
            let plain = SendOptions::new().header_bytes(b"x");
            let _ = stage.finish(stage.ab.send_with(ID + 1, 0, b"payload", &plain).unwrap());
            for _ in 0..500 {
                let _ = stage.a.progress();
                let _ = catch_unwind(AssertUnwindSafe(|| stage.b.progress()));
            }
            assert!(matches!(stage.a.test(&panicked), Some(Err(CompletionError::Canceled(_)))));
            assert!(matches!(stage.a.test(&nobody), Some(Err(CompletionError::Refused(_)))));
            assert_eq!(stage.b.counters().unknown_ids, 2);
            assert_eq!(stage.world.left()[4], 0, "lent payloads are lost");
            stage.assert_no_faults();
        }
    }

    fn long_message_is_delivered_when_its_bytes_are_taken() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let came: Rc<RefCell<Vec<Rendezvous>>> = Rc::default();
        let log = came.clone();
        let handler = move |m: &tieline::Message<'_>| {
            assert!(m.acknowledgement().is_none(), "its end follows from the receive");
            log.borrow_mut().extend(m.rendezvous());
        };
        stage.b.on_message(ID, handler).unwrap();
        let sent = pending(stage.ab.send_with(ID, 0, &[7; 8192], &DELIVERY()));
        assert!(stage.until(|| !came.borrow().is_empty()));
        stage.settle();
        assert_eq!(stage.a.test(&sent), None);
        let memory = stage.at_b.register_transient(vec![0; 8192]).unwrap();
        let _receives = came.borrow_mut().pop().unwrap().receive_into(&memory, 0..8192).unwrap();
        assert_eq!(stage.end_of(&sent), Some(Ok(0)));
    }

    fn long_message_is_received_into_pieces_whole_or_its_first_part() {
        for lanes in [vec![Lane::whole("all")], vec![Lane::messages("all")]] {
            let stage = Stage::new(lanes);
            let came: Rc<RefCell<Vec<Rendezvous>>> = Rc::default();
            let log = came.clone();
            stage.b.on_message(ID, move |m| log.borrow_mut().extend(m.rendezvous())).unwrap();
            let bytes: Vec<u8> = (0..8192u32).map(|at| (at * 7 + at / 256) as u8).collect();
            for most in [8192, 5000, 3, 0] {
                let sent = pending(stage.ab.send(ID, 0, &bytes));
                assert!(stage.until(|| !came.borrow().is_empty()));
                let came = came.borrow_mut().pop().unwrap();
                let [one, two] = [0, 1].map(|_| stage.at_b.register_transient(vec![0; 8192]).unwrap());
                let first = most / 3;
                let too_many = came.receive_into_pieces(&[(&one, 0..8192), (&two, 0..1)]).unwrap_err();
                assert_eq!(too_many.error.status(), Status::OutOfRange);
                let outside = too_many.announcement.receive_into_pieces(&[(&one, 0..1), (&two, 0..8193)]);
                let outside = outside.unwrap_err();
                assert_eq!(outside.error.status(), Status::OutOfRange);
                let pieces = [(&two, 100..100 + first), (&one, 7..7), (&one, 1..1 + most - first)];
                let received = outside.announcement.receive_into_pieces(&pieces).unwrap();
                assert_eq!(stage.end_of(&sent), Some(Ok(0)));
                if let Outcome::Pending(received) = received {
                    assert!(stage.until(|| stage.b.test(&received) == Some(Ok(0))));
                }
                let mut expected = [vec![0; 8192], vec![0; 8192]];
                expected[0][1..1 + most - first].copy_from_slice(&bytes[first..most]);
                expected[1][100..100 + first].copy_from_slice(&bytes[..first]);
                assert_eq!([one, two].map(|region| region.into_buffer().unwrap().to_vec()), expected);
            }
            stage.assert_no_faults();
        }
    }

    fn queued_message_is_delivered_or_canceled_and_a_failed_endpoint_ends_it() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let log = log_at_b(&stage);
        let refuse = |slot| stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)));
        [Slot::Short, Slot::Packed].into_iter().for_each(refuse);
        let options = DELIVERY().header_bytes(b"queued");
        let [first, second] = [1, 2].map(|word| pending(stage.ab.send_with(ID, word, b"p", &options)));
        let third = pending(stage.ab.send_with(ID, 3, b"p", &SendOptions::new().header_bytes(b"3")));
        let flush = pending(stage.ab.flush());
        stage.a.cancel(&first).unwrap();
        assert!(matches!(stage.a.test(&first), Some(Err(CompletionError::Canceled(_)))));
        stage.settle();
        assert_eq!((stage.a.test(&second), stage.a.test(&flush)), (None, None));
        stage.world.forget_rules();
        for ended in [&second, &third, &flush] {
            assert_eq!(stage.end_of(ended), Some(Ok(0)));
        }
        let words: Vec<_> = log.borrow().iter().map(|came| (came.0, came.1.clone())).collect();
        assert_eq!(words, [(2, b"queued".to_vec()), (3, b"3".to_vec())]);
        let lost = pending(stage.ab.send_with(ID, 4, b"p", &options));
        let error = stage.a.cancel(&lost).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported, "the peer has it");
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.break_endpoints(a, b, Status::PeerFailed, "it is gone");
        assert!(matches!(stage.end_of(&lost), Some(Err(CompletionError::Unknown(_)))));
    }

    fn older_peer_gets_no_heads_and_other_messages_go_on() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let log = log_at_b(&stage);
        let older = with_minor(stage.b.address().unwrap(), 3);
        let endpoint = stage.a.connect(&older).unwrap();
        for options in [DELIVERY(), SendOptions::new().header_bytes(b"x")] {
            let error = endpoint.send_with(ID, 1, b"", &options).unwrap_err();
            assert_eq!(error.status(), Status::Unsupported);
            let words = error.to_string();
            assert!(words.contains("1.3") && words.contains("1.4"), "{words}");
        }
        let _ = stage.finish(endpoint.send_with(ID, 2, b"", &SendOptions::new()).unwrap()).unwrap();
        assert!(stage.until(|| log.borrow().len() == 1));
    }

    fn forged_heads_and_acknowledgements_are_counted_and_change_nothing() {
        let (stage, tokens) = with_tokens();
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        let number = Cell::new(0);
        let sent = pending(stage.ab.send_with(ID, 0, b"", &DELIVERY()));
        assert!(stage.until(|| !tokens.borrow().is_empty()));
        for payload in [&[][..], &[1; 7], &[1; 12], &[0xff; 8], &[0; 8]] {
            stage.world.forge(b, a, DELIVERED, 0, payload);
            number.set(number.get() + 1);
        }
        stage.world.forge(b, a, DELIVERED, 1 << 40, &[1; 8]);
        stage.settle();
        assert_eq!(stage.a.counters().malformed, number.get() + 1);
        for (id, head) in [(HEADED, &[5, 0, 3, 0, 0, 0, 0, 0, 1, 2][..]), (HEADED, &[5, 0, 0]), (DELIVER, &[5, 0, 0, 0, 0, 0, 0, 0, 1]), (HEADED, &[0, 0xf0, 0, 0, 0, 0, 0, 0]), (ANNOUNCE_HEADED, &[5; 30])] {
            stage.world.forge(a, b, id, 0, head);
        }
        let before = stage.b.counters().malformed;
        stage.settle();
        assert_eq!((stage.b.counters().malformed, stage.a.test(&sent)), (before + 5, None));
        tokens.take().into_iter().for_each(Acknowledgement::give);
        assert_eq!(stage.end_of(&sent), Some(Ok(0)));
        let Outcome::Done(0) = stage.ab.send(ID, 1, b"").unwrap() else { panic!("it goes on") };
    }
}
