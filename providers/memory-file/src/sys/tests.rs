//! Tests of memory files, mappings and locks. They also show which processes count as alive, and which files of peers are refused.

use super::*;

#[test]
fn a_process_is_alive_until_it_has_ended() {
    let mut child =
        std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat");
    let pid = child.id() as i32;
    let (told, by_number) = (Process::open(pid), Process { pid, descriptor: None });
    assert!(told.descriptor.is_some(), "every kernel that is tested has it");
    let space = AddressSpace::open(pid).unwrap();
    assert!(space.is_in_use());
    assert!(told.is_alive() && by_number.is_alive());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!told.is_alive() && !by_number.is_alive() && !space.is_in_use());
}

/// Returns a memory file with these `flags`, sealed against changes of its size.
fn file(flags: libc::c_uint, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name is zero-terminated, and nothing else owns the descriptor.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(last());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), len as i64), 0);
        seal(&fd, SEAL_SIZE).unwrap();
        Ok(fd)
    }
}

#[test]
fn a_file_of_huge_pages_is_refused() {
    let huge = match file(libc::MFD_HUGETLB | libc::MFD_CLOEXEC, 2 << 20) {
        Ok(huge) => huge,
        Err(error) => return println!("skipped: no files of huge pages: {error}"),
    };
    assert_eq!(sealed_len(&huge), None);
    assert!(map_peer(&huge, PAGE, true).is_none());
    assert!(map_peer_control(&huge, PAGE, true).is_none());
}

#[test]
fn a_file_without_memory_behind_it_is_refused_whatever_its_length() {
    for len in [PAGE, 1 << 30, 1 << 45] {
        let sparse = file(libc::MFD_CLOEXEC, len).unwrap();
        assert_eq!(sealed_len(&sparse), Some(len));
        assert!(map_peer(&sparse, len, true).is_none(), "{len}");
    }
    let file = memory_file(c"test", 3 * PAGE).unwrap();
    reserve(&file, 0, 2 * PAGE).unwrap();
    assert!(map_peer(&file, 3 * PAGE, true).is_none());
    assert!(map_peer(&file, 2 * PAGE, false).is_some());
    reserve(&file, 2 * PAGE, PAGE).unwrap();
    assert!(map_peer(&file, 3 * PAGE, true).is_some());
    assert!(map_peer(&file, 3 * PAGE + 1, true).is_none());
}

#[test]
fn a_file_that_can_shrink_is_refused() {
    // SAFETY: the name is zero-terminated, and nothing else owns the descriptor.
    let file = unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
        OwnedFd::from_raw_fd(fd)
    };
    reserve(&file, 0, PAGE).unwrap();
    assert!(map_peer(&file, PAGE, true).is_none());
    seal(&file, libc::F_SEAL_GROW).unwrap();
    assert!(map_peer(&file, PAGE, true).is_none());
    seal(&file, libc::F_SEAL_SHRINK).unwrap();
    assert!(map_peer(&file, PAGE, true).is_some());
}

#[test]
fn pages_of_a_peers_file_are_populated_before_they_are_touched() {
    let sparse = file(libc::MFD_CLOEXEC, 4 * PAGE).unwrap();
    let map = map_peer_control(&sparse, 4 * PAGE, false).unwrap();
    assert_eq!(examined(&sparse), Some((4 * PAGE, PAGE as u64)));
    map.populate(2 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(examined(&sparse), Some((4 * PAGE, 3 * PAGE as u64)));
    assert_eq!(map.populate(3 * PAGE, 2 * PAGE).unwrap_err().status, Status::Invalid);
}

/// A file system that the peer itself serves may never answer. Its files have no seals.
#[test]
fn the_file_system_of_a_descriptor_without_seals_is_asked_nothing() {
    let asked = |fd: &OwnedFd| {
        let before = ASKED.get();
        let known = sealed_len(fd).is_some();
        assert_eq!(backed_len(fd).is_some(), known);
        assert_eq!(map_peer(fd, PAGE, false).is_some(), known);
        assert_eq!(map_peer_control(fd, PAGE, false).is_some(), known);
        (known, ASKED.get() > before)
    };
    let file = memory_file(c"sealed", PAGE).expect("a memory file");
    reserve(&file, 0, PAGE).expect("a page");
    assert_eq!(asked(&file), (true, true));
    // SAFETY: the name is zero-terminated.
    let fd = unsafe { libc::memfd_create(c"bare".as_ptr(), libc::MFD_ALLOW_SEALING) };
    // SAFETY: nothing else owns the descriptor.
    let bare = unsafe { OwnedFd::from_raw_fd(fd) };
    let usual = OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("this program"));
    let (end, _) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    for odd in [bare, usual, end.into()] {
        assert_eq!(asked(&odd), (false, false), "{odd:?}");
    }
}

