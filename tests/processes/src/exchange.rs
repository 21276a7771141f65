//! The application's own way of carrying datagrams between processes: over the pipes of the test.
//!
//! A node that says `datagram TO BYTES` wants the bytes delivered to the node of that name. A test can decide
//! that some are lost, doubled or kept back, as the interface allows.

use std::collections::HashMap;
use std::io::Write;
use std::process::ChildStdin;
use std::sync::{Arc, Mutex, PoisonError};

/// A process's input, which its test and its peers write to.
pub type Mailbox = Arc<Mutex<Option<ChildStdin>>>;

/// What becomes of the datagrams that are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Each arrives once.
    #[default]
    Arrives,
    /// Every second one is lost, and what is not lost arrives twice.
    Unreliable,
    /// None arrives.
    Lost,
    /// Each arrives as one of the next version of the wire-up.
    OfTheNextVersion,
}

#[derive(Default)]
struct Exchange {
    mailboxes: HashMap<String, Mailbox>,
    fate: Fate,
    carried: u64,
}

/// How a datagram of the wire-up begins: `TW` and the version.
const WIRE_UP: &str = "545701";
const NEXT_WIRE_UP: &str = "545702";

static EXCHANGE: Mutex<Option<Exchange>> = Mutex::new(None);

fn with<R>(act: impl FnOnce(&mut Exchange) -> R) -> R {
    let mut exchange = EXCHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    act(exchange.get_or_insert_default())
}

/// Decides about the datagrams from now on.
pub fn set_fate(fate: Fate) {
    with(|exchange| exchange.fate = fate);
}

/// How many datagrams were given to be carried.
#[must_use]
pub fn carried() -> u64 {
    with(|exchange| exchange.carried)
}

/// Before the next test.
pub(crate) fn forget() {
    with(|exchange| *exchange = Exchange::default());
}

pub(crate) fn join(name: &str, mailbox: Mailbox) {
    with(|exchange| {
        let _ = exchange.mailboxes.insert(name.to_string(), mailbox);
    });
}

/// Whether a report is a datagram; then it was dealt with.
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
