//! The entry into the provider's safe code: the domain's lock, and the end of every panic.

use crate::domain::Domain;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tieline_libfabric_abi::FI_EOTHER;

/// The result of an interface function, which can express an error.
pub(super) trait Code {
    fn of(error: i32) -> Self;
}

impl Code for i32 {
    fn of(error: i32) -> i32 {
        -error
    }
}

impl Code for isize {
    fn of(error: i32) -> isize {
        -error as isize
    }
}

impl Code for u64 {
    fn of(_: i32) -> u64 {
        0
    }
}

/// Runs a call of a domain under its lock.
#[inline]
pub(super) fn enter<R: Code>(domain: &Domain, body: impl FnOnce() -> R) -> R {
    enter_inline(domain, body)
}

/// Runs a short call of a domain under its lock.
#[inline(always)] // the constants of the call reach the body
pub(super) fn enter_inline<R: Code>(domain: &Domain, body: impl FnOnce() -> R) -> R {
    let _guard = domain.gate.enter();
    if domain.poisoned.get() {
        return R::of(FI_EOTHER);
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(code) => code,
        Err(_) => {
            domain.poisoned.set(true);
            R::of(FI_EOTHER)
        }
    }
}

/// Runs a call that belongs to no domain.
pub(super) fn guard<R: Code>(body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| R::of(FI_EOTHER))
}

/// Makes the code of a call from its result.
#[inline]
pub(super) fn code<R: Code + Default>(result: Result<(), i32>) -> R {
    match result {
        Ok(()) => R::default(),
        Err(error) => R::of(error),
    }
}