#[test]
fn range_is_rounded_to_kernel_pages_of_any_size() {
    assert_eq!(whole_pages(0x2000, 0x1000, 4096), Some(0x2000..0x3000));
    assert_eq!(whole_pages(0x2000, 0x1000, 16384), Some(0..16384));
    assert_eq!(whole_pages(0x3000, 0x2000, 16384), Some(0..32768));
    assert_eq!(whole_pages(0x11000, 0x1000, 65536), Some(0x10000..0x20000));
    assert_eq!(whole_pages(0, 5, page_size()), Some(0..page_size()));
    assert_eq!(whole_pages(u64::MAX - 0x8000, 1, 4096), Some(u64::MAX - 0x8fff..u64::MAX - 0x7fff));
    assert_eq!(whole_pages(u64::MAX - 0x8000, 1, 65536), None, "the last page");
    assert_eq!(whole_pages(u64::MAX, 2, 4096), None);
}

#[test]
fn a_file_is_opened_anew_as_itself() {
    let file = memory_file(c"test", PAGE).unwrap();
    let again = reopened(&file).unwrap();
    assert!(lock(&again, Holder::Description, 9) && !lock(&file, Holder::Description, 9));
    assert_eq!((is_locked(&file, 9), is_locked(&again, 9)), (Some(true), Some(false)));
    assert_eq!(is_locked(&file, 8), Some(false));
    unlock(&again, Holder::Description, 9);
    assert_eq!(is_locked(&file, 9), Some(false));
}

#[test]
fn only_a_number_that_nobody_has_is_no_process() {
    assert!(!is_no_process(own_pid() as u64) && !is_no_process(1));
    assert!(is_no_process(i32::MAX as u64));
    for odd in [0, u64::from(u32::MAX), u64::MAX] {
        assert!(!is_no_process(odd), "{odd} says nothing");
    }
}

#[test]
fn random_bytes_have_any_length_and_differ() {
    assert_eq!(random::<0>(), Ok([]));
    assert_ne!(random::<16>(), random::<16>());
    let long = random::<256>().unwrap();
    assert!(long.chunks(32).all(|part| part.iter().any(|byte| *byte != 0)), "all of it is");
}

fn mapped(len: usize, writable: bool) -> Mapping {
    let file = memory_file(c"test", len).unwrap();
    reserve(&file, 0, len).unwrap();
    Mapping::new(file.as_fd(), len, writable).unwrap()
}

/// Both sides of a range have their own page, so that a copy beyond the range is detected without a fault.
#[test]
fn copies_stay_inside_and_what_reaches_out_does_nothing() {
    let map = mapped(2 * PAGE, true);
    let end = 2 * PAGE as u64;
    let from: Vec<u8> = (1..=64).collect();
    for len in [1, 7, 8, 9, 64] {
        for offset in [0, 1, PAGE as u64 - 3, end - len as u64] {
            let mut back = vec![0; len];
            // SAFETY: both vectors have `len` bytes.
            unsafe {
                assert!(map.copy_in(offset, from.as_ptr(), len), "{len} at {offset}");
                assert!(map.copy_out(offset, back.as_mut_ptr(), len), "{len} at {offset}");
            }
            assert_eq!(back, from[..len], "{len} at {offset}");
        }
        for outside in [end - len as u64 + 1, end, u64::MAX - len as u64 + 1, u64::MAX] {
            let mut back = vec![0xee; len];
            // SAFETY: both vectors have `len` bytes.
            unsafe {
                assert!(!map.copy_in(outside, from.as_ptr(), len), "{len} at {outside}");
                assert!(!map.copy_out(outside, back.as_mut_ptr(), len), "{len} at {outside}");
            }
            assert!(back.iter().all(|byte| *byte == 0xee), "{len} at {outside}");
        }
    }
    assert!(map.holds(end, 0) && !map.holds(end, 1) && !map.holds(u64::MAX, 1));
}

