//! Tests of the attributes of the modules and of their stated costs.

use super::state::fits;
use crate::double::{domain, side};
use crate::shared::pieces_beside;
use crate::{RC, RDMACM, UD};
use tieline_plugin_api::abi::{Cost, ModuleAttr, fixed};
use tieline_plugin_api::{Domain, Interface, Status, atomic_op, caps, connects, cost_class, role};

fn module(modules: &[ModuleAttr], name: &str) -> ModuleAttr {
    *modules.iter().find(|module| module.name == fixed(name)).unwrap()
}

/// Returns the bits that occur in any of the sets.
fn all(caps: &[u64]) -> u64 {
    caps.iter().sum()
}

fn bandwidths(of: &ModuleAttr, classes: &[usize]) -> Vec<f64> {
    classes.iter().map(|class| of.cost[*class].bytes_per_second).collect()
}

#[test]
fn module_capabilities_match_supported_operations() {
    let modules = domain(&[]).unwrap().modules();
    assert_eq!(modules.len(), 3);
    let (rc, ud) = (module(&modules, RC), module(&modules, UD));
    let cm = module(&modules, RDMACM);
    assert_eq!(
        rc.caps,
        all(&[
            caps::ANY_THREAD,
            caps::AM_SHORT,
            caps::AM_PACKED,
            caps::AM_ZCOPY,
            caps::PUT,
            caps::PUT_NOTIFY,
            caps::GET,
            caps::REMOTE_COMPLETION,
            caps::PASSIVE_TARGET,
            caps::PEER_FAILURE,
            caps::EVENT_FD,
            caps::NEEDS_POLL,
            caps::TAKES_REGIONS,
            caps::NO_EVENT,
            caps::RMA_LIST,
            caps::ATOMICS,
            caps::DEVICE_ATOMICS,
        ])
    );
    assert_eq!(
        ud.caps,
        all(&[caps::AM_SHORT, caps::AM_PACKED, caps::EVENT_FD, caps::NEEDS_POLL, caps::ANY_THREAD])
    );
    assert_eq!(
        cm.caps,
        all(&[
            caps::PEER_FAILURE,
            caps::EVENT_FD,
            caps::NEEDS_POLL,
            caps::SLOW_POLL,
            caps::ANY_THREAD
        ])
    );
    let atomics = (1 << atomic_op::ADD) + (1 << atomic_op::COMPARE_SWAP);
    assert_eq!((rc.atomic_post64, rc.atomic_fetch64), (atomics, atomics));
    assert_eq!((rc.role, ud.role, cm.role), (role::DATA, role::DATA, role::CONNECTION_ONLY));
    assert_eq!((rc.connects, ud.connects), (connects::TO_ENDPOINT, connects::TO_INTERFACE));
    // The header of a message takes one of the pieces of a work request.
    assert_eq!((rc.max_iov, rc.max_short, rc.max_short_put), (11, 8192, 188));
    assert_eq!((rc.max_put, rc.max_get), (1 << 30, 1 << 30));
    assert_eq!((ud.max_short, ud.max_packed, ud.max_identity_len), (4056, 4056, 4096));
    // Within one host every module of shared memory comes first: the lowest, shm-knem, has 65.
    assert_eq!((rc.priority, ud.priority, cm.priority), (60, 10, 5));
}

