//! Tests of workers' handles, alone and in handlers.

use super::*;
use crate::abi::atomic::{tieline_key_pointer, tieline_pointer_drop};
use crate::abi::context::{tieline_context_close, tieline_context_open};
use crate::abi::counter::{tieline_counter_drop, tieline_worker_counter};
use crate::abi::endpoint::{
    EndpointHandle, tieline_endpoint_drop, tieline_send, tieline_worker_connect,
};
use crate::abi::memory::{tieline_context_alloc, tieline_region_key};
use crate::abi::message::{
    AnnouncementHandle, ArrivedMessage, KeptHandle, tieline_announcement_refuse, tieline_kept_drop,
    tieline_message_announcement, tieline_message_keep, tieline_worker_on_message,
};
use crate::abi::names::{tieline_name_call_drop, tieline_worker_ask_name, tieline_worker_name};
use crate::abi::peers::tieline_worker_known_endpoint;
use crate::abi::put::{tieline_endpoint_import_key, tieline_key_drop};
use std::ptr::{null, null_mut};
use std::sync::Barrier;

extern "C" fn keeps(user: *mut c_void, message: *const ArrivedMessage) {
    // SAFETY: the memory belongs to the test, and the test is in a call that makes progress.
    let seen = unsafe { &mut *user.cast::<(*mut KeptHandle, *mut AnnouncementHandle)>() };
    // SAFETY: the message and the memory belong to the test, and the handler has not returned.
    let status = match unsafe { (*message).is_announced } {
        // SAFETY: the message and the memory belong to the test, and the handler has not returned.
        0 => unsafe { tieline_message_keep(message, &raw mut seen.0, &mut null()) },
        // SAFETY: the message and the memory belong to the test, and the handler has not returned.
        _ => unsafe { tieline_message_announcement(message, &raw mut seen.1) },
    };
    assert_eq!(status, 0);
}

/// Opens a worker with an endpoint to itself.
fn with_itself() -> (*mut ContextHandle, *mut WorkerHandle, *mut EndpointHandle) {
    let (mut context, mut worker, mut endpoint) = (null_mut(), null_mut(), null_mut());
    let mut address = [0_u8; 4096];
    let start = address.as_mut_ptr().cast::<c_void>();
    let mut len = address.len();
    // SAFETY: the places are local variables of this function.
    unsafe {
        assert_eq!(tieline_context_open(null(), &raw mut context), 0);
        assert_eq!(tieline_worker_open(context, &raw mut worker), 0);
        assert_eq!(tieline_worker_address(worker, start, &raw mut len), 0);
        assert_eq!(tieline_worker_connect(worker, start, len, &raw mut endpoint), 0);
    }
    (context, worker, endpoint)
}

#[test]
fn objects_of_panicked_worker_can_be_dropped_once() {
    let (context, worker, endpoint) = with_itself();
    let (mut region, mut key, mut pointer) = (null_mut(), null_mut(), null_mut());
    let (mut counter, mut call) = (null_mut(), null_mut());
    let mut seen: (*mut KeptHandle, *mut AnnouncementHandle) = (null_mut(), null_mut());
    let (mut bytes, long) = (vec![0_u8; 16384], vec![0_u8; 1 << 20]);
    let start = bytes.as_mut_ptr().cast::<c_void>();
    let mut len = bytes.len();
    // SAFETY: the places are local variables of this test.
    unsafe {
        assert_eq!(tieline_context_alloc(context, 64, 7, &raw mut region), 0);
        assert_eq!(tieline_region_key(region, start, &raw mut len), 0);
        assert_eq!(tieline_endpoint_import_key(endpoint, start, len, &raw mut key), 0);
        assert_eq!(tieline_worker_counter(worker, &raw mut counter), 0);
        len = bytes.len();
        assert_eq!(tieline_worker_name(worker, start, &raw mut len), 0);
        assert_eq!(tieline_worker_ask_name(worker, start, len, &raw mut call), 0);
        let user = (&raw mut seen).cast();
        assert_eq!(tieline_worker_on_message(worker, 1, Some(keeps), user), 0);
        assert_eq!(tieline_send(endpoint, 1, 0, start, 1, null(), null_mut()), 0);
        let (long, len) = (long.as_ptr().cast(), long.len());
        assert!(tieline_send(endpoint, 1, 0, long, len, null(), null_mut()) >= 0);
    }
    let (mut mapped, mut room) = (null_mut(), 0);
    loop {
        // SAFETY: the places are local variables of this test.
        assert!(unsafe { tieline_worker_progress(worker) } >= 0);
        let (pointer, mapped) = (&raw mut pointer, &raw mut mapped);
        // SAFETY: the places are local variables of this test.
        let is_mapped = unsafe { tieline_key_pointer(key, pointer, mapped, &raw mut room) } == 0;
        if is_mapped && !seen.0.is_null() && !seen.1.is_null() {
            break;
        }
        if is_mapped {
            // SAFETY: the places are local variables of this test.
            assert_eq!(unsafe { tieline_pointer_drop(*pointer) }, 0);
        }
    }
    let state = state_of(worker).ok().unwrap();
    let ended = state.post(|_| -> Result<(), Fault> { panic!("on purpose") });
    assert_eq!(ended.err().unwrap().error.status(), Status::ProviderFailed);
    for expected in [0, Status::Invalid as i32] {
        // SAFETY: handles, some of which have ended.
        let dropped = unsafe {
            [
                tieline_pointer_drop(pointer),
                tieline_key_drop(key),
                tieline_counter_drop(counter),
                tieline_kept_drop(seen.0),
                tieline_announcement_refuse(seen.1),
                tieline_name_call_drop(call),
                tieline_endpoint_drop(endpoint),
                tieline_worker_drop(worker),
            ]
        };
        assert_eq!(dropped, [expected; 8]);
    }
}

