//! Rows about events that a region outlives, and about events that do not change a region.

use super::{NOW, filled};
use libc::EINVAL;
use tieline_lab_programs::child::Child;
use tieline_lab_programs::knem::{Device, Piece, READ, SUCCESS, WRITE};
use tieline_lab_programs::sys::{self, PAGE};
use tieline_lab_programs::table::Table;

/// Tests that a region refers to its pages: the region outlives their mapping, and ends with the last descriptor.
pub(crate) fn lives(table: &mut Table, device: Device) {
    let memory = filled(PAGE, 11);
    let local = sys::map(PAGE);
    let region = device.region(memory, PAGE);
    let read = |cookie| {
        let status = device.inline(&[Piece::of(local, 1)], false, (cookie, 0), NOW);
        status.map(|status| (status, sys::load(local)))
    };
    sys::unmap(memory, PAGE);
    let _ = sys::map_at(memory, PAGE);
    sys::store(memory, 12);
    table.row(
        "pinned: after munmap and mmap it reads the old memory",
        read(region),
        Ok((SUCCESS, 11)),
    );
    sys::store(local, 13);
    let written = device.inline(&[Piece::of(local, 1)], true, (region, 0), NOW);
    table.row(
        "pinned: and writes the old memory, a success",
        (written, sys::load(memory)),
        (Ok(SUCCESS), 12),
    );
    table.row("pinned: which reads as it was written", read(region), Ok((SUCCESS, 13)));
    let _ = device.destroy(region);

    // The last close ends the regions; a child shares the descriptor.
    let other = Device::open();
    sys::store(memory, 15);
    let region = other.region(memory, PAGE);
    let child = Child::start(|talk| {
        talk.say(0);
        let _ = talk.hear();
    });
    let _ = child.hear();
    sys::close(other.fd);
    table.row(
        "close: a copy of the descriptor in a child keeps the region",
        read(region),
        Ok((SUCCESS, 15)),
    );
    let _ = child.end();
    table.row("close: the last one ends it", read(region), Err(EINVAL));

    let owner = || {
        let child = Child::start(|talk| {
            let device = Device::open();
            talk.say(device.region(filled(PAGE, 16), PAGE));
            let _ = talk.hear();
        });
        let cookie = child.hear();
        (child, cookie)
    };
    let (child, cookie) = owner();
    table.row("another process's memory", read(cookie), Ok((SUCCESS, 16)));
    let _ = child.end();
    table.row("exit closes: EINVAL", read(cookie), Err(EINVAL));
    let (child, cookie) = owner();
    let _ = child.kill();
    table.row("SIGKILL closes: EINVAL, and no signal", read(cookie), Err(EINVAL));
}

/// Tests that a region has the pages of its creation, not the addresses: if a page is shared, the region keeps the page and the
/// owner gets a copy.
pub(crate) fn references(table: &mut Table, device: Device) {
    let local = sys::map(PAGE);
    let mut of_fresh = |row: &str, memory: usize, protection: u32, promised: u8| {
        let cookie = device.create(&[Piece::of(memory, PAGE)], protection, 0).unwrap_or(0);
        sys::store(memory, 21);
        let status = device.inline(&[Piece::of(local, 1)], false, (cookie, 0), NOW);
        table.row(row, (status, sys::load(local)), (Ok(SUCCESS), promised));
        let _ = device.destroy(cookie);
    };
    of_fresh("fresh memory, for reading, then filled: zeros", sys::map(PAGE), READ, 0);
    of_fresh(
        "fresh memory, for both, then filled: what was filled",
        sys::map(PAGE),
        READ | WRITE,
        21,
    );
    of_fresh("memory that was filled before: what was filled since", filled(PAGE, 20), READ, 21);
    of_fresh(
        "shared memory, for reading, then filled: what was filled",
        sys::map_shared(PAGE),
        READ,
        21,
    );
}

/// Tests a fork, which makes pages shared: the first process to store gets a copy, and the region keeps the page.
pub(crate) fn forks(table: &mut Table, device: Device) {
    let memory = filled(PAGE, 30);
    let local = sys::map(PAGE);
    let region = device.region(memory, PAGE);
    let read = || {
        let status = device.inline(&[Piece::of(local, 1)], false, (region, 0), NOW);
        status.map(|status| (status, sys::load(local)))
    };
    let child = Child::start(|talk| {
        talk.say(0);
        let _ = talk.hear();
        talk.say(u64::from(sys::load(memory)));
        let _ = talk.hear();
    });
    let _ = child.hear();
    table.row("fork: as before", read(), Ok((SUCCESS, 30)));
    sys::store(memory, 31);
    table.row("fork: old bytes once the parent has stored", read(), Ok((SUCCESS, 30)));
    sys::store(local, 32);
    let written = device.inline(&[Piece::of(local, 1)], true, (region, 0), NOW);
    let seen = (sys::load(memory), child.step());
    table.row(
        "fork: a copy to the region is the child's",
        (written, seen),
        (Ok(SUCCESS), (31, 32)),
    );
    let _ = child.end();
    sys::store(memory, 33);
    table.row("fork: and so it stays when the child has ended", read(), Ok((SUCCESS, 32)));
    let _ = device.destroy(region);
}
