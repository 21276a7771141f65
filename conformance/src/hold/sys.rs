//! A mapping without access rights, and the signal handler in which an accessing thread waits.

#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The address of the mapping; 0 if there is none.
static AT: AtomicUsize = AtomicUsize::new(0);
static WAITS: AtomicBool = AtomicBool::new(false);
static GO: AtomicBool = AtomicBool::new(false);

/// A separate page in which accesses wait. At most one exists per process.
pub(crate) struct Hold {
    base: *mut c_void,
}

// SAFETY: the mapping belongs to the process; this type only names it.
unsafe impl Sync for Hold {}

impl Hold {
    pub(crate) const LEN: usize = 4096;

    pub(crate) fn new() -> Hold {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the call makes a new anonymous mapping.
        let base = unsafe { libc::mmap(ptr::null_mut(), Hold::LEN, rights, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "no memory for a page");
        // SAFETY: the handler uses nothing but atomics, `mprotect`, `sched_yield` and `sigaction`.
        let code = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = touched as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut())
        };
        assert_eq!(code, 0, "no handler for SIGSEGV");
        AT.store(base.addr(), SeqCst);
        Hold { base }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.cast()
    }

    pub(crate) fn hold(&self) {
        // SAFETY: `new` made the mapping.
        assert_eq!(unsafe { libc::mprotect(self.base, Hold::LEN, libc::PROT_NONE) }, 0);
    }

    pub(crate) fn waits(&self) -> bool {
        WAITS.load(SeqCst)
    }

    pub(crate) fn let_go(&self) {
        GO.store(true, SeqCst);
        // SAFETY: `new` made the mapping.
        let _ = unsafe { libc::mprotect(self.base, Hold::LEN, libc::PROT_READ | libc::PROT_WRITE) };
    }
}

extern "C" fn touched(_signal: i32, info: *const libc::siginfo_t, _context: *const c_void) {
    // SAFETY: the record is the kernel's for this signal.
    let at = unsafe { (*info).si_addr() }.addr();
    let base = AT.load(SeqCst);
    if base == 0 || !(base..base + Hold::LEN).contains(&at) {
        // SAFETY: the only pointer leads to a record of this frame; the access is repeated, and ends the process.
        unsafe {
            let action: libc::sigaction = core::mem::zeroed();
            let _ = libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
        }
        return;
    }
    WAITS.store(true, SeqCst);
    while !GO.load(SeqCst) {
        // SAFETY: the call takes nothing.
        let _ = unsafe { libc::sched_yield() };
    }
    // The releasing thread has made the page accessible, or is about to. The access is repeated until the page is accessible.
}
