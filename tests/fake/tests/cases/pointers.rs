//! Tests of pointers to a peer's memory: the objects that they keep alive, the cases without a pointer, and the effect of a lane's
//! end.

use crate::cases;
use crate::stage::Stage;
use std::sync::atomic::Ordering::SeqCst;
use tieline::{Access, PostError, RemotePointer, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps::KEY_POINTER;

fn mapping() -> Lane {
    Lane::whole("all").with(KEY_POINTER)
}

#[track_caller]
fn stores(pointer: &RemotePointer, value: u64) {
    pointer.atomic_u64(8).unwrap().store(value, SeqCst);
    assert_eq!(pointer.atomic_u64(8).unwrap().load(SeqCst), value);
}

cases! {
    fn loads_and_stores_are_the_peers_memory_whatever_else_is_dropped() {
        let stage = Stage::new(vec![mapping()]);
        let (target, key) = stage.target(vec![1; 64]);
        drop(key);
        let ab = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let key = ab.import_key(&target.remote_key().unwrap()).unwrap();
        let (pointer, second) = (key.pointer().unwrap(), key.pointer().unwrap());
        let before = stage.world.calls(Slot::DropKey).len();
        drop((key, ab, second));
        stage.settle();
        assert_eq!(pointer.len(), 64);
        assert_eq!(pointer.as_ptr(), std::ptr::from_ref(target.atomic_u64(0).unwrap()).cast_mut().cast());
        stores(&pointer, 77);
        assert_eq!(target.to_vec(8..16).unwrap(), 77u64.to_le_bytes());
        assert_eq!(pointer.atomic_u64(64).err().map(|error| error.status()), Some(Status::OutOfRange));
        assert_eq!(pointer.atomic_u32(62).err().map(|error| error.status()), Some(Status::OutOfRange));
        assert_eq!(pointer.atomic_u32(6).err().map(|error| error.status()), Some(Status::Misaligned));
        assert_eq!(stage.world.calls(Slot::DropKey).len(), before, "what is mapped has to stay");
        drop(pointer);
        assert_eq!(stage.world.calls(Slot::DropKey).len(), before + 1);
        assert_eq!(stage.world.left()[2], 0);
        stage.assert_no_faults();
    }

    fn a_circuit_that_fails_is_closed_when_the_last_pointer_is_dropped() {
        let stage = Stage::new(vec![mapping().over_circuits()]);
        let (target, key) = stage.target(vec![1; 64]);
        let pointer = key.pointer().unwrap();
        let (from, to) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.break_endpoints(from, to, Status::PeerFailed, "the cable is cut");
        assert!(stage.until(|| stage.ab.error().is_some()));
        stage.settle();
        let gone = |slot| stage.world.calls(slot).iter().filter(|call| call.interface == from).count();
        assert_eq!([Slot::DropKey, Slot::CloseEndpoint].map(gone), [0, 0]);
        stores(&pointer, 5);
        assert_eq!(target.to_vec(8..16).unwrap(), 5u64.to_le_bytes());
        assert!(matches!(key.pointer(), Err(PostError::Reconnect(_))));
        drop(pointer);
        drop((key, stage.ab.clone()));
        stage.settle();
        assert_eq!([Slot::DropKey, Slot::CloseEndpoint].map(gone), [1, 1]);
        stage.assert_no_faults();
    }

    fn replaced_lane_keeps_memory_of_pointers() {
        let (best, next) = (Lane::memory("best"), Lane::memory("next"));
        let best = Lane { priority: 9, ..best.synchronous().with(KEY_POINTER) };
        let stage = Stage::new(vec![Lane::messages("talk"), best, next]);
        let (target, key) = stage.target(vec![1; 64]);
        let pointer = key.pointer().unwrap();
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Unreachable)).on("best"));
        let _ = stage.ended(stage.ab.put(&stage.local(vec![2; 8]), 0..8, &key, 0)).unwrap();
        assert_eq!(key.path(), "fake:next/next");
        assert!(stage.world.calls(Slot::DropKey).is_empty());
        assert_eq!(key.pointer().unwrap_err().status(), Status::Unsupported);
        stores(&pointer, 6);
        drop(pointer);
        assert_eq!(stage.world.calls(Slot::DropKey).len(), 1);
        drop(target);
        stage.assert_no_faults();
    }

    fn nothing_of_a_provider_that_broke_is_called_for_a_pointer() {
        let stage = Stage::new(vec![Lane::messages("talk"), Lane::memory("map").on_other_provider().with(KEY_POINTER)]);
        let (target, key) = stage.target(vec![1; 64]);
        let pointer = key.pointer().unwrap();
        stage.world.rule(Rule::next(Slot::Put, Act::Panic));
        let _ = stage.ended(stage.ab.put(&stage.local(vec![2; 8]), 0..8, &key, 0)).unwrap_err();
        let at = stage.world.interface(0, "map");
        let before = stage.world.calls_at(at).len();
        stores(&pointer, 7);
        drop(pointer);
        assert_eq!(stage.world.calls_at(at).len(), before);
        assert!(stage.world.calls(Slot::DropKey).is_empty());
        drop(target);
    }

    fn without_mapping_lane_pointer_is_refused_and_error_names_lanes() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![1; 64]);
        let error = key.pointer().unwrap_err();
        assert!(matches!(error, PostError::Correct(_)));
        assert_eq!(error.status(), Status::Unsupported);
        assert!(error.to_string().contains("fake:all/all"), "{error}");
        assert!(stage.world.calls(Slot::Pointer).is_empty());
    }

    fn a_pointer_needs_both_rights() {
        let stage = Stage::new(vec![mapping()]);
        for access in [Access::READ, Access::WRITE | Access::ATOMIC] {
            let region = stage.at_b.register_with(vec![1; 64], access).unwrap();
            let key = stage.ab.import_key(&region.remote_key().unwrap()).unwrap();
            assert_eq!(key.pointer().unwrap_err().status(), Status::KeyRejected);
        }
        assert!(stage.world.calls(Slot::Pointer).is_empty());
    }

    fn pointer_is_retried_while_mapping_and_refusal_is_quoted() {
        let stage = Stage::new(vec![mapping()]);
        stage.world.rule(Rule { times: 2, ..Rule::every(Slot::ImportKey, Act::Refuse(Status::Again)) });
        let (_target, key) = stage.target(vec![1; 64]);
        assert!(matches!(key.pointer(), Err(PostError::Retry(_))));
        stage.world.rule(Rule::next(Slot::Pointer, Act::Refuse(Status::OutOfRange)));
        let error = key.pointer().unwrap_err();
        assert_eq!(error.status(), Status::OutOfRange);
        assert!(error.to_string().contains("fake:all/all gives no pointer"), "{error}");
        drop(key.pointer().unwrap());
        stage.assert_no_faults();
    }
}
