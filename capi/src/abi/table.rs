//! Handles: places in tables that never shrink, so that a thread may examine a place at any time.
//!
//! A handle has 64 bits: 24 for the place, 8 for the kind, and 32 for the use count of the place. Each kind has a table of its own.
//! While its object exists and no call has exclusive access to it, a place holds the same 64 bits as the handle. Otherwise the
//! place holds bits that lead to another place. Thus arbitrary bits equal those of the place they lead to only if they are its
//! handle, and one comparison checks existence, kind and use count. Looking up, making and ending a handle take no lock of this
//! library. A signal handler may look up a handle, and a child that was forked while another thread was in here does not deadlock.

use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const PLACE_BITS: u32 = 24;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// The number of the first place that is assigned: places 0 and 1 are never assigned.
const FIRST: u64 = 2;
/// The number of the last place in the smallest list with places that can be assigned.
const LEAST: u64 = 63;
/// The number of kinds: every kind is smaller.
const KINDS: usize = 32;
/// The kind in a place's tag while a call has exclusive access to its object. No object has this kind.
const HELD: u64 = 0xff;

/// Handles are 64-bit words that C sees as addresses.
const _: () = assert!(size_of::<usize>() == 8);

/// A kind of object that a handle can refer to.
pub(crate) trait Object: 'static {
    /// The number of the kind in handles: unique, not 0, and below 32.
    const KIND: u8;
    /// The name of the kind in error texts: `an endpoint`.
    const NAME: &'static str;
}

/// A handle, as the C caller passes it.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Handle<T: Object>(u64, PhantomData<*const T>);

impl<T: Object> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}
impl<T: Object> Copy for Handle<T> {}

impl<T: Object> Handle<T> {
    /// Converts the caller's argument.
    #[inline]
    pub(crate) fn of<C>(given: *const C) -> Handle<T> {
        Handle(given as usize as u64, PhantomData)
    }

    /// Makes a handle from bits that were kept as a number.
    pub(crate) fn from_bits(bits: u64) -> Handle<T> {
        Handle(bits, PhantomData)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Converts to the caller's handle type.
    pub(crate) fn to_c<C>(self) -> *mut C {
        self.0 as usize as *mut C
    }

    fn table() -> &'static Table {
        const { assert!(T::KIND > 0 && (T::KIND as usize) < KINDS) };
        &TABLES[T::KIND as usize]
    }
}

struct Place {
    /// The state of the place. If the place holds an object: the handle of the object. If the place is free: the use count, and the
    /// number of the next free place or 0. While a call has exclusive access to the object: the handle with another kind and place
    /// 0. A free place is never its own successor.
    tag: AtomicU64,
    object: AtomicPtr<()>,
}

/// The header of a list of places; place `n` is the `n`th after the header. A list never changes. When a list is full, a longer
/// list replaces it, which begins with the same places. The old list stays allocated for threads that are reading it.
#[repr(C)]
struct List {
    /// The number of the last place: a power of two minus one.
    last: u64,
    /// The previous list.
    before: *const List,
    places: [&'static Place; 0],
}

/// The list of a kind that has had no objects.
#[repr(C)]
struct Empty {
    head: List,
    places: [&'static Place; 2],
}

// SAFETY: `Empty` is immutable.
unsafe impl Sync for Empty {}

/// Bits that lead to place 0 or 1 are not a handle: each of the two holds bits that lead to the other one.
static NOBODYS: [Place; 2] = [
    Place { tag: AtomicU64::new(1), object: AtomicPtr::new(null_mut()) },
    Place { tag: AtomicU64::new(0), object: AtomicPtr::new(null_mut()) },
];
static EMPTY: Empty = Empty {
    head: List { last: 1, before: null(), places: [] },
    places: [&NOBODYS[0], &NOBODYS[1]],
};

/// The places of one kind. The alignment keeps kinds with frequent changes in cache lines of their own.
#[repr(align(64))]
struct Table {
    list: AtomicPtr<List>,
    /// The number of the first place that was never used.
    fresh: AtomicU64,
    /// The number of the first free place and, in the upper bits, a count of changes of this word.
    free: AtomicU64,
}

static TABLES: [Table; KINDS] = [const {
    Table {
        list: AtomicPtr::new((&raw const EMPTY).cast::<List>().cast_mut()),
        fresh: AtomicU64::new(FIRST),
        free: AtomicU64::new(0),
    }
}; KINDS];

/// Returns the place that these bits lead to, for arbitrary bits.
#[inline(always)]
fn place(list: *const List, bits: u64) -> &'static Place {
    // SAFETY: a list is never freed, and has a place for each number up to `last`: see `longer`.
    unsafe {
        let first = (&raw const (*list).places).cast::<&'static Place>();
        *first.add((bits & (*list).last) as usize)
    }
}

impl Table {
    #[inline(always)]
    fn list(&self) -> *const List {
        self.list.load(Ordering::Acquire)
    }

