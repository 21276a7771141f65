//! Credits: how many messages may be on their way to one peer.
//!
//! Every side grants its peer a window. A message costs one credit, and the receiver gives it back when the
//! application is done with the message: with the next message the other way, or with a message of its own once
//! half of the window is owed. So a receiver that does not poll stops its senders long before its receive queue runs
//! dry, and puts and gets are never stuck behind messages that find no buffer.

use tieline_plugin_api::Status;

/// Both directions of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credits {
    /// What we granted the peer.
    granted: u32,
    /// The peer's messages that we have taken and not yet told it about.
    owed: u32,
    /// What the peer granted us.
    window: u32,
    /// Our messages that the peer has not yet told us it has taken.
    used: u32,
}

impl Credits {
    pub(crate) fn new(granted: u32) -> Credits {
        Credits { granted, owed: 0, window: 0, used: 0 }
    }

    /// The connection stands: the peer's window is known.
    pub(crate) fn open(&mut self, window: u32) {
        self.window = window;
    }

    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.used < self.window
    }

    #[inline]
    pub(crate) fn sent(&mut self) {
        self.used += 1;
    }

    /// The application is done with a message.
    #[inline]
    pub(crate) fn taken(&mut self) {
        self.owed += 1;
    }

    /// Whether the peer should be told even without a message to tell it with.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.owed * 2 >= self.granted
    }

    /// What goes into the next header; [`Credits::told`] follows when it was posted.
    #[inline]
    pub(crate) fn owed_now(&self) -> u16 {
        self.owed.min(u32::from(u16::MAX)) as u16
    }

    #[inline]
    pub(crate) fn told(&mut self, credits: u16) {
        self.owed -= u32::from(credits);
    }

    /// The peer gives credits back; never more than we have used.
    #[inline]
    pub(crate) fn returned(&mut self, credits: u16) -> Result<(), Status> {
        self.used = self.used.checked_sub(u32::from(credits)).ok_or(Status::BadData)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_stops_at_the_window_and_goes_on_when_half_was_taken() {
        let (mut sender, mut receiver) = (Credits::new(8), Credits::new(8));
        assert!(!sender.may_send(), "before the connection stands");
        sender.open(8);
        for _ in 0..8 {
            assert!(sender.may_send());
            sender.sent();
        }
        assert!(!sender.may_send());
        for _ in 0..3 {
            receiver.taken();
            assert!(!receiver.is_due());
        }
        receiver.taken();
        assert!(receiver.is_due());
        let credits = receiver.owed_now();
        receiver.told(credits);
        assert!(!receiver.is_due());
        sender.returned(credits).unwrap();
        assert!(sender.may_send());
    }

    #[test]
    fn credits_that_nobody_used_are_malformed() {
        let mut credits = Credits::new(8);
        credits.open(8);
        credits.sent();
        assert_eq!(credits.returned(2), Err(Status::BadData));
        assert_eq!(credits.returned(1), Ok(()));
    }

    #[test]
    fn every_window_gives_its_credits_back() {
        for window in 2..70 {
            let (mut sender, mut receiver) = (Credits::new(window), Credits::new(window));
            sender.open(window);
            let mut arrived = 0;
            for _ in 0..1000 {
                while sender.may_send() {
                    sender.sent();
                    arrived += 1;
                }
                assert!(arrived > 0, "stuck at a window of {window}");
                for _ in 0..arrived {
                    receiver.taken();
                }
                arrived = 0;
                assert!(receiver.is_due());
                let credits = receiver.owed_now();
                receiver.told(credits);
                sender.returned(credits).unwrap();
            }
        }
    }
}
