//! 64-bit Arm.

use super::call_as_it_is;
use super::stack::{BELOW, MARKED, UNSET, stack};
use crate::abi::watched::MARK;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Copies 32, 16, 8, 4, 2 and 1 bytes at a time, in order. The processor moves each aligned word of eight bytes whole.
///
/// # Safety
/// As [`copy_shared`](super::copy_shared).
#[inline]
pub(super) unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    macro_rules! copy {
        ($size:literal, $load:literal, $store:literal) => {{
            std::arch::asm!(
                $load, $store,
                from = in(reg) from.add(at), to = in(reg) to.add(at), held = out(reg) _,
                options(nostack, preserves_flags)
            );
            at += $size;
        }};
    }
    // SAFETY: the caller guarantees the ranges; no move exceeds `len`.
    unsafe {
        while at < len & !31 {
            std::arch::asm!(
                "ldp {a}, {b}, [{from}]",
                "ldp {c}, {d}, [{from}, #16]",
                "stp {a}, {b}, [{to}]",
                "stp {c}, {d}, [{to}, #16]",
                from = in(reg) from.add(at), to = in(reg) to.add(at),
                a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
                options(nostack, preserves_flags)
            );
            at += 32;
        }
        while at < len & !7 {
            copy!(8, "ldr {held}, [{from}]", "str {held}, [{to}]");
        }
        if len & 4 != 0 {
            copy!(4, "ldr {held:w}, [{from}]", "str {held:w}, [{to}]");
        }
        if len & 2 != 0 {
            copy!(2, "ldrh {held:w}, [{from}]", "strh {held:w}, [{to}]");
        }
        while at < len {
            copy!(1, "ldrb {held:w}, [{from}]", "strb {held:w}, [{to}]");
        }
    }
}

