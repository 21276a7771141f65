//! Rows about events in the source's process, and their effect on the attacher.

use crate::watcher::Watcher;
use libc::{EFAULT, ENOENT, SIGBUS};
use tieline_lab_programs::child::Child;
use tieline_lab_programs::sys::{self, End, PAGE};
use tieline_lab_programs::table::Table;
use tieline_lab_programs::xpmem::Device;

const PAGES: usize = 8;

fn numbered(pages: usize) -> usize {
    let memory = sys::map(pages * PAGE);
    (0..pages).for_each(|page| sys::store(memory + page * PAGE, page as u8 + 1));
    memory
}

pub(crate) fn rows(table: &mut Table) {
    let device = Device::open();
    let memory = numbered(PAGES);
    let segment = device.make(memory, PAGES * PAGE);
    let watch = || Watcher::of(segment, PAGES);

    let watcher = watch();
    let all: Vec<_> = (0..PAGES).map(|page| watcher.load(page)).collect();
    table.row("the attacher reads every page", all, (1..=PAGES as u8).map(Some).collect());
    let _ = watcher.store(1, 99);
    table.row("a store of the attacher's is the source's", sys::load(memory + PAGE), 99);
    sys::store(memory + PAGE, 2);
    table.row("a store of the source's is the attacher's", watcher.load(1), Some(2));

    sys::unmap(memory, PAGE);
    table.row("a hole is EFAULT to a system call", watcher.probe(0), EFAULT);
    table.row("munmap: the pages beside it stay", watcher.load(1), Some(2));
    table.row("munmap: the next touch is SIGBUS", watcher.ends_at(0), End::Signal(SIGBUS));
    let watcher = watch();
    table.row("holes: attaching a range with one succeeds", watcher.load(1), Some(2));
    table.row("holes: touching one is SIGBUS", watcher.ends_at(0), End::Signal(SIGBUS));

    let watcher = watch();
    let _ = (watcher.load(1), sys::map_at(memory, PAGE));
    sys::store(memory, 51);
    table.row(
        "munmap, then mmap there again: the new memory, without a new attach",
        watcher.load(0),
        Some(51),
    );
    let _ = sys::map_at(memory + PAGE, PAGE);
    sys::store(memory + PAGE, 52);
    table.row("mmap over it: the new memory", watcher.load(1), Some(52));

    let _ = watcher.load(2);
    sys::discard(memory + 2 * PAGE, PAGE);
    table.row("MADV_DONTNEED: zeros", watcher.load(2), Some(0));
    sys::store(memory + 2 * PAGE, 53);
    table.row("MADV_DONTNEED: what is stored then", watcher.load(2), Some(53));

    let moved = sys::remap(memory + 3 * PAGE, PAGE);
    table.row("MREMAP: the bytes are elsewhere in the source", moved.map(sys::load), Ok(4));
    table.row("MREMAP: the next touch is SIGBUS", watcher.ends_at(3), End::Signal(SIGBUS));

    let watcher = watch();
    let _ = watcher.load(4);
    let protected = sys::protect(memory + 4 * PAGE, PAGE, false);
    table.row("mprotect to read-only: reads go on", (protected, watcher.load(4)), (Ok(0), Some(5)));
    table.row(
        "the double: a store to a read-only page is SIGBUS",
        watcher.ends_storing(4),
        End::Signal(SIGBUS),
    );
    let watcher = watch();
    let _ = (watcher.load(4), sys::protect(memory + 4 * PAGE, PAGE, true), watcher.store(4, 54));
    table.row("mprotect back to writing: stores go on", sys::load(memory + 4 * PAGE), 54);

    fork_rows(table, device, memory, segment, &watcher);

    table.row("0x7802 remove: 0 while it is attached", device.remove(segment), Ok(()));
    table.row("remove: then attaching is ENOENT", watcher.attaches(), ENOENT);
    table.row("remove: others get SIGBUS", watcher.ends_at(1), End::Signal(SIGBUS));
    ends(table, device);
    sys::close(device.fd);
}

