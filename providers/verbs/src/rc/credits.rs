//! Credits: how many messages may be on their way to one peer.
//!
//! Every side grants its peer a window. A message costs one credit, and the receiver gives it back when the
//! application is done with the message: with the next message the other way, or with a message of its own once
//! half of the window is owed. So a receiver that does not poll stops its senders before its receive queue runs
//! dry, and puts and gets are not stuck behind messages that find no buffer, as long as all windows fit into the queue.
//! Where they do not (`TIELINE_VERBS_RX_BUFFERS` by `TIELINE_VERBS_WINDOW`: 28 peers), peers that all send at
//! once to one that does not poll may be made to wait by its device.
//!
//! A window starts small, because every message of it needs a buffer. Half of it owed and nothing said to tell it with
//! is the mark of a stream: then it grows, twofold each time, while that leaves half of the queue to peers that
//! are still to come.

use tieline_plugin_api::Status;

/// No window is wider.
pub(crate) const WIDEST: u32 = 1024;

/// What a message tells the peer of its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Messages of the peer's that were taken since the last time.
    pub(crate) credits: u16,
    /// By how many messages its window has grown.
    pub(crate) growth: u8,
}

/// Both directions of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credits {
    /// What we granted the peer.
    granted: u32,
    /// The part of it that the peer does not know yet.
    growth: u32,
    /// The peer's messages that we have and have not taken.
    here: u32,
    /// The peer's messages that we have taken and not yet told it about.
    owed: u32,
    /// What the peer granted us.
    window: u32,
    /// Our messages that the peer has not yet told us it has taken.
    used: u32,
}

impl Credits {
    pub(crate) fn new(granted: u32) -> Credits {
        Credits { granted, growth: 0, here: 0, owed: 0, window: 0, used: 0 }
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

    /// A message of the peer's is here, never more than it was granted: a peer that does not keep to that would use up
    /// the receive queue, which is everybody's.
    #[inline]
    pub(crate) fn arrived(&mut self) -> Result<(), Status> {
        self.here += 1;
        if self.here + self.owed > self.granted { Err(Status::BadData) } else { Ok(()) }
    }

    /// Both at once: a message of the peer's that gives credits back. `false`: it makes no sense, and nothing has changed.
    #[inline(always)]
    pub(crate) fn message(&mut self, grant: Grant) -> bool {
        let (here, credits) = (self.here + 1, u32::from(grant.credits));
        if credits > self.used || here + self.owed > self.granted {
            return false;
        }
        (self.here, self.used) = (here, self.used - credits);
        if grant.growth > 0 {
            self.window = (self.window + u32::from(grant.growth)).min(WIDEST);
        }
        true
    }

    /// The application is done with a message.
    #[inline]
    pub(crate) fn taken(&mut self) {
        self.here = self.here.saturating_sub(1);
        self.owed += 1;
    }

    /// Whether the peer should be told even without a message to tell it with: half of the window that it knows.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.owed * 2 >= self.granted - self.growth
    }

    /// What we granted, told or not.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// Grants more, once there are buffers for it.
    pub(crate) fn grow(&mut self, more: u32) {
        self.granted += more;
        self.growth += more;
    }

    /// What goes into the next header; [`Credits::grant_sent`] follows when it was posted.
    #[inline]
    pub(crate) fn next_grant(&self) -> Grant {
        Grant {
            credits: self.owed.min(u32::from(u16::MAX)) as u16,
            growth: self.growth.min(u32::from(u8::MAX)) as u8,
        }
    }

    #[inline]
    pub(crate) fn grant_sent(&mut self, grant: Grant) {
        self.owed -= u32::from(grant.credits);
        self.growth -= u32::from(grant.growth);
    }

