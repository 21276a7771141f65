//! The lock of a driven worker. Unlike a plain mutex, it refuses its own holder, and a thread that takes it repeatedly can let
//! others go first.

use crate::exit::thread_number;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The maximum number of yields by which a driving thread lets others take the lock first.
const YIELDS: u32 = 128;

pub(super) struct Lock<T> {
    mutex: Mutex<T>,
    /// The number of the thread that holds the lock; 0: none.
    holder: AtomicUsize,
    /// The number of threads that wait for the lock.
    waiting: AtomicUsize,
}

pub(super) struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    holder: &'a AtomicUsize,
}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Lock<T> {
        let (holder, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Lock { mutex: Mutex::new(value), holder, waiting }
    }

    /// Takes the lock; waits while another thread holds it. `None`: this thread holds it.
    #[inline]
    pub(super) fn lock(&self) -> Option<Locked<'_, T>> {
        match self.mutex.try_lock() {
            Ok(guard) => Some(self.locked(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.locked(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => self.lock_slowly(),
        }
    }

    #[cold]
    fn lock_slowly(&self) -> Option<Locked<'_, T>> {
        // Only this thread writes its own number.
        if self.holder.load(Ordering::Relaxed) == thread_number() {
            return None;
        }
        let _ = self.waiting.fetch_add(1, Ordering::Relaxed);
        // A panic under the lock leaves the state as a panic inside a call leaves that of an ordinary worker: usable.
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(self.locked(guard))
    }

    /// Takes the lock if no thread holds it.
    pub(super) fn try_lock(&self) -> Option<Locked<'_, T>> {
        match self.mutex.try_lock() {
            Ok(guard) => Some(self.locked(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.locked(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn locked<'a>(&'a self, guard: MutexGuard<'a, T>) -> Locked<'a, T> {
        self.holder.store(thread_number(), Ordering::Relaxed);
        Locked { guard, holder: &self.holder }
    }

    /// Lets the threads that wait for the lock take it first. The caller does not hold the lock.
    #[inline]
    pub(super) fn give_way(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.yield_to_others();
        }
    }

    #[cold]
    fn yield_to_others(&self) {
        for _ in 0..YIELDS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn holder_of_lock_is_refused_and_others_wait() {
        let lock = Lock::new(1);
        let first = lock.lock().unwrap();
        assert!(lock.lock().is_none() && lock.try_lock().is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock().unwrap());
            while lock.waiting.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(first);
            assert_eq!(other.join().unwrap(), 1);
        });
        assert!(lock.try_lock().is_some());
    }

    /// A driving thread takes the lock over and over. On a busy machine, a plain mutex would starve the others.
    #[test]
    fn thread_that_takes_lock_repeatedly_lets_others_in() {
        const ROUNDS: u32 = 200;
        let (lock, over) = (Lock::new(0u32), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _ = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    lock.give_way();
                    drop(lock.lock().unwrap());
                }
            });
            for _ in 0..ROUNDS {
                *lock.lock().unwrap() += 1;
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(*lock.lock().unwrap(), ROUNDS);
    }

    #[test]
    fn panic_under_lock_leaves_lock_usable() {
        let lock = Lock::new(7);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _locked = lock.lock().unwrap();
            panic!("under the lock");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock().unwrap(), 7);
    }
}
