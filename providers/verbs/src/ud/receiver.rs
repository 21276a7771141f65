//! The receiving end of a channel: what is delivered, what is kept until its turn comes, what is dropped.

use super::sender::WINDOW;
use std::collections::BTreeMap;

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the next one; then [`Receiver::following`].
    Deliver,
    /// It came before its turn: [`Receiver::keep`] it, or drop it, and it comes again.
    Early,
    /// It was delivered before, or is kept: its acknowledgement was lost.
    Duplicate,
    /// It is too far ahead.
    Gap,
}

/// The receiving end; an early message lies in a `T`.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    /// Number of the next message.
    pub(crate) next: u32,
    /// A later one has arrived.
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

    /// The next message, where it has come early.
    pub(crate) fn following(&mut self) -> Option<T> {
        let message = self.early.remove(&self.next)?;
        self.advance();
        Some(message)
    }

    /// Everything that is kept; the channel is over.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        core::mem::take(&mut self.early).into_values()
    }

    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.gap = !self.early.is_empty();
    }
}