    /// Returns the place with this number, if there is one.
    fn numbered(&self, bits: u64) -> Option<&'static Place> {
        let (list, number) = (self.list(), bits & PLACE);
        // SAFETY: a list is never freed.
        let is_there = number >= FIRST && number <= unsafe { (*list).last };
        is_there.then(|| place(list, number))
    }

    /// Takes a free place.
    fn free_place(&self) -> Option<(u64, &'static Place)> {
        let mut head = self.free.load(Ordering::Acquire);
        while head & PLACE != 0 {
            let found = self.numbered(head)?;
            let after = found.tag.load(Ordering::Relaxed) & PLACE;
            let next = (head >> 32).wrapping_add(1) << 32 | after;
            match self.free.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((head & PLACE, found)),
                Err(now) => head = now,
            }
        }
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        if number > PLACE {
            let _ = self.fresh.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        loop {
            if let Some(place) = self.numbered(number) {
                return Some((number, place));
            }
            self.grow();
        }
    }

    /// Replaces the list by a longer one, unless another thread has done so at the same time.
    #[cold]
    fn grow(&self) {
        let now = self.list();
        let (list, new) = longer(now);
        let swapped =
            self.list.compare_exchange(now.cast_mut(), list, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            // SAFETY: `longer` has made both, and no other thread has access to them.
            unsafe {
                drop(Box::from_raw(new));
                drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
                    list.cast::<*const ()>(),
                    words_of(&*list),
                )));
            }
        }
    }
}

/// Returns the number of words in a list, including the header.
fn words_of(list: &List) -> usize {
    size_of::<List>() / size_of::<usize>() + list.last as usize + 1
}

/// Makes a list of twice the number of places, at least 64, which begins with the places of `before`. Returns the list and its new
/// places.
fn longer(before: *const List) -> (*mut List, *mut [Place]) {
    // SAFETY: a list is never freed.
    let had = unsafe { (*before).last };
    let head = List { last: (2 * had + 1).max(LEAST), before, places: [] };
    let empty = || Place { tag: AtomicU64::new(0), object: AtomicPtr::new(null_mut()) };
    let new: Box<[Place]> = (had..head.last).map(|_| empty()).collect();
    let new = Box::into_raw(new);
    let words: Box<[*const ()]> = vec![null(); words_of(&head)].into();
    let list = Box::into_raw(words).cast::<List>();
    let last = head.last;
    // SAFETY: the allocation holds the header and the places. All places are initialized, with places that are never freed once
    // other threads have seen this list.
    unsafe {
        list.write(head);
        let first = (&raw mut (*list).places).cast::<&'static Place>();
        for number in 0..=had {
            first.add(number as usize).write(place(before, number));
        }
        for number in had + 1..=last {
            let place = new.cast::<Place>().add((number - had - 1) as usize);
            first.add(number as usize).write(&*place);
        }
    }
    (list, new)
}

#[inline(always)]
fn live<T: Object>(handle: Handle<T>) -> Option<&'static Place> {
    let place = place(Handle::<T>::table().list(), handle.0);
    (place.tag.load(Ordering::Acquire) == handle.0).then_some(place)
}

