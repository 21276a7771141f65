//! Rows about events in the attacher's process.

use crate::watcher::Watcher;
use libc::{EFAULT, ENOENT, SIGBUS, SIGKILL};
use tieline_lab_programs::child::{Child, Talk};
use tieline_lab_programs::sys::{self, End, PAGE};
use tieline_lab_programs::table::Table;
use tieline_lab_programs::xpmem::{Device, NOT_OPENED};

const PAGES: usize = 8;

fn ends(segment: i64, body: impl FnOnce(Device, usize)) -> End {
    let child = Child::start(|_: &Talk| {
        let device = Device::open();
        let at = device.attached(segment, PAGES);
        assert_eq!(sys::load(at), 7, "the attachment is that of the memory");
        body(device, at);
    });
    child.end()
}

/// Returns whether `body` returns true in an attacher, which then exits with status 0.
fn holds(segment: i64, body: impl FnOnce(Device, usize) -> bool) -> End {
    ends(segment, |device, at| {
        if !body(device, at) {
            sys::exit(1);
        }
    })
}

pub(crate) fn rows(table: &mut Table) {
    let device = Device::open();
    let memory = sys::map(PAGES * PAGE);
    sys::store(memory, 7);
    let segment = device.make(memory, PAGES * PAGE);
    let (well, killed) = (End::Status(0), End::Signal(SIGKILL));

    let end = holds(segment, |_, at| {
        let pid = sys::fork();
        if pid == 0 {
            sys::exit(i32::from(sys::probe(at) != Err(EFAULT)));
        }
        sys::wait(pid) == End::Status(0)
    });
    table.row("fork: the child does not have the mapping", end, well);
    let end = holds(segment, |device, _| {
        let apid = device.get(segment).unwrap_or(0);
        let pid = sys::fork();
        if pid == 0 {
            sys::exit(i32::from(device.attach(apid, 0, PAGE).is_ok()));
        }
        sys::wait(pid) == End::Status(0) && device.attach(apid, 0, PAGE).is_ok()
    });
    table.row("fork: the child does not have the permit", end, well);
    let end = holds(segment, |device, at| {
        let pid = sys::fork();
        if pid == 0 {
            let inherited = device.get(segment) == Err(NOT_OPENED);
            let own = sys::load(Device::open().attached(segment, 1)) == 7;
            sys::exit(i32::from(!inherited || !own));
        }
        sys::wait(pid) == End::Status(0) && sys::load(at) == 7
    });
    table.row("fork: the child may open its own, and the parent's stays", end, well);

    let end = ends(segment, |_, at| sys::unmap(at, PAGES * PAGE));
    table.row("munmap of an attachment: SIGKILL", end, killed);
    let end = holds(segment, |device, at| {
        sys::unmap(at + 2 * PAGE, PAGE);
        let probed = [1, 2, 3].map(|page| sys::probe(at + page * PAGE).is_ok());
        let detached = device.detach(at);
        probed == [true, false, true]
            && detached == Ok(())
            && sys::probe(at + 3 * PAGE) == Err(EFAULT)
    });
    table.row("munmap of a part of an attachment: the rest stays, and goes with detach", end, well);
    let end = ends(segment, |_, at| {
        let _ = sys::map_at(at, PAGES * PAGE);
    });
    table.row("mmap over an attachment: SIGKILL", end, killed);
    let end = ends(segment, |_, at| {
        let _ = sys::remap(at, PAGES * PAGE);
    });
    table.row("mremap of an attachment: SIGKILL", end, killed);
    let end =
        holds(segment, |device, at| device.detach(at) == Ok(()) && sys::probe(at) == Err(EFAULT));
    table.row("detach by the device: no signal", end, well);

    closing(table, segment);
    system_calls(table, segment);
    attached_on(table, device, segment);

    let end = holds(segment, |_, at| {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let from = text.find(&format!("{at:x}-")).unwrap_or(text.len());
        let flags = text[from..].lines().find_map(|line| line.strip_prefix("VmFlags:"));
        flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "dd"))
    });
    table.row("core dump: left out", end, well);
    let end = ends(segment, |_, _| {});
    table.row("exit with an attachment: no signal", end, well);
    sys::close(device.fd);
}

fn system_calls(table: &mut Table, segment: i64) {
    let well = End::Status(0);
    let end = holds(segment, |_, at| {
        let pid = std::process::id() as i32;
        sys::read_process(pid, at, sys::map(PAGE), 1) == Err(EFAULT)
    });
    table.row("process_vm_readv of an attachment: EFAULT", end, well);
    let end = holds(segment, |_, at| sys::probe(at) == Ok(7));
    table.row("write with an attachment as buffer: works", end, well);
    let end = holds(segment, |_, at| {
        let (from, to) = sys::pipe();
        let bytes = [31u8, 32];
        let _ = sys::write_from(to, bytes.as_ptr() as usize, 2);
        sys::read_to(from, at + 3 * PAGE, 2) == Ok(2) && sys::load(at + 3 * PAGE + 1) == 32
    });
    table.row("read with an attachment as buffer: works", end, well);
    let end = holds(segment, |_, at| sys::send_from(at, 2) == Ok(vec![7, 0]));
    table.row("send with an attachment as buffer: works", end, well);
    let end = holds(segment, |_, at| {
        let plain = sys::map(PAGE);
        sys::store(plain, 33);
        let pid = std::process::id() as i32;
        sys::read_process(pid, plain, at + 4 * PAGE, 1) == Ok(1) && sys::load(at + 4 * PAGE) == 33
    });
    table.row("Linux: process_vm_readv with an attachment on the local side: works", end, well);
}

fn attached_on(table: &mut Table, device: Device, segment: i64) {
    let middle = Child::start(|talk| {
        let device = Device::open();
        let at = device.attached(segment, PAGES);
        let _ = sys::load(at);
        talk.say(device.make(at, PAGES * PAGE) as u64);
        let _ = talk.hear();
    });
    let again = middle.hear() as i64;
    table.row("attached memory: a segment of it can be made", device.get(again).is_ok(), true);
    let end = Watcher::of(again, PAGES).ends_at(0);
    table.row("attached memory cannot be attached on: SIGBUS", end, End::Signal(SIGBUS));
    let _ = middle.end();
}

/// Tests a process that closes a copy of its descriptor and reports the result.
fn closing(table: &mut Table, segment: i64) {
    let child = Child::start(|talk| {
        let device = Device::open();
        let at = device.attached(segment, PAGES);
        let own = device.make(sys::map(PAGE), PAGE);
        let _ = sys::load(at);
        let _ = sys::dup(device.fd).map(sys::close);
        let errno = |answer: Result<(), i32>| talk.say(answer.map_or_else(|e| e as u64, |()| 0));
        errno(sys::probe(at).map(drop));
        errno(device.get(segment).map(drop));
        let again = Device::open();
        errno(again.get(own).map(drop));
        errno(again.get(segment).map(drop));
    });
    let mut row = |row: &str, promised: i32| table.row(row, child.hear(), promised as u64);
    row("the double: closes a dup of the descriptor: its attachments go at once", EFAULT);
    row("closes a dup of the descriptor: it has not opened the device any more", NOT_OPENED);
    row("closes a dup of the descriptor: its segments go at once", ENOENT);
    row("closes a dup of the descriptor: it may open it again", 0);
    table.row("closes a dup of the descriptor: no signal", child.end(), End::Status(0));
}
