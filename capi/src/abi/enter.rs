//! Every entry: who may be in, and what becomes of a panic.

use super::error::{Fault, Kind};
use super::table::{self, Handle, Object};
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline::{Status, process};

/// Nobody is in a call.
const FREE: usize = 0;
/// A thread is in a call in which no function of the caller's runs, but for those that must not come back.
const POSTING: usize = 1;
/// A panic has ended it.
const BROKEN: usize = 2;
/// Nobody is in a call, and only the thread that opened it may be: a provider is bound to that thread.
const BOUND: usize = 3;

/// A worker's mark. Above the constants: the thread that makes progress, from whose handlers calls are let in.
pub(crate) struct Mark {
    word: AtomicUsize,
    opened_by: usize,
    process: process::Mark,
}

impl Mark {
    pub(crate) fn new(is_movable: bool) -> Mark {
        let word = AtomicUsize::new(if is_movable { FREE } else { BOUND });
        Mark { word, opened_by: this_thread(), process: process::Mark::new() }
    }

    /// Whether this thread is inside of a call that runs its handlers.
    pub(crate) fn is_in_handler(&self) -> bool {
        self.word.load(Ordering::Relaxed) == this_thread()
    }

    /// Does what runs nothing of the caller's and cannot panic, without the preparations for a panic. `None`: this thread may not be
    /// let in, or is in a handler; [`post`](Mark::post) knows.
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

    /// Does what runs nothing of the caller's.
    #[inline]
    pub(crate) fn post<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let before = self.word.load(Ordering::Relaxed);
        if before != FREE {
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

    /// Does what may run handlers, which may call again; the body hears whether no other call is around it.
    #[inline]
    pub(crate) fn drive<T>(&self, body: impl FnOnce(bool) -> Result<T, Fault>) -> Result<T, Fault> {
        let before = self.word.load(Ordering::Relaxed);
        if before != FREE {
            self.check_other(before)?;
        }
        self.word.store(this_thread(), Ordering::Relaxed);
        match catch_unwind(AssertUnwindSafe(|| body(before <= BOUND))) {
            Ok(result) => {
                // A call from inside may have ended it.
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

    /// Whether a call is let in although the mark is not free.
    #[cold]
    fn check_other(&self, found: usize) -> Result<(), Fault> {
        let (me, what) = (this_thread(), "a call of a worker, or of what belongs to it");
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
                "drop it and what belongs to it, open another one, and report the panic's words",
            )
            .of(Kind::Panicked)),
            BOUND if self.opened_by == me => Ok(()),
            BOUND => Err(Fault::new(
                Status::Invalid,
                what,
                "one of its providers belongs to the thread that opened it, and this is another",
                "call it from that thread alone, or leave that provider out (TIELINE_PROVIDERS)",
            )),
            thread if thread == me => Ok(()),
            _ => Err(Fault::new(
                Status::Busy,
                what,
                "another call of this worker is under way, in another thread or around this one",
                "call again when that one has returned: hold a lock for every call, or open a worker for each thread",
            )
            .of(Kind::Retry)),
        }
    }
}

/// What is wanted again behind a call of a provider's: kept in memory, which costs an instruction, and not in a register that has to be saved
/// for that and restored, which costs three.
pub(crate) struct Aside<T: Copy>(UnsafeCell<MaybeUninit<T>>);

impl<T: Copy> Aside<T> {
    /// Where it is to stay: a value that moves would be written twice.
    #[inline(always)]
    pub(crate) fn empty() -> Aside<T> {
        Aside(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Keeps a value, to be asked for by what this gives.
    #[inline(always)]
    pub(crate) fn keep(&self, value: T) -> Kept<'_, T> {
        let place = self.0.get().cast::<T>();
        // SAFETY: its own place, which nobody has a reference to.
        unsafe { place.write_volatile(value) };
        Kept(place, PhantomData)
    }
}

/// A value that was put aside.
pub(crate) struct Kept<'a, T: Copy>(*const T, PhantomData<&'a T>);

impl<T: Copy> Kept<'_, T> {
    #[inline(always)]
    pub(crate) fn get(&self) -> T {
        // SAFETY: `keep` has written there, and the place stays while this does.
        unsafe { self.0.read_volatile() }
    }
}

