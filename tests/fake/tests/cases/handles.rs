//! Tests of key handles: their resolution, their bounds, and forged answers.

use crate::cases;
use crate::progress_thread::{comes, with_threads};
use crate::stage::{Stage, context, pending};
use tieline::{Endpoint, KeyHandle, KeyLookup, Outcome, PostError, RemoteKey, Request, Status};
use tieline_fake::{Lane, Slot};

const REPLY: u32 = 0xf004;
const KEY: u32 = 0xf00d;
const KEY_IS: u32 = 0xf00e;

#[track_caller]
fn asked(lookup: Result<KeyLookup, PostError>) -> Request {
    match lookup.unwrap() {
        KeyLookup::Asked(Outcome::Pending(request)) => request,
        other => panic!("nobody is asked: {other:?}"),
    }
}

/// Looks up the key of a handle until the lookup completes, and returns the key.
fn resolved(stage: &Stage, over: &Endpoint, handle: KeyHandle) -> Result<RemoteKey, Status> {
    loop {
        match over.key_by_handle(handle).unwrap() {
            KeyLookup::Known(key) => return Ok(key),
            KeyLookup::Asked(asked) => {
                let _ = stage.finish(asked).map_err(|error| error.status())?;
            }
        }
    }
}

fn questions(stage: &Stage) -> usize {
    stage.world.calls(Slot::Short).iter().filter(|call| call.id == KEY).count()
}

fn never_given() -> KeyHandle {
    KeyHandle::from_bytes([0x5a; 8])
}

