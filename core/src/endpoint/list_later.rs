//! Lists over a lane that completes later: one operation of the table and one call of the provider for many descriptors.
//!
//! The conditions are those of a single put or get that is posted directly (`direct.rs`). Descriptors that do not meet them are posted
//! one by one.

use super::EndpointState;
use super::list::Descriptor;
use super::record::list_op;
use crate::mem::local::{LocalBuffer, Memory};
use crate::region::{Access, Region};
use crate::request::Request;
use std::rc::Rc;
use std::sync::Arc;
use tieline_plugin_api::abi::RmaPart;
use tieline_plugin_api::{OK, PENDING, Status};

/// The maximum number of descriptors that one call of a provider is offered.
const MOST_PER_CALL: usize = 1024;
/// The number of descriptors from which one call for all of them costs less than a call for each.
const WORTH_IT: usize = 2;

/// The result of posting descriptors with one call.
pub(super) enum Called {
    /// The provider has taken this number of descriptors. Without a request they are complete.
    Taken(Option<Request>, usize),
    /// The provider has taken none, with this status.
    Refused(i32),
    /// No provider was called.
    NotTried,
}

impl EndpointState {
    /// Posts descriptors of a checked list from `next` on with one call, if their lane takes lists and completes them later. The
    /// operation holds their regions.
    pub(super) fn post_run<'a>(
        &self,
        put: bool,
        parts: &mut [RmaPart],
        next: usize,
        at: &impl Fn(usize) -> Descriptor<'a>,
    ) -> Called {
        let first = at(next);
        let fast = &first.key.inner.fast;
        if !fast.lists.get() || fast.direct[usize::from(!put)].get() == 0 {
            return Called::NotTried;
        }
        if fast.asks.get() {
            first.key.inner.resolve_now_and_then();
        }
        let (way, interface) = (fast.way.get(), fast.interface.get());
        let needed = if put { Access::WRITE } else { Access::READ };
        let access = (needed, first.offset, first.len());
        let open = self.may_try_memory();
        if self.admit(open, &first.key.inner, first.region(), access, Some(way)).is_err() {
            return Called::NotTried;
        }
        let mut held = Vec::new();
        let end = self.fill_run(put, parts, next, at, &mut held);
        if end - next < WORTH_IT {
            return Called::NotTried;
        }
        let memory = LocalBuffer::held(Memory::List(held.into()), 0, 0);
        // The caller's descriptors have handles of these regions, so releasing them here runs no code of the application.
        let opened = self.shared.ops.borrow_mut().open_held(self.index, interface, memory);
        let Ok(id) = opened else { return Called::NotTried };
        let (said, taken) = fast.list(&list_op(put, &parts[next..end], id.raw()));
        if said != PENDING {
            self.shared.with_ops(|ops| ops.withdraw(id));
        }
        let takes = (1..=end - next).contains(&taken);
        if matches!(said, OK | PENDING) && takes {
            self.order.note_posted(way);
        }
        match said {
            OK if takes => Called::Taken(None, taken),
            PENDING => {
                // A provider that takes no part, or more than it was given, breaks its contract. What it took is not known.
                let taken = if takes { taken } else { end - next };
                Called::Taken(Some(Request::new(self.shared.clone(), id)), taken)
            }
            said if said < 0 => Called::Refused(said),
            _ => Called::Refused(Status::ProviderFailed as i32),
        }
    }

    /// Fills the keys and registrations of the records that one call may take, from `next` on, and holds their regions. Returns the
    /// end of these records.
    fn fill_run<'a>(
        &self,
        put: bool,
        parts: &mut [RmaPart],
        next: usize,
        at: &impl Fn(usize) -> Descriptor<'a>,
        held: &mut Vec<Region>,
    ) -> usize {
        let (side, most) = (usize::from(!put), parts.len().min(next + MOST_PER_CALL));
        let fast = &at(next).key.inner.fast;
        let (raw, caps, interface) = (fast.raw.get(), fast.caps.get(), fast.interface.get());
        let (mut known, mut key, mut shortest, mut longest) =
            (std::ptr::null(), fast.key.get(), 0, 0);
        let mut registration = std::ptr::null_mut();
        for (index, part) in parts.iter_mut().enumerate().take(most).skip(next) {
            let one = at(index);
            let inner = Rc::as_ptr(&one.key.inner);
            if inner != known {
                let fast = &one.key.inner.fast;
                if !fast.lists.get() || !fast.raw.get().is(&raw) {
                    return index;
                }
                (known, key) = (inner, fast.key.get());
                // A short transfer may go as a message.
                (shortest, longest) = (one.key.inner.small.get(), fast.direct[side].get());
            }
            // The length of an empty transfer wraps around to the largest number.
            let len = one.len().wrapping_sub(1);
            if len < shortest || len >= longest {
                return index;
            }
            part.key = key;
            let Some(region) = one.region() else {
                part.local.region = std::ptr::null_mut();
                continue;
            };
            if !held.last().is_some_and(|last: &Region| Arc::ptr_eq(&last.inner, &region.inner)) {
                registration = self.registration(caps, interface, region);
                held.push(region.hold());
            }
            part.local.region = registration;
        }
        most
    }
}