/// Keeps the thread from being canceled (`pthread_cancel`) while it is there: a cancellation unwinds the stack, which must not happen to the
/// frames of Rust. It waits for a point of the caller's own.
pub(crate) struct Uncanceled(c_int);

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    /// Writes the state from before where that is wanted, and cannot fail for a state that it has given.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

impl Uncanceled {
    pub(crate) fn new() -> Uncanceled {
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: the state of this thread, and a place for one number.
        let _ = unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncanceled(before)
    }
}

impl Drop for Uncanceled {
    fn drop(&mut self) {
        // SAFETY: the state of this thread from before.
        let _ = unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Does what belongs to no worker, or may wait.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let _uncanceled = Uncanceled::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// The object of a handle that the caller gave, for what is done at once; [`object`] says what is wrong where there is none.
#[inline(always)]
pub(crate) fn live<'a, T: Object, C>(given: *const C) -> Option<&'a T> {
    // SAFETY: as `object`.
    unsafe { table::look(Handle::<T>::of(given)) }
}

/// The object of a handle that the caller gave, or what is wrong with it.
#[inline]
pub(crate) fn object<'a, T: Object, C>(given: *const C) -> Result<&'a T, Fault> {
    let handle = Handle::<T>::of(given);
    // SAFETY: the caller ends nothing that another call uses, and a handler that does so is told `Busy`, or ends what the
    // calls around it have let go of.
    unsafe { table::look(handle) }.ok_or_else(|| no_object(handle))
}

#[cold]
pub(crate) fn no_object<T: Object>(handle: Handle<T>) -> Fault {
    if table::is_held(handle) {
        return Fault::new(
            Status::Busy,
            format!("a call for {}", T::NAME),
            "another call is about to end it, or changes it",
            "call again when that one has returned",
        )
        .of(Kind::Retry);
    }
    Fault::new(
        Status::Invalid,
        format!("a call for {}", T::NAME),
        format!("{:#x} is {}", handle.bits(), table::what_is(handle)),
        "pass a handle that this library gave, until it is closed",
    )
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> Fault {
    let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    let fix = "what was called is of no use any more; report this";
    Fault::new(Status::ProviderFailed, "the library panicked", words, fix).of(Kind::Panicked)
}

/// A number of the calling thread, above all marks.
#[inline]
fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_object_and_says_so_from_then_on() {
        let mark = Mark::new(true);
        let first = mark.post(|| -> Result<(), Fault> { panic!("a bug of {}", 7) }).unwrap_err();
        assert_eq!(first.error.status(), Status::ProviderFailed);
        assert_eq!((first.kind, first.error.why()), (Kind::Panicked, "a bug of 7"));
        let later = mark.drive(|_| Ok(())).unwrap_err();
        assert!(later.error.why().contains("panicked in an earlier call"));
        assert_eq!(mark.post(|| Ok(())).unwrap_err().error.status(), Status::ProviderFailed);
    }

    #[test]
    fn a_panic_in_a_call_from_a_handler_ends_the_worker_of_the_call_around_it() {
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
    fn what_is_done_at_once_keeps_others_out_and_finds_the_mark_as_it_was() {
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
    fn a_handler_is_let_in_and_another_thread_is_not() {
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
            mark.post(|| Ok(())) // and the call from outside has changed nothing
        })
        .unwrap();
        mark.post(|| Ok(())).unwrap();
    }

    #[test]
    fn what_a_post_runs_must_not_come_back() {
        let mark = Mark::new(true);
        let inner = mark.post(|| Ok(mark.post(|| Ok(())))).unwrap();
        assert_eq!(inner.unwrap_err().error.status(), Status::Busy);
        mark.post(|| Ok(())).unwrap();
    }

    #[test]
    fn a_worker_that_is_bound_to_its_thread_says_so_to_others() {
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
