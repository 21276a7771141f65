//! Credits: a limit on the messages in flight to one peer.
//!
//! Every side grants its peer a window. A message of the application costs one credit, and so does a put with notification. The
//! receiver returns the credit when the application is done with the message. The next message in the other direction carries the
//! credit; once half of the window is owed, a separate message does. A receiver that does not poll therefore stops its senders
//! before its receive queue runs dry. Puts and gets are then never stuck behind messages without a buffer, as long as all windows
//! fit into the queue, each with the receives for control messages. With the defaults, the initial windows of 28 peers fit. With
//! more peers, a receiver that does not poll may delay simultaneous senders.
//!
//! A window starts small, because every message in a window needs a buffer. If half of the window is owed and no message could
//! carry the credits, the peer is sending a stream. The window then doubles, up to `TIELINE_VERBS_MAX_WINDOW`, as long as this
//! leaves half of the queue to future peers.

use tieline_plugin_api::Status;

/// The upper bound of a window, in messages.
pub(crate) const WIDEST: u32 = 1024;

/// The update of the peer's window in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The number of the peer's messages that have been released since the last update.
    pub(crate) credits: u16,
    /// The number of messages by which the peer's window has grown.
    pub(crate) growth: u8,
}

/// Both directions of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credits {
    /// The window that this side granted to the peer.
    granted: u32,
    /// The part of `granted` that the peer does not know yet.
    growth: u32,
    /// The number of the peer's messages that have arrived and are not released yet.
    here: u32,
    /// The number of the peer's messages that are released but not yet credited to the peer.
    owed: u32,
    /// The window that the peer granted to this side.
    window: u32,
    /// The number of this side's messages that the peer has not credited yet.
    used: u32,
}

impl Credits {
    pub(crate) fn new(granted: u32) -> Credits {
        Credits { granted, growth: 0, here: 0, owed: 0, window: 0, used: 0 }
    }

    /// Opens the connection with the peer's window.
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

    /// Counts an arrived message. A message beyond the granted number is an error: such a peer would exhaust the shared receive
    /// queue.
    #[inline]
    pub(crate) fn arrived(&mut self) -> Result<(), Status> {
        self.here += 1;
        if self.here + self.owed > self.granted { Err(Status::BadData) } else { Ok(()) }
    }

    /// Counts an arrived message that also returns credits. Returns `false`, without effect, if the values are invalid.
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

    /// Counts a message that the application has released.
    #[inline]
    pub(crate) fn taken(&mut self) {
        self.here = self.here.saturating_sub(1);
        self.owed += 1;
    }

    /// Checks whether the owed credits justify a message of their own: half of the window that the peer knows.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.owed * 2 >= self.granted - self.growth
    }

    /// Returns the granted window, whether the peer knows it or not.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// Enlarges the window by `more` messages.
    pub(crate) fn grow(&mut self, more: u32) {
        self.granted += more;
        self.growth += more;
    }

    /// Returns the update for the next header. The caller calls [`Credits::grant_sent`] after the post.
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

    /// Applies the peer's update. More credits than this side has used are an error.
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
    fn sender_stops_at_the_window_and_resumes_after_half_is_credited() {
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
    fn unused_credits_are_malformed() {
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
    fn message_with_credits_counts_both_or_changes_nothing() {
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
    fn grown_window_is_used_after_the_sender_learns_of_it() {
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
    fn every_window_returns_its_credits() {
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
