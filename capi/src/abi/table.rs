//! Handles: places in a table that never shrinks, so that looking at a place is always allowed.
//!
//! A handle is 64 bits: 24 for the place, 8 for the kind, 32 for how often the place was used. The place holds the same 64 bits
//! while its object is there, others while one call has the object for itself, and others again afterwards. No lock is taken, neither to look nor to make and to end one: a signal
//! handler may look, and a child that was forked while another thread was in here is not stuck.

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const PLACE_BITS: u32 = 24;
const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << (PLACE_BITS - CHUNK_BITS);
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// The kind that a place's tag has while a call has its object for itself. No object is of it.
const HELD: u64 = 0xff;

/// Handles are words of 64 bits that C sees as addresses.
const _: () = assert!(size_of::<usize>() == 8);

/// What a handle can stand for.
pub(crate) trait Object: 'static {
    /// Its number in handles: no two kinds have the same, and none has 0.
    const KIND: u8;
    /// What a person calls it: `an endpoint`.
    const NAME: &'static str;
}

/// A handle, as C has it.
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
    /// What the caller gave.
    #[inline]
    pub(crate) fn of<C>(given: *const C) -> Handle<T> {
        Handle(given as usize as u64, PhantomData)
    }

    /// The same bits, kept as a number.
    pub(crate) fn from_bits(bits: u64) -> Handle<T> {
        Handle(bits, PhantomData)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// What the caller gets.
    pub(crate) fn to_c<C>(self) -> *mut C {
        self.0 as usize as *mut C
    }
}

struct Place {
    /// The handle of what is here; without a kind, and with the number of the next free place, while nothing is.
    tag: AtomicU64,
    object: AtomicPtr<()>,
}

static TABLE: [AtomicPtr<Place>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
/// The first place that was never used.
static FRESH: AtomicU64 = AtomicU64::new(1);
/// The free places' first one, and above it how often this word has changed.
static FREE: AtomicU64 = AtomicU64::new(0);

/// The place of a handle, whatever its bits are; `None` where no place was made yet.
#[inline]
fn place(bits: u64) -> Option<&'static Place> {
    let chunk = (bits >> CHUNK_BITS) as usize & (CHUNKS - 1);
    let chunk = TABLE[chunk].load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: a chunk has this many places, and is never freed.
    Some(unsafe { &*chunk.add(bits as usize & (CHUNK - 1)) })
}

#[inline]
fn live<T: Object>(handle: Handle<T>) -> Option<&'static Place> {
    let place = place(handle.0)?;
    let is_it =
        place.tag.load(Ordering::Acquire) == handle.0 && (handle.0 >> PLACE_BITS) as u8 == T::KIND;
    is_it.then_some(place)
}

/// The object of a handle, while it is there.
///
/// # Safety
/// Nobody ends it while the reference is used: who holds its worker's mark knows that, and for what belongs to no worker the caller
/// promises it.
#[inline]
pub(crate) unsafe fn look<'a, T: Object>(handle: Handle<T>) -> Option<&'a T> {
    let object = live(handle)?.object.load(Ordering::Relaxed);
    // SAFETY: a place with this tag was given a `T` by `keep`, which stays until `end` has changed the tag.
    Some(unsafe { &*object.cast::<T>() })
}

