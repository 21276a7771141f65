//! x86-64.

use super::call_as_it_is;
use super::stack::{BELOW, MARKED, UNSET, stack};
use crate::abi::watched::MARK;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// # Safety
/// As [`copy_shared`](super::copy_shared).
#[inline]
pub(super) unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees the ranges; the direction flag is clear by the calling convention. Short copies avoid this
    // instruction, which takes some time to start.
    unsafe {
        if len <= SHORT_COPY {
            return copy_short(from, to, len);
        }
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// The maximum length of a copy that uses single moves.
const SHORT_COPY: usize = 512;

/// Copies by moves of 16, 8, 4, 2 and 1 bytes, in order. One move copies each byte, so a reader that has seen a byte arrive may
/// overwrite it immediately.
///
/// # Safety
/// The conditions are those of `copy_shared`.
#[inline]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    macro_rules! copy {
        ($class:ident, $size:literal, $load:literal, $store:literal) => {{
            std::arch::asm!(
                $load, $store,
                from = in(reg) from.add(at), to = in(reg) to.add(at), held = out($class) _,
                options(nostack, preserves_flags)
            );
            at += $size;
        }};
    }
    // SAFETY: the caller guarantees the ranges; no move exceeds `len`.
    unsafe {
        if len == 8 {
            return copy_word(from, to);
        }
        while at < len & !15 {
            copy!(xmm_reg, 16, "movups {held}, [{from}]", "movups [{to}], {held}");
        }
        if len & 8 != 0 {
            copy!(reg, 8, "mov {held:r}, [{from}]", "mov [{to}], {held:r}");
        }
        if len & 4 != 0 {
            copy!(reg, 4, "mov {held:e}, [{from}]", "mov [{to}], {held:e}");
        }
        if len & 2 != 0 {
            copy!(reg, 2, "mov {held:x}, [{from}]", "mov [{to}], {held:x}");
        }
        while at < len {
            copy!(reg_byte, 1, "mov {held}, [{from}]", "mov [{to}], {held}");
        }
    }
}

/// Copies eight bytes, the most frequent short copy.
///
/// # Safety
/// The conditions are those of `copy_shared`.
#[inline(always)]
unsafe fn copy_word(from: *const u8, to: *mut u8) {
    // SAFETY: the caller guarantees eight bytes at both addresses.
    unsafe {
        std::arch::asm!(
            "mov {held}, [{from}]", "mov [{to}], {held}",
            from = in(reg) from, to = in(reg) to, held = out(reg) _,
            options(nostack, preserves_flags)
        );
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
            "push rbx",
            "push rbp",
            "mov [rip + {before}], rsp",
            "mov rsp, [rip + {top}]",
            "movabs r11, {mark}",
            "xor r10d, r10d",
            "2: mov [rsp + r10], r11",
            "add r10, 8",
            "cmp r10, {stack}",
            "jb 2b",
            "xor r10d, r10d",
            "4: push {unset}",
            "add r10, 8",
            "cmp r10, {below}",
            "jb 4b",
            "add rsp, {below}",
            "lea rbx, [r11 + 1]",
            "lea rbp, [r11 + 2]",
            "lea r12, [r11 + 3]",
            "lea r13, [r11 + 4]",
            "lea r14, [r11 + 5]",
            "lea r15, [r11 + 6]",
            "mov r8, r11",
            "mov r9, r11",
            "mov r10, r11",
            ".cfi_remember_state",
            ".cfi_undefined rip",
            "call rax",
            ".cfi_restore_state",
            // The stack pointer, in rdi: the difference.
            "mov rdi, [rip + {top}]",
            "xor rdi, rsp",
            "mov rsp, [rip + {top}]",
            // The direction flag.
            "pushfq",
            "pop r8",
            "and r8d, 0x400",
            "or rdi, r8",
            "cld",
            "movabs r11, {mark}",
            "lea r8, [r11 + 1]",
            "xor r8, rbx",
            "or rdi, r8",
            "lea r8, [r11 + 2]",
            "xor r8, rbp",
            "or rdi, r8",
            "lea r8, [r11 + 3]",
            "xor r8, r12",
            "or rdi, r8",
            "lea r8, [r11 + 4]",
            "xor r8, r13",
            "or rdi, r8",
            "lea r8, [r11 + 5]",
            "xor r8, r14",
            "or rdi, r8",
            "lea r8, [r11 + 6]",
            "xor r8, r15",
            "or rdi, r8",
            // The stack, in rsi.
            "xor esi, esi",
            "xor r9d, r9d",
            "3: mov r8, [rsp + r9]",
            "xor r8, r11",
            "or rsi, r8",
            "add r9, 8",
            "cmp r9, {stack}",
            "jb 3b",
            "mov rsp, [rip + {before}]",
            "pop rbp",
            "pop rbx",
            before = sym BEFORE,
            top = sym TOP,
            stack = const MARKED,
            below = const BELOW,
            unset = const UNSET,
            mark = const MARK,
            inlateout("rax") function => returned,
            inlateout("rdi") first => registers,
            inlateout("rsi") second => stack,
            inlateout("rdx") third => _,
            inlateout("rcx") fourth => _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
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
        watched_test_rbx: "inc rbx", "ret";
        watched_test_rbp: "xor ebp, ebp", "ret";
        watched_test_r12: "mov r12, r13", "ret";
        watched_test_r13: "inc r13", "ret";
        watched_test_r14: "inc r14", "ret";
        watched_test_r15: "inc r15", "ret";
        watched_test_direction: "std", "ret";
        watched_test_stack_pointer: "pop rax", "push rax", "push rax", "ret";
        watched_test_pops_one_more: "pop rax", "pop rcx", "jmp rax";
        watched_test_next_word: "mov qword ptr [rsp + 8], 0", "ret";
        watched_test_last_word: "mov qword ptr [rsp + 4096], 0", "ret";
        watched_test_may: "xor r11d, r11d", "xor r10d, r10d", "xor r8d, r8d", "mov [rsp - 8], r11", "ret";
    }

    std::arch::global_asm!(
        ".globl watched_test_unset",
        "watched_test_unset:",
        "mov rax, [rsp - 4000]",
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
            watched_test_rbx,
            watched_test_rbp,
            watched_test_r12,
            watched_test_r13,
            watched_test_r14,
            watched_test_r15,
            watched_test_direction,
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
