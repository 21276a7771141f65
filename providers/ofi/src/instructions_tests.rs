//! The cost of a message of 8 bytes, of a put of 8 bytes, and of a poll without events. `cargo xtask instructions` counts the
//! functions whose names begin with `measured`, without the functions of the simulated library. As a test, this file checks that
//! all operations arrive.

use crate::config::Settings;
use crate::double::world::manners;
use crate::double::{Side, settings};
use crate::{OfiEndpoint, RemoteKey};
use core::mem::MaybeUninit;
use tieline_plugin_api::abi::{Event, Iov};
use tieline_plugin_api::{Domain, Endpoint, Events, Interface, RmaOp, op_flags};

/// The number of operations that one peer may have under way over the simulated library.
const BATCH: usize = 8;

/// Polls once and returns the number of events.
fn polled(side: &Side) -> usize {
    let mut room = [const { MaybeUninit::<Event>::uninit() }; 16];
    let mut events = Events::new(&mut room);
    assert!(side.interface.poll_quietly() || side.interface.poll(&mut events).is_ok());
    events.len()
}

#[inline(never)]
fn measured_ofi_post(endpoint: &OfiEndpoint) {
    for n in 0..BATCH as u64 {
        assert!(endpoint.am_short(1, n, &n.to_le_bytes()).is_ok());
    }
}

/// Polls both sides until the messages arrive and their sender has read the library's completions.
#[inline(never)]
fn measured_ofi_poll(near: &Side, far: &Side) -> usize {
    let mut seen = 0;
    while seen < BATCH {
        seen += polled(far);
    }
    let _ = polled(near);
    seen
}

/// Polls without any event.
#[inline(never)]
fn measured_ofi_idle(near: &Side) -> usize {
    (0..BATCH).map(|_| polled(near)).sum()
}

/// Posts each put and waits for its completion.
#[inline(never)]
fn measured_ofi_put(near: &Side, endpoint: &OfiEndpoint, key: &RemoteKey) {
    let mut word = [5; 8];
    for n in 0..BATCH as u64 {
        let iov = [Iov::new(word.as_mut_ptr(), word.len())];
        let flags = op_flags::REMOTE_COMPLETION;
        let op = RmaOp { iov: &iov, len: word.len(), offset: 8 * n, cookie: n, flags };
        assert!(endpoint.put(key, &op).is_ok());
    }
    let mut ended = 0;
    while ended < BATCH {
        ended += polled(near);
    }
}

#[test]
fn messages_and_puts_arrive_however_many_there_are() {
    let times = std::env::var("TIELINE_COUNTED").ok().and_then(|times| times.parse().ok());
    let times: usize = times.unwrap_or(2000);
    manners(|manners| manners.manual = false);
    let wide = Settings { window: 256 << 10, receive: 512 << 10, ..settings() };
    let (mut near, mut far) = (Side::new(&wide), Side::new(&wide));
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0; 8 * BATCH];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut arrived = 0;
    for _ in 0..times / BATCH {
        measured_ofi_post(&endpoint);
        arrived += measured_ofi_poll(&near, &far);
        measured_ofi_put(&near, &endpoint, &key);
        arrived += measured_ofi_idle(&near);
    }
    assert_eq!(arrived, times / BATCH * BATCH);
    assert_eq!(core::hint::black_box(there), [5; 8 * BATCH]);
    near.interface.check_accounts();
    drop((key, endpoint));
    let _ = far.domain.deregister(region);
}
