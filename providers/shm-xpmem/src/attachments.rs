//! The attachments of this process: windows of peers' registrations, cached for the next access.
//!
//! An attachment follows addresses, not memory: if the owner maps other memory at an address, the attachment shows that memory. The
//! cache therefore needs no notifications about the owner's mappings. An entry is released when this process notices the end of its
//! registration, or when the last endpoint to its owner is dropped. If the limit on attachments or bytes is reached, the least
//! recently used entry is evicted. Entries in use stay.
//!
//! Time is counted in attachments made, because the order of uses between two of them does not matter.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tieline_memory_file::{Nonce, whole_pages};
use tieline_plugin_api::process::Mark;

use crate::card;
use crate::settings::Settings;
use crate::sys::{Errno, Kernel, Permit, Segment};

/// The permit to attach parts of a segment. The permit is released with its last attachment.
struct Permission {
    kernel: Arc<dyn Kernel>,
    permit: Permit,
    mark: Mark,
}

impl Drop for Permission {
    fn drop(&mut self) {
        // A forked child has neither attachments nor permits.
        if self.mark.is_here() {
            let _ = self.kernel.release(self.permit);
        }
    }
}

/// A range of an owner's memory that is mapped in this process.
pub(crate) struct Attachment {
    permission: Arc<Permission>,
    /// The owner's address of the attachment's first byte.
    start: u64,
    /// The local address of the attachment's first byte.
    at: u64,
    len: u64,
    used: AtomicU64,
}

impl Attachment {
    fn new(
        permission: &Arc<Permission>,
        place: Where,
        (start, len): (u64, u64),
    ) -> Result<Attachment, Errno> {
        let offset = start.checked_sub(place.segment_start).ok_or(libc::EINVAL)?;
        let at = permission.kernel.attach(permission.permit, offset, len)?;
        Ok(Attachment { permission: permission.clone(), start, at, len, used: AtomicU64::new(0) })
    }

    /// Returns the local address of an owner's address, and the number of attached bytes from there on.
    #[inline]
    pub(crate) fn of(&self, address: u64) -> Option<(u64, u64)> {
        let inside = address.checked_sub(self.start).filter(|inside| *inside < self.len)?;
        Some((self.at + inside, self.len - inside))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.permission.mark.is_here() {
            // The only possible error is that nothing is attached any more.
            let _ = self.permission.kernel.detach(self.at);
        }
    }
}

/// A registration of an owner, and the start of its segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Where {
    pub(crate) owner: Nonce,
    /// The segment of the owner's card.
    pub(crate) card: Segment,
    pub(crate) generation: u64,
    pub(crate) segment: Segment,
    pub(crate) segment_start: u64,
    /// The owner's address of the registration's first byte.
    pub(crate) base: u64,
    /// The length of the registration in bytes.
    pub(crate) len: u64,
    /// The length of the windows in which the registration is attached.
    pub(crate) window: u64,
}

impl Where {
    /// Checks whether the registration's segment covers nothing else, and ends with the registration.
    pub(crate) fn is_all_of_its_segment(&self, page: u64) -> bool {
        self.segment_start == self.pages(page).start
    }

    /// Returns the window that contains an address of the registration.
    fn around(&self, address: u64) -> Window {
        let Where { owner, generation, window: len, .. } = *self;
        Window { owner, generation, number: address / len, len }
    }

    /// Returns the registration's pages. At the end of the address space, the last page is missing.
    fn pages(&self, page: u64) -> Range<u64> {
        let last = self.base / page * page..u64::MAX / page * page;
        whole_pages(self.base, self.len, page).unwrap_or(last)
    }
}

/// A window of a registration: the unit of attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Window {
    owner: Nonce,
    generation: u64,
    number: u64,
    len: u64,
}

/// A whole registration, attached for as long as a key holds a pointer into it.
pub(crate) struct Whole {
    attachment: Attachment,
    owner: Nonce,
    all: Arc<Attachments>,
}

impl Whole {
    /// Returns the local address of an owner's address.
    pub(crate) fn of(&self, address: u64) -> Option<u64> {
        self.attachment.of(address).map(|(at, _)| at)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if self.attachment.permission.mark.is_here() {
            let mut state = self.all.state();
            state.beside -= 1;
            state.bytes -= self.attachment.len;
            if let Some(sum) = state.wholes.get_mut(&self.owner) {
                // The last endpoint to the owner may have been dropped before, and the sum with it.
                *sum = sum.saturating_sub(self.attachment.len);
            }
        }
    }
}

