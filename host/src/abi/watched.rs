//! Calls of a provider's functions in a trial, with a look at what a function leaves behind when it returns.
//!
//! A function of a damaged file may return and have changed what belongs to its caller. The child that tries the file may go on by
//! chance although this process would end, because its own values lie elsewhere. So a trial on x86-64 and 64-bit Arm fills registers
//! and stack of the caller with a mark, and compares them afterwards. A stack word that the function has not set holds no valid
//! address. On other processors, functions are called without these checks.

use super::processor;
use std::ffi::c_void;

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

/// The value of registers and words that belong to the caller. As an address it is outside of the range of x86-64, and of 64-bit Arm
/// with and without tags in the upper byte.
pub(crate) const MARK: u64 = 0xa5a5_5a5a_a5a5_5a00;

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
    match unsafe { processor::call(function, all) } {
        (_, registers, _) if registers != 0 => Err(Broke::Registers),
        (_, _, stack) if stack != 0 => Err(Broke::Stack),
        (returned, ..) => Ok(returned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn sum(a: usize, b: usize, c: usize, d: usize) -> usize {
        a + 10 * b + 100 * c + 1000 * d
    }

    #[test]
    fn function_gets_its_arguments_and_its_result_comes_back() {
        // SAFETY: it takes four numbers.
        let added = unsafe { watched(sum as *const c_void, [1, 2, 3, 4]) };
        assert_eq!(added, Ok(4321));
    }

    #[test]
    fn answer_of_a_child_names_what_a_function_broke() {
        let read = |letter| Broke::from_answer(&[letter]);
        assert_eq!(Broke::ALL.map(|broke| read(broke.letter())), Broke::ALL.map(Some));
        assert_eq!(Broke::from_answer(b"R"), None);
    }
}