/// Among modules of the same priority, the core prefers the lower cost. A class without a cost would be free.
#[test]
fn each_class_that_a_module_serves_has_its_cost() {
    use cost_class::{ATOMIC, BULK_MESSAGE, BULK_RMA, SMALL_MESSAGE, SMALL_RMA};
    let modules = domain(&[]).unwrap().modules();
    let (rc, ud) = (module(&modules, RC), module(&modules, UD));
    let costs = |cost: Cost| cost.overhead_ns > 0.0 && cost.latency_ns > 0.0;
    let classes = [SMALL_MESSAGE, BULK_MESSAGE, SMALL_RMA, BULK_RMA];
    assert!([&classes[..], &[ATOMIC]].concat().iter().all(|class| costs(rc.cost[*class])));
    assert!(classes[..2].iter().all(|class| costs(ud.cost[*class])));
    assert!(costs(module(&modules, RDMACM).cost[SMALL_MESSAGE]));
    // The bandwidth is the default for a port that reports no rate.
    let bandwidth = 2.5e9 / 8.0;
    assert_eq!(bandwidths(&rc, &classes), [bandwidth; 4]);
    assert_eq!(bandwidths(&ud, &classes[..2]), [bandwidth / 4.0; 2]);
}

#[test]
fn unknown_module_is_refused_with_the_list_of_modules() {
    let domain = domain(&[]).unwrap();
    let refused = domain.open_interface("dc", [0; 16]).err().unwrap();
    assert_eq!(refused.status, Status::NoDevice);
    assert_eq!(refused.text, "verbs:double0 has no module `dc`, only `rc` and `ud`");
    let refused = domain.open_connector("rc", [0; 16]).err().unwrap();
    assert_eq!(refused.text, "verbs:double0 has no connection-only module `rc`, only `rdmacm`");
}

#[test]
fn connection_memory_is_that_of_its_queues() {
    for (inline, pieces) in [(0, 4), (60, 4), (61, 5), (188, 12), (189, 13), (268, 17), (1024, 17)]
    {
        assert_eq!(pieces_beside(inline), pieces, "{inline}");
    }
    let state = domain(&[]).unwrap().state.clone();
    // A work request has 192 bytes, plus the inline data rounded up.
    for (sends, receives, bytes) in [
        (1, 0, 512),
        (85, 0, 32 << 10),
        (86, 0, 64 << 10),
        (128, 0, 64 << 10),
        (128, 1, (64 << 10) + 16),
        (128, 32, (64 << 10) + 512),
        (128, 33, (64 << 10) + 1024),
    ] {
        assert_eq!(state.queue_bytes(sends, receives), bytes, "{sends} and {receives}");
    }
    let a = side(&[]);
    let peers = |count: usize| {
        let held: Vec<_> = (0..count).map(|_| a.interface.connect(&[], &[], 1).unwrap()).collect();
        let report = a.interface.memory();
        assert_eq!(report.peers, held.len() as u64);
        report
    };
    let [none, one, three] = [0, 1, 3].map(peers);
    assert_eq!((none.peer_bytes, none.buffer_bytes), (0, 0));
    assert_eq!(three.peer_bytes, 3 * one.peer_bytes);
    let queues = state.queue_bytes(128, 0) as u64;
    assert!((queues + 2048..queues + 16_384).contains(&one.peer_bytes), "{}", one.peer_bytes);
    assert!(one.base_bytes > none.base_bytes, "the completion queue is there");
    assert!(one.buffer_bytes > 0);
}

#[test]
fn message_length_and_connection_count_are_limited_by_settings() {
    assert_eq!((fits(1024, 1024), fits(1024, 1025)), (Ok(()), Ok(())));
    let refused = fits(1025, 1024).unwrap_err();
    assert_eq!(refused.status, Status::Unreachable);
    assert_eq!(
        refused.text,
        "the peer takes messages of at most 1024 bytes and this side sends up to 1025: \
         TIELINE_VERBS_SEGMENT_SIZE must be the same"
    );
    let a = side(&[("TIELINE_VERBS_CONNECTIONS", "2")]);
    let both = [1, 2].map(|cookie| a.interface.connect(&[], &[], cookie).unwrap());
    let refused = a.interface.connect(&[], &[], 3).err().unwrap();
    assert_eq!(refused.status, Status::NoMemory);
    assert_eq!(refused.text, "rc has 2 connections, as many as TIELINE_VERBS_CONNECTIONS says");
    drop(both);
}