#[derive(Default)]
struct State {
    windows: HashMap<Window, Arc<Attachment>>,
    /// A lower bound for the time of each window's last use.
    order: BinaryHeap<Reverse<(u64, Window)>>,
    permissions: HashMap<(Nonce, Segment), Weak<Permission>>,
    endpoints: HashMap<Nonce, usize>,
    /// The number of bytes of the windows and of the whole registrations.
    bytes: u64,
    /// The number of whole registrations.
    beside: u64,
    /// The bytes of whole registrations, by owner.
    wholes: HashMap<Nonce, u64>,
}

/// The number and the bytes of attachments.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// The attachments of a process through one descriptor of the device, within the limits of `settings`.
pub(crate) struct Attachments {
    kernel: Arc<dyn Kernel>,
    settings: Settings,
    clock: AtomicU64,
    state: Mutex<State>,
}

impl Attachments {
    pub(crate) fn new(kernel: Arc<dyn Kernel>, settings: Settings) -> Attachments {
        Attachments { kernel, settings, clock: AtomicU64::new(0), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is complete before any code can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the attached bytes of this owner.
    pub(crate) fn of(&self, owner: &Nonce) -> u64 {
        let state = self.state();
        let own = state.windows.iter().filter(|(window, _)| window.owner == *owner);
        let windows: u64 = own.map(|(_, one)| one.len).sum();
        windows + state.wholes.get(owner).copied().unwrap_or(0)
    }

    /// Returns the number and bytes of the cached windows and whole registrations.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Attached {
        let state = self.state();
        Attached { count: state.windows.len() as u64 + state.beside, bytes: state.bytes }
    }

    /// Counts another endpoint to this owner.
    pub(crate) fn join(&self, owner: &Nonce) {
        *self.state().endpoints.entry(*owner).or_default() += 1;
    }

    /// Counts one endpoint less. The last one releases the owner's attachments.
    pub(crate) fn leave(&self, owner: &Nonce) {
        let mut state = self.state();
        let left = state.endpoints.get_mut(owner).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == 0 {
            let _ = state.endpoints.remove(owner);
            let _ = state.wholes.remove(owner);
            state.forget(|window| window.owner == *owner);
        }
    }

    /// Releases the attachments of a registration that has ended or whose memory is inaccessible.
    pub(crate) fn forget(&self, owner: &Nonce, generation: u64) {
        let own = |window: &Window| window.owner == *owner && window.generation == generation;
        self.state().forget(own);
    }

    /// Releases all windows.
    pub(crate) fn clear(&self) {
        self.state().forget(|_| true);
    }

    /// Returns the windows in a range that are not attached: their numbers, and the bytes of the range in each.
    pub(crate) fn cold(&self, place: Where, address: u64, len: u64) -> Vec<(u64, u64)> {
        let state = self.state();
        let (mut at, end) = (address, address + len);
        let mut cold = Vec::new();
        while at < end {
            let window = place.around(at);
            let next = (window.number + 1).checked_mul(window.len);
            let next = next.map_or(end, |next| next.min(end));
            if !state.windows.contains_key(&window) {
                cold.push((window.number, next - at));
            }
            at = next;
        }
        cold
    }

    /// Records a use of an attachment.
    #[inline]
    pub(crate) fn touch(&self, attachment: &Attachment) {
        // The time is later than the latest attachment, and earlier than the next one.
        let now = self.clock.load(Ordering::Relaxed) + 1;
        if attachment.used.load(Ordering::Relaxed) != now {
            attachment.used.store(now, Ordering::Relaxed);
        }
    }

    /// Returns the window of a registration that contains `address`, and attaches it if necessary.
    pub(crate) fn attach(&self, place: Where, address: u64) -> Result<Arc<Attachment>, Errno> {
        let window = place.around(address);
        let mut state = self.state();
        if let Some(found) = state.windows.get(&window) {
            self.touch(found);
            return Ok(found.clone());
        }
        let Range { start: first, end } = place.pages(self.settings.page);
        let start = (window.number * window.len).max(first);
        let next = window.number.checked_add(1).and_then(|next| next.checked_mul(window.len));
        let end = next.map_or(end, |next| next.min(end));
        let range = (start, end.checked_sub(start).filter(|len| *len > 0).ok_or(libc::EINVAL)?);
        let made = Arc::new(self.made(&mut state, place, range)?);
        let now = self.clock.fetch_add(2, Ordering::Relaxed) + 2;
        // If all entries are in use, this attachment is not cached and ends with its access.
        if state.has_room(&self.settings, made.len) {
            state.bytes += made.len;
            let _ = state.windows.insert(window, made.clone());
            state.order.push(Reverse((now, window)));
        }
        Ok(made)
    }

    /// Attaches a whole registration, for its key.
    pub(crate) fn attach_whole(self: &Arc<Attachments>, place: Where) -> Result<Whole, Errno> {
        let Range { start, end } = place.pages(self.settings.page);
        let len = end.checked_sub(start).filter(|len| *len > 0).ok_or(libc::EINVAL)?;
        let mut state = self.state();
        // The test comes before any eviction: evicting windows cannot free the room of whole registrations.
        if !state.would_have_room(&self.settings, len) {
            return Err(libc::ENOSPC);
        }
        let attachment = self.made(&mut state, place, (start, len))?;
        if !state.has_room(&self.settings, len) {
            return Err(libc::ENOSPC);
        }
        state.beside += 1;
        state.bytes += len;
        *state.wholes.entry(place.owner).or_default() += len;
        Ok(Whole { attachment, owner: place.owner, all: self.clone() })
    }

    fn made(
        &self,
        state: &mut State,
        place: Where,
        range: (u64, u64),
    ) -> Result<Attachment, Errno> {
        while !state.has_room(&self.settings, range.1) && state.let_one_go() {}
        let attach = |state: &mut State| {
            let permission = state.permission(&self.kernel, place, self.settings.page)?;
            Attachment::new(&permission, place, range)
        };
        match attach(state) {
            // This process has reached its limit on mappings or locked memory. Evicting attachments frees some.
            Err(errno) if is_want_of_memory(errno) => {
                while state.let_one_go() {}
                attach(state)
            }
            made => made,
        }
    }

    /// Checks whether the kernel module still has the registration's segment, with the same owner.
    pub(crate) fn ask(&self, place: Where) -> Result<(), Errno> {
        let permit = self.kernel.get(place.segment)?;
        let _ = self.kernel.release(permit);
        card::is_theirs(&*self.kernel, place.card, &place.owner, self.settings.page)
    }
}

/// Checks whether an attachment failed for lack of local mappings or memory. The error is EAGAIN if all memory is locked
/// (`mlockall`) and the limit on locked memory is reached.
pub(crate) fn is_want_of_memory(errno: Errno) -> bool {
    errno == libc::ENOMEM || errno == libc::EAGAIN
}

impl State {
    /// Checks whether there would be room after all windows are evicted.
    fn would_have_room(&self, settings: &Settings, len: u64) -> bool {
        let windows: u64 = self.windows.values().map(|one| one.len).sum();
        let beside = self.bytes.saturating_sub(windows);
        self.beside < settings.attachments && beside.saturating_add(len) <= settings.cache
    }

