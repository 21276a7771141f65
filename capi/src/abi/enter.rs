//! The guards of exported functions: they admit or refuse the thread, and catch panics.

use super::error::{Fault, Kind};
use super::table::{self, Handle, Object};
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use tieline::{DrivenWorker, Status, Worker, process};

/// The mark while no call is in progress.
const FREE: usize = 0;
/// The mark while a call is in progress that runs no function of the caller, except functions that must not call the library.
const POSTING: usize = 1;
/// The mark after a panic has ended the worker.
const BROKEN: usize = 2;
/// The mark while no call is in progress and only the thread that opened the worker is admitted, because a provider is bound to
/// that thread.
const BOUND: usize = 3;
/// The mark of a driven worker, at all times until a panic ends the worker. Calls take the worker's lock instead of the mark.
const DRIVEN: usize = 4;

/// A worker's mark. A value above the constants identifies the thread that makes progress; calls from its handlers are admitted.
pub(crate) struct Mark {
    word: AtomicUsize,
    opened_by: usize,
    process: process::Mark,
    driven: Option<Driven>,
}

/// A driven worker, and the ordinary worker behind it while a call holds the lock.
struct Driven {
    worker: DrivenWorker,
    locked: AtomicPtr<Worker>,
}

impl Mark {
    pub(crate) fn new(is_movable: bool) -> Mark {
        let word = AtomicUsize::new(if is_movable { FREE } else { BOUND });
        Mark { word, opened_by: this_thread(), process: process::Mark::new(), driven: None }
    }

    /// Makes the mark of a driven worker.
    pub(crate) fn with_driven(worker: DrivenWorker) -> Mark {
        let driven = Some(Driven { worker, locked: AtomicPtr::default() });
        let word = AtomicUsize::new(DRIVEN);
        Mark { word, opened_by: this_thread(), process: process::Mark::new(), driven }
    }

    /// Returns the driven worker, if this is the mark of one.
    pub(crate) fn driven(&self) -> Option<&DrivenWorker> {
        self.driven.as_ref().map(|driven| &driven.worker)
    }

    /// Returns the ordinary worker behind a driven one whose lock this thread holds.
    #[cold]
    pub(crate) fn locked_worker(&self) -> Option<&Worker> {
        let locked = self.driven.as_ref()?.locked.load(Ordering::Relaxed);
        // SAFETY: the address is set while this thread holds the lock, and the worker ends only under the lock.
        unsafe { locked.as_ref() }
    }

    /// Checks whether this thread is inside a call that runs the worker's handlers.
    pub(crate) fn is_in_handler(&self) -> bool {
        match &self.driven {
            Some(driven) => driven.worker.is_in_handler(),
            None => self.word.load(Ordering::Relaxed) == this_thread(),
        }
    }

