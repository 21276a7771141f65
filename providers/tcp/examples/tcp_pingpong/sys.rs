//! The unsafe part of the example: a host whose configuration is the environment, events as a slice, CPUs.
#![allow(unsafe_code, missing_docs, unreachable_pub)]

use std::mem::MaybeUninit;

use tieline_plugin_api::abi::{Event, played_host};
use tieline_plugin_api::{Events, HostHandle, Interface};

pub fn host() -> HostHandle {
    let host = Box::leak(Box::new(played_host(|name| std::env::var(name).ok())));
    // SAFETY: the table is never freed.
    unsafe { HostHandle::new(host) }.expect("a whole table")
}

#[inline(always)]
pub fn poll<'a, I: Interface>(interface: &I, slots: &'a mut [MaybeUninit<Event>]) -> &'a [Event] {
    let mut events = Events::new(slots);
    interface.poll(&mut events).expect("poll");
    let count = events.len();
    // SAFETY: the poll has written `count` slots.
    unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), count) }
}

pub fn payload(event: &Event) -> &[u8] {
    if event.len == 0 {
        return &[];
    }
    // SAFETY: the event's payload stays valid until the next poll.
    unsafe { std::slice::from_raw_parts(event.data, event.len) }
}

pub fn pin(cpu: usize) {
    // SAFETY: the set of CPUs has the stated size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        let _ = libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
