//! The application's transport for wire-up datagrams between processes, which uses the pipes of the test.
//!
//! If a node reports `datagram TO BYTES`, the bytes are delivered to the node of that name. A test can drop or duplicate datagrams,
//! or change their version.

use std::collections::HashMap;
use std::io::Write;
use std::process::ChildStdin;
use std::sync::{Arc, Mutex, PoisonError};

/// The standard input of a process, to which its test and the exchange write.
pub type Mailbox = Arc<Mutex<Option<ChildStdin>>>;

/// The treatment of datagrams in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Each datagram is delivered once.
    #[default]
    Arrives,
    /// Every second datagram is dropped, and the others are delivered twice.
    Unreliable,
    /// No datagram is delivered.
    Lost,
    /// Each wire-up datagram is delivered with the next version of the protocol.
    OfTheNextVersion,
}

#[derive(Default)]
struct Exchange {
    mailboxes: HashMap<String, Mailbox>,
    fate: Fate,
    carried: u64,
}

/// The first bytes of a wire-up datagram: `TW` and the version.
const WIRE_UP: &str = "545701";
const NEXT_WIRE_UP: &str = "545702";

static EXCHANGE: Mutex<Option<Exchange>> = Mutex::new(None);

fn with<R>(act: impl FnOnce(&mut Exchange) -> R) -> R {
    let mut exchange = EXCHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    act(exchange.get_or_insert_default())
}

/// Sets the treatment of later datagrams.
pub fn set_fate(fate: Fate) {
    with(|exchange| exchange.fate = fate);
}

/// Returns the number of datagrams that were sent.
#[must_use]
pub fn carried() -> u64 {
    with(|exchange| exchange.carried)
}

pub(crate) fn forget() {
    with(|exchange| *exchange = Exchange::default());
}

pub(crate) fn join(name: &str, mailbox: Mailbox) {
    with(|exchange| {
        let _ = exchange.mailboxes.insert(name.to_string(), mailbox);
    });
}

/// Handles a report that is a datagram. Returns whether the report was a datagram.
pub(crate) fn takes(report: &str) -> bool {
    let Some(datagram) = report.strip_prefix("datagram ") else { return false };
    let Some((to, bytes)) = datagram.split_once(' ') else { return true };
    let (mailbox, times, bytes) = with(|exchange| {
        exchange.carried += 1;
        let (times, bytes) = match exchange.fate {
            Fate::Arrives => (1, bytes.to_string()),
            Fate::Unreliable if exchange.carried % 2 == 0 => (2, bytes.to_string()),
            Fate::Unreliable | Fate::Lost => (0, String::new()),
            Fate::OfTheNextVersion => (1, bytes.replacen(WIRE_UP, NEXT_WIRE_UP, 1)),
        };
        (exchange.mailboxes.get(to).cloned(), times, bytes)
    });
    let Some(mailbox) = mailbox else { return true };
    let mut input = mailbox.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..times {
        if let Some(input) = &mut *input {
            let _ = input.write_all(format!("deliver {bytes}\n").as_bytes());
        }
    }
    true
}