/// Takes the object's address in, to be found by the handle that is returned; `None` where no more handles can be had.
pub(crate) fn keep<T: Object>(object: NonNull<T>) -> Option<Handle<T>> {
    let (number, place) = free_place()?;
    // A place's 32 bits of use begin anew after four billion times.
    let used = (place.tag.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
    let bits = used << 32 | u64::from(T::KIND) << PLACE_BITS | number;
    place.object.store(object.as_ptr().cast(), Ordering::Relaxed);
    place.tag.store(bits, Ordering::Release);
    Some(Handle::from_bits(bits))
}

/// Ends a handle, and gives the object's address back: to one caller alone.
pub(crate) fn end<T: Object>(handle: Handle<T>) -> Option<NonNull<T>> {
    let object = hold(handle)?;
    release(handle);
    Some(object)
}

/// Takes the object away from everybody else, with its place still its own: [`restore`] or [`release`] follows.
pub(crate) fn hold<T: Object>(handle: Handle<T>) -> Option<NonNull<T>> {
    let place = live(handle)?;
    let object = place.object.load(Ordering::Relaxed);
    // Who changes it first has the object.
    let held = held_tag(handle);
    let _ = place.tag.compare_exchange(handle.0, held, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    NonNull::new(object.cast())
}

fn held_tag<T: Object>(handle: Handle<T>) -> u64 {
    handle.0 | HELD << PLACE_BITS
}

/// Whether a call has the object of this handle for itself; of a handle that led to nothing also: had it a moment ago.
pub(crate) fn is_held<T: Object>(handle: Handle<T>) -> bool {
    let is_kind = (handle.0 >> PLACE_BITS) as u8 == T::KIND;
    let tag = place(handle.0).map(|place| place.tag.load(Ordering::Acquire));
    is_kind && tag.is_some_and(|tag| tag == held_tag(handle) || tag == handle.0)
}

/// The handle of an object that was held leads to it again.
pub(crate) fn restore<T: Object>(handle: Handle<T>) {
    if let Some(place) = place(handle.0) {
        place.tag.store(handle.0, Ordering::Release);
    }
}

/// The place is free for others.
pub(crate) fn release<T: Object>(handle: Handle<T>) {
    let Some(place) = place(handle.0) else { return };
    let (number, unused) = (handle.0 & PLACE, handle.0 & !0xffff_ffff);
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        place.tag.store(unused | (head & PLACE), Ordering::Relaxed);
        let next = (head >> 32).wrapping_add(1) << 32 | number;
        match FREE.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// What a handle is that leads to nothing of its kind: for a person.
pub(crate) fn what_is<T: Object>(handle: Handle<T>) -> &'static str {
    if handle.0 == 0 {
        return "a null handle";
    }
    let kind = (handle.0 >> PLACE_BITS) as u8;
    let used = place(handle.0).map(|place| place.tag.load(Ordering::Acquire));
    match used {
        Some(tag) if tag == handle.0 && kind != 0 => "a handle of another kind",
        Some(tag) if kind == T::KIND && tag >> 32 >= handle.0 >> 32 => "a handle that was closed",
        _ => "no handle of this library's",
    }
}

fn free_place() -> Option<(u64, &'static Place)> {
    let mut head = FREE.load(Ordering::Acquire);
    while head & PLACE != 0 {
        let found = place(head & PLACE)?;
        let after = found.tag.load(Ordering::Relaxed) & PLACE;
        let next = (head >> 32).wrapping_add(1) << 32 | after;
        match FREE.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some((head & PLACE, found)),
            Err(now) => head = now,
        }
    }
    let number = FRESH.fetch_add(1, Ordering::Relaxed);
    if number > PLACE {
        let _ = FRESH.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    make_chunk(number);
    Some((number, place(number)?))
}

fn make_chunk(number: u64) {
    let slot = &TABLE[(number >> CHUNK_BITS) as usize & (CHUNKS - 1)];
    if !slot.load(Ordering::Acquire).is_null() {
        return;
    }
    let empty = || Place { tag: AtomicU64::new(0), object: AtomicPtr::new(null_mut()) };
    let chunk: Box<[Place]> = (0..CHUNK).map(|_| empty()).collect();
    let chunk = Box::into_raw(chunk);
    let first = chunk.cast::<Place>();
    if slot.compare_exchange(null_mut(), first, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: made above, and nobody has seen it.
        drop(unsafe { Box::from_raw(chunk) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;
    struct Other;
    impl Object for One {
        const KIND: u8 = 201;
        const NAME: &'static str = "one";
    }
    impl Object for Other {
        const KIND: u8 = 202;
        const NAME: &'static str = "another";
    }

    fn kept() -> Handle<One> {
        keep(NonNull::from(Box::leak(Box::new(One)))).unwrap()
    }

    fn is_there(handle: Handle<One>) -> bool {
        // SAFETY: nobody else has these.
        unsafe { look(handle) }.is_some()
    }

    #[test]
    fn a_handle_leads_to_its_object_until_it_is_ended_and_is_ended_once() {
        let handle = kept();
        assert!(is_there(handle));
        assert!(end(handle).is_some());
        assert!(!is_there(handle) && end(handle).is_none());
        assert_eq!(what_is(handle), "a handle that was closed");
    }

    #[test]
    fn a_place_that_is_used_again_does_not_answer_to_its_first_handle() {
        let first = kept();
        assert!(end(first).is_some());
        let later: Vec<_> = (0..3 * CHUNK).map(|_| kept()).collect();
        assert!(!is_there(first) && later.iter().all(|handle| handle.bits() != first.bits()));
        assert!(later.iter().all(|handle| is_there(*handle) && end(*handle).is_some()));
    }

    #[test]
    fn what_a_call_has_for_itself_is_had_by_no_other_and_is_there_again_afterwards() {
        let handle = kept();
        let object = hold(handle).unwrap();
        assert!(is_held(handle) && !is_there(handle));
        assert!(hold(handle).is_none() && end(handle).is_none());
        for noise in [handle.bits() + 1, handle.bits() + (1 << 32), held_tag(handle)] {
            assert!(!is_held(Handle::<One>::from_bits(noise)));
        }
        assert!(!is_held(Handle::<Other>::from_bits(handle.bits())));
        restore(handle);
        assert!(is_there(handle));
        assert_eq!(end(handle), Some(object));
        assert!(!is_held(handle));
    }

    #[test]
    fn a_handle_of_another_kind_a_null_and_noise_lead_to_nothing_and_are_told_apart() {
        let handle = kept();
        let other = Handle::<Other>::from_bits(handle.bits());
        // SAFETY: nobody else has these.
        assert!(unsafe { look(other) }.is_none() && end(other).is_none());
        assert_eq!(what_is(other), "a handle of another kind");
        assert_eq!(what_is(Handle::<One>::from_bits(0)), "a null handle");
        for noise in [1, 2, 0x7fff_ffff_f000, u64::MAX, handle.bits() + (1 << 40)] {
            let noise = Handle::<One>::from_bits(noise);
            assert!(!is_there(noise), "{:#x}", noise.bits());
            assert_eq!(what_is(noise), "no handle of this library's");
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
