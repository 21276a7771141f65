//! The table of /dev/knem, row by row: the result of each command, the end of copies, and the events that a region outlives. The
//! names of rows that hold only for the lab's double of the module begin with "the double".

mod lives;

use libc::{EACCES, EBADF, EBUSY, EFAULT, EINVAL, ENOSYS, EPERM};
use tieline_lab_programs::child::{Child, Talk};
use tieline_lab_programs::knem::{
    ANY_USER, DMA, DMA_LATER, Device, FAILED, How, NOTIFY, OTHER_CONTEXT, OTHER_REGION, PENDING,
    Piece, READ, SINGLE_USE, SUCCESS, THREAD, WRITE,
};
use tieline_lab_programs::sys::{self, PAGE};
use tieline_lab_programs::table::Table;

const ROWS: usize = 98;

const NOW: How = How { flags: 0, slot: 0 };

fn main() -> Result<(), String> {
    sys::no_core();
    let mut table = Table::default();
    let device = Device::open();
    if std::env::args().nth(1).is_some_and(|word| word == "engine") {
        with_an_engine(&mut table, device);
        return table.end(5);
    }
    descriptors(&mut table, device);
    regions(&mut table, device);
    copies(&mut table, device);
    inline(&mut table, device);
    rights(&mut table, device);
    later(&mut table);
    lives::lives(&mut table, device);
    lives::references(&mut table, device);
    lives::forks(&mut table, device);
    sys::close(device.fd);
    table.end(ROWS)
}

fn filled(len: usize, byte: u8) -> usize {
    let memory = sys::map(len);
    (0..len).for_each(|at| sys::store(memory + at, byte));
    memory
}

/// Returns the bytes at these offsets.
fn at(memory: usize, places: &[usize]) -> Vec<u8> {
    places.iter().map(|place| sys::load(memory + place)).collect()
}

fn in_child(body: impl FnOnce(&Talk) -> u64) -> u64 {
    let child = Child::start(|talk| talk.say(body(talk)));
    let said = child.hear();
    let _ = child.end();
    said
}

fn errno<T>(answer: Result<T, i32>) -> u64 {
    answer.map_or_else(|e| e as u64, |_| 0)
}

fn descriptors(table: &mut Table, device: Device) {
    table.row(
        "0x40104b10 info: abi 0xd, no features, every word is written",
        device.info(),
        Ok([0xd, 0, 0, 0]),
    );
    table.row("0x80104b11 bind: 0", device.bind(), Ok(()));
    for number in [0x4b20, 0x4b30, 0x4b31] {
        table.row(
            "0x20, 0x30, 0x31: not used, and unknown to the double",
            device.command(number),
            Err(ENOSYS),
        );
    }
    table.row("ENOSYS: unknown number", device.command(0x4b7f), Err(ENOSYS));
    let reading = Device::open_as(libc::O_RDONLY);
    table.row("EBADF: info, opened for reading only", reading.info(), Err(EBADF));
    let memory = sys::map(PAGE);
    table.row(
        "EBADF: create, opened for reading only",
        reading.create(&[Piece::of(memory, 1)], READ, 0),
        Err(EBADF),
    );
    let text = sys::map(PAGE);
    let read = sys::read_to(reading.fd, text, PAGE);
    let printable = read.is_ok_and(|len| len > 0)
        && (0..8).all(|at| sys::load(text + at).is_ascii_graphic() || sys::load(text + at) == b' ');
    table.row("opened for reading only: statistics as text", printable, true);
    sys::close(reading.fd);
    let writing = Device::open_as(libc::O_WRONLY);
    table.row("info, opened for writing only: 0", writing.info(), Ok([0xd, 0, 0, 0]));
    sys::close(writing.fd);
}