    fn has_room(&self, settings: &Settings, len: u64) -> bool {
        (self.windows.len() as u64).saturating_add(self.beside) < settings.attachments
            && self.bytes.saturating_add(len) <= settings.cache
    }

    fn permission(
        &mut self,
        kernel: &Arc<dyn Kernel>,
        place: Where,
        page: u64,
    ) -> Result<Arc<Permission>, Errno> {
        let name = (place.owner, place.segment);
        if let Some(known) = self.permissions.get(&name).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let permit = kernel.get(place.segment)?;
        let made = Arc::new(Permission { kernel: kernel.clone(), permit, mark: Mark::new() });
        // The check comes after the permit: a permit from a later program in the owner's process would lead to other memory.
        card::is_theirs(&**kernel, place.card, &place.owner, page)?;
        if self.permissions.len() > 2 * (self.windows.len() + 16) {
            self.permissions.retain(|_, permission| permission.strong_count() > 0);
        }
        let _ = self.permissions.insert(name, Arc::downgrade(&made));
        Ok(made)
    }

    fn take(&mut self, window: &Window) {
        if let Some(gone) = self.windows.remove(window) {
            self.bytes -= gone.len;
        }
    }

    fn forget(&mut self, which: impl Fn(&Window) -> bool) {
        let gone: Vec<Window> =
            self.windows.keys().filter(|window| which(window)).copied().collect();
        for window in &gone {
            self.take(window);
        }
        if !gone.is_empty() {
            self.order.retain(|Reverse((_, window))| !which(window));
        }
    }

    /// Evicts the least recently used entry that is not in use. Returns `false` if there is none.
    fn let_one_go(&mut self) -> bool {
        let mut in_use = Vec::new();
        let mut found = None;
        while let Some(Reverse((noted, window))) = self.order.pop() {
            let Some(attachment) = self.windows.get(&window) else { continue };
            let used = attachment.used.load(Ordering::Relaxed);
            if used > noted {
                self.order.push(Reverse((used, window)));
            } else if Arc::strong_count(attachment) > 1 {
                in_use.push(Reverse((noted, window)));
            } else {
                found = Some(window);
                break;
            }
        }
        self.order.extend(in_use);
        if let Some(window) = &found {
            self.take(window);
        }
        found.is_some()
    }
}

#[cfg(test)]
mod tests;