cases! {
    fn key_is_resolved_by_handle_with_one_request() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let target = stage.at_b.register(vec![0; 64]).unwrap();
        let handle = target.handle().unwrap();
        assert_eq!(target.handle().unwrap(), handle);
        let carried = KeyHandle::from_bytes(handle.to_bytes());
        for byte in [1, 2, 3] {
            let key = resolved(&stage, &stage.ab, carried).unwrap();
            assert_eq!((key.len(), key.path().as_str()), (64, "fake:all/all"));
            let _ = stage.ended(stage.ab.put_bytes(&[byte; 8], &key, 8)).unwrap();
            assert_eq!(target.to_vec(8..16).unwrap(), [byte; 8]);
        }
        assert_eq!(questions(&stage), 1);
        stage.assert_no_faults();
    }

    fn the_progress_thread_answers_while_the_application_computes() {
        let stage = with_threads();
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let handle = target.handle().unwrap();
        let question = asked(stage.ab.key_by_handle(handle));
        assert!(comes(|| { let _ = stage.a.progress(); stage.a.test(&question).is_some() }), "nobody answered");
        assert_eq!(stage.a.test(&question), Some(Ok(0)));
        let Ok(KeyLookup::Known(key)) = stage.ab.key_by_handle(handle) else { panic!("it was told") };
        let put = pending(stage.ab.put_bytes(&[7; 8], &key, 0));
        assert!(comes(|| { let _ = stage.a.progress(); stage.a.test(&put).is_some() }));
        assert_eq!(target.to_vec(0..8).unwrap(), [7; 8]);
    }

    /// The test uses a handle of a region that was closed, and a handle that never existed.
    fn handle_of_no_region_is_refused_and_not_reported_by_flush() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let closed = target.handle().unwrap();
        target.close().unwrap();
        for handle in [closed, never_given()] {
            let question = asked(stage.ab.key_by_handle(handle));
            let flush = pending(stage.ab.flush());
            let error = stage.end_of(&question).unwrap().unwrap_err();
            assert_eq!(error.status(), Status::KeyRejected);
            assert!(error.to_string().contains("its region was closed or dropped"), "{error}");
            assert_eq!(stage.end_of(&flush), Some(Ok(0)));
            drop(asked(stage.ab.key_by_handle(handle)));
            stage.settle();
            assert_eq!(stage.ended(stage.ab.flush()).unwrap(), 0, "nobody asked how that ended");
        }
        assert!(stage.ab.error().is_none());
        assert_eq!((stage.a.counters().malformed, stage.b.counters().malformed), (0, 0));
    }

    fn a_region_that_is_being_closed_has_no_handle_any_more() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let (handle, clone) = (target.handle().unwrap(), target.clone());
        let not_closed = target.close().unwrap_err();
        assert_eq!(clone.handle().unwrap_err().status(), Status::Closed);
        assert_eq!(resolved(&stage, &stage.ab, handle).map(drop), Err(Status::KeyRejected));
        drop(clone);
        not_closed.region.close().unwrap();
        let lent = stage.at_b.register_transient(vec![0; 8]).unwrap();
        assert_eq!(lent.handle().unwrap_err().status(), Status::Invalid);
    }

    fn cached_key_is_not_returned_after_first_refusal() {
        for lanes in [vec![Lane::messages("all")], vec![Lane::whole("all")], vec![Lane::whole("all").synchronous()]] {
            let stage = Stage::new(lanes);
            let (one, other) = (stage.at_b.register(vec![0; 8]).unwrap(), stage.at_b.register(vec![0; 8]).unwrap());
            let handles = [one.handle().unwrap(), other.handle().unwrap()];
            let [key, _] = handles.map(|handle| resolved(&stage, &stage.ab, handle).unwrap());
            let before = questions(&stage);
            one.close().unwrap();
            assert!(matches!(stage.ab.key_by_handle(handles[0]), Ok(KeyLookup::Known(_))), "nobody has said so");
            let refused = stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)).unwrap_err();
            assert_eq!(refused.status(), Status::KeyRejected);
            assert_eq!(resolved(&stage, &stage.ab, handles[0]).map(drop), Err(Status::KeyRejected));
            let key = resolved(&stage, &stage.ab, handles[1]).unwrap();
            assert_eq!(questions(&stage), before + 2, "both were asked for again");
            let _ = stage.ended(stage.ab.put_bytes(&[2; 8], &key, 0)).unwrap();
            assert_eq!(other.to_vec(0..8).unwrap(), [2; 8]);
        }
    }

    fn a_get_that_is_refused_for_its_key_says_so_too() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let handle = target.handle().unwrap();
        let key = resolved(&stage, &stage.ab, handle).unwrap();
        target.close().unwrap();
        let local = stage.local(vec![0; 8]);
        let refused = stage.ended(stage.ab.get(&local, 0..8, &key, 0)).unwrap_err();
        assert_eq!(refused.status(), Status::KeyRejected);
        assert_eq!(resolved(&stage, &stage.ab, handle).map(drop), Err(Status::KeyRejected));
    }

    fn refusal_by_progress_thread_is_handled_too() {
        let stage = with_threads();
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let handle = target.handle().unwrap();
        let ended = |request: &Request| {
            assert!(comes(|| { let _ = stage.a.progress(); stage.a.test(request).is_some() }));
            stage.a.test(request).unwrap().map_err(|error| error.status())
        };
        assert_eq!(ended(&asked(stage.ab.key_by_handle(handle))), Ok(0));
        let Ok(KeyLookup::Known(key)) = stage.ab.key_by_handle(handle) else { panic!("it was told") };
        target.close().unwrap();
        assert_eq!(ended(&pending(stage.ab.put_bytes(&[1; 8], &key, 0))), Err(Status::KeyRejected));
        assert_eq!(ended(&asked(stage.ab.key_by_handle(handle))), Err(Status::KeyRejected));
    }

    fn only_responder_resolves_handle() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let third = context(stage.world, &[]);
        let c = third.worker().unwrap();
        let ca = c.connect(&stage.a.address().unwrap()).unwrap();
        let Outcome::Pending(met) = ca.flush_messages().unwrap() else { panic!("a round trip at once") };
        assert!(stage.until(|| { let _ = c.progress(); c.test(&met).is_some() }));
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let bait = stage.at_b.register(vec![0; 16]).unwrap().remote_key().unwrap();
        let question = asked(stage.ab.key_by_handle(target.handle().unwrap()));
        let token = stage.world.calls(Slot::Short).last().expect("a question").cookie;
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        let stranger = stage.world.interface(2, "all");
        let malformed = stage.a.counters().malformed;
        stage.world.forge(stranger, a, KEY_IS, token, &bait);
        // The test forges keys from the right peer for requests that were never sent, and an answer without a key.
        stage.world.forge(b, a, KEY_IS, token ^ 1 << 40, &bait);
        stage.world.forge(b, a, KEY_IS, 0, &bait);
        stage.world.forge(b, a, REPLY, token, &[0; 12]);
        stage.world.forge(b, a, 0xf002, token, &[0; 24]);
        let _ = stage.a.progress();
        assert!(stage.a.test(&question).is_none(), "a lie was believed");
        assert_eq!(stage.a.counters().malformed, malformed + 5);
        assert_eq!(stage.end_of(&question), Some(Ok(0)));
        let Ok(KeyLookup::Known(key)) = stage.ab.key_by_handle(target.handle().unwrap()) else { panic!("it was told") };
        assert_eq!(key.len(), 8);
    }

    fn a_key_ends_nothing_but_the_question_for_it() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let (target, key) = stage.target(vec![0; 64]);
        let request = pending(stage.ab.fetch_add(&key, 0, 5));
        let sent = [stage.world.calls(Slot::Short), stage.world.calls(Slot::Packed)].concat();
        let token = sent.iter().rfind(|call| call.id == 0xf003).expect("a question").cookie;
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.forge(b, a, KEY_IS, token, &target.remote_key().unwrap());
        let _ = stage.a.progress();
        assert!(stage.a.test(&request).is_none());
        assert_eq!(stage.end_of(&request), Some(Ok(0)));
    }

    fn answer_with_foreign_key_fails_lookup_and_is_not_cached() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let own = stage.local(vec![0; 8]).remote_key().unwrap();
        let mut damaged = own.clone();
        damaged[20] ^= 1;
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        for lie in [own, damaged, Vec::new()] {
            let malformed = stage.a.counters().malformed;
            let question = asked(stage.ab.key_by_handle(never_given()));
            let token = stage.world.calls(Slot::Short).last().expect("a question").cookie;
            stage.world.forge(b, a, KEY_IS, token, &lie);
            let _ = stage.a.progress();
            let error = stage.a.test(&question).expect("it has ended").unwrap_err();
            assert_eq!(error.status(), Status::KeyRejected);
            drop((question, asked(stage.ab.key_by_handle(never_given()))));
            stage.settle();
            // The real answer arrives after the request has ended.
            assert_eq!(stage.a.counters().malformed, malformed + 2);
        }
        assert!(stage.ab.error().is_none());
    }

    fn a_flood_of_questions_is_answered_and_costs_nothing_afterwards() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        for at in 0..2_000_u64 {
            stage.world.forge(a, b, KEY, 1 << 40 | at, &at.to_le_bytes());
        }
        stage.world.forge(a, b, KEY, 1 << 40, &[0; 7]);
        assert!(stage.until(|| stage.b.counters().malformed == 1));
        stage.settle();
        let answers = [stage.world.calls(Slot::Short), stage.world.calls(Slot::Packed)].concat();
        assert_eq!(answers.iter().filter(|call| call.interface == b && call.id == REPLY).count(), 2_001);
        assert_eq!(answers.iter().filter(|call| call.id == KEY_IS).count(), 0);
        assert_eq!((stage.a.counters().malformed, stage.b.pending()), (2_000, 0));
        let _ = stage.finish(stage.ab.flush_messages().unwrap()).unwrap();
    }

    fn a_key_that_no_message_carries_is_refused_in_words() {
        let small = Lane { max_short: 40, max_packed: 64, ..Lane::messages("talk") };
        let stage = Stage::new(vec![small, Lane::memory("rma")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let question = asked(stage.ab.key_by_handle(target.handle().unwrap()));
        let error = stage.end_of(&question).unwrap().unwrap_err();
        assert_eq!(error.status(), Status::TooLarge);
        assert!(error.fix().contains("carry the region's remote key"), "{error}");
        assert!(stage.ab.error().is_none() && stage.ba.error().is_none());
        stage.assert_no_faults();
    }

    fn endpoint_releases_keys_with_last_application_handle() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let (handle, before) = (target.handle().unwrap(), stage.world.left());
        let endpoint = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let clone = endpoint.clone();
        drop(resolved(&stage, &endpoint, handle).unwrap());
        drop(endpoint);
        assert_eq!(stage.world.left()[2], before[2] + 1, "a clone may ask for it");
        drop(clone);
        stage.settle();
        assert_eq!(stage.world.left()[1..3], before[1..3], "it kept itself");
    }

    fn an_endpoint_that_has_ended_keeps_no_keys_and_its_questions_end() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        drop(resolved(&stage, &stage.ab, target.handle().unwrap()).unwrap());
        let kept = stage.world.left()[2];
        let question = asked(stage.ab.key_by_handle(never_given()));
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.break_endpoints(a, b, Status::PeerFailed, "the cable is cut");
        assert!(stage.until(|| stage.a.test(&question).is_some()));
        assert_eq!(stage.a.test(&question).unwrap().unwrap_err().status(), Status::PeerFailed);
        assert_eq!(stage.world.left()[2], kept - 1);
        assert_eq!(stage.ab.key_by_handle(never_given()).unwrap_err().status(), Status::PeerFailed);
    }

    fn key_request_can_be_canceled_and_repeated() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let handle = target.handle().unwrap();
        stage.world.rule(tieline_fake::Rule::every(Slot::Short, tieline_fake::Act::Refuse(Status::Again)));
        let question = asked(stage.ab.key_by_handle(handle));
        stage.a.cancel(&question).unwrap();
        assert_eq!(stage.a.test(&question).unwrap().unwrap_err().status(), Status::Canceled);
        stage.world.forget_rules();
        assert!(resolved(&stage, &stage.ab, handle).is_ok());
    }

    /// As docs/wire.md states, messages that a later minor has added are not sent to a peer of an earlier minor.
    fn a_peer_of_an_earlier_version_is_not_asked() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let mut address = stage.b.address().unwrap();
        // The minor version of the messages follows the head and the context's number.
        assert_eq!(address[21..23], [1, 4]);
        address[22] = 2;
        let end = address.len() - 4;
        let sum = address[..end].iter().fold(0x811c_9dc5_u32, |hash, &b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
        address[end..].copy_from_slice(&sum.to_le_bytes());
        let early = stage.a.connect(&address).unwrap();
        let error = early.key_by_handle(never_given()).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert!(error.to_string().contains("1.2") && error.to_string().contains("1.3"), "{error}");
        assert_eq!(questions(&stage), 0);
    }
}
