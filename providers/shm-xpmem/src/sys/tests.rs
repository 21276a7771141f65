//! Tests of copies of this process to itself, with and without its first thread, and of the check whether memory can be attached.

use tieline_memory_file::page_size;

use super::*;

/// Copies four bytes like puts and gets do. Returns whether they arrived.
fn can_copy() -> bool {
    let (mut from, mut to) = ([3u8; 4], [0u8; 4]);
    let (local, remote) = (iovec(to.as_mut_ptr(), 4), iovec(from.as_mut_ptr(), 4));
    // SAFETY: each list has one piece; both pieces are memory of this function with this length.
    let copied = unsafe { copy_here(libc::process_vm_readv, local, &raw const remote, 1) };
    let at = from.as_ptr().expose_provenance() as u64;
    copied == Ok(4)
        && core::hint::black_box(to) == core::hint::black_box(from)
        && can_be_copied(Direction::Put, &[Piece::of(&mut from)])
        && can_be_copied(Direction::Get, &[Piece::of(&mut to)])
        && may_be_attached(at, 4)
}

#[test]
fn copies_work_and_end_of_first_thread_is_detected() {
    assert!(can_copy() && !first_thread_has_ended());
    // SAFETY: the child has only this thread, which starts another one and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(std::thread::spawn(|| {
            while !first_thread_has_ended() {
                std::thread::yield_now();
            }
            let code = if can_copy() { 7 } else { 8 };
            // SAFETY: the call ends the child.
            unsafe { libc::_exit(code) }
        }));
        // SAFETY: the call ends only this thread; nothing that the thread owns is used any more.
        let _ = unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    assert!(child > 0, "a child");
    let mut status = 0;
    // SAFETY: the call writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}

#[test]
fn memory_counts_as_attachable_only_if_both_ends_of_it_can_be_copied() {
    let page = page_size();
    let torn = Torn::new(page as usize).unwrap();
    let start = torn.start();
    assert!(may_be_attached(start, 1) && may_be_attached(start, page));
    assert!(!may_be_attached(page, 1), "nobody's");
    assert!(!may_be_attached(start, 1 << 62) && !may_be_attached(page, start), "one end");
}
