//! Tests of keys by numbers, and of addresses in keys.

use crate::cases;
use crate::notify::with_minor;
use crate::progress_thread::{comes, with_threads};
use crate::stage::{Stage, pending};
use tieline::{Context, Endpoint, KeyLookup, Outcome, RemoteKey, Status};
use tieline_fake::{Lane, Slot};

const KEY_NUMBERED: u32 = 0xf014;

/// Looks up the key of a number until the lookup completes, and returns the key.
fn resolved(stage: &Stage, over: &Endpoint, number: u64) -> Result<RemoteKey, Status> {
    loop {
        match over.key_by_number(number).unwrap() {
            KeyLookup::Known(key) => return Ok(key),
            KeyLookup::Asked(asked) => {
                let _ = stage.finish(asked).map_err(|error| error.status())?;
            }
        }
    }
}

fn requests(stage: &Stage) -> usize {
    stage.world.calls(Slot::Short).iter().filter(|call| call.id == KEY_NUMBERED).count()
}

cases! {
    fn key_is_resolved_by_number_with_one_request_beside_the_same_handle() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let [one, other] = [64, 32].map(|len| stage.at_b.register(vec![0; len]).unwrap());
        // A handle of one region is the number of the other one.
        let handle = one.handle().unwrap();
        let number = u64::from_le_bytes(handle.to_bytes());
        other.publish(number).unwrap();
        for byte in [1, 2] {
            let key = resolved(&stage, &stage.ab, number).unwrap();
            assert_eq!((key.len(), key.address()), (32, None));
            let _ = stage.ended(stage.ab.put_bytes(&[byte; 8], &key, 8)).unwrap();
            assert_eq!(other.to_vec(8..16).unwrap(), [byte; 8]);
        }
        assert_eq!(requests(&stage), 1);
        let asked = stage.ab.key_by_handle(handle).unwrap();
        assert!(matches!(&asked, KeyLookup::Asked(_)), "{asked:?}");
        let KeyLookup::Asked(asked) = asked else { return };
        assert_eq!(stage.finish(asked), Ok(0));
        let Ok(KeyLookup::Known(key)) = stage.ab.key_by_handle(handle) else { panic!() };
        assert_eq!((key.len(), requests(&stage)), (64, 1));
        stage.assert_no_faults();
    }

    fn number_of_no_region_is_refused_with_its_reason() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        for number in [0, 7, u64::MAX] {
            target.publish(number).unwrap();
            target.publish(number).unwrap();
            assert!(resolved(&stage, &stage.ab, number).is_ok());
        }
        target.unpublish(7).unwrap();
        assert_eq!(target.unpublish(7).unwrap_err().status(), Status::Invalid);
        let fresh = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let KeyLookup::Asked(asked) = fresh.key_by_number(7).unwrap() else { panic!() };
        let error = stage.finish(asked).unwrap_err();
        assert_eq!(error.status(), Status::KeyRejected);
        assert!(error.to_string().contains("the number 7"), "{error}");
        assert!(resolved(&stage, &fresh, u64::MAX).is_ok());
        target.close().unwrap();
        let again = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        assert_eq!(resolved(&stage, &again, u64::MAX).map(drop), Err(Status::KeyRejected));
        assert_eq!(stage.b.counters().malformed, 0);
        stage.assert_no_faults();
    }

    fn number_that_is_used_again_is_requested_again_after_one_refusal() {
        for lanes in [vec![Lane::messages("all")], vec![Lane::whole("all")]] {
            let stage = Stage::new(lanes);
            let [one, other] = [8, 16].map(|len| stage.at_b.register(vec![0; len]).unwrap());
            one.publish(3).unwrap();
            let busy = other.publish(3).unwrap_err();
            assert!(busy.status() == Status::Busy && busy.to_string().contains("number 3"), "{busy}");
            let old = resolved(&stage, &stage.ab, 3).unwrap();
            one.close().unwrap();
            other.publish(3).unwrap();
            let refused = stage.ended(stage.ab.put_bytes(&[1; 8], &old, 0)).unwrap_err();
            assert_eq!(refused.status(), Status::KeyRejected);
            let key = resolved(&stage, &stage.ab, 3).unwrap();
            assert_eq!((key.len(), requests(&stage)), (16, 2));
            assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 8)), Ok(0));
            stage.assert_no_faults();
        }
    }

    fn progress_thread_answers_for_numbers_while_the_application_computes() {
        let stage = with_threads();
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        target.publish(5).unwrap();
        let KeyLookup::Asked(Outcome::Pending(asked)) = stage.ab.key_by_number(5).unwrap() else { panic!() };
        assert!(comes(|| { let _ = stage.a.progress(); stage.a.test(&asked).is_some() }));
        let Ok(KeyLookup::Known(key)) = stage.ab.key_by_number(5) else { panic!() };
        let put = pending(stage.ab.put_bytes(&[7; 8], &key, 0));
        assert!(comes(|| { let _ = stage.a.progress(); stage.a.test(&put).is_some() }));
        assert_eq!(target.to_vec(0..8).unwrap(), [7; 8]);
    }

    fn peer_of_an_earlier_version_refuses_only_the_new_call() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        target.publish(5).unwrap();
        let early = stage.a.connect(&with_minor(stage.b.address().unwrap(), 3)).unwrap();
        let error = early.key_by_number(5).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert!(error.to_string().contains("1.3") && error.to_string().contains("1.4"), "{error}");
        assert_eq!(requests(&stage), 0);
        let asked = early.key_by_handle(target.handle().unwrap()).unwrap();
        let KeyLookup::Asked(asked) = asked else { panic!() };
        assert_eq!(stage.finish(asked), Ok(0));
    }

    fn address_is_in_a_key_only_if_its_owner_has_put_it_there() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let target = stage.at_b.register(vec![0; 8]).unwrap();
        let address = target.as_ptr() as u64;
        for (bytes, expected) in [
            (target.remote_key().unwrap(), None),
            (target.remote_key_with_address().unwrap(), Some(address)),
            (target.remote_key().unwrap(), None),
        ] {
            let contains = bytes.windows(8).any(|part| part == address.to_le_bytes());
            assert_eq!(contains, expected.is_some());
            let key = stage.ab.import_key(&bytes).unwrap();
            assert_eq!(key.address(), expected);
            assert_eq!(stage.ended(stage.ab.put_bytes(&[5; 8], &key, 0)), Ok(0));
        }
        let lent = stage.at_b.register_transient(vec![0; 8]).unwrap();
        assert_eq!(lent.remote_key_with_address().unwrap_err().status(), Status::Invalid);
        // A whole context may have switched it on. The keys of handles and numbers then have an address as well.
        let context = Context::builder().set("TIELINE_PROVIDERS", "shm").keys_with_addresses(true);
        let context = context.publish_keys(true).open().unwrap();
        let worker = context.worker().unwrap();
        let me = worker.connect(&worker.address().unwrap()).unwrap();
        let region = context.alloc(64).unwrap();
        region.publish(9).unwrap();
        let key = loop {
            match me.key_by_number(9).unwrap() {
                KeyLookup::Known(key) => break key,
                KeyLookup::Asked(asked) => _ = worker.finish(asked).unwrap(),
            }
        };
        let own = me.import_key(&region.remote_key().unwrap()).unwrap();
        assert_eq!([key.address(), own.address()], [Some(region.as_ptr() as u64); 2]);
    }

    fn context_without_the_permission_publishes_nothing() {
        let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        let region = context.alloc(64).unwrap();
        let error = region.publish(9).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert!(error.to_string().contains("publish_keys"), "{error}");
        let key = region.remote_key().unwrap();
        let worker = context.worker().unwrap();
        let me = worker.connect(&worker.address().unwrap()).unwrap();
        assert_eq!(me.import_key(&key).unwrap().address(), None);
        let KeyLookup::Asked(asked) = me.key_by_number(9).unwrap() else { panic!() };
        assert_eq!(worker.finish(asked).unwrap_err().status(), Status::KeyRejected);
    }
}
