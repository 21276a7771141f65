//! Checks of the events of a poll: every field must be written, since the core does not clear its array before.

use crate::case::Case;
use crate::report::{Checked, equal, holds, succeeds};
use crate::sys::CANARY;
use crate::watch::Patience;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{event, event_flags};

pub(super) fn every_field_of_an_event_is_written(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let (mut messages, mut sent, patience) = (0, 0, Patience::new());
    while messages < 20 {
        if sent < 20 && endpoint.am_short(3, 7, b"whole").is_ok() {
            sent += 1;
        }
        for mailbox in &mut desk.boxes {
            for one in succeeds("poll", mailbox.interface.poll_into_used_room(8))? {
                whole(&one)?;
                messages += u32::from(one.kind == event::MESSAGE);
                if one.flags & event_flags::LENT != 0 {
                    mailbox.interface.release(one.cookie);
                }
            }
        }
        patience.still("messages that were sent", "that they come", "too few of them")?;
    }
    Ok(())
}

fn whole(one: &Event) -> Checked {
    let unwritten = u64::from_ne_bytes([CANARY; 8]);
    let half = unwritten as u32;
    let numbers = [("id", one.id), ("status", one.status as u32), ("flags", one.flags)];
    let longer = [
        ("peer", one.peer),
        ("header", one.header),
        ("data", one.data.addr() as u64),
        ("len", one.len as u64),
        ("cookie", one.cookie),
        ("reserved", one.reserved),
    ];
    let left = numbers.iter().filter(|(_, found)| *found == half).map(|(field, _)| *field);
    let left = left.chain(longer.iter().filter(|(_, found)| *found == unwritten).map(|(f, _)| *f));
    let left: Vec<&str> = left.collect();
    let what = format!("an event of kind {}", one.kind);
    holds(left.is_empty(), &what, "every field written", format!("{} as before", left.join(", ")))?;
    equal(format!("reserved of {what}"), 0, one.reserved)?;
    equal(format!("undefined flags of {what}"), 0, one.flags & !event_flags::LENT)
}
