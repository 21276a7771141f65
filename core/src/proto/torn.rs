//! Puts in several messages of which a piece hit missing memory at the target.
//!
//! A piece does not contain a number of its put, and only the last piece requests an answer. The target takes two pieces for parts
//! of one put if they have the same sender and connection, and the second begins at the end of the first.

use super::Origin;
use super::emulate::Target;
use crate::sys::Refusal;

/// The maximum numbers of entries per sender and connection, and in total. If the first is reached, the oldest entry of that
/// connection is dropped; if only the second is reached, the oldest of all.
const MOST_OF_ONE: usize = 8;
const MOST: usize = 4096;

/// The failed puts whose last piece has not arrived.
#[derive(Default)]
pub(crate) struct Torn(Vec<Put>);

struct Put {
    from: Origin,
    /// The position at which the next piece begins.
    next: Target,
    refusal: Refusal,
}

/// Returns the position at which the piece after this one begins.
fn behind(target: &Target, len: u64) -> Target {
    Target { offset: target.offset.wrapping_add(len), ..*target }
}

impl Torn {
    /// Records that a piece, which is not the last one of its put, was refused.
    #[cold]
    pub(crate) fn begin(&mut self, from: Origin, target: &Target, len: u64, refusal: Refusal) {
        let of_it = |put: &Put| put.from == from;
        let oldest = match self.0.iter().filter(|put| of_it(put)).count() < MOST_OF_ONE {
            true => (self.0.len() >= MOST).then_some(0),
            false => self.0.iter().position(of_it),
        };
        if let Some(oldest) = oldest {
            let _ = self.0.remove(oldest);
        }
        self.0.push(Put { from, next: behind(target, len), refusal });
    }

    /// Returns the refusal of an earlier piece of the same put, which also refuses this piece.
    pub(crate) fn goes_on(
        &mut self,
        from: Origin,
        target: &Target,
        len: u64,
        last: bool,
    ) -> Option<Refusal> {
        let at = self.0.iter().position(|put| put.from == from && put.next == *target)?;
        let refusal = self.0[at].refusal;
        match last {
            true => drop(self.0.remove(at)),
            false => self.0[at].next = behind(target, len),
        }
        Some(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_fails_with_any_of_its_pieces_and_no_other_does() {
        let (one, other) =
            (Origin { peer: 1, circuit: None }, Origin { peer: 1, circuit: Some(2) });
        let at = |offset| Target { region: 3, generation: 4, offset };
        let (mut torn, why) = (Torn::default(), Refusal::fault(17));
        torn.begin(one, &at(0), 10, why);
        assert_eq!(torn.goes_on(other, &at(10), 10, false), None, "another connection");
        assert_eq!(torn.goes_on(one, &at(20), 10, false), None, "another put");
        assert_eq!(torn.goes_on(one, &at(10), 10, false), Some(why));
        assert_eq!(torn.goes_on(one, &at(20), 5, true), Some(why));
        assert_eq!(torn.goes_on(one, &at(25), 5, true), None, "the next put");
        assert!(torn.0.is_empty());
    }

    #[test]
    fn a_peer_that_ends_no_put_takes_bounded_room_and_none_of_others() {
        let from = |peer| Origin { peer, circuit: None };
        let at = |offset| Target { region: 3, generation: 4, offset };
        let (mut torn, why) = (Torn::default(), Refusal::fault(0));
        torn.begin(from(1), &at(0), 1, why);
        for offset in 0..1000 {
            torn.begin(from(2), &at(10 * offset), 1, why);
        }
        assert_eq!(torn.0.len(), 1 + MOST_OF_ONE);
        assert_eq!(torn.goes_on(from(1), &at(1), 1, true), Some(why));
        for peer in 0..2 * MOST as u32 {
            torn.begin(from(peer), &at(0), 1, why);
        }
        assert_eq!(torn.0.len(), MOST);
    }
}