fn regions(table: &mut Table, device: Device) {
    let memory = filled(4 * PAGE, 1);
    let piece = Piece::of(memory + 3, 2 * PAGE);
    let made = device.create(&[piece], READ, 0);
    table.row(
        "0xc0204b21 create: a cookie that is not 0",
        made.is_ok_and(|cookie| cookie != 0),
        true,
    );
    let cookie = made.unwrap_or(0);
    let another = device.create(&[piece], READ, 0);
    table.row(
        "0xc0204b21 create: another cookie for the same memory",
        another.is_ok_and(|other| other != cookie),
        true,
    );
    let _ = another.map(|cookie| device.destroy(cookie));
    let hole = sys::map(4 * PAGE);
    sys::unmap(hole + PAGE, PAGE);
    table.row(
        "0xc0204b21 create: EFAULT, memory that is not there",
        device.create(&[Piece::of(hole, 2 * PAGE)], READ, 0),
        Err(EFAULT),
    );
    let pieces = [Piece::of(memory, 10), Piece::of(hole + PAGE, 1)];
    table.row(
        "0xc0204b21 create: EFAULT, the second piece is not there",
        device.create(&pieces, READ, 0),
        Err(EFAULT),
    );
    let _ = sys::protect(hole + 2 * PAGE, PAGE, false);
    let piece = [Piece::of(hole + 2 * PAGE, PAGE)];
    table.row(
        "0xc0204b21 create: EFAULT, to write read-only memory",
        device.create(&piece, WRITE, 0),
        Err(EFAULT),
    );
    let read_only = device.create(&piece, READ, 0);
    table.row("0xc0204b21 create: 0, to read read-only memory", read_only.is_ok(), true);
    let _ = read_only.map(|cookie| device.destroy(cookie));
    table.row(
        "the double: EINVAL, an unknown flag of create",
        device.create(&piece, READ, 1 << 20),
        Err(EINVAL),
    );

    table.row(
        "0x80084b22 destroy: EINVAL, unknown",
        device.destroy(cookie ^ OTHER_REGION),
        Err(EINVAL),
    );
    let other = Device::open();
    table.row(
        "0x80084b22 destroy: EINVAL unless the caller's, another descriptor",
        other.destroy(cookie),
        Err(EINVAL),
    );
    let child = in_child(|_| errno(Device::open().destroy(cookie)));
    table.row(
        "0x80084b22 destroy: EINVAL unless the caller's, another process",
        child,
        EINVAL as u64,
    );
    sys::close(other.fd);
    table.row("0x80084b22 destroy: 0", device.destroy(cookie), Ok(()));
    table.row("0x80084b22 destroy: EINVAL the second time", device.destroy(cookie), Err(EINVAL));
    let again = device.create(&[Piece::of(memory, 1)], READ, 0);
    table.row(
        "0xc0204b21 create: a cookie that was destroyed is given again at once",
        again,
        Ok(cookie),
    );
    let of_another = device.destroy(cookie ^ OTHER_CONTEXT);
    table.row(
        "0x80084b22 destroy: the cookie's half for the context is ignored",
        of_another,
        Ok(()),
    );
    let gone = device.inline(&[Piece::of(memory, 1)], false, (cookie, 0), NOW);
    table.row("a region that was destroyed: EINVAL", gone, Err(EINVAL));
}

