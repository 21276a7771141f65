//! The order of the modules of one host and of its network devices, with the attributes that the providers state.

use super::*;

/// `shm/ring`: messages; put, get and atomics on memory of `alloc`.
fn ring() -> FoundModule {
    let caps = caps::AM_SHORT | caps::AM_PACKED | RMA | caps::ATOMICS | caps::PASSIVE_TARGET;
    module("shm", "ring", caps | caps::LOCAL_ONLY | caps::OWN_MEMORY_ONLY, 80)
}

/// A module that copies between processes.
fn copying(provider: &str, name: &str, priority: i32) -> FoundModule {
    let more = caps::PASSIVE_TARGET | caps::SYNCHRONOUS | caps::LOCAL_ONLY;
    module(provider, name, RMA | more, priority)
}

fn cma() -> FoundModule {
    copying("shm-cma", "copy", 70)
}

fn rc() -> FoundModule {
    let messages = caps::AM_SHORT | caps::AM_PACKED;
    module("verbs", "rc", messages | RMA | caps::PASSIVE_TARGET, 60)
}

/// libfabric over a device: its puts and gets need the target's progress.
fn rdm() -> FoundModule {
    module("ofi", "rdm", caps::AM_SHORT | caps::AM_PACKED | RMA, 55)
}

fn stream() -> FoundModule {
    module("tcp", "stream", caps::AM_SHORT | caps::AM_PACKED | RMA, 10)
}

/// The rows of messages, of put and get, and of atomics, to a peer that these providers do not reach.
fn rows(all: &[FoundModule], unreachable: &[&str]) -> [String; 3] {
    let reach = |at: &ModuleRef, _: &PeerModule| match unreachable.contains(&at.provider.as_str()) {
        true => Err("out of reach".into()),
        false => Ok(()),
    };
    let lanes = lanes("peer", &composed(all), &peers(all), reach);
    [row(&lanes.message), row(&lanes.rma), row(&lanes.atomic)]
}

#[test]
fn shared_memory_comes_before_devices_within_one_host() {
    let all = [stream(), rc(), cma(), ring()];
    assert_eq!(
        rows(&all, &[]),
        ["shm/ring verbs/rc tcp/stream", "shm/ring* shm-cma/copy verbs/rc ~", "shm/ring* ~"]
    );
}

#[test]
fn device_serves_peers_of_other_hosts() {
    let all = [stream(), rc(), cma(), ring()];
    assert_eq!(
        rows(&all, &["shm", "shm-cma"]),
        ["verbs/rc tcp/stream", "verbs/rc tcp/stream ~", "~"]
    );
}

/// Two containers with one `TIELINE_SHM_DIR` and separate PID namespaces: `shm-cma` cannot name the peer's process.
#[test]
fn device_accesses_memory_that_no_module_of_host_reaches() {
    let all = [stream(), rc(), cma(), ring()];
    assert_eq!(
        rows(&all, &["shm-cma"]),
        ["shm/ring verbs/rc tcp/stream", "shm/ring* verbs/rc ~", "shm/ring* ~"]
    );
    // A pair that only the copying module reaches.
    assert_eq!(
        rows(&all, &["shm"]),
        ["verbs/rc tcp/stream", "shm-cma/copy verbs/rc tcp/stream ~", "~"]
    );
}

#[test]
fn device_that_needs_targets_progress_is_left_out_within_one_host() {
    let all = [stream(), rdm(), ring()];
    assert_eq!(rows(&all, &[]), ["shm/ring ofi/rdm tcp/stream", "shm/ring* ~", "shm/ring* ~"]);
    assert_eq!(rows(&all, &["shm"]), ["ofi/rdm tcp/stream", "ofi/rdm tcp/stream ~", "~"]);
}

#[test]
fn copying_modules_keep_their_order_before_devices() {
    let all = |xpmem| {
        [
            rc(),
            copying("shm-knem", "copy", 65),
            copying("shm-xpmem", "attach", xpmem),
            cma(),
            ring(),
        ]
    };
    let [_, copies, _] = rows(&all(68), &[]);
    assert_eq!(copies, "shm/ring* shm-cma/copy shm-xpmem/attach shm-knem/copy verbs/rc ~");
    let [_, direct, _] = rows(&all(75), &[]);
    assert_eq!(direct, "shm/ring* shm-xpmem/attach shm-cma/copy shm-knem/copy verbs/rc ~");
}

#[test]
fn a_priority_of_the_user_puts_a_device_first() {
    let mut device = rc();
    device.priority = Some((90, "TIELINE_PRIORITY_VERBS_RC=90 (environment)".into()));
    let [messages, rma, atomics] = rows(&[ring(), cma(), device], &[]);
    assert_eq!(messages, "verbs/rc shm/ring");
    assert_eq!(rma, "verbs/rc shm/ring* shm-cma/copy ~");
    assert_eq!(atomics, "shm/ring* ~");
}
