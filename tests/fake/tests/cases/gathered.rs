//! Tests of messages whose payload a transport gathers from the application's memory.

use crate::cases;
use crate::stage::{Stage, pending, posts_until_again};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::Status;
use tieline_fake::{Act, Lane, Rule, Slot};

fn lane() -> Lane {
    Lane { max_zcopy: 1000, ..Lane::whole("all") }
}

type Came = (u64, Vec<u8>);

/// Records the messages with id 5 at `b`, with the headers of the messages.
fn told(stage: &Stage) -> Rc<RefCell<Vec<Came>>> {
    let told = Rc::new(RefCell::new(Vec::new()));
    let seen = told.clone();
    let note = move |message: &tieline::Message<'_>| {
        seen.borrow_mut().push((message.header(), message.payload().to_vec()));
    };
    stage.b.on_message(5, note).unwrap();
    told
}

cases! {
    fn gathered_pieces_are_not_copied_and_kept_until_completion() {
        let stage = Stage::new(vec![lane()]);
        let told = told(&stage);
        let (one, two) = (stage.local(vec![1; 64]), stage.local(vec![2; 64]));
        stage.world.hold(Slot::Zcopy);
        let sent = pending(stage.ab.send_regions(5, 7, &[(&one, 4..10), (&two, 0..0), (&two, 8..64)]));
        stage.settle();
        assert_eq!(stage.world.calls(Slot::Packed).len(), 0);
        let [call] = stage.world.calls(Slot::Zcopy)[..] else { panic!("one call") };
        assert_eq!((call.id, call.len), (5, 62));
        assert_eq!(told.borrow()[..], [(7, [&[1; 6][..], &[2; 56]].concat())]);
        assert!(stage.a.test(&sent).is_none(), "its memory is in use");
        let two = two.close().unwrap_err();
        assert_eq!(two.error.status(), Status::Busy);
        stage.world.release_held();
        assert_eq!(stage.end_of(&sent), Some(Ok(0)));
        two.region.close().unwrap();
        stage.assert_no_faults();
    }

    fn messages_stay_in_order_whichever_way_each_of_them_goes() {
        let stage = Stage::new(vec![lane().late(3)]);
        let seen = stage.log_at_b(5);
        let local = stage.local(vec![1; 1500]);
        let piece = |at: usize| (&local, at..at + 9);
        for n in 0..40 {
            if n % 7 == 3 {
                stage.world.rule(Rule::next(Slot::Zcopy, Act::Refuse(Status::Again)));
            }
            let posted = match n % 4 {
                0 => stage.ab.send(5, n, &[0; 9]),
                1 => stage.ab.send_regions(5, n, &[piece(0), piece(9), piece(100)]),
                // The message is longer than the lane's limit for gathered messages, and has more pieces.
                2 => stage.ab.send_regions(5, n, &[(&local, 0..1500)]),
                _ => stage.ab.send_regions(5, n, &[0, 20, 40, 60, 80].map(piece)),
            };
            let _ = posted.unwrap();
        }
        let flushed = pending(stage.ab.flush());
        assert_eq!(stage.end_of(&flushed), Some(Ok(0)));
        stage.settle();
        assert_eq!(seen.borrow()[..], (0..40).collect::<Vec<u64>>());
        assert_eq!(stage.world.calls(Slot::Packed).len(), 20);
        stage.assert_no_faults();
    }

    fn no_bytes_arrive_as_a_message_whether_a_lane_gathers_or_not() {
        for max_zcopy in [0, 1000] {
            let stage = Stage::new(vec![Lane { max_zcopy, ..lane() }]);
            let (told, local) = (told(&stage), stage.local(vec![1; 8]));
            assert_eq!(stage.ended(stage.ab.send_regions(5, 1, &[])), Ok(0));
            assert_eq!(stage.ended(stage.ab.send_regions(5, 2, &[(&local, 3..3)])), Ok(0));
            stage.settle();
            assert_eq!(told.borrow()[..], [(1, vec![]), (2, vec![])]);
            stage.assert_no_faults();
        }
    }

    fn lists_of_pieces_count_for_what_may_wait() {
        let settings = [("TIELINE_QUEUE_BYTES", "64k")];
        let stage = Stage::with(vec![Lane { max_zcopy: 0, ..lane() }], &settings);
        let local = stage.local(vec![1; 1000]);
        let pieces: Vec<_> = (0..1000).map(|at| (&local, at..at + 1)).collect();
        stage.world.rule(Rule::every(Slot::Packed, Act::Refuse(Status::Again)));
        let (taken, requests) = posts_until_again(10, || stage.ab.send_regions(5, 0, &pieces));
        assert!(taken.is_some(), "10 lists of 1000 pieces wait, and never Again");
        stage.world.forget_rules();
        for request in &requests {
            assert_eq!(stage.end_of(request), Some(Ok(0)));
        }
        assert_eq!(stage.ended(stage.ab.send_regions(5, 0, &pieces)), Ok(0));
        stage.assert_no_faults();
    }

    fn one_that_fails_says_so_and_the_flush_that_covers_it_too() {
        let stage = Stage::new(vec![lane()]);
        let (seen, local) = (stage.log_at_b(5), stage.local(vec![1; 64]));
        stage.world.rule(Rule::next(Slot::Zcopy, Act::FailLater(Status::Io)));
        drop(pending(stage.ab.send_regions(5, 1, &[(&local, 0..64)])));
        let flushed = pending(stage.ab.flush());
        assert_eq!(stage.end_of(&flushed).unwrap().unwrap_err().status(), Status::Io);
        assert_eq!(stage.ended(stage.ab.send_regions(5, 2, &[(&local, 0..64)])), Ok(0));
        stage.settle();
        assert_eq!(seen.borrow()[..], [2]);
        stage.assert_no_faults();
    }

    fn gathered_memory_of_failed_endpoint_is_retained_until_close() {
        let stage = Stage::new(vec![lane()]);
        let local = stage.local(vec![1; 64]);
        stage.world.hold(Slot::Zcopy);
        let sent = pending(stage.ab.send_regions(5, 1, &[(&local, 0..64)]));
        stage.world.break_endpoints(0, 1, Status::PeerFailed, "gone");
        let ended = stage.end_of(&sent).unwrap().unwrap_err();
        assert_eq!(ended.status(), Status::PeerFailed);
        stage.assert_no_faults();
    }
}
