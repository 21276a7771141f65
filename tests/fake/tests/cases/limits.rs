//! Tests of endpoints whose limits are lower than those of their module.

use crate::cases;
use crate::stage::{Stage, pending};
use tieline::{Endpoint, PostError, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::abi::EndpointLimits;

const LESS: EndpointLimits = EndpointLimits {
    max_short: 16,
    max_packed: 80,
    max_put: 10,
    max_get: 7,
    ..EndpointLimits::empty()
};

fn narrow() -> Lane {
    Lane { limits: LESS, ..Lane::whole("all") }
}

/// Posts messages of 0 to 80 bytes, which is the limit, and a put and a get of several pieces. The fake provider records a fault
/// for each operation that is too long.
#[track_caller]
fn everything_fits(stage: &Stage) {
    assert_eq!(stage.ab.max_message().unwrap(), 80);
    let seen = stage.log_at_b(5);
    for len in 0..=80 {
        let _ = stage.ended(stage.ab.send(5, len as u64, &vec![1; len])).unwrap();
    }
    let error = stage.ab.send(5, 0, &[1; 81]).unwrap_err();
    assert!(matches!(error, PostError::Correct(_)));
    assert_eq!(error.status(), Status::TooLarge);
    assert_eq!(
        stage.ab.send_packed(5, 0, 81, |out| out.len()).unwrap_err().status(),
        Status::TooLarge
    );
    assert!(stage.until(|| seen.borrow().len() == 81));
    let (target, key) = stage.target(vec![0; 64]);
    let local = stage.local((0..64).collect());
    let before = [Slot::Put, Slot::Get].map(|slot| stage.world.calls(slot).len());
    let _ = stage.ended(stage.ab.put(&local, 0..64, &key, 0)).unwrap();
    assert_eq!(target.to_vec(0..64).unwrap(), local.to_vec(0..64).unwrap());
    let back = stage.local(vec![0; 64]);
    let _ = stage.ended(stage.ab.get(&back, 0..64, &key, 0)).unwrap();
    assert_eq!(back.to_vec(0..64).unwrap(), local.to_vec(0..64).unwrap());
    let pieces = [Slot::Put, Slot::Get].map(|slot| stage.world.calls(slot).len());
    assert_eq!([pieces[0] - before[0], pieces[1] - before[1]], [7, 10]);
    stage.assert_no_faults();
}

cases! {
    fn the_lesser_of_module_and_endpoint_counts_for_everything() {
        for lane in [narrow(), narrow().synchronous(), narrow().over_circuits()] {
            everything_fits(&Stage::new(vec![lane]));
        }
    }

    /// The core reads the limits again when the endpoint is connected, because an endpoint of a circuit may not know its limits
    /// earlier.
    fn endpoint_limits_are_read_after_connect_and_when_connected() {
        for (lane, times) in [(narrow(), 1), (narrow().over_circuits(), 2)] {
            let stage = Stage::new(vec![lane]);
            let asked = |stage: &Stage| {
                let at = stage.world.interface(0, "all");
                stage.world.calls(Slot::Limits).iter().filter(|call| call.interface == at).count()
            };
            let before = asked(&stage);
            let (_target, key) = stage.target(vec![0; 64]);
            for _ in 0..10 {
                let _ = stage.ended(stage.ab.put_bytes(&[1; 64], &key, 0)).unwrap();
                let _ = stage.ended(stage.ab.send(5, 0, &[1; 50])).unwrap();
            }
            assert_eq!((before, asked(&stage)), (times, times));
        }
    }

    fn limits_known_only_after_connection_are_used() {
        for max_packed in [100, 63] {
            let limits = EndpointLimits { max_packed, ..LESS };
            let late = Lane { limits, ..Lane::whole("late").over_circuits() };
            let stage = Stage::new(vec![Lane { priority: 9, ..Lane::messages("am") }, late]);
            for nth in [0, 1] {
                let at = stage.world.interface(nth, "late");
                stage.world.rule(Rule::next(Slot::Limits, Act::Refuse(Status::Again)).at(at));
            }
            let (target, key) = stage.target(vec![0; 64]);
            assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 64], &key, 0)), Ok(0));
            assert_eq!(target.to_vec(0..64).unwrap(), [1; 64]);
            assert!(stage.world.was_refused(Slot::Limits), "nobody asked while it formed");
            // A limit that is too low for the library's own messages excludes the lane.
            let used = max_packed == 100;
            let path = if used { "fake:late/late" } else { "emulated over fake:am/am" };
            assert_eq!(&*key.path(), path);
            assert_eq!(stage.world.calls(Slot::Put).len(), if used { 7 } else { 0 });
            stage.assert_no_faults();
        }
    }

    fn one_that_says_nothing_carries_what_its_module_does() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        assert_eq!(stage.ab.max_message().unwrap(), 2048);
        let _ = stage.ended(stage.ab.send(5, 0, &[1; 2048])).unwrap();
        stage.assert_no_faults();
    }

    fn endpoint_with_lower_packed_limit_reports_that_limit() {
        let limits = EndpointLimits { max_packed: 64, ..EndpointLimits::empty() };
        for lane in [Lane::whole("all"), Lane::whole("all").over_circuits()] {
            let stage = Stage::new(vec![Lane { limits, max_short: 128, ..lane }]);
            let local = stage.local(vec![1; 100]);
            assert_eq!(stage.ab.max_message().unwrap(), 64);
            let seen = stage.log_at_b(5);
            let too_long = [
                stage.ab.send(5, 0, &[1; 65]).unwrap_err(),
                stage.ab.send_packed(5, 0, 65, |out| out.len()).map(drop).unwrap_err(),
                stage.ab.send_regions(5, 0, &[(&local, 0..65)]).unwrap_err(),
            ];
            assert!(too_long.iter().all(|error| error.status() == Status::TooLarge), "{too_long:?}");
            assert_eq!(stage.ended(stage.ab.send(5, 1, &[1; 64])), Ok(0));
            assert!(stage.until(|| *seen.borrow() == [1]));
            stage.assert_no_faults();
        }
    }

    /// The length of a message that waits for a connection was checked against the module's limit.
    fn queued_message_too_long_for_endpoint_fails_as_too_large() {
        let stage = Stage::new(vec![narrow()]);
        let ab = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::Again)));
        let long = pending(ab.send(5, 0, &[1; 500]));
        let short = pending(ab.send(5, 1, &[1; 80]));
        stage.world.forget_rules();
        let ended = stage.end_of(&long).unwrap().unwrap_err();
        assert_eq!(ended.status(), Status::TooLarge);
        assert_eq!(stage.end_of(&short), Some(Ok(0)), "the endpoint goes on");
        assert!(ab.error().is_none());
        stage.assert_no_faults();
    }

    fn an_endpoint_that_cannot_carry_the_librarys_own_messages_is_not_used() {
        let limits = EndpointLimits { max_packed: 63, ..EndpointLimits::empty() };
        let narrow = Lane { priority: 9, limits, ..Lane::messages("narrow") };
        for narrow in [narrow.clone(), narrow.over_circuits()] {
            let stage = Stage::new(vec![narrow, Lane::messages("wide")]);
            assert_eq!(stage.ab.message_path(), "fake:wide/wide");
            stage.settle();
            for nth in [0, 1] {
                let open = stage.world.interface(nth, "narrow");
                let calls = stage.world.calls_at(open);
                let count = |slot| calls.iter().filter(|call| **call == slot).count();
                let closed = stage.world.calls(Slot::CloseEndpoint);
                let closed = closed.iter().filter(|call| call.interface == open).count();
                assert!(count(Slot::Connect) > 0, "nobody tried");
                assert_eq!(count(Slot::Connect), closed, "what was made is closed");
            }
            stage.assert_no_faults();
        }
    }

    fn an_endpoint_that_cannot_carry_them_carries_no_datagrams() {
        const WIREUP: u32 = 0xf007;
        let lanes = vec![Lane::messages("am").on_other_provider(), Lane::memory("rma").over_circuits()];
        let stage = Stage::with(lanes, &[("TIELINE_CONNECT", "other")]);
        let target = stage.at_b.register(vec![0; 64]).unwrap();
        let at = stage.world.interface(0, "am");
        let calls = |slot: Slot| {
            let mut calls = stage.world.calls(slot);
            calls.retain(|call| call.interface == at);
            calls
        };
        let count = |slot| calls(slot).len();
        let before = [Slot::Connect, Slot::CloseEndpoint].map(count);
        let limits = EndpointLimits { max_packed: 63, ..EndpointLimits::empty() };
        stage.world.change("am", |lane| lane.limits = limits);
        let _key = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
        assert!(stage.until(|| count(Slot::Connect) > before[0]), "no datagram was to go over messages");
        stage.settle();
        assert_eq!(count(Slot::Connect) - before[0], count(Slot::CloseEndpoint) - before[1]);
        let sent = [Slot::Short, Slot::Packed].map(calls).concat();
        assert!(sent.iter().all(|call| call.id != WIREUP), "{sent:?}");
        stage.assert_no_faults();
    }

    fn a_packer_that_claims_more_than_it_got_sends_nothing_and_spoils_nothing() {
        for len in [8, 100] {
            let stage = Stage::new(vec![Lane::whole("all")]);
            let seen = stage.log_at_b(5);
            let fresh = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let claim = |ab: &Endpoint, when| {
                let before = stage.a.pending();
                let error = ab.send_packed(5, 66, len, |out| out.len() + 1).expect_err(when);
                assert!(matches!(error, PostError::Correct(_)), "{when}: {error}");
                assert_eq!(error.status(), Status::Invalid, "{when}");
                assert_eq!(stage.a.pending(), before, "{when}");
            };
            claim(&stage.ab, "at once");
            // The lane returns `Again`, so messages are queued.
            let full = [Slot::Short, Slot::Packed];
            full.iter().for_each(|slot| stage.world.rule(Rule::every(*slot, Act::Refuse(Status::Again))));
            claim(&stage.ab, "where there is no room");
            let queued = pending(stage.ab.send_packed(5, 1, len, |out| out.len()));
            claim(&stage.ab, "behind a queue");
            stage.world.forget_rules();
            assert_eq!(stage.end_of(&queued), Some(Ok(0)));
            stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::Again)));
            claim(&fresh, "without a connection");
            stage.world.forget_rules();

            stage.settle();
            assert_eq!(stage.a.pending(), 0);
            for (header, ab) in [(2, &stage.ab), (3, &fresh)] {
                assert_eq!(stage.ended(ab.send_packed(5, header, len, |out| out.len())), Ok(0));
            }
            assert!(stage.until(|| seen.borrow().len() == 3));
            stage.settle();
            // Messages of two endpoints have no order, so the test sorts them.
            seen.borrow_mut().sort_unstable();
            assert_eq!((&*seen.borrow(), stage.a.pending()), (&vec![1, 2, 3], 0));
            stage.assert_no_faults();
        }
    }
}
