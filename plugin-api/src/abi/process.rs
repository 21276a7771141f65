//! The state of a process that a forked child must not use as its own.
//!
//! A child has a copy of all memory of its parent, and one thread. A lock that another thread held stays locked in the child.
//! Connections, listeners and file locks still belong to the parent. So a `static` is one of these:
//!
//! * [`PerProcess`]: a child starts with a new value, and waits for no lock of its parent;
//! * [`Kept`]: the list only grows, has no lock, and a child continues to use it;
//! * [`Calls`] and [`Owner`], for other libraries: a child skips calls that might never return;
//! * a lock that is only tried, and whose owner does without the value if the lock is held;
//! * an atomic whose value is also correct in the child.
//!
//! Forks are detected without signals or handlers: the kernel wipes one page in a child, and the page's content is compared. Before
//! Linux 4.14 the process's id is compared instead.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

// Numbers of Linux, which the tests compare with libc's.
const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;
const MAP_PRIVATE: c_int = 2;
const MAP_ANONYMOUS: c_int = 0x20;
const MADV_WIPEONFORK: c_int = 18;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        len: usize,
        rights: c_int,
        kind: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int;
}

/// The page that the kernel wipes in a forked child.
#[repr(C)]
struct Page {
    /// The process's number; zero until the first call.
    number: AtomicU64,
    /// Not zero if the kernel does not wipe the page: before Linux 4.14, or if the page could not be mapped.
    stays: AtomicU64,
    /// A mark for each number modulo `MARKS`, so that an ancestor's mark stays wiped after this process has set its own.
    marks: [AtomicU8; MARKS],
}

const MARKS: usize = 4096 - 16;
const _: () = assert!(size_of::<Page>() == 4096);

/// The page, once it exists. A provider's file and the library have one each.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
/// The count of numbers that this process and its ancestors have taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Returns a number of this process that differs from those of its ancestors that have called this function.
///
/// The process's id is not sufficient: a child in a new namespace may have the id of its parent. A kernel before Linux 4.14 wipes
/// no pages; with such a kernel, or without memory for a page, the number is the process's id. Any thread may call this function.
#[must_use]
pub fn number() -> u64 {
    let page = page();
    match page.number.load(Ordering::Relaxed) {
        _ if page.stays.load(Ordering::Relaxed) != 0 => u64::from(std::process::id()),
        0 => take(page),
        number => number,
    }
}

#[cold]
fn take(page: &Page) -> u64 {
    // A thread that comes second leaves its own number unused. The parent had not taken these numbers before the fork.
    let next = TAKEN.fetch_add(1, Ordering::Relaxed) + 1;
    let taken = page.number.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    let number = taken.map_or_else(|other| other, |_| next);
    page.marks[number as usize % MARKS].store(1, Ordering::Relaxed);
    number
}

#[inline]
fn page() -> &'static Page {
    match NonNull::new(PAGE.load(Ordering::Acquire)) {
        // SAFETY: `made` has published a whole page, which is never unmapped.
        Some(page) => unsafe { page.as_ref() },
        None => made(),
    }
}

#[cold]
fn made() -> &'static Page {
    let len = size_of::<Page>();
    // SAFETY: a new mapping does not affect existing memory. The mapping is zeroed, which is a valid page.
    let (new, is_wiped) = unsafe {
        let (rights, kind) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        let new = mmap(ptr::null_mut(), len, rights, kind, -1, 0);
        match new.addr() == usize::MAX {
            true => (ptr::null_mut(), false),
            false => (new, madvise(new, len, MADV_WIPEONFORK) == 0),
        }
    };
    let new = match NonNull::new(new.cast::<Page>()) {
        Some(new) => new,
        // Without memory for a page, the process's id is the number.
        None => NonNull::from(Box::leak(Box::new(Page {
            number: AtomicU64::new(0),
            stays: AtomicU64::new(0),
            marks: [const { AtomicU8::new(0) }; MARKS],
        }))),
    };
    // SAFETY: the page is whole and not published yet.
    unsafe { new.as_ref() }.stays.store(u64::from(!is_wiped), Ordering::Relaxed);
    let first =
        PAGE.compare_exchange(ptr::null_mut(), new.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    let page = match first {
        Ok(_) => new,
        // Another thread was faster. That thread's page is used; this thread's page stays allocated. Two threads can make a page
        // only at the first use.
        Err(other) => NonNull::new(other).unwrap_or(new),
    };
    // SAFETY: a published page is whole and never unmapped.
    unsafe { page.as_ref() }
}