extern "C" fn drops_its_worker(user: *mut c_void, message: *const ArrivedMessage) {
    // SAFETY: all objects belong to the test.
    let (worker, endpoint) = unsafe { *user.cast::<(*mut WorkerHandle, *mut EndpointHandle)>() };
    let state = object::<EndpointState, _>(endpoint).ok().unwrap().worker.clone();
    // SAFETY: the objects belong to the test.
    assert_eq!(unsafe { tieline_worker_drop(worker) }, 0);
    // SAFETY: no other call of this worker is in progress.
    assert!(unsafe { &*state.worker.get() }.is_some(), "its progress is still in it");
    assert_eq!(state.worker().err().unwrap().error.status(), Status::Closed);
    let mut peer = 7;
    // SAFETY: the objects belong to the test.
    assert_eq!(unsafe { crate::abi::message::tieline_message_peer(message, &raw mut peer) }, 0);
}

#[test]
fn worker_dropped_in_handler_ends_with_outermost_call() {
    let (context, worker, endpoint) = with_itself();
    let start = (&raw const context).cast();
    let mut both = (worker, endpoint);
    let (user, handler) = ((&raw mut both).cast(), Some(drops_its_worker as _));
    // SAFETY: the objects and places belong to this test.
    assert_eq!(unsafe { tieline_worker_on_message(worker, 1, handler, user) }, 0);
    for _ in 0..2 {
        // SAFETY: the objects and places belong to this test.
        assert_eq!(unsafe { tieline_send(endpoint, 1, 0, start, 1, null(), null_mut()) }, 0);
    }
    // SAFETY: the objects and places belong to this test.
    while unsafe { tieline_worker_progress(worker) } >= 0 {}
    let state = object::<EndpointState, _>(endpoint).ok().unwrap().worker.clone();
    // SAFETY: no other call of this worker is in progress.
    assert!(unsafe { &*state.worker.get() }.is_none());
    assert_eq!(Arc::strong_count(&state), 2, "the endpoint's and this one");
    // SAFETY: the objects and places belong to this test.
    let late = unsafe { tieline_send(endpoint, 1, 0, start, 1, null(), null_mut()) };
    assert_eq!(late, Status::Closed as i32);
    // SAFETY: the objects and places belong to this test.
    assert_eq!(unsafe { tieline_endpoint_drop(endpoint) }, 0);
    // SAFETY: the objects and places belong to this test.
    assert_eq!(unsafe { tieline_context_close(context) }, 0);
}

#[test]
fn busy_thread_leaves_owner_count_of_worker_unchanged() {
    let (mut context, mut worker) = (null_mut(), null_mut());
    // SAFETY: all places are local variables of this test.
    assert_eq!(unsafe { tieline_context_open(null(), &raw mut context) }, 0);
    // SAFETY: the objects and places belong to this test.
    assert_eq!(unsafe { tieline_worker_open(context, &raw mut worker) }, 0);
    let (bits, is_over) = (worker as usize, AtomicBool::new(false));
    let is_in = &Barrier::new(2);
    let told_busy: u64 = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let (handle, mut endpoint) =
                (bits as *const WorkerHandle, null_mut::<EndpointHandle>());
            let _ = is_in.wait();
            let mut busy = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: the objects and places belong to this test.
                let status = unsafe { tieline_worker_known_endpoint(handle, 0, &raw mut endpoint) };
                busy += u64::from(status == Status::Busy as i32);
            }
            busy
        });
        let made = drive(worker, |_, _| {
            let _ = is_in.wait();
            for _ in 0..50_000 {
                let mut counter = null_mut();
                // SAFETY: the objects and places belong to this test.
                assert_eq!(unsafe { tieline_worker_counter(worker, &raw mut counter) }, 0);
                // SAFETY: the objects and places belong to this test.
                assert_eq!(unsafe { tieline_counter_drop(counter) }, 0);
            }
            is_over.store(true, Ordering::Relaxed);
            Ok(other.join().unwrap())
        });
        made.ok().unwrap()
    });
    let state = state_of(worker).ok().unwrap();
    assert_eq!(Arc::strong_count(&state), 2, "after {told_busy} calls that were told so");
    drop(state);
    // SAFETY: the objects and places belong to this test.
    assert_eq!(unsafe { tieline_worker_drop(worker) }, 0);
    // SAFETY: the objects and places belong to this test.
    assert_eq!(unsafe { tieline_context_close(context) }, 0);
}