/// Returns the object of a handle, while the object exists.
///
/// # Safety
/// No thread ends the object while the reference is in use. Holding the worker's mark guarantees this; for objects that belong to
/// no worker the caller of the C function guarantees it.
#[inline(always)]
pub(crate) unsafe fn look<'a, T: Object>(handle: Handle<T>) -> Option<&'a T> {
    let object = live(handle)?.object.load(Ordering::Relaxed);
    // SAFETY: `keep` stored a `T` under this tag, and the object stays until `end` has changed the tag: no further check is needed.
    Some(unsafe { NonNull::new_unchecked(object).cast::<T>().as_ref() })
}

/// Stores the object's address under a new handle; `None` if no handle is left.
pub(crate) fn keep<T: Object>(object: NonNull<T>) -> Option<Handle<T>> {
    let (number, place) = Handle::<T>::table().free_place()?;
    // The 32-bit use count of a place wraps after 2^32 uses.
    let used = (place.tag.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
    let bits = used << 32 | u64::from(T::KIND) << PLACE_BITS | number;
    place.object.store(object.as_ptr().cast(), Ordering::Relaxed);
    place.tag.store(bits, Ordering::Release);
    Some(Handle::from_bits(bits))
}

/// Ends a handle and returns the object's address, to one caller only.
pub(crate) fn end<T: Object>(handle: Handle<T>) -> Option<NonNull<T>> {
    let object = hold(handle)?;
    release(handle);
    Some(object)
}

/// Gives the caller exclusive access to the object. The object's place stays reserved: [`restore`] or [`release`] must follow.
pub(crate) fn hold<T: Object>(handle: Handle<T>) -> Option<NonNull<T>> {
    let place = live(handle)?;
    let object = place.object.load(Ordering::Relaxed);
    // The first thread to change the tag gets the object.
    let held = held_tag(handle);
    let _ = place.tag.compare_exchange(handle.0, held, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    NonNull::new(object.cast())
}

/// Returns bits that lead to place 0, and not to this place.
fn held_tag<T: Object>(handle: Handle<T>) -> u64 {
    (handle.0 | HELD << PLACE_BITS) & !PLACE
}

/// Checks whether a call has exclusive access to the object of this handle. If resolving the handle has just failed, checks whether
/// a call had exclusive access at that moment.
pub(crate) fn is_held<T: Object>(handle: Handle<T>) -> bool {
    let is_kind = (handle.0 >> PLACE_BITS) as u8 == T::KIND;
    let place = Handle::<T>::table().numbered(handle.0);
    let tag = place.map(|place| place.tag.load(Ordering::Acquire));
    is_kind && tag.is_some_and(|tag| tag == held_tag(handle) || tag == handle.0)
}

/// Makes the handle of a held object valid again.
pub(crate) fn restore<T: Object>(handle: Handle<T>) {
    if let Some(place) = Handle::<T>::table().numbered(handle.0) {
        place.tag.store(handle.0, Ordering::Release);
    }
}

/// Frees the place of a held object.
pub(crate) fn release<T: Object>(handle: Handle<T>) {
    let table = Handle::<T>::table();
    let Some(place) = table.numbered(handle.0) else { return };
    let (number, unused) = (handle.0 & PLACE, handle.0 & !0xffff_ffff);
    let mut head = table.free.load(Ordering::Acquire);
    loop {
        place.tag.store(unused | (head & PLACE), Ordering::Relaxed);
        let next = (head >> 32).wrapping_add(1) << 32 | number;
        match table.free.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Describes, for an error text, a handle that does not lead to an object of its kind.
pub(crate) fn describe_unresolved<T: Object>(handle: Handle<T>) -> &'static str {
    if handle.0 == 0 {
        return "a null handle";
    }
    let kind = (handle.0 >> PLACE_BITS) as u8;
    let place = TABLES.get(usize::from(kind)).and_then(|table| table.numbered(handle.0));
    match place.map(|place| place.tag.load(Ordering::Acquire)) {
        Some(tag) if tag == handle.0 && kind != 0 => "a handle of another kind",
        Some(tag) if kind == T::KIND && tag >> 32 >= handle.0 >> 32 => "a handle that was closed",
        _ => "no handle of this library's",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;
    struct Other;
    impl Object for One {
        const KIND: u8 = 30;
        const NAME: &'static str = "one";
    }
    impl Object for Other {
        const KIND: u8 = 31;
        const NAME: &'static str = "another";
    }

    fn kept() -> Handle<One> {
        keep(NonNull::from(Box::leak(Box::new(One)))).unwrap()
    }

    fn is_there(handle: Handle<One>) -> bool {
        // SAFETY: only this test has handles of this kind.
        unsafe { look(handle) }.is_some()
    }

    #[test]
    fn a_handle_leads_to_its_object_until_it_is_ended_and_is_ended_once() {
        let handle = kept();
        assert!(is_there(handle));
        assert!(end(handle).is_some());
        assert!(!is_there(handle) && end(handle).is_none());
        assert_eq!(describe_unresolved(handle), "a handle that was closed");
    }

    #[test]
    fn reused_place_refuses_its_first_handle() {
        let first = kept();
        assert!(end(first).is_some());
        let later: Vec<_> = (0..12_000).map(|_| kept()).collect();
        assert!(!is_there(first) && later.iter().all(|handle| handle.bits() != first.bits()));
        assert!(later.iter().all(|handle| is_there(*handle) && end(*handle).is_some()));
    }

    #[test]
    fn held_object_is_exclusive_and_resolves_again_after_restore() {
        let handle = kept();
        let object = hold(handle).unwrap();
        assert!(is_held(handle) && !is_there(handle));
        assert!(hold(handle).is_none() && end(handle).is_none());
        for noise in [handle.bits() | PLACE, handle.bits() + (1 << 32), held_tag(handle)] {
            assert!(!is_held(Handle::<One>::from_bits(noise)));
        }
        assert!(!is_held(Handle::<Other>::from_bits(handle.bits())));
        restore(handle);
        assert!(is_there(handle));
        assert_eq!(end(handle), Some(object));
        assert!(!is_held(handle));
    }

    /// A kind of object whose handles no other test makes.
    struct Lonely;
    impl Object for Lonely {
        const KIND: u8 = 29;
        const NAME: &'static str = "a lonely one";
    }

    #[test]
    fn place_tag_resolves_to_itself_only_while_object_exists() {
        let keep_one = || keep(NonNull::from(Box::leak(Box::new(Lonely)))).unwrap();
        let is_tag_there = |handle: Handle<Lonely>| {
            let place = Handle::<Lonely>::table().numbered(handle.bits()).unwrap();
            let tag = Handle::<Lonely>::from_bits(place.tag.load(Ordering::Relaxed));
            live(tag).is_some()
        };
        let (first, second) = (keep_one(), keep_one());
        assert!(is_tag_there(first));
        let _ = hold(first).unwrap();
        assert!(!is_tag_there(first));
        release(first);
        assert!(!is_tag_there(first));
        assert!(end(second).is_some());
        // The tag names the place that was freed before.
        assert!(!is_tag_there(second) && !is_tag_there(first));
        for nobodys in [0, 1, PLACE, PLACE + 1, u64::MAX] {
            assert!(live(Handle::<Lonely>::from_bits(nobodys)).is_none());
        }
    }

    #[test]
    fn wrong_kind_null_and_noise_handles_get_distinct_errors() {
        let handle = kept();
        let other = Handle::<Other>::from_bits(handle.bits());
        // SAFETY: only this test has handles of this kind.
        assert!(unsafe { look(other) }.is_none() && end(other).is_none());
        assert_eq!(describe_unresolved(other), "a handle of another kind");
        assert_eq!(describe_unresolved(Handle::<One>::from_bits(0)), "a null handle");
        for noise in [1, 2, 0x7fff_ffff_f000, u64::MAX, handle.bits() + (1 << 40)] {
            let noise = Handle::<One>::from_bits(noise);
            assert!(!is_there(noise), "{:#x}", noise.bits());
            assert_eq!(describe_unresolved(noise), "no handle of this library's");
        }
        assert!(end(handle).is_some());
    }

    #[test]
    fn threads_that_make_and_end_handles_at_once_never_share_one() {
        let seen = std::sync::Mutex::new(std::collections::HashSet::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let _ = scope.spawn(|| {
                    for _ in 0..2_000 {
                        let handle = kept();
                        assert!(seen.lock().unwrap().insert(handle.bits()));
                        assert!(is_there(handle) && end(handle).is_some());
                    }
                });
            }
        });
    }
}
