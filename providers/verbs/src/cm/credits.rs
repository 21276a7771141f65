//! Credits for frames: the other side has posted [`WINDOW`] buffers and reports when it has posted them again. A peer that polls
//! late therefore always has a receive buffer for arriving frames. This module is pure.
//!
//! Two credits are reserved: one for notes, and the last one for a frame with credits only. Two sides that have used up their
//! credits for data can therefore not deadlock.

use super::WINDOW;

/// The kind of a frame, which determines the credits that must remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// Datagrams and parts of datagrams.
    Data,
    /// Notes about the connection, and handshake frames.
    Note,
    /// Frames with credits only.
    Credits,
}

/// The credits of one connection.
#[derive(Debug)]
pub(super) struct Credits {
    /// The number of frames for which the other side has buffers.
    have: u8,
    /// The number of reposted buffers that are not yet credited to the other side.
    owed: u8,
}

impl Default for Credits {
    fn default() -> Credits {
        Credits { have: WINDOW, owed: 0 }
    }
}

impl Credits {
    /// Checks whether a frame of this kind may be sent.
    pub(super) fn allows(&self, weight: Weight) -> bool {
        self.have
            > match weight {
                Weight::Data => 2,
                Weight::Note => 1,
                Weight::Credits => 0,
            }
    }

    /// Counts a sent frame and returns the credits that the frame carries.
    pub(super) fn send(&mut self) -> u8 {
        self.have = self.have.saturating_sub(1);
        std::mem::take(&mut self.owed)
    }

    /// Counts an arrived frame with its credits. The caller posts the frame's buffer again.
    ///
    /// # Errors
    /// The frame returns more credits than this side has spent, or was sent without a credit.
    pub(super) fn received(&mut self, credits: u8) -> Result<(), String> {
        let have = self.have.saturating_add(credits);
        if have > WINDOW || self.owed >= WINDOW {
            return Err("the peer gave more credits than it was owed, or sent without any".into());
        }
        self.have = have;
        self.owed += 1;
        Ok(())
    }

    /// Checks whether a frame with credits only is due.
    pub(super) fn is_due(&self) -> bool {
        self.owed >= WINDOW / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Two sides that send data while they have credits, and receive frames at arbitrary times.
    struct Side {
        credits: Credits,
        inbox: VecDeque<u8>,
        sent: usize,
        notes: usize,
    }

    fn step(sides: &mut [Side; 2], who: usize, what: u8) {
        let (left, right) = sides.split_at_mut(1);
        let (me, other) =
            if who == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
        match what {
            0 if me.credits.allows(Weight::Data) => {
                other.inbox.push_back(me.credits.send());
                me.sent += 1;
            }
            1 => {
                if let Some(credits) = me.inbox.pop_front() {
                    me.credits.received(credits).expect("an honest peer");
                }
            }
            2 if me.notes > 0 && me.credits.allows(Weight::Note) => {
                me.notes -= 1;
                other.inbox.push_back(me.credits.send());
            }
            3 if me.credits.is_due() && me.credits.allows(Weight::Credits) => {
                other.inbox.push_back(me.credits.send());
            }
            _ => {}
        }
        assert!(other.inbox.len() <= usize::from(WINDOW), "more frames than buffers");
    }

    proptest! {
        #[test]
        fn two_sides_neither_overrun_each_other_nor_deadlock(
            steps in prop::collection::vec((0usize..2, 0u8..4), 0..400),
            notes in 0usize..5,
        ) {
            let side = || Side { credits: Credits::default(), inbox: VecDeque::new(), sent: 0, notes };
            let mut sides = [side(), side()];
            for (who, what) in steps {
                step(&mut sides, who, what);
            }
            // In any state, once both sides receive and return credits, both can send data again, and all notes are sent.
            for goal in [0, 1] {
                let before = sides[goal].sent;
                for round in 0.. {
                    prop_assert!(round < 100, "side {} is stuck: {:?}", goal, sides[goal].credits);
                    for who in [0, 1] {
                        for _ in 0..WINDOW {
                            step(&mut sides, who, 1);
                        }
                        step(&mut sides, who, 3);
                        step(&mut sides, who, 2);
                    }
                    step(&mut sides, goal, 0);
                    if sides[goal].sent > before && sides[goal].notes == 0 {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn invented_credits_are_detected() {
        let mut credits = Credits::default();
        assert!(credits.received(1).is_err());
        let _ = credits.send();
        assert!(credits.received(1).is_ok() && credits.received(1).is_err());
    }

    #[test]
    fn frames_without_credits_are_detected() {
        let mut credits = Credits::default();
        let taken = (0..100).take_while(|_| credits.received(0).is_ok()).count();
        assert_eq!(taken, usize::from(WINDOW));
    }

    #[test]
    fn last_credits_are_reserved_and_half_a_window_is_returned_alone() {
        let mut credits = Credits::default();
        for have in (0..=WINDOW).rev() {
            let allowed =
                [Weight::Data, Weight::Note, Weight::Credits].map(|weight| credits.allows(weight));
            assert_eq!(allowed, [have > 2, have > 1, have > 0], "{have}");
            assert_eq!(credits.send(), 0);
        }
        for owed in 1..=WINDOW / 2 {
            assert!(!credits.is_due(), "{owed}");
            assert_eq!(credits.received(1), Ok(()));
        }
        assert!(credits.is_due());
        assert_eq!((credits.send(), credits.is_due()), (WINDOW / 2, false), "all are told at once");
        assert_eq!((credits.have, credits.send()), (WINDOW / 2 - 1, 0));
    }
}
