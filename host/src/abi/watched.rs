//! Calls of a provider's functions in a trial, with a look at what a function leaves behind when it returns.
//!
//! A function of a damaged file may return and have changed what belongs to its caller. The child that tries the file may go on by
//! chance although this process would end, because its own values lie elsewhere. So a trial on x86-64 fills registers and stack of
//! the caller with a mark, and compares them afterwards. A stack word that the function has not set holds no valid address. On
//! other processors, functions are called without these checks.

use std::ffi::c_void;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::sync::atomic::Ordering;

/// The kind of thing that a function of a provider changed although it belongs to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broke {
    /// Registers that the calling convention keeps.
    Registers,
    /// The stack of the function's caller.
    Stack,
    /// Memory beside the buffer that the function was given.
    Memory,
}

impl Broke {
    const ALL: [Broke; 3] = [Broke::Registers, Broke::Stack, Broke::Memory];

    /// Returns the letter for a child's answer.
    pub(crate) fn letter(self) -> u8 {
        match self {
            Broke::Registers => b'r',
            Broke::Stack => b's',
            Broke::Memory => b'm',
        }
    }

    /// Reads a child's answer.
    pub(crate) fn from_answer(said: &[u8]) -> Option<Broke> {
        Broke::ALL.into_iter().find(|broke| *said == [broke.letter()])
    }
}

/// The value of registers and words that belong to the caller. As an address it is outside of the range of x86-64.
pub(crate) const MARK: u64 = 0xa5a5_5a5a_a5a5_5a00;

/// The value of stack words that a function has not set: a plausible length, and an address where nothing is mapped.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const UNSET: usize = 16;
/// The number of bytes of the function's stack that are filled with `UNSET`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const BELOW: usize = 4096;
/// The number of bytes of the caller's stack that are marked and compared.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const MARKED: usize = 4096;

/// Calls a function with up to four arguments that are integers or addresses; `Ok`: its result.
///
/// # Safety
/// Only one thread of the process calls providers. The function has the C calling convention, takes at most these arguments, and
/// the arguments are valid for it.
pub(crate) unsafe fn watched<const N: usize>(
    function: *const c_void,
    arguments: [usize; N],
) -> Result<usize, Broke> {
    const { assert!(N <= 4, "four arguments are passed") };
    let mut all = [MARK as usize; 4];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    match unsafe { call(function, all) } {
        (_, registers, _) if registers != 0 => Err(Broke::Registers),
        (_, _, stack) if stack != 0 => Err(Broke::Stack),
        (returned, ..) => Ok(returned),
    }
}

/// Returns the result, a number that is not 0 if registers changed, and one that is not 0 if the stack changed.
///
/// # Safety
/// As [`watched`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn call(function: *const c_void, arguments: [usize; 4]) -> (usize, u64, u64) {
    use std::sync::atomic::AtomicUsize;
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

/// Maps a stack for the calls and returns the stack pointer at which they begin; `None` if that fails. The memory next to the
/// stack, on both sides, cannot be accessed. The mapping stays until the process ends.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stack() -> Option<usize> {
    /// The length of the stack, of which only used pages take memory.
    const LEN: usize = 8 << 20;
    const BELOW: usize = 64 << 10;
    /// One wrong byte among the lower three of a displacement leads no further than this.
    const ABOVE: usize = 32 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a new mapping, of which a part inside is made writable.
    unsafe {
        let none = std::ptr::null_mut();
        let all = libc::mmap(none, BELOW + LEN + ABOVE, libc::PROT_NONE, flags, -1, 0);
        if all == libc::MAP_FAILED {
            return None;
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let inner = all.cast::<u8>().add(BELOW);
        let made = libc::mprotect(inner.cast(), LEN, rights) == 0;
        made.then_some(inner as usize + LEN - MARKED)
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use call_as_it_is as call;

/// Calls the function and compares nothing.
///
/// # Safety
/// As [`watched`].
unsafe fn call_as_it_is(function: *const c_void, [a, b, c, d]: [usize; 4]) -> (usize, u64, u64) {
    type Any = unsafe extern "C" fn(usize, usize, usize, usize) -> usize;
    // SAFETY: the caller's promise. In the conventions of Linux a function ignores arguments beyond those that it takes.
    let function: Any = unsafe { std::mem::transmute(function) };
    // SAFETY: as above.
    (unsafe { function(a, b, c, d) }, 0, 0)
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    unsafe extern "C" fn sum(a: usize, b: usize, c: usize, d: usize) -> usize {
        a + 10 * b + 100 * c + 1000 * d
    }

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
        // SAFETY: it takes four numbers.
        let added = unsafe { watched(sum as *const c_void, [1, 2, 3, 4]) };
        assert_eq!(added, Ok(4321));
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
        assert_eq!(
            Broke::ALL.map(|broke| Broke::from_answer(&[broke.letter()])),
            Broke::ALL.map(Some)
        );
        assert_eq!(Broke::from_answer(b"R"), None);
    }
}