#[test]
fn a_mapping_that_may_only_be_read_is_never_written() {
    let map = mapped(PAGE, false);
    assert!(!map.is_writable() && mapped(PAGE, true).is_writable());
    let mut back = [0xee; 8];
    // SAFETY: both sides have eight bytes.
    unsafe {
        assert!(!map.copy_in(0, back.as_ptr(), 8));
        assert!(map.copy_out(0, back.as_mut_ptr(), 8));
    }
    assert_eq!(back, [0; 8]);
}

#[test]
fn words_lie_inside_and_are_aligned() {
    use std::sync::atomic::Ordering::Relaxed;
    let map = mapped(PAGE, true);
    map.word(8).unwrap().store(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]), Relaxed);
    let half = |at: usize| map.half_word(at).map(|word| word.load(Relaxed).to_ne_bytes());
    assert_eq!((half(8), half(12)), (Some([1, 2, 3, 4]), Some([5, 6, 7, 8])));
    assert!(map.word(PAGE - 8).is_some() && map.half_word(PAGE - 4).is_some());
    for at in [1, 4, PAGE - 7, PAGE - 4, PAGE, usize::MAX - 7] {
        assert!(map.word(at).is_none(), "{at}");
    }
    for at in [1, 2, PAGE - 3, PAGE, usize::MAX - 3] {
        assert!(map.half_word(at).is_none(), "{at}");
    }
}

#[test]
fn a_file_that_is_sealed_against_writers_takes_no_more_of_them() {
    let file = memory_file(c"test", PAGE).unwrap();
    assert!(!is_write_sealed(&file));
    let map = Mapping::new(file.as_fd(), PAGE, true).unwrap();
    seal(&file, SEAL_WRITERS).unwrap();
    assert!(is_write_sealed(&file), "every kernel that is tested knows it");
    assert!(Mapping::new(file.as_fd(), PAGE, true).is_err());
    assert!(Mapping::new(file.as_fd(), PAGE, false).is_ok());
    // An existing mapping stays writable.
    map.word(0).unwrap().store(7, std::sync::atomic::Ordering::Relaxed);
    let unknown = seal(&file, 1 << 30).unwrap_err();
    assert!(unknown.text.contains("sealing"), "{unknown:?}");
    // The file is sealed against further seals.
    seal(&file, libc::F_SEAL_SEAL).unwrap();
    assert!(seal(&file, SEAL_WRITERS).is_err());
}

/// A forked child has none of its parent's process-owned locks, and so acts as another process.
#[test]
fn another_process_sees_the_lock_of_a_process_and_its_owner_does_not() {
    let file = memory_file(c"test", PAGE).unwrap();
    assert!(lock(&file, Holder::Process, 5));
    assert!(!is_locked_by_another_process(&file, 5), "it is our own");
    // SAFETY: the child asks the kernel twice, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let seen =
            [4, 5, 6].map(|at| is_locked_by_another_process(&file, at)) == [false, true, false];
        // SAFETY: no exit handler of the parent runs.
        unsafe { libc::_exit(if seen { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child belongs to this test, and `status` has room for a number.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw something else");
}

#[test]
fn invalid_file_lengths_are_refused() {
    let long = memory_file(c"test", usize::MAX).unwrap_err();
    assert_eq!(long.status, Status::TooLarge, "{long:?}");
    let file = memory_file(c"test", PAGE).unwrap();
    let reserved = reserve(&file, PAGE, PAGE).unwrap_err();
    assert!(reserved.text.contains("4096 bytes"), "it cannot grow: {reserved:?}");
    assert!(map_peer(&file, 0, true).is_none() && map_peer_control(&file, 0, true).is_none());
    assert!(map_peer_control(&file, PAGE + 1, true).is_none());
    assert!(map_peer_control(&file, PAGE, true).is_some());
}
