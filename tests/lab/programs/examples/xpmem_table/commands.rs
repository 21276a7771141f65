//! Each command, its arguments and errnos, and its access rights.

use libc::{EACCES, EINVAL, ENOENT};
use tieline_lab_programs::child::{Child, Talk};
use tieline_lab_programs::sys::{self, PAGE};
use tieline_lab_programs::table::Table;
use tieline_lab_programs::xpmem::{Device, NOT_OPENED};

const PAGES: usize = 16;

/// Returns the result of a child's closure as one number: 0, or an errno.
fn errno<T>(answer: Result<T, i32>) -> u64 {
    answer.map_or_else(|e| e as u64, |_| 0)
}

fn in_child(body: impl FnOnce(&Talk) -> u64) -> u64 {
    let child = Child::start(|talk| talk.say(body(talk)));
    let said = child.hear();
    let _ = child.end();
    said
}

pub(crate) fn rows(table: &mut Table) {
    let memory = sys::map(PAGES * PAGE);
    let before = in_child(|_| {
        let device = Device::open();
        let first = device.make(memory, PAGE);
        let second = device.make(memory, PAGE);
        let numbers = (first & 0xffff_ffff, first >> 32, second >> 32);
        u64::from(numbers == (sys::kernel_pid(), 1, 2))
    });
    table.row(
        "identifiers: the low half is the kernel's process number, the upper counts from 1",
        before,
        1,
    );

    let device = Device::open();
    table.row("0x7800 version: returned by the call", device.version(), Ok(0x0002_7004));
    make_rows(table, device, memory);

    let segment = device.make(memory, PAGES * PAGE);
    table.row("0x7802 remove: EINVAL for 0", device.remove(0), Err(EINVAL));
    table.row("0x7802 remove: EINVAL below 0", device.remove(-1), Err(EINVAL));
    table.row("0x7802 remove: ENOENT", device.remove(segment + (1 << 40)), Err(ENOENT));
    let others = in_child(|_| errno(Device::open().remove(segment)));
    table.row("0x7802 remove: EACCES, another process's", others, EACCES as u64);
    let spare = device.make(memory, PAGE);
    table.row("0x7802 remove: 0", device.remove(spare), Ok(()));
    table.row("0x7802 remove: ENOENT the second time", device.remove(spare), Err(ENOENT));

    table.row("0x7803 get: EINVAL, both flags", device.get_as(segment, 3, 1, 0), Err(EINVAL));
    table.row(
        "0x7803 get: EINVAL, the u64 is not 0",
        device.get_as(segment, 2, 1, 0o600),
        Err(EINVAL),
    );
    table.row("0x7803 get: ENOENT", device.get(segment + (1 << 40)), Err(ENOENT));
    table.row("0x7803 get: ENOENT, removed", device.get(spare), Err(ENOENT));
    let inherited = in_child(|_| errno(device.get(segment)));
    table.row("0x7803 get: 2004 with an inherited descriptor", inherited, NOT_OPENED as u64);
    let opened = in_child(|_| errno(Device::open().get(segment)));
    table.row("0x7803 get: 0 once the process has opened the device itself", opened, 0);
    let apid = device.get(segment);
    table.row("0x7803 get: 0 of oneself", apid.is_ok(), true);
    let apid = apid.unwrap_or(0);
    let halves = (apid & 0xffff_ffff, apid >> 32);
    table.row(
        "identifiers: those of permits count by themselves",
        halves,
        (segment & 0xffff_ffff, 2),
    );

    attach_rows(table, device, memory, segment, apid);
    release_rows(table, device, segment);
    table.row("0x7807, 0x7808 fork begin, end: 0", device.around_fork(), Ok(()));
    let inherited = in_child(|_| errno(device.around_fork()));
    table.row(
        "0x7807, 0x7808 fork begin, end: ENOENT with an inherited descriptor",
        inherited,
        ENOENT as u64,
    );
    sys::close(device.fd);
}