    /// Runs a body under the lock of a driven worker.
    #[cold]
    #[inline(never)]
    fn post_driven<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let Some(driven) = &self.driven else { return Err(not_driven()) };
        // SAFETY: objects of the worker are in handles, and every call of a handle runs under this lock. Calls that wait, and
        // handlers, use the driven worker itself.
        let locked = unsafe { driven.worker.lock() }?;
        let worker = locked.worker().map_or(std::ptr::null(), std::ptr::from_ref);
        driven.locked.store(worker.cast_mut(), Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(body));
        driven.locked.store(std::ptr::null_mut(), Ordering::Relaxed);
        drop(locked);
        result.unwrap_or_else(|panic| {
            self.word.store(BROKEN, Ordering::Relaxed);
            Err(panicked(&*panic))
        })
    }

    /// Runs a body that calls no function of the caller and cannot panic, without catching panics. Returns `None` unless the mark
    /// is `FREE`; [`post`](Mark::post) then decides.
    #[inline(always)]
    pub(crate) fn at_once<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        if self.word.load(Ordering::Relaxed) != FREE {
            return None;
        }
        self.word.store(POSTING, Ordering::Relaxed);
        let aside = Aside::empty();
        let mark = aside.keep(self);
        let result = body();
        mark.get().word.store(FREE, Ordering::Relaxed);
        Some(result)
    }

    /// Runs a body that calls no function of the caller, except functions that must not call the library.
    #[inline]
    pub(crate) fn post<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let before = self.word.load(Ordering::Relaxed);
        if before != FREE {
            if before == DRIVEN {
                return self.post_driven(body);
            }
            self.check_other(before)?;
        }
        self.word.store(if before > BOUND { before } else { POSTING }, Ordering::Relaxed);
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(result) => {
                self.word.store(before, Ordering::Relaxed);
                result
            }
            Err(panic) => {
                self.word.store(BROKEN, Ordering::Relaxed);
                Err(panicked(&*panic))
            }
        }
    }

    /// Runs a body that may run handlers, which may call the library again. The body learns whether it is the outermost call.
    #[inline]
    pub(crate) fn drive<T>(&self, body: impl FnOnce(bool) -> Result<T, Fault>) -> Result<T, Fault> {
        let before = self.word.load(Ordering::Relaxed);
        if before != FREE {
            self.check_other(before)?;
        }
        self.word.store(this_thread(), Ordering::Relaxed);
        match catch_unwind(AssertUnwindSafe(|| body(before <= BOUND))) {
            Ok(result) => {
                // A nested call may have ended the worker.
                if self.word.load(Ordering::Relaxed) != BROKEN {
                    self.word.store(before, Ordering::Relaxed);
                }
                result
            }
            Err(panic) => {
                self.word.store(BROKEN, Ordering::Relaxed);
                Err(panicked(&*panic))
            }
        }
    }

    /// Decides whether a call is admitted although the mark is not `FREE`.
    #[cold]
    fn check_other(&self, found: usize) -> Result<(), Fault> {
        let (me, what) = (this_thread(), "a call of a worker or of one of its objects");
        if !self.process.is_here() {
            let why = "this is a forked child, and the worker belongs to its parent";
            return Err(Fault::new(
                Status::Invalid,
                what,
                why,
                "open a context of the child's own",
            )
            .of(Kind::Reopen));
        }
        match found {
            BROKEN => Err(Fault::new(
                Status::ProviderFailed,
                what,
                "the library panicked in an earlier call, which ended this worker",
                "drop it and its objects, open another worker, and report the text of the panic",
            )
            .of(Kind::Panicked)),
            DRIVEN => Err(not_driven()),
            BOUND if self.opened_by == me => Ok(()),
            BOUND => Err(Fault::new(
                Status::Invalid,
                what,
                "one of its providers belongs to the thread that opened it, and this is another thread",
                "call only from that thread, or exclude that provider (TIELINE_PROVIDERS)",
            )),
            thread if thread == me => Ok(()),
            _ => Err(Fault::new(
                Status::Busy,
                what,
                "another call of this worker is in progress, in another thread or around this call",
                "call again when it has returned: hold a lock for every call, or open a worker for each thread",
            )
            .of(Kind::Retry)),
        }
    }
}

/// Makes the error of a call that makes progress or waits in a way that a driven worker does not support.
#[cold]
pub(crate) fn not_driven() -> Fault {
    Fault::new(
        Status::Unsupported,
        "a call of a driven worker",
        "a driven worker makes progress by itself, and this call would keep other threads out while it waits",
        "use tieline_worker_finish, tieline_worker_wait_until or tieline_worker_wait, or open an ordinary worker",
    )
}

/// A place for a value that is needed after a call into a provider. The value is kept in memory, which costs one instruction. In a
/// register, it would have to be saved and restored, which costs three instructions.
pub(crate) struct Aside<T: Copy>(UnsafeCell<MaybeUninit<T>>);

impl<T: Copy> Aside<T> {
    /// Makes an empty place. The place is not moved, because a move would write the value twice.
    #[inline(always)]
    pub(crate) fn empty() -> Aside<T> {
        Aside(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Stores a value; the result reads the value back.
    #[inline(always)]
    pub(crate) fn keep(&self, value: T) -> Kept<'_, T> {
        let place = self.0.get().cast::<T>();
        // SAFETY: the place belongs to `self`, and no reference to it exists.
        unsafe { place.write_volatile(value) };
        Kept(place, PhantomData)
    }
}

/// A stored value.
pub(crate) struct Kept<'a, T: Copy>(*const T, PhantomData<&'a T>);

impl<T: Copy> Kept<'_, T> {
    #[inline(always)]
    pub(crate) fn get(&self) -> T {
        // SAFETY: `keep` initialized the place, and the place outlives this borrow.
        unsafe { self.0.read_volatile() }
    }
}

/// A guard that defers cancellation of the thread (`pthread_cancel`). A cancellation unwinds the stack, which must not happen to
/// Rust frames. A deferred cancellation takes effect at the caller's next cancellation point.
pub(crate) struct Uncanceled(c_int);

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    /// Writes the previous state if `before` is not null. The call cannot fail for a state that it returned earlier.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

impl Uncanceled {
    pub(crate) fn new() -> Uncanceled {
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: the call changes the state of this thread, and `before` is a place for one number.
        let _ = unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncanceled(before)
    }
}

