//! The receiving end of a channel: what is delivered, what is dropped.

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the next one.
    Deliver,
    /// It was delivered before: its acknowledgement was lost.
    Duplicate,
    /// One before it is missing.
    Gap,
}

/// The receiving end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receiver {
    /// Number of the next message.
    pub(crate) next: u32,
    /// A later one has arrived and was dropped.
    pub(crate) gap: bool,
}

impl Receiver {
    pub(crate) fn accept(&mut self, sequence: u32) -> Verdict {
        match sequence.wrapping_sub(self.next) {
            0 => {
                self.next = self.next.wrapping_add(1);
                self.gap = false;
                Verdict::Deliver
            }
            ahead if ahead < 1 << 31 => {
                self.gap = true;
                Verdict::Gap
            }
            _ => Verdict::Duplicate,
        }
    }
}