fn make_rows(table: &mut Table, device: Device, memory: usize) {
    let (start, size) = (memory as u64, (PAGES * PAGE) as u64);
    table.row(
        "0x7801 make: EINVAL, kind is not 1",
        device.make_as(start, size, 2, 0o600),
        Err(EINVAL),
    );
    table.row(
        "0x7801 make: EINVAL, a bit of mode outside 0777",
        device.make_as(start, size, 1, 0o1600),
        Err(EINVAL),
    );
    table.row("0x7801 make: EINVAL, size 0", device.make_as(start, 0, 1, 0o600), Err(EINVAL));
    table.row(
        "0x7801 make: EINVAL, start no multiple of the page",
        device.make_as(start + 8, size, 1, 0o600),
        Err(EINVAL),
    );
    table.row(
        "0x7801 make: EINVAL, size no multiple of the page",
        device.make_as(start, size + 8, 1, 0o600),
        Err(EINVAL),
    );
    let beyond = (1 << 62, size);
    table.row(
        "0x7801 make: EINVAL, beyond the address space",
        device.make_as(beyond.0, beyond.1, 1, 0o600),
        Err(EINVAL),
    );
    table.row(
        "0x7801 make: EINVAL, its end is beyond",
        device.make_as(start, 1 << 62, 1, 0o600),
        Err(EINVAL),
    );
    let all = device.make_as(0, u64::MAX, 1, 0o600);
    table.row("0x7801 make: size 2^64-1 means up to the end", all.is_ok(), true);
    let inherited = in_child(|_| errno(device.make_as(start, size, 1, 0o600)));
    table.row("0x7801 make: 2004 with an inherited descriptor", inherited, NOT_OPENED as u64);
    sys::store(memory + 3 * PAGE + 5, 77);
    let of_all = all
        .and_then(|segid| device.get(segid))
        .and_then(|apid| device.attach(apid, memory + 3 * PAGE, PAGE));
    let seen = of_all.map(|at| sys::load(at + 5));
    table.row("a segment of all memory is attached by address", seen, Ok(77));
    let _ = of_all.map(|at| device.detach(at));
}

fn attach_rows(table: &mut Table, device: Device, memory: usize, segment: i64, apid: i64) {
    let page = PAGE as u64;
    let end = (PAGES * PAGE) as i64;
    table.row(
        "0x7805 attach: EINVAL, offset not page-aligned",
        device.attach_at(apid, 8, page, 0),
        Err(EINVAL),
    );
    table.row(
        "0x7805 attach: EINVAL, address not page-aligned",
        device.attach_at(apid, 0, page, memory + 8),
        Err(EINVAL),
    );
    table.row(
        "0x7805 attach: EINVAL, negative offset",
        device.attach_at(apid, -4096, page, 0),
        Err(EINVAL),
    );
    table.row(
        "0x7805 attach: EINVAL, offset beyond the segment",
        device.attach_at(apid, end, page, 0),
        Err(EINVAL),
    );
    table.row(
        "0x7805 attach: EINVAL, end beyond the segment",
        device.attach_at(apid, end - 4096, 2 * page, 0),
        Err(EINVAL),
    );
    table.row("0x7805 attach: ENOENT", device.attach_at(apid + (1 << 40), 0, page, 0), Err(ENOENT));
    let others = in_child(|_| errno(Device::open().attach(apid, 0, PAGE)));
    table.row("0x7805 attach: EACCES, another process's permit", others, EACCES as u64);
    let reading = device.get_as(segment, 1, 1, 0);
    table.row("0x7803 get: 0 for reading", reading.is_ok(), true);
    let read = reading.and_then(|apid| device.attach(apid, 0, PAGE));
    table.row("a permit for reading cannot be attached at all: EACCES", read, Err(EACCES));

    sys::store(memory + 2 * PAGE, 42);
    sys::store(memory + 3 * PAGE - 1, 43);
    let place = sys::map(2 * PAGE);
    let at = device.attach_at(apid, 2 * 4096, 1, place);
    table.row("0x7805 attach: at the address that is given", at, Ok(place));
    table.row("0x7805 attach: the offset counts from the segment's start", sys::load(place), 42);
    table.row("0x7805 attach: size is rounded up to pages", sys::load(place + PAGE - 1), 43);
    table.row(
        "0x7805 attach: EINVAL, the address is an attachment",
        device.attach_at(apid, 0, page, place),
        Err(EINVAL),
    );
    sys::store(place + 9, 44);
    table.row(
        "the mapping is writable, and stores are the source's",
        sys::load(memory + 2 * PAGE + 9),
        44,
    );

    table.row("0x7806 detach: EINVAL, ordinary memory", device.detach(memory), Err(EINVAL));
    // The words belong to the other process, which shares all memory of this process.
    let words = sys::map(PAGE);
    sys::store_word(words, place as u64);
    sys::store_word(words + 16, device.fd as u64);
    sys::in_other_process_of_same_memory(
        // The other process uses the inherited descriptor, because the end of a descriptor that it opened itself would also end
        // this process's objects.
        |words| {
            let device = Device { fd: sys::load_word(words + 16) as i32 };
            sys::store_word(words + 8, errno(device.detach(sys::load_word(words) as usize)));
        },
        words,
    );
    table.row("0x7806 detach: EACCES, another process's", sys::load_word(words + 8), EACCES as u64);
    table.row("0x7806 detach: any address inside", device.detach(place + 100), Ok(()));
    table.row("0x7806 detach: 0 where nothing is mapped", device.detach(place + 100), Ok(()));
}

