//! Notifications with bytes: messages that follow other operations.

use super::bytes::bytes;
use super::counter::{CounterHandle, CounterObject};
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::object;
use super::error::{Fault, answer};
use super::how::{self, How};
use super::records::{self, Params};
use std::ffi::c_void;
use tieline::{After, Status};

/// The operations that a notification follows: those of `requests` and `numbers` together, or those of `counter`. If the pointer to
/// the record or all three addresses are null, the notification follows everything that was posted to the endpoint before.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Followed {
    /// The size of this record in bytes.
    pub size: usize,
    /// Request numbers. A 0 stands for an operation that had ended when its call returned.
    pub requests: *const u64,
    /// The number of entries of `requests`.
    pub request_count: usize,
    /// Numbers that calls with TIELINE_HOW_NUMBERED wrote. A 0 stands for an operation that had ended when its call returned.
    pub numbers: *const u64,
    /// The number of entries of `numbers`.
    pub number_count: usize,
    /// A counter: the notification follows the operations that it counts and that have not ended, and is not sent if the counter has
    /// counted a failure since its last mark.
    pub counter: *const CounterHandle,
}

// SAFETY: `Followed` consists of numbers and addresses only.
unsafe impl Params for Followed {}

fn listed<'a>(numbers: *const u64, count: usize) -> Result<&'a [u64], Fault> {
    let len = count.saturating_mul(size_of::<u64>());
    if count > 0 && !numbers.is_null() && numbers.addr() % align_of::<u64>() != 0 {
        return Err(records::null("the list of numbers, which is not aligned"));
    }
    let _ = bytes(numbers.cast(), len)?;
    // SAFETY: `bytes` has checked the address and the length. The caller guarantees that the numbers are readable, and that no thread
    // changes them during the call.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(numbers, count) } })
}

/// Sends a message to the handler for `id` at the peer when other operations are complete at the target. If one of them fails or is
/// canceled, the message is never sent, and the notification ends with that error. The call returns immediately and holds back no
/// other operation. The notification ends when the transport has accepted the message, which is at most max_message
/// (tieline_endpoint_limits) bytes long.
///
/// A notification that follows everything is also not sent if an operation that was posted since the last tieline_flush or the last
/// such notification has failed or was canceled, even if that was reported. An operation whose result was taken cannot be followed:
/// the call returns TIELINE_INVALID. Post the notification before the next call that makes progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_notify(
    endpoint: *const EndpointHandle,
    after: *const Followed,
    id: u16,
    header: u64,
    payload: *const c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    // The place of the request number may be one of those that the lists lie in, so the lists are copied first.
    let followed = records::read(after).and_then(|given| {
        let requests = listed(given.requests, given.request_count)?.to_vec();
        Ok((given, requests, listed(given.numbers, given.number_count)?.to_vec()))
    });
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (payload, told) = (bytes(payload, len)?, how::read(how, 0, &state.worker)?);
        let (given, requests, mut numbers) = followed?;
        let lists = !given.requests.is_null() || !given.numbers.is_null();
        let counter = match given.counter.is_null() {
            true => None,
            false => Some(object::<CounterObject, _>(given.counter)?),
        };
        if lists && counter.is_some() {
            let why = "it names operations and a counter";
            let fix = "pass one of them";
            return Err(Fault::new(Status::Invalid, "a tieline_followed record", why, fix));
        }
        if let Some(counter) = counter {
            counter.check_worker(&state.worker)?;
        }
        let worker = &state.worker;
        worker.mark.post(|| {
            let known = worker.requests.borrow();
            for request in requests.iter().filter(|request| **request != 0) {
                numbers.push(known.get(*request)?.number());
            }
            drop(known);
            let after = match counter {
                Some(counter) => After::Counted(counter.counter()),
                None if lists => After::Numbers(&numbers),
                None => After::Everything,
            };
            let outcome = state.get()?.notify(after, id, header, payload)?;
            how::posted(worker, outcome, &told, request)
        })
    }))
}