/// Returns the result, a number that is not 0 if registers changed, and one that is not 0 if the stack changed.
///
/// # Safety
/// As [`call`](super::call).
pub(super) unsafe fn call(function: *const c_void, arguments: [usize; 4]) -> (usize, u64, u64) {
    /// The stack pointer before a call. A damaged function may change every register and the stack.
    static BEFORE: AtomicUsize = AtomicUsize::new(0);
    /// The stack pointer that a function gets, below the marked words of its caller's stack.
    static TOP: AtomicUsize = AtomicUsize::new(0);
    if TOP.load(Ordering::Relaxed) == 0 {
        match stack() {
            Some(top) => TOP.store(top, Ordering::Relaxed),
            // SAFETY: the caller's promise.
            None => return unsafe { call_as_it_is(function, arguments) },
        }
    }
    let [first, second, third, fourth] = arguments;
    let (returned, registers, stack);
    // SAFETY: the caller's promise. Registers that the convention keeps are put back or named, and so is the stack pointer. The other
    // stack is used by this call alone. An unwinder that looks for the caller ends here.
    unsafe {
        std::arch::asm!(
            "stp x19, x29, [sp, #-16]!",
            "mov x10, sp",
            "adrp x9, {before}",
            "str x10, [x9, :lo12:{before}]",
            "adrp x9, {top}",
            "ldr x9, [x9, :lo12:{top}]",
            "mov sp, x9",
            "mov x10, xzr",
            "2: str x11, [x9, x10]",
            "add x10, x10, #8",
            "cmp x10, #{stack}",
            "b.lo 2b",
            "sub x10, x9, #{below}",
            "mov x12, #{unset}",
            "3: str x12, [x10], #8",
            "cmp x10, x9",
            "b.lo 3b",
            "add x19, x11, #1",
            "add x20, x11, #2",
            "add x21, x11, #3",
            "add x22, x11, #4",
            "add x23, x11, #5",
            "add x24, x11, #6",
            "add x25, x11, #7",
            "add x26, x11, #8",
            "add x27, x11, #9",
            "add x28, x11, #10",
            "add x29, x11, #11",
            "fmov d8, x19",
            "fmov d9, x20",
            "fmov d10, x21",
            "fmov d11, x22",
            "fmov d12, x23",
            "fmov d13, x24",
            "fmov d14, x25",
            "fmov d15, x26",
            "mov x4, x11",
            "mov x5, x11",
            "mov x6, x11",
            "mov x7, x11",
            ".cfi_remember_state",
            ".cfi_undefined x30",
            "blr x8",
            ".cfi_restore_state",
            // The stack pointer, in x14: the difference.
            "adrp x9, {top}",
            "ldr x9, [x9, :lo12:{top}]",
            "mov x10, sp",
            "eor x14, x10, x9",
            "mov sp, x9",
            "movz x11, #{mark0}",
            "movk x11, #{mark1}, lsl #16",
            "movk x11, #{mark2}, lsl #32",
            "movk x11, #{mark3}, lsl #48",
            // The registers whose low halves the convention keeps are compared with those that it keeps whole.
            "fmov x1, d8",
            "fmov x2, d9",
            "fmov x3, d10",
            "fmov x4, d11",
            "fmov x5, d12",
            "fmov x6, d13",
            "fmov x7, d14",
            "fmov x8, d15",
            "eor x1, x1, x19",
            "orr x14, x14, x1",
            "eor x2, x2, x20",
            "orr x14, x14, x2",
            "eor x3, x3, x21",
            "orr x14, x14, x3",
            "eor x4, x4, x22",
            "orr x14, x14, x4",
            "eor x5, x5, x23",
            "orr x14, x14, x5",
            "eor x6, x6, x24",
            "orr x14, x14, x6",
            "eor x7, x7, x25",
            "orr x14, x14, x7",
            "eor x8, x8, x26",
            "orr x14, x14, x8",
            "add x12, x11, #1",
            "eor x12, x12, x19",
            "orr x14, x14, x12",
            "add x12, x11, #2",
            "eor x12, x12, x20",
            "orr x14, x14, x12",
            "add x12, x11, #3",
            "eor x12, x12, x21",
            "orr x14, x14, x12",
            "add x12, x11, #4",
            "eor x12, x12, x22",
            "orr x14, x14, x12",
            "add x12, x11, #5",
            "eor x12, x12, x23",
            "orr x14, x14, x12",
            "add x12, x11, #6",
            "eor x12, x12, x24",
            "orr x14, x14, x12",
            "add x12, x11, #7",
            "eor x12, x12, x25",
            "orr x14, x14, x12",
            "add x12, x11, #8",
            "eor x12, x12, x26",
            "orr x14, x14, x12",
            "add x12, x11, #9",
            "eor x12, x12, x27",
            "orr x14, x14, x12",
            "add x12, x11, #10",
            "eor x12, x12, x28",
            "orr x14, x14, x12",
            "add x12, x11, #11",
            "eor x12, x12, x29",
            "orr x14, x14, x12",
            // The stack, in x15.
            "mov x15, xzr",
            "mov x10, xzr",
            "4: ldr x12, [x9, x10]",
            "eor x12, x12, x11",
            "orr x15, x15, x12",
            "add x10, x10, #8",
            "cmp x10, #{stack}",
            "b.lo 4b",
            "adrp x9, {before}",
            "ldr x9, [x9, :lo12:{before}]",
            "mov sp, x9",
            "ldp x19, x29, [sp], #16",
            before = sym BEFORE,
            top = sym TOP,
            stack = const MARKED,
            below = const BELOW,
            unset = const UNSET,
            mark0 = const MARK & 0xffff,
            mark1 = const MARK >> 16 & 0xffff,
            mark2 = const MARK >> 32 & 0xffff,
            mark3 = const MARK >> 48,
            inlateout("x0") first => returned,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x8") function,
            in("x11") MARK,
            lateout("x14") registers,
            lateout("x15") stack,
            out("x20") _,
            out("x21") _,
            out("x22") _,
            out("x23") _,
            out("x24") _,
            out("x25") _,
            out("x26") _,
            out("x27") _,
            out("x28") _,
            out("v8") _,
            out("v9") _,
            out("v10") _,
            out("v11") _,
            out("v12") _,
            out("v13") _,
            out("v14") _,
            out("v15") _,
            clobber_abi("C"),
        );
    }
    (returned, registers, stack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::watched::{Broke, watched};

    unsafe extern "C" fn nothing() {}

    /// Functions that change what the convention keeps. Each is written in the processor's own instructions.
    macro_rules! broken {
        ($($name:ident: $($instruction:literal),*;)*) => {
            $(
                std::arch::global_asm!(
                    concat!(".globl ", stringify!($name)),
                    concat!(stringify!($name), ":"),
                    $($instruction,)*
                );
            )*
            unsafe extern "C" { $(fn $name();)* }
        };
    }

    broken! {
        watched_test_x19: "add x19, x19, #1", "ret";
        watched_test_x20: "mov x20, x21", "ret";
        watched_test_x27: "mov x27, xzr", "ret";
        watched_test_x28: "add x28, x28, #1", "ret";
        watched_test_frame: "mov x29, xzr", "ret";
        watched_test_d8: "fmov d8, xzr", "ret";
        watched_test_d15: "fmov d15, x0", "ret";
        watched_test_stack_pointer: "sub sp, sp, #16", "ret";
        watched_test_pops_one_more: "add sp, sp, #16", "ret";
        watched_test_next_word: "str xzr, [sp, #8]", "ret";
        watched_test_last_word: "str xzr, [sp, #4088]", "ret";
        watched_test_may: "mov x4, xzr", "mov x17, xzr", "movi v31.2d, #0", "str xzr, [sp, #-8]", "ret";
    }

    std::arch::global_asm!(
        ".globl watched_test_unset",
        "watched_test_unset:",
        "sub x9, sp, #4000",
        "ldr x0, [x9]",
        "ret"
    );
    unsafe extern "C" {
        fn watched_test_unset() -> usize;
    }

    // One test: a call has one place for the stack pointer.
    #[test]
    fn a_function_that_changes_what_its_caller_keeps_is_found_out() {
        // SAFETY: functions of this file, of which the others change no more than the marked words.
        let call = |function: *const ()| unsafe { watched(function.cast(), []) };
        assert!(call(nothing as *const ()).is_ok());
        assert!(call(watched_test_may as *const ()).is_ok());
        assert_eq!(call(watched_test_unset as *const ()), Ok(UNSET));
        for function in [
            watched_test_x19,
            watched_test_x20,
            watched_test_x27,
            watched_test_x28,
            watched_test_frame,
            watched_test_d8,
            watched_test_d15,
            watched_test_stack_pointer,
            watched_test_pops_one_more,
        ] {
            assert_eq!(call(function as *const ()), Err(Broke::Registers), "{function:?}");
        }
        for function in [watched_test_next_word, watched_test_last_word] {
            assert_eq!(call(function as *const ()), Err(Broke::Stack), "{function:?}");
        }
    }
}
