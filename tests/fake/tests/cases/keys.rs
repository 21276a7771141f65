//! Tests of the registrations and keys that a provider sees.

use crate::cases;
use crate::stage::Stage;
use tieline::{Access, Endpoint, RemoteKey, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps::{INTERFACE_KEYS, KEY_POINTER};
use tieline_plugin_api::register_flags;

const MANY: usize = 50;

/// Makes endpoints from `a` to `b`, each with its own handle of the same key.
fn endpoints(stage: &Stage, bytes: &[u8]) -> Vec<(Endpoint, RemoteKey)> {
    let to = stage.b.address().unwrap();
    let endpoint = |_| {
        let endpoint = stage.a.connect(&to).unwrap();
        let key = endpoint.import_key(bytes).unwrap();
        (endpoint, key)
    };
    (0..MANY).map(endpoint).collect()
}

/// Returns the number of imports and drops of a key, by the interface and by endpoints.
fn calls(stage: &Stage) -> [usize; 4] {
    [Slot::ImportShared, Slot::DropShared, Slot::ImportKey, Slot::DropKey]
        .map(|slot| stage.world.calls(slot).len())
}

cases! {
    /// The promise of relaxed ordering is not an access right: keys do not carry it to peers.
    fn relaxed_ordering_is_passed_with_registration_only() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        for (access, flags) in [
            (Access::ALL, 0),
            (Access::ALL | Access::RELAXED_ORDERING, register_flags::RELAXED_ORDERING),
        ] {
            let region = stage.at_b.register_with(vec![0; 8], access).unwrap();
            let told = stage.world.calls(Slot::Register);
            assert_eq!(told.last().map(|call| call.flags), Some(flags));
            let key = stage.ab.import_key(&region.remote_key().unwrap()).unwrap();
            let put = stage.ab.put_bytes(&[7; 8], &key, 0).unwrap();
            assert_eq!(stage.finish(put), Ok(0));
            assert_eq!(region.to_vec(0..8).unwrap(), [7; 8]);
        }
        stage.assert_no_faults();
    }

    /// The provider keeps its state of a key once per interface, and not per endpoint.
    fn one_key_import_serves_all_endpoints_and_last_one_drops_it() {
        let stage = Stage::new(vec![Lane::whole("all").with(INTERFACE_KEYS)]);
        let target = stage.at_b.register(vec![0; 64]).unwrap();
        let mut all = endpoints(&stage, &target.remote_key().unwrap());
        assert_eq!((calls(&stage), stage.world.left()[2]), ([1, 0, 0, 0], 1), "one for {MANY} endpoints");
        for (at, (endpoint, key)) in all.iter().enumerate() {
            let _ = stage.ended(endpoint.put_bytes(&[at as u8; 8], key, 8)).unwrap();
            assert_eq!(target.to_vec(8..16).unwrap(), [at as u8; 8]);
        }
        let last = all.pop().unwrap();
        drop(all);
        assert_eq!(calls(&stage), [1, 0, 0, 0]);
        let _ = stage.ended(last.0.put_bytes(&[77; 8], &last.1, 8)).unwrap();
        drop(last);
        assert_eq!((calls(&stage), stage.world.left()[2]), ([1, 1, 0, 0], 0));
        let again = endpoints(&stage, &target.remote_key().unwrap());
        assert_eq!(calls(&stage), [2, 1, 0, 0], "what was let go is imported anew");
        drop(again);
        stage.assert_no_faults();
    }

    fn without_the_capability_every_endpoint_imports_for_itself() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let target = stage.at_b.register(vec![0; 64]).unwrap();
        let all = endpoints(&stage, &target.remote_key().unwrap());
        assert_eq!((calls(&stage), stage.world.left()[2]), ([0, 0, MANY, 0], MANY));
        drop(all);
        assert_eq!(calls(&stage), [0, 0, MANY, MANY]);
        stage.assert_no_faults();
    }

    fn keys_of_two_regions_are_two() {
        let stage = Stage::new(vec![Lane::whole("all").with(INTERFACE_KEYS)]);
        let ((first, a), (second, b)) = (stage.target(vec![0; 8]), stage.target(vec![0; 8]));
        assert_eq!(calls(&stage)[0], 2);
        let _ = stage.ended(stage.ab.put_bytes(&[1; 8], &a, 0)).unwrap();
        let _ = stage.ended(stage.ab.put_bytes(&[2; 8], &b, 0)).unwrap();
        assert_eq!([first.to_vec(0..8).unwrap(), second.to_vec(0..8).unwrap()], [[1; 8], [2; 8]]);
    }

    fn an_interface_that_fetches_a_key_is_asked_again() {
        let stage = Stage::new(vec![Lane::whole("all").with(INTERFACE_KEYS)]);
        stage.world.rule(Rule { times: 3, ..Rule::every(Slot::ImportShared, Act::Refuse(Status::Again)) });
        let (_target, key) = stage.target(vec![0; 8]);
        assert!(stage.until(|| !key.is_settling()));
        assert_eq!(calls(&stage), [4, 0, 0, 0]);
        assert_eq!(key.path(), "fake:all/all");
    }

    fn an_endpoint_that_fails_takes_no_key_from_the_others() {
        let stage = Stage::new(vec![Lane::whole("all").over_circuits().with(INTERFACE_KEYS | KEY_POINTER)]);
        let target = stage.at_b.register_with(vec![0; 64], Access::ALL).unwrap();
        let key = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
        let pointer = key.pointer().unwrap();
        let second = stage.at_a.worker().unwrap();
        let (from, to) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.break_endpoints(from, to, Status::PeerFailed, "the cable is cut");
        assert!(stage.until(|| stage.ab.error().is_some()));
        drop((key, second));
        assert_eq!(calls(&stage)[1], 0, "a pointer leads to what it has mapped");
        drop(pointer);
        assert_eq!(calls(&stage)[..2], [1, 1]);
        stage.assert_no_faults();
    }

    fn region_without_key_of_one_domain_uses_others_and_owner_reports_it() {
        let stage = Stage::new(vec![Lane::messages("talk"), Lane::memory("rma").on_other_provider()]);
        stage.world.rule(Rule::next(Slot::PackKey, Act::Refuse(Status::NoMemory)));
        let (target, key) = stage.target(vec![0; 64]);
        assert_eq!(key.path(), "emulated over fake:talk/talk");
        let _ = stage.ended(stage.ab.put_bytes(&[3; 8], &key, 8)).unwrap();
        assert_eq!(target.to_vec(8..16).unwrap(), [3; 8]);
        let warnings = stage.at_b.report().warnings.join(" | ");
        assert!(warnings.contains("rma provided no key of some memory"), "{warnings}");
        let (_other, key) = stage.target(vec![0; 64]);
        assert!(!key.path().contains("emulated"), "{}", key.path());
        stage.assert_no_faults();
    }

    fn nothing_of_a_provider_that_broke_is_called_for_its_keys() {
        let stage = Stage::new(vec![Lane::messages("talk"), Lane::memory("rma").on_other_provider().with(INTERFACE_KEYS)]);
        let target = stage.at_b.register_with(vec![0; 64], Access::ALL).unwrap();
        let all = endpoints(&stage, &target.remote_key().unwrap());
        stage.world.rule(Rule::next(Slot::Put, Act::Panic));
        let _ = stage.ended(all[0].0.put_bytes(&[1; 8], &all[0].1, 0)).unwrap_err();
        drop(all);
        stage.settle();
        assert_eq!(calls(&stage), [1, 0, 0, 0]);
    }
}