/// A mark of a process, by which code detects a forked child. The check is one load, for short paths.
///
/// Before Linux 4.14 a mark cannot distinguish a forked child from its parent. With any kernel, it cannot distinguish a process
/// from an ancestor whose [`number`] differs by a multiple of 4080.
#[derive(Clone, Copy)]
pub struct Mark {
    is_here: &'static AtomicU8,
}

impl Mark {
    /// Makes a mark of this process.
    #[must_use]
    pub fn new() -> Mark {
        let page = page();
        let number = match page.number.load(Ordering::Relaxed) {
            0 => take(page),
            number => number,
        };
        let is_here = &page.marks[number as usize % MARKS];
        // Another thread may have taken the number without having marked it yet.
        is_here.store(1, Ordering::Relaxed);
        Mark { is_here }
    }

    /// Checks whether the current process made the mark: `false` in a forked child, except as [`Mark`] states.
    #[inline(always)]
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.is_here.load(Ordering::Relaxed) != 0
    }
}

/// A mark that can be withdrawn: code that checks it then treats the current process as another one. The check is as cheap as that
/// of a [`Mark`].
pub struct Gate {
    /// The byte of a mark.
    is_here: AtomicPtr<AtomicU8>,
}

/// The byte that a withdrawn gate reads. It is never written.
static WITHDRAWN: AtomicU8 = AtomicU8::new(0);

impl Gate {
    /// Makes a gate of this process, which is not withdrawn.
    #[must_use]
    pub fn new() -> Gate {
        Gate { is_here: AtomicPtr::new(ptr::from_ref(Mark::new().is_here).cast_mut()) }
    }

    /// Checks whether the current process made the gate, and the gate is not withdrawn.
    #[inline(always)]
    #[must_use]
    pub fn is_here(&self) -> bool {
        // SAFETY: the pointer names a byte of the page or the static one; neither is ever freed.
        unsafe { &*self.is_here.load(Ordering::Relaxed) }.load(Ordering::Relaxed) != 0
    }

    /// Withdraws the gate, and returns the mark by which [`restore`](Gate::restore) ends this.
    pub fn withdraw(&self) -> Mark {
        let byte = self.is_here.swap(ptr::from_ref(&WITHDRAWN).cast_mut(), Ordering::SeqCst);
        // SAFETY: the pointer names a byte of the page or the static one; neither is ever freed.
        Mark { is_here: unsafe { &*byte } }
    }

    /// Checks whether the gate is withdrawn.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        ptr::eq(self.is_here.load(Ordering::Relaxed), &WITHDRAWN)
    }

    /// Restores a gate that was withdrawn.
    pub fn restore(&self, mark: Mark) {
        self.is_here.store(ptr::from_ref(mark.is_here).cast_mut(), Ordering::SeqCst);
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("is_here", &self.is_here()).finish()
    }
}

impl Default for Mark {
    fn default() -> Mark {
        Mark::new()
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").field("is_here", &self.is_here()).finish()
    }
}

/// A value per process: a forked child has a new one, and never reads, locks or drops its parent's.
///
/// ```
/// use std::sync::Mutex;
/// use tieline_plugin_api::process::PerProcess;
///
/// static OPEN: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
/// OPEN.lock().unwrap().push("a device".into());
/// ```
pub struct PerProcess<T> {
    newest: AtomicPtr<Numbered<T>>,
}

struct Numbered<T> {
    process: u64,
    /// The value of an ancestor. The pointer is never followed; it only shows leak checkers that the memory is still reachable.
    _before: AtomicPtr<Numbered<T>>,
    value: T,
}

// SAFETY: the type returns references to a `T`, and drops one, as a `Box<T>` would.
unsafe impl<T: Send> Send for PerProcess<T> {}
// SAFETY: any thread may make the value, another one may drop it, and all may have references to it.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}

