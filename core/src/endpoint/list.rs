//! Lists: many puts or gets with one call, one completion, and the index of the first failure.
//!
//! A lane with lists (`RMA_LIST` of the ABI) takes as many descriptors per call as it can. If it completes later, these descriptors are
//! one operation (`list_later.rs`). Every other descriptor is posted like a single put or get. Descriptors that are not complete when they are posted become parts of one operation
//! (`Kind::Whole`), which the caller gets. It is opened after the last of them was posted: a fence that a part makes strong waits for
//! every operation that is open.

use super::key::RemoteKey;
use super::list_later::Called;
use super::post::{Local, Transfer};
use super::record::{Completion, list_op, rma_op};
use super::{Endpoint, EndpointState};
use crate::region::{Access, Region};
use crate::request::Outcome;
use crate::sys::Span;
use crate::{Error, PostError, Status};
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use tieline_plugin_api::OK;
use tieline_plugin_api::abi::{Iov, RmaPart};

/// The maximum number of descriptors that one call of a provider is offered.
const MOST_PER_CALL: usize = 1024;
/// The number of parts of one operation must be below this limit.
const MOST_PARTS: usize = u16::MAX as usize;

/// One put or get of a list: local memory, and its counterpart in the peer's memory. See [`Endpoint::put_list`].
#[derive(Clone, Copy)]
pub struct Descriptor<'a> {
    local: Place<'a>,
    len: usize,
    pub(super) key: &'a RemoteKey,
    pub(super) offset: u64,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Region(&'a Region, usize),
    Raw(Span),
}

impl<'a> Descriptor<'a> {
    /// Describes a transfer between a range of a local region and the peer's region at `offset`. The ranges are checked when the list
    /// is posted or prepared.
    #[inline]
    #[must_use]
    pub fn new(
        local: &'a Region,
        range: Range<usize>,
        key: &'a RemoteKey,
        offset: u64,
    ) -> Descriptor<'a> {
        // For a range that ends before it begins, the length is larger than any region.
        let len = range.end.wrapping_sub(range.start);
        Descriptor { local: Place::Region(local, range.start), len, key, offset }
    }

    /// Describes a transfer between ordinary memory and the peer's region at `offset`.
    ///
    /// # Safety
    /// The contract of [`Endpoint::put_raw`], or of [`Endpoint::get_raw`], applies to `base` and to every operation that is posted with
    /// this descriptor, or with a list that was prepared from it.
    #[inline]
    #[must_use]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn raw(
        base: *mut u8,
        len: usize,
        key: &'a RemoteKey,
        offset: u64,
    ) -> Descriptor<'a> {
        // SAFETY: the caller upholds this function's contract.
        let memory = unsafe { Span::new(base, len) };
        Descriptor { local: Place::Raw(memory), len, key, offset }
    }

    /// Describes a transfer of memory by its address. The caller upholds the contract of [`Descriptor::raw`].
    pub(crate) fn with_memory(memory: Span, key: &'a RemoteKey, offset: u64) -> Descriptor<'a> {
        Descriptor { local: Place::Raw(memory), len: memory.len(), key, offset }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Checks whether the descriptor transfers no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn region(&self) -> Option<&'a Region> {
        match self.local {
            Place::Region(region, _) => Some(region),
            Place::Raw(_) => None,
        }
    }

    /// Returns the address of the local memory.
    #[inline]
    fn base(&self) -> Result<*mut u8, Error> {
        match self.local {
            Place::Region(region, at) => {
                let base = region.inner.span.range(at, self.len);
                base.map_err(|status| region.outside(status, at, self.len))
            }
            Place::Raw(memory) => Ok(memory.base()),
        }
    }

    /// Returns the transfer as a single put or get.
    fn transfer(&self, put: bool) -> Transfer<'a> {
        let Descriptor { local, len, key, offset } = *self;
        let (local, at) = match local {
            Place::Region(region, at) => (Local::Region(region), at),
            Place::Raw(memory) => (Local::Raw(memory), 0),
        };
        Transfer { put, local, at, len, key, offset, completion: Completion::Remote }
    }
}

impl fmt::Debug for Descriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({} bytes at {} of the peer)", self.len, self.offset)
    }
}

/// A list of puts or gets that was checked, for posting it many times: [`Endpoint::post_list`].
///
/// The list keeps its local regions open: [`Region::close`](crate::Region::close) returns `Busy` until the list is dropped. It keeps
/// its keys as well, and so the endpoint.
pub struct PreparedList {
    put: bool,
    endpoint: Rc<EndpointState>,
    items: Vec<Item>,
    runs: Vec<Run>,
    /// The records for a provider; absent while the list is being posted.
    parts: Cell<Vec<RmaPart>>,
}

struct Item {
    local: Kept,
    len: usize,
    key: RemoteKey,
    offset: u64,
}