    /// The peer gives credits back, never more than we have used, and may grant more.
    #[inline]
    pub(crate) fn grant_received(&mut self, grant: Grant) -> Result<(), Status> {
        self.used = self.used.checked_sub(u32::from(grant.credits)).ok_or(Status::BadData)?;
        self.window = (self.window + u32::from(grant.growth)).min(WIDEST);
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
        let credits = receiver.next_grant();
        receiver.grant_sent(credits);
        assert!(!receiver.is_due());
        sender.grant_received(credits).unwrap();
        assert!(sender.may_send());
    }

    #[test]
    fn credits_that_nobody_used_are_malformed() {
        let mut credits = Credits::new(8);
        credits.open(8);
        credits.sent();
        let back = |credits| Grant { credits, growth: 0 };
        assert_eq!(credits.grant_received(back(2)), Err(Status::BadData));
        assert_eq!(credits.grant_received(back(1)), Ok(()));
    }

    #[test]
    fn a_message_beyond_the_window_is_malformed() {
        let mut credits = Credits::new(4);
        (0..4).for_each(|_| credits.arrived().unwrap());
        credits.taken();
        let untold = credits;
        assert_eq!(credits.arrived(), Err(Status::BadData), "a credit counts when it was told");
        credits = untold;
        let grant = credits.next_grant();
        credits.grant_sent(grant);
        assert_eq!(credits.arrived(), Ok(()));
        assert_eq!(credits.arrived(), Err(Status::BadData));
        credits = untold;
        credits.grow(2);
        assert_eq!((credits.arrived(), credits.arrived()), (Ok(()), Ok(())), "granted is granted");
        assert_eq!(credits.arrived(), Err(Status::BadData));
    }

    #[test]
    fn a_message_with_credits_counts_as_one_and_the_other_do_or_changes_nothing() {
        let mut credits = Credits::new(2);
        credits.open(8);
        (0..3).for_each(|_| credits.sent());
        let grants = [(0, 0), (2, 5), (1, 0), (2, 0), (0, 255)]
            .map(|(credits, growth)| Grant { credits, growth });
        for grant in grants {
            let (mut one_by_one, before) = (credits, credits);
            let both = one_by_one.grant_received(grant).and_then(|()| one_by_one.arrived());
            assert_eq!(credits.message(grant), both.is_ok(), "{grant:?}");
            let expected = if both.is_ok() { one_by_one } else { before };
            assert_eq!(format!("{credits:?}"), format!("{expected:?}"));
        }
        assert_eq!(
            (credits.here, credits.used, credits.window),
            (2, 1, 13),
            "the third has no room"
        );
        credits.taken();
        let grant = credits.next_grant();
        credits.grant_sent(grant);
        assert!(!credits.message(Grant { credits: 2, growth: 0 }), "that many were not used");
        assert!(credits.message(Grant { credits: 1, growth: 255 }));
        assert_eq!((credits.used, credits.window), (0, 268));
    }

    #[test]
    fn a_window_that_has_grown_is_used_once_the_sender_was_told() {
        let (mut sender, mut receiver) = (Credits::new(4), Credits::new(4));
        sender.open(4);
        (0..4).for_each(|_| sender.sent());
        (0..2).for_each(|_| receiver.taken());
        receiver.grow(300);
        assert!(
            receiver.is_due(),
            "the sender does not know the wider window, and would wait for ever"
        );
        let mut left = 0;
        for expected in [255, 45, 0] {
            let grant = receiver.next_grant();
            assert_eq!(grant.growth, expected);
            receiver.grant_sent(grant);
            sender.grant_received(grant).unwrap();
        }
        while sender.may_send() {
            sender.sent();
            left += 1;
        }
        assert_eq!((left, receiver.granted()), (302, 304));
        (0..20).for_each(|_| sender.grant_received(Grant { credits: 0, growth: 255 }).unwrap());
        assert_eq!(sender.window, WIDEST, "whatever a peer says");
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
                let credits = receiver.next_grant();
                receiver.grant_sent(credits);
                sender.grant_received(credits).unwrap();
            }
        }
    }
}
