//! Tests of rendezvous messages (`Rendezvous`): peers that violate the protocol, and slow lanes.

mod both_ends;

use crate::cases;
use crate::shared::{over_three, over_wire};
use crate::stage::{Stage, pending};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tieline::{
    Access, Close, CompletionError, Context, Endpoint, NotClosed, PostError, Region, Rendezvous,
    Request, Status, Worker,
};
use tieline_fake::{Act, Lane, Rule, Slot, World};

const REPLY: u32 = 0xf004;
const ASSIST: u32 = 0xf006;
const ANNOUNCE: u32 = 0xf00b;
const WITHDRAW: u32 = 0xf00c;

/// A number of receives that suffices for at least two requests for help.
const TAKES: usize = 100;

pub(crate) type Came = Rc<RefCell<Vec<Rendezvous>>>;

pub(crate) fn kept_at_b(stage: &Stage, id: u16) -> Came {
    let came = Came::default();
    let log = came.clone();
    stage.b.on_message(id, move |message| log.borrow_mut().extend(message.rendezvous())).unwrap();
    came
}

fn announce(id: u16, len: u64, key: &[u8]) -> Vec<u8> {
    let key_len = (key.len() as u16).to_le_bytes();
    let head = [&id.to_le_bytes()[..], &[0; 6], &77u64.to_le_bytes(), &len.to_le_bytes()].concat();
    [&head[..], &key_len, key].concat()
}

/// A pair of workers of which `a` can send arbitrary protocol messages to `b`.
struct Liar {
    stage: Stage,
    came: Came,
}

impl Liar {
    fn new() -> Liar {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let came = kept_at_b(&stage, 5);
        Liar { stage, came }
    }

    fn says(&self, id: u32, header: u64, payload: &[u8]) {
        let world = &self.stage.world;
        world.forge(world.interface(0, "all"), world.interface(1, "all"), id, header, payload);
    }

    fn announced(&self, token: u64, len: u64, key: &[u8]) -> Rendezvous {
        self.says(ANNOUNCE, token, &announce(5, len, key));
        assert!(self.stage.until(|| !self.came.borrow().is_empty()), "it was not handed on");
        let came = self.came.borrow_mut().pop();
        came.unwrap()
    }

    fn untouched(&self) -> Region {
        self.stage.at_b.register_transient(vec![0xee; 4096]).unwrap()
    }
}

#[track_caller]
fn assert_untouched(memory: Region) {
    assert!(memory.into_buffer().unwrap().iter().all(|byte| *byte == 0xee));
}

