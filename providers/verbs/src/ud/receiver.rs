//! The receiving end of a channel: delivers messages in order, keeps early ones, drops duplicates.

use super::sender::WINDOW;
use std::collections::BTreeMap;

/// The treatment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The next message: the caller delivers it, then calls [`Receiver::following`].
    Deliver,
    /// A message ahead of the next one: the caller may [`Receiver::keep`] or drop it, because the peer retransmits a dropped
    /// message.
    Early,
    /// A message that was already delivered or kept.
    Duplicate,
    /// A message beyond the window.
    Gap,
}

/// The receiving end of a channel. A `T` holds an early message.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    /// The number of the next message.
    pub(crate) next: u32,
    /// Whether a message after the next one has arrived.
    pub(crate) gap: bool,
    early: BTreeMap<u32, T>,
}

impl<T> Default for Receiver<T> {
    fn default() -> Receiver<T> {
        Receiver { next: 0, gap: false, early: BTreeMap::new() }
    }
}

impl<T> Receiver<T> {
    pub(crate) fn accept(&mut self, sequence: u32) -> Verdict {
        match sequence.wrapping_sub(self.next) {
            0 => {
                self.advance();
                Verdict::Deliver
            }
            ahead if ahead < 1 << 31 => {
                self.gap = true;
                match self.early.contains_key(&sequence) {
                    true => Verdict::Duplicate,
                    false if ahead < WINDOW as u32 => Verdict::Early,
                    false => Verdict::Gap,
                }
            }
            _ => Verdict::Duplicate,
        }
    }

    /// Keeps an early message.
    pub(crate) fn keep(&mut self, sequence: u32, message: T) {
        let _ = self.early.insert(sequence, message);
    }

    /// Returns the next message if it has arrived early.
    pub(crate) fn following(&mut self) -> Option<T> {
        let message = self.early.remove(&self.next)?;
        self.advance();
        Some(message)
    }

    /// Removes and returns all kept messages.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        core::mem::take(&mut self.early).into_values()
    }

    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.gap = !self.early.is_empty();
    }
}