fn copies(table: &mut Table, device: Device) {
    let (from, to) = (filled(3 * PAGE, 5), filled(3 * PAGE, 0));
    let (source, target) = (device.region(from + 1, 2 * PAGE), device.region(to + 7, 2 * PAGE));
    table.row("0x80304b32 copy: success", device.copy((source, 0), (target, 0), NOW), Ok(SUCCESS));
    let seen = at(to, &[6, 7, PAGE, 2 * PAGE + 6, 2 * PAGE + 7]);
    table.row("0x80304b32 copy: all of it, and no byte beside it", seen, vec![0, 5, 5, 5, 0]);

    sys::discard(to, 3 * PAGE);
    // The old memory is pinned: see the rows about events that a region outlives.
    let _ = device.destroy(target);
    let target = device.region(to, 2 * PAGE);
    table.row(
        "copy: the end of the source ends it, a success",
        device.copy((source, 2 * PAGE as u64 - 3), (target, 10), NOW),
        Ok(SUCCESS),
    );
    table.row("copy: so many bytes as there were", at(to, &[9, 10, 12, 13]), vec![0, 5, 5, 0]);
    table.row(
        "copy: the end of the target ends it, a success",
        device.copy((source, 0), (target, 2 * PAGE as u64 - 2), NOW),
        Ok(SUCCESS),
    );
    let seen = at(to, &[2 * PAGE - 3, 2 * PAGE - 2, 2 * PAGE - 1, 2 * PAGE]);
    table.row("copy: not a byte beyond the target", seen, vec![0, 5, 5, 0]);
    table.row(
        "copy: an empty one is a success",
        device.copy((source, 9 << 20), (target, 0), NOW),
        Ok(SUCCESS),
    );
    table.row("copy: an empty one copies nothing", at(to, &[0, 1]), vec![0, 0]);
    table.row(
        "copy: EINVAL, the first cookie is unknown",
        device.copy((source ^ OTHER_REGION, 0), (target, 0), NOW),
        Err(EINVAL),
    );
    table.row(
        "copy: EINVAL, the second cookie is unknown",
        device.copy((source, 0), (target ^ OTHER_REGION, 0), NOW),
        Err(EINVAL),
    );

    let bounded = device.copy_bounded((source, 0), (target, 100), 4, NOW);
    table.row("0x80384b34 copy, bounded: success", bounded, Ok(SUCCESS));
    table.row(
        "0x80384b34 copy, bounded: so many bytes",
        at(to, &[99, 100, 103, 104]),
        vec![0, 5, 5, 0],
    );
    let short = device.copy_bounded((source, 2 * PAGE as u64 - 1), (target, 200), 100, NOW);
    table.row(
        "copy, bounded: a short one is a success, too",
        (short, at(to, &[200, 201])),
        (Ok(SUCCESS), vec![5, 0]),
    );
    let dma = How { flags: DMA, slot: 0 };
    table.row(
        "without an engine the DMA flag means an ordinary copy",
        device.copy_bounded((source, 0), (target, 300), 1, dma),
        Ok(SUCCESS),
    );
    table.row("and its bytes are there", at(to, &[300, 301]), vec![5, 0]);
    table.row(
        "copy: EINVAL, the cookie's half for the context is unknown",
        device.copy((source ^ OTHER_CONTEXT, 0), (target, 0), NOW),
        Err(EINVAL),
    );
    table.row(
        "flag 64, notification: EINVAL without a thread",
        device.copy((source, 0), (target, 0), How { flags: NOTIFY, slot: 0 }),
        Err(EINVAL),
    );
    let unknown = How { flags: 1 << 20, slot: 0 };
    table.row(
        "the double: EINVAL, an unknown flag of copy",
        device.copy((source, 0), (target, 0), unknown),
        Err(EINVAL),
    );

    // The test copies from 40 pieces of different lengths and offsets.
    let pieces: Vec<_> = (0..40).map(|i| Piece::of(from + 50 * i + i % 3, i)).collect();
    let gathered = device.create(&pieces, READ, 0);
    let len: usize = (0..40).sum();
    let copied =
        gathered.and_then(|cookie| device.copy_bounded((cookie, 0), (target, 1000), 1 << 30, NOW));
    table.row("a region of many pieces, one of them empty", copied, Ok(SUCCESS));
    table.row(
        "pieces follow each other",
        at(to, &[999, 1000, 1000 + len - 1, 1000 + len]),
        vec![0, 5, 5, 0],
    );
    for cookie in [Ok(source), Ok(target), gathered].into_iter().flatten() {
        let _ = device.destroy(cookie);
    }
}