fn fork_rows(table: &mut Table, device: Device, memory: usize, segment: i64, watcher: &Watcher) {
    sys::store(memory + 5 * PAGE, 60);
    let _ = watcher.load(5);
    let child = Child::start(|talk| {
        talk.say(0);
        let _ = talk.hear();
        talk.say(u64::from(sys::load(memory + 5 * PAGE)));
        sys::store(memory + 5 * PAGE, 62);
        talk.say(0);
        let _ = talk.hear();
    });
    let _ = (child.hear(), watcher.store(5, 61));
    table.row("fork: parent and attacher go on sharing", sys::load(memory + 5 * PAGE), 61);
    table.row("fork: the child has its own", child.step(), 60);
    let _ = child.hear();
    table.row("fork: what the child stores is its own", watcher.load(5), Some(61));
    let _ = child.end();
    sys::store(memory + 5 * PAGE, 63);
    table.row("fork: and still share when the child has ended", watcher.load(5), Some(63));
    let late = Watcher::of(segment, 1);
    table.row("fork: the segment is the parent's still", late.load(0), Some(51));
    let _ = device;
}

/// Starts a source. The order of the result's fields is the order in which they are dropped.
fn source(what: fn(Device, &[i64])) -> (Child, i64) {
    let child = Child::start(|talk| {
        let device = Device::open();
        let segment = device.make(numbered(PAGES), PAGES * PAGE);
        talk.say(segment as u64);
        let _ = talk.hear();
        what(device, &[segment]);
        talk.say(0);
        let _ = talk.hear();
    });
    let segment = child.hear() as i64;
    (child, segment)
}

fn ends(table: &mut Table, device: Device) {
    let (child, segment) = source(|_, _| {});
    let watcher = Watcher::of(segment, PAGES);
    let before = watcher.load(0);
    let _ = child.step();
    table.row(
        "exit: the source ends as it would",
        (before, child.end()),
        (Some(1), End::Status(0)),
    );
    table.row("exit: then the segment is ENOENT", device.get(segment), Err(ENOENT));
    table.row("exit: then attaching is ENOENT", watcher.attaches(), ENOENT);
    table.row("exit: a system call is EFAULT", watcher.probe(0), EFAULT);
    table.row("exit: others get SIGBUS", watcher.ends_at(0), End::Signal(SIGBUS));

    let (child, segment) = source(|_, _| {});
    let watcher = Watcher::of(segment, PAGES);
    let before = watcher.load(0);
    table.row(
        "SIGKILL: the source ends by it",
        (before, child.kill()),
        (Some(1), End::Signal(libc::SIGKILL)),
    );
    table.row("SIGKILL: then the segment is ENOENT", device.get(segment), Err(ENOENT));
    table.row("SIGKILL: others get SIGBUS", watcher.ends_at(0), End::Signal(SIGBUS));

    let (child, segment) = source(|device, _| {
        let _ = sys::dup(device.fd).map(sys::close);
    });
    let watcher = Watcher::of(segment, PAGES);
    let before = watcher.load(0);
    let _ = child.step();
    table.row(
        "closing a dup of the descriptor: the segment is ENOENT",
        (before, device.get(segment)),
        (Some(1), Err(ENOENT)),
    );
    table.row(
        "the double: closing a dup of the descriptor: others get SIGBUS",
        watcher.ends_at(0),
        End::Signal(SIGBUS),
    );
    drop(child);

    let (child, segment) = source(|_, _| sys::exec_sleep());
    let watcher = Watcher::of(segment, PAGES);
    let before = watcher.load(0);
    child.talk.say(0);
    // The child's pipes are closed on exec, together with the device.
    let silent = child.talk.hear();
    let got = until(|| device.get(segment).is_err());
    table.row("exec: the segment is ENOENT", (before, silent, got), (Some(1), None, true));
    table.row("the double: exec: others get SIGBUS", watcher.ends_at(0), End::Signal(SIGBUS));
    let _ = child.kill();
}

/// Waits until the condition holds. Descriptors are closed one after another on exec, so the last one may close a moment later.
fn until(mut holds: impl FnMut() -> bool) -> bool {
    while !holds() {
        std::thread::yield_now();
    }
    true
}
