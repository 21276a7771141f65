//! Poll sets: queues and counters that an application looks at together.

use super::enter::enter;
use super::object::{Table, common, head, inner, make, no_bind, no_control, release};
use super::{counter, cq, domain};
use crate::counter::Counter;
use crate::domain::Domain;
use crate::queue::Cq;
use core::ffi::{c_int, c_void};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tieline_libfabric_abi::*;

/// A member of a set, with the number of operations that a counter had at the last look.
enum Member {
    Queue(Rc<Cq>),
    Counter(Rc<Counter>, Cell<(u64, u64)>),
}

impl Member {
    fn users(&self) -> &Cell<usize> {
        match self {
            Member::Queue(cq) => &cq.users,
            Member::Counter(counter, _) => &counter.users,
        }
    }

    /// Checks whether there is an entry, or a change since the last look.
    fn has_events(&self) -> bool {
        match self {
            Member::Queue(cq) => cq.has_entries(),
            Member::Counter(counter, seen) => {
                let now = (counter.value.get(), counter.errors.get());
                seen.replace(now) != now
            }
        }
    }
}

/// A poll set.
struct Set {
    domain: Rc<Domain>,
    members: RefCell<Vec<(*mut fid, Member)>>,
}

static COMMON: Table<fi_ops> = common(close, no_bind, no_control);
static OPS: Table<fi_ops_poll> =
    Table(fi_ops_poll { size: size_of::<fi_ops_poll>(), poll, poll_add, poll_del });

pub(super) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    _: *mut c_void,
    out: *mut *mut fid,
) -> c_int {
    // SAFETY: the record is a domain, and the caller passes room for one address.
    unsafe {
        domain::within(domain, |domain| {
            domain.used();
            let fid = head(FI_CLASS_POLL, core::ptr::null_mut(), &COMMON);
            let set = Set { domain: domain.clone(), members: RefCell::default() };
            *out = make(fid_poll { fid, ops: OPS.at() }, set).cast();
            0
        })
    }
}

/// Returns the set of a record.
///
/// # Safety
/// The record is one of this provider's poll sets.
unsafe fn of<'a>(set: *mut fid_poll) -> &'a Set {
    // SAFETY: the caller's promise.
    unsafe { inner::<fid_poll, Set>(set) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let at: *mut fid_poll = fid.cast();
    // SAFETY: the record is a poll set.
    let set = unsafe { of(at) };
    // The domain stays open while it has objects.
    let domain = &*set.domain;
    enter(domain, || {
        for (_, member) in set.members.take() {
            member.users().set(member.users().get() - 1);
        }
        domain.unused();
        // SAFETY: the caller gives the object up.
        unsafe { release::<fid_poll, Set>(at) };
        0
    })
}

unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    // SAFETY: the record is a poll set.
    let set = unsafe { of(set) };
    enter(&set.domain, || {
        set.domain.progress();
        let mut found = 0;
        for (at, member) in set.members.borrow().iter() {
            if found < count && member.has_events() {
                // SAFETY: the caller's list has room for `count` addresses; members are not closed.
                unsafe { *contexts.add(found as usize) = (**at).context };
                found += 1;
            }
        }
        found
    })
}

unsafe extern "C" fn poll_add(set: *mut fid_poll, other: *mut fid, _: u64) -> c_int {
    // SAFETY: the record is a poll set, and the other object is valid.
    let (set, class) = unsafe { (of(set), (*other).fclass) };
    enter(&set.domain, || {
        // SAFETY: the class says what the other object is.
        let member = unsafe {
            match class {
                FI_CLASS_CQ => Member::Queue(cq::of(other.cast()).clone()),
                FI_CLASS_CNTR => {
                    Member::Counter(counter::of(other.cast()).clone(), Cell::default())
                }
                _ => return -FI_EINVAL,
            }
        };
        let mut members = set.members.borrow_mut();
        if !members.iter().any(|(at, _)| *at == other) {
            member.users().set(member.users().get() + 1);
            members.push((other, member));
        }
        0
    })
}

unsafe extern "C" fn poll_del(set: *mut fid_poll, other: *mut fid, _: u64) -> c_int {
    // SAFETY: the record is a poll set.
    let set = unsafe { of(set) };
    enter(&set.domain, || {
        let mut members = set.members.borrow_mut();
        let Some(at) = members.iter().position(|(at, _)| *at == other) else { return -FI_EINVAL };
        let (_, member) = members.remove(at);
        member.users().set(member.users().get() - 1);
        0
    })
}