fn inline(table: &mut Table, device: Device) {
    let (memory, local) = (filled(2 * PAGE, 8), filled(2 * PAGE, 9));
    let region = device.region(memory, PAGE);
    let hole = sys::map(2 * PAGE);
    sys::unmap(hole + PAGE, PAGE);

    table.row(
        "0x80304b33 inline copy: reads",
        device.inline(&[Piece::of(local, 4)], false, (region, 0), NOW),
        Ok(SUCCESS),
    );
    table.row("0x80304b33 inline copy: reads what there is", at(local, &[0, 3, 4]), vec![8, 8, 9]);
    table.row(
        "0x80304b33 inline copy: writes",
        device.inline(&[Piece::of(local + 10, 4)], true, (region, 50), NOW),
        Ok(SUCCESS),
    );
    table.row(
        "0x80304b33 inline copy: writes there",
        at(memory, &[49, 50, 53, 54]),
        vec![8, 9, 9, 8],
    );
    let short = device.inline(&[Piece::of(local + 100, 50)], false, (region, PAGE as u64 - 2), NOW);
    table.row(
        "inline copy: a short one is a success",
        (short, at(local, &[101, 102])),
        (Ok(SUCCESS), vec![8, 9]),
    );
    let empty = device.inline(&[Piece::of(local + 200, 50)], false, (region, PAGE as u64), NOW);
    table.row(
        "inline copy: an empty one is a success",
        (empty, at(local, &[200])),
        (Ok(SUCCESS), vec![9]),
    );
    let bounded = device.inline_bounded(&[Piece::of(local + 300, 50)], false, (region, 0), 7, NOW);
    table.row(
        "0x80384b35 inline, bounded: so many bytes",
        (bounded, at(local, &[306, 307])),
        (Ok(SUCCESS), vec![8, 9]),
    );
    let pieces = [Piece::of(local + 400, 3), Piece::of(local + 500, 0), Piece::of(local + 600, 5)];
    let gathered = device.inline_bounded(&pieces, false, (region, 0), 6, NOW);
    table.row(
        "inline, bounded: of several pieces",
        (gathered, at(local, &[402, 403, 602, 603])),
        (Ok(SUCCESS), vec![8, 9, 8, 9]),
    );
    table.row(
        "inline: EINVAL, the cookie is unknown",
        device.inline(&pieces, false, (region ^ OTHER_REGION, 0), NOW),
        Err(EINVAL),
    );

    let missing = [Piece::of(hole + PAGE, 8)];
    table.row(
        "local memory that is not there: 0, and status failed (reading)",
        device.inline(&missing, false, (region, 0), NOW),
        Ok(FAILED),
    );
    table.row(
        "local memory that is not there: EFAULT (writing)",
        device.inline_bounded(&missing, true, (region, 0), 8, NOW),
        Err(EFAULT),
    );
    let read_only = [Piece::of(hole, 8)];
    let _ = sys::protect(hole, PAGE, false);
    table.row(
        "local memory that may not be written: status failed",
        device.inline(&read_only, false, (region, 0), NOW),
        Ok(FAILED),
    );
    table.row(
        "and it may be read",
        device.inline(&read_only, true, (region, 900), NOW),
        Ok(SUCCESS),
    );
    let _ = device.destroy(region);
}

fn rights(table: &mut Table, device: Device) {
    let memory = filled(PAGE, 3);
    let local = sys::map(PAGE);
    let piece = [Piece::of(memory, PAGE)];
    let create = |protection, flags| device.create(&piece, protection, flags).unwrap_or(0);
    let (reading, writing) = (create(READ, 0), create(WRITE, 0));
    let here = [Piece::of(local, 1)];
    table.row(
        "EACCES: to write a region for reading",
        device.inline(&here, true, (reading, 0), NOW),
        Err(EACCES),
    );
    table.row(
        "EACCES: to read a region for writing",
        device.inline(&here, false, (writing, 0), NOW),
        Err(EACCES),
    );
    table.row(
        "EACCES: copy from a region for writing",
        device.copy((writing, 0), (writing, 0), NOW),
        Err(EACCES),
    );
    table.row(
        "EACCES: copy to a region for reading",
        device.copy((reading, 0), (reading, 0), NOW),
        Err(EACCES),
    );
    table.row(
        "copy: 0 from one for reading to one for writing",
        device.copy((reading, 0), (writing, 0), NOW),
        Ok(SUCCESS),
    );

    let same_user = in_child(|_| errno(Device::open().inline(&here, false, (reading, 0), NOW)));
    table.row("a cookie is valid for every process of the user", same_user, 0);
    let as_plain = |cookie| {
        in_child(|_| {
            sys::become_user(1000, 1000);
            errno(Device::open().inline(&[Piece::of(local, 1)], false, (cookie, 0), NOW))
        })
    };
    table.row("EPERM: another user's", as_plain(reading), EPERM as u64);
    let any = create(READ, ANY_USER);
    table.row("flag 128: for every user", as_plain(any), 0);
    let once = create(READ, SINGLE_USE);
    let copied = device.inline(&here, false, (once, 0), NOW);
    table.row("flag 32: one copy", (copied, sys::load(local)), (Ok(SUCCESS), 3));
    table.row("flag 32: no second one", device.inline(&here, false, (once, 0), NOW), Err(EINVAL));
    table.row("flag 32: nothing is left to destroy", device.destroy(once), Err(EINVAL));
    for cookie in [reading, writing, any] {
        let _ = device.destroy(cookie);
    }
}