enum Kept {
    Region(Region, usize),
    Raw(Span),
}

impl Item {
    #[inline]
    fn descriptor(&self) -> Descriptor<'_> {
        let local = match &self.local {
            Kept::Region(region, at) => Place::Region(region, *at),
            Kept::Raw(memory) => Place::Raw(*memory),
        };
        Descriptor { local, len: self.len, key: &self.key, offset: self.offset }
    }
}

/// Adjacent descriptors of a prepared list with one key.
struct Run {
    range: Range<usize>,
    longest: usize,
    /// The provider's key that all records of the run have; null: the records may have different keys.
    filled: Cell<*mut c_void>,
}

impl PreparedList {
    /// Returns the number of descriptors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Checks whether the list has no descriptors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl fmt::Debug for PreparedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.put { "puts" } else { "gets" };
        write!(f, "PreparedList({} {what} over {})", self.len(), self.endpoint.name())
    }
}

impl Endpoint {
    /// Posts many puts with one call and one completion. Each descriptor has its own local memory, key and offset; all keys were
    /// imported on this endpoint. The operation is complete when the bytes of all descriptors are visible at the target. There is no
    /// order between the descriptors.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// # let (here, there, other) = (context.alloc(4096)?, context.alloc(4096)?, context.alloc(4096)?);
    /// # let me = worker.connect(&worker.address()?)?;
    /// # let (key, second) = (me.import_key(&there.remote_key()?)?, me.import_key(&other.remote_key()?)?);
    /// use tieline::Descriptor;
    /// let list = [
    ///     Descriptor::new(&here, 0..64, &key, 1024),
    ///     Descriptor::new(&here, 64..128, &key, 0),
    ///     Descriptor::new(&here, 512..576, &second, 0), // another region of the peer
    /// ];
    /// let put = me.put_list(&list)?;
    /// if let Err(error) = worker.finish(put) {
    ///     println!("descriptor {:?} failed first: {error}", error.index());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// If descriptors fail, the operation fails with the error of the one with the lowest index, which
    /// [`Error::index`](crate::Error::index) returns. All descriptors with a lower index have succeeded. Those with a higher index may
    /// have been executed, or not.
    ///
    /// The descriptors are parts of one operation, which [`Worker::cancel`](crate::Worker::cancel) cannot cancel. Each part that does
    /// not complete within the call counts as one of the endpoint's pending operations. A fence or a flush treats the parts like
    /// single puts.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`]; [`Error::index`](crate::Error::index) names the descriptor. Local ranges, remote ranges, keys
    /// and rights of all descriptors are checked before the first one is posted. [`PostError::Retry`]: nothing was posted, because the
    /// endpoint's other operations leave no room for as many operations as the list has descriptors. Any other failure that a lane
    /// reports within the call is returned as well, if no descriptor before it is pending. [`PostError::Correct`] with `TooLarge` if more descriptors would be pending than the endpoint may have operations
    /// ([`EndpointLimits::max_pending`](crate::EndpointLimits)), or than 65533.
    pub fn put_list(&self, list: &[Descriptor<'_>]) -> Result<Outcome, PostError> {
        self.inner.post_descriptors(true, list)
    }

    /// Posts many gets with one call and one completion; see [`Endpoint::put_list`]. If local ranges overlap, each shared byte has one
    /// of the values written to it.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_list`].
    pub fn get_list(&self, list: &[Descriptor<'_>]) -> Result<Outcome, PostError> {
        self.inner.post_descriptors(false, list)
    }

    /// Checks a list of puts, and prepares it for [`Endpoint::post_list`]. Posting a prepared list does not check the descriptors
    /// again, and costs little besides the work of the provider.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_list`] that concern the descriptors.
    pub fn prepare_put_list(&self, list: &[Descriptor<'_>]) -> Result<PreparedList, PostError> {
        self.inner.prepare_list(true, list)
    }

    /// Checks a list of gets, and prepares it like [`Endpoint::prepare_put_list`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_list`] that concern the descriptors.
    pub fn prepare_get_list(&self, list: &[Descriptor<'_>]) -> Result<PreparedList, PostError> {
        self.inner.prepare_list(false, list)
    }

    /// Posts a list that was prepared on this endpoint. Each post is an operation of its own, as [`Endpoint::put_list`] describes. A
    /// list may be posted again while an earlier post is pending.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_list`]. [`PostError::Correct`] also for a list of another endpoint.
    pub fn post_list(&self, list: &PreparedList) -> Result<Outcome, PostError> {
        let (ep, items) = (&self.inner, &list.items);
        if !Rc::ptr_eq(&list.endpoint, ep) {
            return Err(prepared_elsewhere().into());
        }
        ep.check_open()?;
        let (mut parts, at) = (list.parts.take(), |at: usize| items[at].descriptor());
        if parts.len() != items.len() {
            // The list is posted inside another post of it, by a function of the application that opens a connection.
            ep.fill_parts(items.iter().map(Item::descriptor), &mut parts)?;
            return ep.run_list(list.put, &mut parts, at, &[]);
        }
        let posted = ep.run_list(list.put, &mut parts, at, &list.runs);
        list.parts.set(parts);
        posted
    }
}

impl EndpointState {
    fn post_descriptors(
        self: &Rc<Self>,
        put: bool,
        list: &[Descriptor<'_>],
    ) -> Result<Outcome, PostError> {
        let mut parts = self.shared.parts.take();
        let checked = self.check_list(put, list, &mut parts);
        let posted = checked.and_then(|()| self.run_list(put, &mut parts, |at| list[at], &[]));
        parts.clear();
        self.shared.parts.set(parts);
        posted
    }

    fn prepare_list(
        self: &Rc<Self>,
        put: bool,
        list: &[Descriptor<'_>],
    ) -> Result<PreparedList, PostError> {
        let mut parts = Vec::new();
        self.check_list(put, list, &mut parts)?;
        let mut runs: Vec<Run> = Vec::new();
        let mut items: Vec<Item> = Vec::with_capacity(list.len());
        for (at, one) in list.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if Rc::ptr_eq(&list[at - 1].key.inner, &one.key.inner) => {
                    (run.range.end, run.longest) = (at + 1, run.longest.max(one.len));
                }
                _ => {
                    let filled = Cell::new(std::ptr::null_mut());
                    runs.push(Run { range: at..at + 1, longest: one.len, filled });
                }
            }
            let local = match one.local {
                Place::Region(region, at) => Kept::Region(region.hold(), at),
                Place::Raw(memory) => Kept::Raw(memory),
            };
            items.push(Item { local, len: one.len, key: one.key.clone(), offset: one.offset });
        }
        let (endpoint, parts) = (self.clone(), Cell::new(parts));
        Ok(PreparedList { put, endpoint, items, runs, parts })
    }

    /// Makes all checks of a list that are possible before it is posted, and fills the records for a provider, without keys.
    fn check_list(
        &self,
        put: bool,
        list: &[Descriptor<'_>],
        parts: &mut Vec<RmaPart>,
    ) -> Result<(), PostError> {
        self.check_open()?;
        let needed = if put { Access::WRITE } else { Access::READ };
        for (index, one) in list.iter().enumerate() {
            let access = (needed, one.offset, one.len);
            if let Err(refused) = self.admit(true, &one.key.inner, one.region(), access, None) {
                let error = self.not_admitted(refused, one.key.len(), access);
                return Err(error.at_index(Some(index)).into());
            }
        }
        self.fill_parts(list.iter().copied(), parts)
    }

    /// Fills the records for a provider, without keys.
    fn fill_parts<'a>(
        &self,
        list: impl ExactSizeIterator<Item = Descriptor<'a>>,
        parts: &mut Vec<RmaPart>,
    ) -> Result<(), PostError> {
        parts.clear();
        parts.reserve(list.len());
        for (index, one) in list.enumerate() {
            let base = one.base().map_err(|error| error.at_index(Some(index)))?;
            let (local, key) = (Iov::new(base, one.len), std::ptr::null_mut());
            parts.push(RmaPart { local, key, offset: one.offset });
        }
        Ok(())
    }

    /// Posts the descriptors of a checked list. `runs`: those of a prepared list, else none.
    fn run_list<'a>(
        self: &Rc<Self>,
        put: bool,
        parts: &mut [RmaPart],
        at: impl Fn(usize) -> Descriptor<'a>,
        mut runs: &[Run],
    ) -> Result<Outcome, PostError> {
        let (count, mut next) = (parts.len(), 0);
        let (mut pending, mut failed) = (Vec::new(), None);
        // The limit is checked first: otherwise the call would have to return `Again` after some bytes were moved.
        if count > 0 && !self.has_room_for(count.min(self.most_operations()) + 1) {
            return Err(self.refused(Status::Again));
        }
        while next < count {
            let (one, mut code) = (at(next), OK);
            let fast = &one.key.inner.fast;
            let below = if put { &fast.put_below } else { &fast.get_below };
            if one.len < below.get() && self.may_try_memory() {
                if fast.lists.get() {
                    while runs.first().is_some_and(|run| run.range.end <= next) {
                        runs = &runs[1..];
                    }
                    let end = self.one_call(put, parts, next, &at, runs);
                    let (said, taken) = fast.list(&list_op(put, &parts[next..end], 0));
                    if said == OK && (1..=end - next).contains(&taken) {
                        next += taken;
                        continue;
                    }
                    // A module that completes within the call and takes nothing breaks its contract.
                    code = if said < 0 { said } else { Status::ProviderFailed as i32 };
                } else {
                    let op = rma_op(
                        &parts[next].local,
                        fast.key.get(),
                        one.offset,
                        0,
                        Completion::Remote,
                    );
                    code = if put { fast.put(&op) } else { fast.get(&op) };
                    if code == OK {
                        next += 1;
                        continue;
                    }
                }
            }
            if code == OK {
                match self.post_run(put, parts, next, &at) {
                    Called::Taken(request, taken) => {
                        pending.extend(request.map(|request| (request, Some(next))));
                        next += taken;
                        continue;
                    }
                    Called::Refused(said) => code = said,
                    Called::NotTried => {}
                }
            }
            if pending.is_empty() && count - next >= self.most_operations().min(MOST_PARTS) {
                return Err(too_many(count - next).at_index(Some(next)).into());
            }
            match self.post_part(put, &one, code, next + 1 < count) {
                Ok(Outcome::Done(_)) => {}
                Ok(Outcome::Pending(request)) => pending.push((request, Some(next))),
                Err(error) => {
                    failed = Some(Error::from(error).at_index(Some(next)));
                    break;
                }
            }
            next += 1;
        }
        match failed {
            Some(error) if pending.is_empty() => Err(error.into()),
            // The operation ends with the parts before the failed one, and with its error unless one of them fails.
            failed => self.joined(pending, failed),
        }
    }

    /// Writes the keys of the records that one call of a provider may take, from `next` on, and returns the end of these records. The
    /// first descriptor's lane has lists and takes the first descriptor.
    fn one_call<'a>(
        &self,
        put: bool,
        parts: &mut [RmaPart],
        next: usize,
        at: &impl Fn(usize) -> Descriptor<'a>,
        runs: &[Run],
    ) -> usize {
        let raw = at(next).key.inner.fast.raw.get();
        let most = parts.len().min(next + MOST_PER_CALL);
        let mut end = next;
        // A run whose keys were written by an earlier post costs a comparison.
        let mut left = runs;
        while let [run, rest @ ..] = left {
            if end >= most {
                break;
            }
            let one = at(end);
            let fast = &one.key.inner.fast;
            let below = if put { fast.put_below.get() } else { fast.get_below.get() };
            if run.longest >= below || !fast.lists.get() || !fast.raw.get().is(&raw) {
                break;
            }
            let key = fast.key.get();
            if run.filled.replace(key) != key {
                parts[run.range.clone()].iter_mut().for_each(|part| part.key = key);
            }
            (end, left) = (run.range.end, rest);
        }
        if end < most {
            left.iter().for_each(|run| run.filled.set(std::ptr::null_mut()));
        }
        let mut known = (std::ptr::null(), std::ptr::null_mut(), 0);
        while end < most {
            let one = at(end);
            let (inner, fast) = (Rc::as_ptr(&one.key.inner), &one.key.inner.fast);
            if inner != known.0 {
                if !fast.lists.get() || !fast.raw.get().is(&raw) {
                    break;
                }
                let below = if put { fast.put_below.get() } else { fast.get_below.get() };
                known = (inner, fast.key.get(), below);
            }
            if one.len >= known.2 {
                break;
            }
            parts[end].key = known.1;
            end += 1;
        }
        end.min(most)
    }

    /// Posts one descriptor like a single put or get. `code`: the status of a module that did not take it, or `OK`. `is_followed`:
    /// another descriptor follows, so a module may start both together.
    #[inline(never)]
    fn post_part(
        self: &Rc<Self>,
        put: bool,
        one: &Descriptor<'_>,
        mut code: i32,
        is_followed: bool,
    ) -> Result<Outcome, PostError> {
        let fast = &one.key.inner.fast;
        if put && code == OK && fast.is_short(one.len) {
            match self.post_short(one.key, one.base()?, one.len, one.offset, Completion::Remote) {
                Ok(outcome) => return Ok(outcome),
                Err(said) => code = said,
            }
        }
        let transfer = one.transfer(put);
        if is_followed && code == OK {
            match self.post_direct::<true>(&transfer) {
                Ok(outcome) => return Ok(outcome),
                Err(said) => code = said,
            }
        }
        self.post_transfer(&transfer, code)
    }
}

#[cold]
fn prepared_elsewhere() -> Error {
    Error::new(
        Status::KeyRejected,
        "a list that was prepared on another endpoint",
        "a prepared list belongs to its endpoint",
        "prepare the list on this endpoint too",
    )
}

#[cold]
fn too_many(pending: usize) -> Error {
    Error::new(
        Status::TooLarge,
        format!("a list of which {pending} descriptors complete later"),
        "an endpoint has fewer operations at a time",
        "post it in parts, or raise TIELINE_QUEUE_BYTES (65533 descriptors are the most)",
    )
}