fn release_rows(table: &mut Table, device: Device, segment: i64) {
    let apid = device.get(segment).unwrap_or(0);
    table.row("0x7804 release: ENOENT", device.release(apid + (1 << 40)), Err(ENOENT));
    let others = in_child(|_| errno(Device::open().release(apid)));
    table.row("0x7804 release: EACCES, another process's", others, EACCES as u64);
    let one = device.attach(apid, 0, PAGE);
    let two = device.attach(apid, PAGE, 2 * PAGE);
    table.row("0x7805 attach: a permit has any number", one.is_ok() && two.is_ok(), true);
    table.row("0x7804 release: 0", device.release(apid), Ok(()));
    let probed = [one, two].map(|at| at.and_then(sys::probe));
    table.row("0x7804 release: detaches everything of it", probed, [Err(libc::EFAULT); 2]);
    table.row("0x7804 release: ENOENT the second time", device.release(apid), Err(ENOENT));
    table.row(
        "0x7805 attach: ENOENT by a permit that was released",
        device.attach(apid, 0, PAGE),
        Err(ENOENT),
    );
}

/// Returns the result of `get` in a process of this user and group, for a segment that root made.
fn gets(segid: i64, flags: i32, uid: u32, gid: u32) -> u64 {
    in_child(|_| {
        sys::become_user(uid, gid);
        errno(Device::open().get_as(segid, flags, 1, 0))
    })
}

pub(crate) fn rights(table: &mut Table) {
    let device = Device::open();
    let memory = sys::map(PAGE);
    let make = |mode| device.make_as(memory as u64, PAGE as u64, 1, mode).unwrap_or(0);
    let refused = EACCES as u64;
    table.row(
        "0x7803 get: EACCES, mode 0600 and another user",
        gets(make(0o600), 2, 1000, 1000),
        refused,
    );
    table.row("permission: 0666 is for every user", gets(make(0o666), 2, 1000, 1000), 0);
    table.row("permission: 0660 is for the group of who opened", gets(make(0o660), 2, 1000, 0), 0);
    table.row(
        "permission: 0660 is not for another group",
        gets(make(0o660), 2, 1000, 1000),
        refused,
    );
    table.row("permission: 0606 is not for the group", gets(make(0o606), 2, 1000, 0), refused);
    table.row("permission: 0644 may be read by others", gets(make(0o644), 1, 1000, 1000), 0);
    table.row(
        "permission: 0644 may not be written by others",
        gets(make(0o644), 2, 1000, 1000),
        refused,
    );

    // Two processes of one unprivileged user; ptrace's checks forbid all access to the first.
    let hidden = Child::start(|talk| {
        sys::become_user(1000, 1000);
        let device = Device::open();
        let memory = sys::map(PAGE);
        sys::store(memory, 61);
        talk.say(device.make(memory, PAGE) as u64);
        talk.say(memory as u64);
        sys::not_dumpable();
        talk.say(0);
        let _ = talk.hear();
    });
    let (segment, there, _) = (hidden.hear() as i64, hidden.hear() as usize, hidden.hear());
    let owner = device.get(segment);
    table.row("permission: CAP_IPC_OWNER passes", owner.is_ok(), true);
    let pid = hidden.pid;
    let refused = in_child(|_| {
        sys::become_user(1000, 1000);
        let local = sys::map(PAGE);
        errno(sys::read_process(pid, there, local, 1))
    });
    let seen = in_child(|_| {
        sys::become_user(1000, 1000);
        u64::from(sys::load(Device::open().attached(segment, 1)))
    });
    table.row(
        "no ptrace check: attached where process_vm_readv is EPERM",
        (refused, seen),
        (libc::EPERM as u64, 61),
    );
    let _ = hidden.end();
    sys::close(device.fd);
}