impl Drop for Uncanceled {
    fn drop(&mut self) {
        // SAFETY: the argument is the previous state of this thread.
        let _ = unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Runs a body with cancellation of the thread deferred, and catches the body's panics.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let _uncanceled = Uncanceled::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Returns the object of a handle from the caller, for the inline path. If there is none, returns `None`; [`object`] then returns
/// the error.
#[inline(always)]
pub(crate) fn live<'a, T: Object, C>(given: *const C) -> Option<&'a T> {
    // SAFETY: the guarantee is the same as in `object`.
    unsafe { table::look(Handle::<T>::of(given)) }
}

/// Returns the object of a handle from the caller, or the error if there is none.
#[inline]
pub(crate) fn object<'a, T: Object, C>(given: *const C) -> Result<&'a T, Fault> {
    let handle = Handle::<T>::of(given);
    // SAFETY: the caller does not end an object that another call uses. A handler that tries to end such an object gets `Busy`, or
    // ends an object that the outer calls do not access afterwards.
    unsafe { table::look(handle) }.ok_or_else(|| no_object(handle))
}

#[cold]
pub(crate) fn no_object<T: Object>(handle: Handle<T>) -> Fault {
    if table::is_held(handle) {
        return Fault::new(
            Status::Busy,
            format!("a call for {}", T::NAME),
            "another call is ending or changing it",
            "call again when that call has returned",
        )
        .of(Kind::Retry);
    }
    Fault::new(
        Status::Invalid,
        format!("a call for {}", T::NAME),
        format!("{:#x} is {}", handle.bits(), table::describe_unresolved(handle)),
        "pass a handle that this library returned and that is not closed",
    )
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> Fault {
    let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    let fix = "the object of this call is unusable; report this";
    Fault::new(Status::ProviderFailed, "the library panicked", words, fix).of(Kind::Panicked)
}

/// Returns a number that identifies the calling thread, larger than all constants of the mark.
#[inline]
fn this_thread() -> usize {
    // SAFETY: `pthread_self` has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_ends_object_and_later_calls_report_it() {
        let mark = Mark::new(true);
        let first = mark.post(|| -> Result<(), Fault> { panic!("a bug of {}", 7) }).unwrap_err();
        assert_eq!(first.error.status(), Status::ProviderFailed);
        assert_eq!((first.kind, first.error.why()), (Kind::Panicked, "a bug of 7"));
        let later = mark.drive(|_| Ok(())).unwrap_err();
        assert!(later.error.why().contains("panicked in an earlier call"));
        assert_eq!(mark.post(|| Ok(())).unwrap_err().error.status(), Status::ProviderFailed);
    }

    #[test]
    fn panic_in_call_from_handler_ends_worker_of_outer_call() {
        let mark = Mark::new(true);
        mark.drive(|is_outermost| {
            assert!(is_outermost && mark.is_in_handler());
            let inner = mark.post(|| -> Result<(), Fault> { panic!("inside") });
            assert_eq!(inner.unwrap_err().kind, Kind::Panicked);
            Ok(())
        })
        .unwrap();
        assert_eq!(mark.post(|| Ok(())).unwrap_err().error.status(), Status::ProviderFailed);
    }

    #[test]
    fn inline_call_excludes_others_and_restores_mark() {
        let mark = Mark::new(true);
        let inner = mark.at_once(|| (mark.at_once(|| ()), mark.post(|| Ok(()))));
        let (again, posted) = inner.unwrap();
        assert_eq!((again, posted.unwrap_err().error.status()), (None, Status::Busy));
        assert_eq!(mark.at_once(|| 7), Some(7));
        let _ = mark.post(|| -> Result<(), Fault> { panic!("ended") }).unwrap_err();
        assert_eq!(mark.at_once(|| ()), None);
        assert_eq!(Mark::new(false).at_once(|| ()), None);
    }

    #[test]
    fn handler_is_admitted_and_other_thread_is_refused() {
        let mark = Mark::new(true);
        mark.drive(|_| {
            mark.post(|| Ok(()))?;
            mark.drive(|is_outermost| {
                assert!(!is_outermost);
                Ok(())
            })?;
            let other = std::thread::scope(|scope| {
                scope.spawn(|| mark.post(|| Ok(())).unwrap_err().error.status()).join().unwrap()
            });
            assert_eq!(other, Status::Busy);
            mark.post(|| Ok(())) // the call from the other thread has changed nothing
        })
        .unwrap();
        mark.post(|| Ok(())).unwrap();
    }

    #[test]
    fn nested_call_from_post_is_busy() {
        let mark = Mark::new(true);
        let inner = mark.post(|| Ok(mark.post(|| Ok(())))).unwrap();
        assert_eq!(inner.unwrap_err().error.status(), Status::Busy);
        mark.post(|| Ok(())).unwrap();
    }

    #[test]
    fn bound_worker_refuses_other_threads() {
        let mark = Mark::new(false);
        let _ = mark.post(|| mark_is_free(&mark)).unwrap_err();
        mark.drive(|_| mark.post(|| Ok(()))).unwrap();
        let why = std::thread::scope(|scope| {
            scope.spawn(|| mark.post(|| Ok(())).unwrap_err().error.why().to_owned()).join().unwrap()
        });
        assert!(why.contains("belongs to the thread that opened it"), "{why}");
    }

    fn mark_is_free(mark: &Mark) -> Result<(), Fault> {
        mark.post(|| Ok(()))
    }
}