impl<T> PerProcess<T> {
    /// Makes the state in which no process has a value yet.
    #[must_use]
    pub const fn new() -> PerProcess<T> {
        PerProcess { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value of this process, if it has one.
    fn own(&self, process: u64) -> Result<&T, *mut Numbered<T>> {
        let newest = self.newest.load(Ordering::Acquire);
        match NonNull::new(newest) {
            // SAFETY: a published value is whole. The value is dropped with `self`, or never.
            Some(found) => match unsafe { found.as_ref() } {
                found if found.process == process => Ok(&found.value),
                _ => Err(newest),
            },
            None => Err(newest),
        }
    }
}

impl<T: Default> PerProcess<T> {
    /// Returns the value of this process; the first call makes it. If several threads make a value at the same time, one value
    /// stays, and the others are dropped.
    pub fn get(&self) -> &T {
        let process = number();
        match self.own(process) {
            Ok(value) => value,
            Err(parents) => self.made(process, parents),
        }
    }

    #[cold]
    fn made(&self, process: u64, mut before: *mut Numbered<T>) -> &T {
        let (value, _before) = (T::default(), AtomicPtr::new(before));
        let new = Box::into_raw(Box::new(Numbered { process, _before, value }));
        loop {
            let swapped =
                self.newest.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                // SAFETY: `new` is published from here on, and is dropped with `self` or never. The parent's value is not freed:
                // its locks may be held by threads that do not exist in this process.
                Ok(_) => return unsafe { &(*new).value },
                Err(_) => match self.own(process) {
                    Ok(value) => {
                        // SAFETY: the value was boxed above, and was not published.
                        drop(unsafe { Box::from_raw(new) });
                        return value;
                    }
                    Err(other) => before = other,
                },
            }
        }
    }
}

impl<T: Default> Deref for PerProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.get()
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.own(number()).ok()).finish()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if self.own(number()).is_ok() {
            // SAFETY: the value was boxed, has no other owner, and no reference outlives `self`.
            drop(unsafe { Box::from_raw(*self.newest.get_mut()) });
        }
    }
}

/// The calls of another library that takes locks of its own. If a thread of the parent was in such a call at the fork, these locks
/// stay locked in the child.
#[derive(Debug, Default)]
pub struct Calls {
    inside: AtomicUsize,
    /// The number of calls that were in progress when this process was forked.
    inherited: PerProcess<OnceLock<usize>>,
}

/// A call in progress, which ends when this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Call<'a>(&'a AtomicUsize);

impl Calls {
    /// Makes the state in which no call is in progress.
    #[must_use]
    pub const fn new() -> Calls {
        Calls { inside: AtomicUsize::new(0), inherited: PerProcess::new() }
    }

    /// Begins a call. Returns `None` if a thread of the parent was in a call when this process was forked: a new call might never
    /// return.
    pub fn begin(&self) -> Option<Call<'_>> {
        // This line runs before the first call of this process.
        if *self.inherited.get_or_init(|| self.inside.load(Ordering::SeqCst)) > 0 {
            return None;
        }
        let _ = self.inside.fetch_add(1, Ordering::SeqCst);
        Some(Call(&self.inside))
    }

    /// Checks whether a call is in progress in this process, or was in progress in the parent when this process was forked.
    #[must_use]
    pub fn in_progress(&self) -> bool {
        self.inside.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let _ = self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The process that owns a resource which a forked child may not use: a library that keeps devices, threads or locks of the process
/// that loaded it.
#[derive(Debug, Default)]
pub struct Owner(AtomicU64);

impl Owner {
    /// Makes the state without an owner.
    #[must_use]
    pub const fn new() -> Owner {
        Owner(AtomicU64::new(0))
    }

    /// Claims the resource for this process. Returns `false` if an ancestor of this process owns the resource.
    #[must_use]
    pub fn take(&self) -> bool {
        let own = number();
        match self.0.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(owner) => owner == own,
        }
    }
}

/// Values that stay until the process ends. They are added without a lock, and stay usable in a forked child.
pub struct Kept<T: 'static> {
    newest: AtomicPtr<Link<T>>,
}

struct Link<T: 'static> {
    value: T,
    before: Option<&'static Link<T>>,
}

// SAFETY: the type returns references to each `T` to every thread.
unsafe impl<T: Send + Sync> Send for Kept<T> {}
// SAFETY: the type returns references to each `T` to every thread, and `T` permits that.
unsafe impl<T: Send + Sync> Sync for Kept<T> {}

impl<T> Kept<T> {
    /// Makes an empty list.
    #[must_use]
    pub const fn new() -> Kept<T> {
        Kept { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    fn newest(&self) -> Option<&'static Link<T>> {
        // SAFETY: `add` has published a whole link, which is never freed.
        NonNull::new(self.newest.load(Ordering::Acquire)).map(|link| unsafe { link.as_ref() })
    }

    /// Returns all values, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> + use<T> {
        std::iter::successors(self.newest(), |link| link.before).map(|link| &link.value)
    }

    /// Adds one value.
    pub fn add(&self, value: T) -> &'static T {
        let new = Box::into_raw(Box::new(Link { value, before: None }));
        loop {
            let before = self.newest.load(Ordering::Acquire);
            // SAFETY: `new` is not published yet, and a published link is never freed.
            unsafe { (*new).before = NonNull::new(before).map(|link| link.as_ref()) };
            let swapped =
                self.newest.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_ok() {
                // SAFETY: the link is in the list from here on, and is never freed.
                return unsafe { &(*new).value };
            }
        }
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept::new()
    }
}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({})", self.iter().count())
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