cases! {
    fn malformed_rts_is_counted_and_not_dispatched() {
        let liar = Liar::new();
        let whole = announce(5, 100, &[1; 80]);
        for end in 0..whole.len() {
            liar.says(ANNOUNCE, 1 + end as u64, &whole[..end]);
        }
        liar.says(ANNOUNCE, 1000, &announce(0xf000, 100, &[1; 80]));
        liar.says(ANNOUNCE, 1001, &announce(5, u64::MAX, &[1; 80]));
        liar.stage.settle();
        assert_eq!(liar.stage.b.counters().malformed, whole.len() as u64 + 2);
        assert!(liar.came.borrow().is_empty());
    }

    fn duplicate_rts_is_dispatched_once_and_counted() {
        let liar = Liar::new();
        for _ in 0..3 {
            liar.says(ANNOUNCE, 9, &announce(5, 100, &[1; 80]));
        }
        liar.stage.settle();
        assert_eq!(liar.came.borrow().len(), 1);
        assert_eq!(liar.stage.b.counters().malformed, 2);
        // After the transfer has ended, the number of the RTS can be used again.
        liar.came.borrow_mut().clear();
        liar.says(ANNOUNCE, 9, &announce(5, 100, &[1; 80]));
        liar.stage.settle();
        assert_eq!(liar.came.borrow().len(), 1);
    }

    fn rts_of_departed_peer_are_dropped_without_route_to_it() {
        // By default a worker keeps 65 536 rendezvous messages of one peer; a short run uses fewer.
        let count = if tieline_testing::is_whole() { 65_536 } else { 1000 };
        for status in [0, Status::PeerFailed as i32] {
            let liar = Liar::new();
            let world = liar.stage.world;
            let [a, b] = [0, 1].map(|worker| world.interface(worker, "all"));
            for token in 1..=count {
                liar.says(ANNOUNCE, token, &announce(5, 4096, &[1; 80]));
            }
            assert!(liar.stage.until(|| liar.came.borrow().len() as u64 == count));
            world.break_endpoints(b, a, Status::PeerFailed, "it is gone");
            world.leave(a, b, status, "it is gone");
            liar.stage.settle();
            let before = world.left();
            let (memory, first) = (liar.untouched(), liar.came.borrow_mut().pop().unwrap());
            let not = first.receive_into(&memory, 0..4096).unwrap_err();
            assert!(matches!(not.error, PostError::Reconnect(_)), "{not}");
            assert!(not.to_string().contains("its sender has left"), "{not}");
            drop(not);
            assert_untouched(memory);
            let begun = std::time::Instant::now();
            liar.came.borrow_mut().clear();
            println!("{count} announcements of a peer that left were dropped in {:?}", begun.elapsed());
            assert_eq!((world.left(), world.undelivered()), (before, 0), "nothing was opened or said");
            liar.stage.settle();
            assert_eq!(world.left(), before);
        }
    }

    fn rts_of_ended_circuit_are_not_answered() {
        for status in [Status::Io, Status::PeerFailed] {
            let stage = Stage::new(vec![Lane::whole("all").over_circuits()]);
            let came = kept_at_b(&stage, 5);
            let sent: Vec<Request> =
                (0..3).map(|_| pending(stage.ab.send(5, 0, &[5; 70_000]))).collect();
            assert!(stage.until(|| came.borrow().len() == sent.len()));
            let [a, b] = [0, 1].map(|worker| stage.world.interface(worker, "all"));
            stage.world.break_endpoints(b, a, status, "the cable is cut");
            stage.settle();
            let before = stage.world.left();
            came.borrow_mut().clear();
            assert_eq!(stage.world.left(), before, "{status:?}: nothing was opened");
            assert_eq!(stage.b.status().owed, 0, "{status:?}: nobody waits for a word");
            stage.settle();
            assert_eq!(stage.world.left(), before);
            drop(sent);
        }
    }

    fn rts_beyond_bound_of_all_peers_are_refused() {
        let bounds = [("TIELINE_ANNOUNCED", "70"), ("TIELINE_ANNOUNCED_BYTES", "inf")];
        let stage = Stage::with(vec![Lane::whole("all")], &bounds);
        let liar = Liar { came: kept_at_b(&stage, 5), stage };
        for token in 1..=200 {
            liar.says(ANNOUNCE, token, &announce(5, 4096, &[1; 80]));
        }
        liar.stage.settle();
        assert_eq!(liar.came.borrow().len(), 70);
        // The worker keeps 64 messages of a peer even if the bound is 0.
        let stage = Stage::with(vec![Lane::whole("all")], &[("TIELINE_ANNOUNCED", "0")]);
        let liar = Liar { came: kept_at_b(&stage, 5), stage };
        for token in 1..=200 {
            liar.says(ANNOUNCE, token, &announce(5, 4096, &[1; 80]));
        }
        liar.stage.settle();
        assert_eq!(liar.came.borrow().len(), 64);
    }

    fn keys_of_other_memory_and_of_none_bring_nothing_and_write_nowhere() {
        let liar = Liar::new();
        let stage = &liar.stage;
        let own = stage.at_b.register(vec![7; 4096]).unwrap().remote_key().unwrap();
        let secret = stage.at_a.register_with(vec![7; 4096], Access::WRITE).unwrap();
        let mut damaged = stage.local(vec![7; 4096]).remote_key().unwrap();
        damaged[30] ^= 1;
        let closed = stage.local(vec![7; 4096]);
        let gone = closed.remote_key().unwrap();
        closed.close().unwrap();
        let keys = [own, secret.remote_key().unwrap(), damaged, gone, Vec::new(), vec![0; 300]];
        for (token, key) in (1..).zip(keys) {
            let memory = liar.untouched();
            let failed = match liar.announced(token, 4096, &key).receive_into(&memory, 0..4096) {
                Err(not) => {
                    assert!(matches!(not.error, PostError::Correct(_)), "{token}: {not}");
                    not.error.status()
                }
                Ok(taken) => {
                    let taken = pending(Ok(taken));
                    let ended = RefCell::new(None);
                    assert!(stage.until(|| {
                        *ended.borrow_mut() = stage.b.test(&taken);
                        ended.borrow().is_some()
                    }));
                    ended.into_inner().unwrap().unwrap_err().status()
                }
            };
            assert!(failed != Status::Again, "{token}");
            stage.settle();
            assert_untouched(memory);
        }
        assert!(stage.ba.error().is_none(), "nothing of this ends a connection");
    }

    fn sender_whose_region_is_shorter_than_announced_serves_nothing() {
        let liar = Liar::new();
        let short = liar.stage.local(vec![7; 1000]);
        let memory = liar.untouched();
        let announcement = liar.announced(1, 4096, &short.remote_key().unwrap());
        let not = announcement.receive_into(&memory, 0..4096).unwrap_err();
        assert_eq!(not.error.status(), Status::OutOfRange);
        // The beginning of the message has arrived and can be received.
        let taken = not.announcement.receive_into(&memory, 10..1010).unwrap();
        let taken = pending(Ok(taken));
        assert!(liar.stage.until(|| liar.stage.b.test(&taken) == Some(Ok(0))));
        let got = memory.into_buffer().unwrap();
        assert!(got[10..1010].iter().all(|byte| *byte == 7));
        assert!(got[..10].iter().chain(&got[1010..]).all(|byte| *byte == 0xee));
    }

    fn receive_beyond_announced_length_is_refused() {
        let liar = Liar::new();
        let longer = liar.stage.local(vec![7; 1000]);
        let memory = liar.untouched();
        let announcement = liar.announced(1, 100, &longer.remote_key().unwrap());
        let not = announcement.receive_into(&memory, 0..101).unwrap_err();
        assert_eq!(not.error.status(), Status::OutOfRange);
        drop(not);
        liar.stage.settle();
        assert_untouched(memory);
    }

    fn unknown_rts_cannot_be_canceled_and_its_finish_is_counted() {
        let liar = Liar::new();
        let stage = &liar.stage;
        liar.says(WITHDRAW, 1, &[]);
        liar.says(REPLY, 1 << 24, &[0; 12]);
        stage.settle();
        assert_eq!(stage.b.counters().malformed, 1, "of the answer to nothing");
        let announcement = liar.announced(4, 100, &[1; 80]);
        liar.says(WITHDRAW, 4, &[]);
        stage.settle();
        let memory = liar.untouched();
        let taken = pending(Ok(announcement.receive_into(&memory, 0..100).unwrap()));
        let ended = stage.b.test(&taken).expect("it has ended").unwrap_err();
        assert!(matches!(ended, CompletionError::Canceled(_)), "{ended}");
        assert_untouched(memory);
    }

    fn answer_of_receiver_completes_one_message_once() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let came = kept_at_b(&stage, 5);
        let long = vec![3; stage.ab.max_message().unwrap() + 1];
        let requests = [0, 1].map(|header| pending(stage.ab.send(5, header, &long)));
        assert!(stage.until(|| came.borrow().len() == 2));
        came.borrow_mut().remove(0).refuse();
        let ended = stage.end_of(&requests[0]).expect("it was refused").unwrap_err();
        assert!(matches!(ended, CompletionError::Refused(_)), "{ended}");
        assert_eq!(stage.a.test(&requests[1]), None, "that one was not");
        came.borrow_mut().clear();
        assert!(stage.end_of(&requests[1]).is_some_and(|ended| ended.is_err()));
        stage.settle();
        assert_eq!((stage.a.counters().malformed, stage.b.counters().malformed), (0, 0));
    }

    fn senders_cancel_waits_for_end_of_late_transfer() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let came = kept_at_b(&stage, 5);
        let long = vec![3; stage.ab.max_message().unwrap() + 1];
        let sent = pending(stage.ab.send(5, 0, &long));
        assert!(stage.until(|| !came.borrow().is_empty()));
        stage.world.hold(Slot::Get);
        let memory = stage.at_b.register_transient(vec![0; long.len()]).unwrap();
        let announcement = came.borrow_mut().pop().unwrap();
        let taken = pending(Ok(announcement.receive_into(&memory, 0..long.len()).unwrap()));
        stage.a.cancel(&sent).unwrap();
        stage.settle();
        assert_eq!((stage.a.test(&sent), stage.b.test(&taken)), (None, None));
        let not = memory.into_buffer().unwrap_err();
        assert_eq!(not.error.status(), Status::Busy);
        stage.world.forget_rules();
        stage.world.release_held();
        assert!(stage.until(|| stage.b.test(&taken) == Some(Ok(0))));
        assert_eq!(stage.end_of(&sent), Some(Ok(0)));
        assert!(not.region.into_buffer().unwrap()[..] == long);
        stage.assert_no_faults();
    }

    fn a_stranger_that_announces_without_end_is_refused_beyond_a_bound() {
        let liar = Liar::new();
        let payload = announce(5, 100, &[1; 8]);
        for token in 1..=65_600u64 {
            liar.says(ANNOUNCE, token, &payload);
            if token % 64 == 0 {
                let _ = liar.stage.b.progress();
            }
        }
        assert!(liar.stage.until(|| liar.came.borrow().len() >= 65_536));
        liar.stage.settle();
        assert_eq!(liar.came.borrow().len(), 65_536);
    }
    fn keys_of_queued_operations_are_bounded_in_bytes() {
        let liar = Liar::new();
        let payload = announce(5, 100, &vec![1; 32 << 10]);
        for token in 1..=1100u64 {
            liar.says(ANNOUNCE, token, &payload);
            let _ = liar.stage.b.progress();
        }
        liar.stage.settle();
        assert_eq!(liar.came.borrow().len(), 1024);
        // A finished transfer reduces the count of rendezvous messages.
        let _ = liar.came.borrow_mut().split_off(1000);
        liar.says(ANNOUNCE, 2000, &payload);
        liar.stage.settle();
        assert_eq!(liar.came.borrow().len(), 1001);
    }

    fn receiver_that_closes_in_mid_receive_notifies_sender() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let came = kept_at_b(&stage, 5);
        let long = vec![3; stage.ab.max_message().unwrap() + 1];
        let sent = pending(stage.ab.send(5, 0, &long));
        assert!(stage.until(|| !came.borrow().is_empty()));
        stage.world.hold(Slot::Get);
        let memory = stage.at_b.register_transient(vec![0; long.len()]).unwrap();
        let announcement = came.borrow_mut().pop().unwrap();
        let taken = pending(Ok(announcement.receive_into(&memory, 0..long.len()).unwrap()));
        let lost = stage.b.close(Duration::ZERO).unwrap_err();
        assert_eq!(lost.losses.iter().map(|loss| loss.operations).sum::<usize>(), 1, "{lost}");
        let ended = stage.end_of(&sent).expect("it is told").unwrap_err();
        assert!(matches!(ended, CompletionError::Refused(_)), "{ended}");
        drop(taken);
    }

    fn receive_abandoned_by_receiver_is_not_reported_as_canceled_by_sender() {
        for wanted_back in [false, true] {
            let stage = Stage::new(vec![Lane::whole("all")]);
            let came = kept_at_b(&stage, 5);
            let long = vec![3; stage.ab.max_message().unwrap() + 1];
            let sent = pending(stage.ab.send(5, 0, &long));
            assert!(stage.until(|| !came.borrow().is_empty()));
            stage.world.hold(Slot::Get);
            let memory = stage.at_b.register_transient(vec![0; long.len()]).unwrap();
            let announcement = came.borrow_mut().pop().unwrap();
            let taken = pending(Ok(announcement.receive_into(&memory, 0..long.len()).unwrap()));
            if wanted_back {
                stage.a.cancel(&sent).unwrap();
                stage.settle();
            }
            let _ = stage.ba.close(Close::Cancel).unwrap();
            let ended = stage.end_of(&sent).expect("it is told").unwrap_err();
            assert!(matches!(ended, CompletionError::Refused(_)), "{ended}");
            assert!(stage.b.test(&taken).is_some_and(|taken| taken.is_err()));
        }
    }

    fn receive_after_end_of_sender_is_canceled_and_not_invalid() {
        let stage = Stage::new(vec![Lane::whole("all").synchronous()]);
        let came = kept_at_b(&stage, 5);
        let long = vec![3; stage.ab.max_message().unwrap() + 1];
        let sent = pending(stage.ab.send(5, 0, &long));
        assert!(stage.until(|| !came.borrow().is_empty()));
        stage.world.rule(Rule::every(Slot::Get, Act::Refuse(Status::KeyRejected)));
        let memory = stage.at_b.register_transient(vec![0xee; long.len()]).unwrap();
        let announcement = came.borrow_mut().pop().unwrap();
        let taken = pending(Ok(announcement.receive_into(&memory, 0..long.len()).unwrap()));
        let ended = stage.b.test(&taken).expect("it has ended").unwrap_err();
        assert!(matches!(ended, CompletionError::Canceled(_)), "{ended}");
        assert_untouched(memory);
        let ended = stage.end_of(&sent).expect("it is told").unwrap_err();
        assert!(matches!(ended, CompletionError::Refused(_)), "{ended}");
    }

    fn peers_message_decides_although_lane_reports_its_death_first() {
        let stage = Stage::new(vec![Lane::messages("wire"), Lane::memory("memory").synchronous()]);
        let came = kept_at_b(&stage, 5);
        let long = vec![3; stage.ab.max_message().unwrap() + 1];
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 64]);
        let sent = pending(stage.ab.send(5, 0, &long));
        assert!(stage.until(|| !came.borrow().is_empty()));
        came.borrow_mut().clear();
        let _ = stage.b.progress();
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::PeerFailed)));
        for _ in 0..2 {
            let failed = stage.ab.put(&local, 0..64, &key, 0).unwrap_err();
            assert!(matches!(failed, PostError::Reconnect(_)), "{failed}");
        }
        let ended = stage.end_of(&sent).expect("it was told").unwrap_err();
        assert!(matches!(ended, CompletionError::Refused(_)), "{ended}");
        let [from, to] = [0, 1].map(|nth| stage.world.interface(nth, "wire"));
        stage.world.break_endpoints(from, to, Status::PeerFailed, "it died");
        assert!(stage.until(|| stage.ab.error().is_some()));
    }

    fn rts_of_dropped_or_closed_endpoint_is_not_read() {
        for dropped in [false, true] {
            let stage = Stage::new(vec![Lane::whole("all").over_circuits()]);
            let came = kept_at_b(&stage, 5);
            let another = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let long = vec![3; stage.ab.max_message().unwrap() + 1];
            let sent = pending(another.send(5, 0, &long));
            assert!(stage.until(|| !came.borrow().is_empty()));
            if dropped {
                drop(another);
            } else {
                let _ = another.close(Close::Cancel).unwrap();
            }
            let ended = stage.end_of(&sent).expect("with its endpoint").unwrap_err();
            assert!(matches!(ended, CompletionError::Canceled(_)), "{ended}");
            stage.settle();
            let memory = stage.at_b.register_transient(vec![0xee; long.len()]).unwrap();
            let announcement = came.borrow_mut().pop().unwrap();
            let taken = pending(Ok(announcement.receive_into(&memory, 0..long.len()).unwrap()));
            let ended = stage.b.test(&taken).expect("it has ended").unwrap_err();
            assert!(matches!(ended, CompletionError::Canceled(_)), "{ended}");
            assert!(stage.world.calls(Slot::Get).is_empty(), "the key would end the connection");
            assert_eq!((stage.a.counters().malformed, stage.b.counters().malformed), (0, 0));
            assert_untouched(memory);
            stage.assert_no_faults();
        }
    }

    fn withdrawn_messages_hold_memory_up_to_a_bound() {
        const MOST: usize = 1024;
        let stage = Stage::new(vec![Lane::whole("all").over_circuits()]);
        let came = kept_at_b(&stage, 5);
        let another = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let len = stage.ab.max_message().unwrap() + 1;
        let [held, free] = [(); 2].map(|()| stage.local(vec![3; len]));
        for nth in 0..=MOST {
            let region = if nth < MOST { &held } else { &free };
            let _ = pending(another.send_regions(5, 0, &[(region, 0..len)]));
            assert!(stage.until(|| came.borrow().len() == nth + 1));
        }
        drop(another);
        free.close().unwrap();
        let region = held.close().unwrap_err().region;
        stage.settle();
        came.borrow_mut().clear();
        stage.settle();
        region.close().unwrap();
        assert_eq!((stage.a.counters().malformed, stage.b.counters().malformed), (0, 0));
        stage.assert_no_faults();
    }

    fn memory_of_withdrawn_message_is_registered_until_answer() {
        for takes in [true, false] {
            let stage = Stage::new(vec![Lane::whole("all").over_circuits()]);
            let came = kept_at_b(&stage, 5);
            let another = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let len = stage.ab.max_message().unwrap() + 1;
            let region = stage.local(vec![3; len]);
            let sent = pending(another.send_regions(5, 0, &[(&region, 0..len)]));
            assert!(stage.until(|| !came.borrow().is_empty()));
            drop(another);
            let ended = stage.end_of(&sent).expect("with its endpoint").unwrap_err();
            assert!(matches!(ended, CompletionError::Canceled(_)), "{ended}");
            let NotClosed { error, region, .. } = region.close().unwrap_err();
            assert_eq!(error.status(), Status::Busy);
            let memory = stage.at_b.register_transient(vec![0xee; len]).unwrap();
            let announcement = came.borrow_mut().pop().unwrap();
            // The receiver has not processed the withdrawal yet.
            match takes {
                true => {
                    let taken = announcement.receive_into(&memory, 0..len).unwrap();
                    assert_eq!(stage.b.finish(taken), Ok(0));
                    assert_eq!(memory.to_vec(0..len).unwrap(), vec![3; len]);
                }
                false => drop(announcement),
            }
            stage.settle();
            region.close().unwrap();
            assert_eq!((stage.a.counters().malformed, stage.b.counters().malformed), (0, 0));
            stage.assert_no_faults();
        }
    }
}
