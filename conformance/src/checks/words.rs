//! Checks of watch words.

use crate::case::{Case, Desk};
use crate::report::{Checked, Stop};
use crate::words::WatchWords;

/// The number of messages.
const ROUNDS: u32 = 100;
/// The number of polls in which a module may list words.
const POLLS: u32 = 2000;

/// Returns the words of the receiver.
fn words(desk: &mut Desk) -> Result<WatchWords, Stop> {
    let words = desk.far().interface.watch();
    words.ok_or_else(|| Stop::Skip("the module has no watch words".to_string()))
}

/// Polls until words are listed, or a module that lists none at present has had its chance.
fn list(desk: &mut Desk, words: &WatchWords) -> Checked {
    for _ in 0..POLLS {
        if !words.demand_a_poll()? {
            break;
        }
        desk.turn()?;
    }
    Ok(())
}

/// An event of a device or of another thread may arrive between the comparison and the poll, so single ones do not count.
pub(super) fn every_event_is_announced_by_a_watch_word(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let words = words(&mut desk)?;
    let mut unannounced = 0;
    for n in 0..ROUNDS {
        list(&mut desk, &words)?;
        desk.send(1, n.into(), b"look")?;
        while desk.far().messages.is_empty() {
            let announced = words.demand_a_poll()?;
            if desk.far().turn()? {
                unannounced += u32::from(!announced);
            } else {
                desk.turn()?;
            }
        }
        let _ = desk.receive()?;
    }
    if unannounced > ROUNDS / 4 { Err(WatchWords::unannounced(unannounced)) } else { Ok(()) }
}

/// The comparison of a word whose memory is gone ends the process of the check.
pub(super) fn a_listed_word_stays_readable(case: &Case) -> Checked {
    for _ in 0..4 {
        let mut desk = case.desk()?;
        let words = words(&mut desk)?;
        desk.send(1, 1, b"first")?;
        let _ = desk.receive()?;
        list(&mut desk, &words)?;
        desk.near_leaves();
        for _ in 0..POLLS {
            let _ = words.demand_a_poll()?;
            let _ = desk.far().turn()?;
        }
    }
    Ok(())
}