fn later(table: &mut Table) {
    let device = Device::open();
    let (from, to) = (filled(PAGE, 6), filled(PAGE, 0));
    let (source, target) = (device.region(from, PAGE), device.region(to, PAGE));
    let how = |slot| How { flags: THREAD, slot };
    table.row(
        "later completion without slots: EINVAL",
        device.copy((source, 0), (target, 0), how(0)),
        Err(EINVAL),
    );
    table.row(
        "mmap of slots: EINVAL beyond offset 0",
        sys::map_file(device.fd, PAGE as i64, PAGE),
        Err(EINVAL),
    );
    let slots = sys::map_file(device.fd, 0, PAGE);
    table.row("mmap of slots: once", slots.is_ok(), true);
    let slots = slots.unwrap_or(0);
    table.row(
        "mmap of slots: EBUSY the second time",
        sys::map_file(device.fd, 0, PAGE),
        Err(EBUSY),
    );
    table.row("bind: EBUSY once slots are mapped", device.bind(), Err(EBUSY));
    table.row(
        "a slot beyond the array: EINVAL",
        device.copy((source, 0), (target, 0), how(PAGE as u32)),
        Err(EINVAL),
    );
    let ended = |slot: usize| {
        while sys::load(slots + slot) == PENDING as u8 {
            std::thread::yield_now();
        }
        u32::from(sys::load(slots + slot))
    };
    table.row("later: status pending", device.copy((source, 0), (target, 0), how(3)), Ok(PENDING));
    table.row("later: the slot goes from 0 to 1", ended(3), SUCCESS);
    table.row("later: then the bytes are there", at(to, &[0, PAGE - 1]), vec![6, 6]);
    let local = filled(PAGE, 0);
    table.row(
        "later, inline: status pending",
        device.inline(&[Piece::of(local, PAGE)], false, (source, 0), how(4)),
        Ok(PENDING),
    );
    table.row(
        "later, inline: the slot and the bytes",
        (ended(4), sys::load(local + 9)),
        (SUCCESS, 6),
    );
    let written = device.inline_bounded(&[Piece::of(local, 5)], true, (target, 20), 5, how(4095));
    table.row(
        "later, inline, bounded: the last slot",
        (written, ended(4095)),
        (Ok(PENDING), SUCCESS),
    );
    let hole = sys::map(PAGE);
    sys::unmap(hole, PAGE);
    let missing = device.inline(&[Piece::of(hole, 8)], false, (source, 0), how(5));
    table.row("later, local memory that is not there: 0, and status failed", missing, Ok(FAILED));
    sys::unmap(slots, PAGE);
    sys::close(device.fd);
}

fn with_an_engine(table: &mut Table, device: Device) {
    table.row("info: feature 1, DMA", device.info(), Ok([0xd, 1, 0, 0]));
    let (from, to) = (filled(PAGE, 6), filled(PAGE, 0));
    let (source, target) = (device.region(from, PAGE), device.region(to, PAGE));
    let how = |slot| How { flags: DMA | DMA_LATER, slot };
    table.row(
        "DMA completes later without slots: EINVAL",
        device.copy((source, 0), (target, 0), how(0)),
        Err(EINVAL),
    );
    table.row(
        "DMA now: a success",
        device.copy_bounded((source, 0), (target, 0), 1, How { flags: DMA, slot: 0 }),
        Ok(SUCCESS),
    );
    let slots = sys::map_file(device.fd, 0, PAGE).unwrap_or(0);
    table.row(
        "DMA completes later: pending",
        device.copy((source, 0), (target, 0), how(0)),
        Ok(PENDING),
    );
    while sys::load(slots) == PENDING as u8 {
        std::thread::yield_now();
    }
    table.row(
        "then the slot says so, and the bytes are there",
        (sys::load(slots), sys::load(to + 1)),
        (1, 6),
    );
}
