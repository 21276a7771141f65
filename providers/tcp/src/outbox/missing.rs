//! Frames whose payload is not there any more when it is sent: their length was promised, so zeros take its place.

use tieline_net::touch::Touch;

use super::{Body, Outbox, Track};
use crate::frame::{HEAD, Head, Kind};
use crate::sys;

/// An operation whose bytes are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// `Put`, or `GetData` of a get of the peer's.
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    /// The first byte that is missing: of the put's region, or of the get.
    pub(crate) at: u64,
}

impl Outbox {
    /// The kernel could not read all of what was gathered for this stream: those frames that lack memory. Where all of it is there
    /// again, the first one that could have lacked some fails: so each call leaves one frame less of that kind.
    #[cold]
    pub(crate) fn forget_missing(&mut self, track: &Track, touch: &Touch) -> Vec<Missing> {
        let begun = (self.begun..self.frames.len()).map(|index| self.first + index as u64);
        let doing = track.doing.map(|(number, _)| number);
        let numbers: Vec<u64> =
            doing.into_iter().chain(self.again.iter().copied()).chain(begun).collect();
        let mut suspects = numbers.iter().map(|&number| (number, false)).collect::<Vec<_>>();
        suspects.extend(numbers.iter().map(|&number| (number, true)));
        let mut all = Vec::new();
        for (number, blindly) in suspects {
            if blindly && !all.is_empty() {
                break;
            }
            let at = match track.doing {
                Some((doing, at)) if doing == number => at,
                _ => 0,
            };
            all.extend(self.forget_one(number, at, touch, blindly));
        }
        all
    }

    /// The same of one frame, of which `written` bytes are written.
    fn forget_one(
        &mut self,
        number: u64,
        written: usize,
        touch: &Touch,
        blindly: bool,
    ) -> Option<Missing> {
        let frame = self.frames.get_mut((number - self.first) as usize)?;
        let Body::Bulk(bulk) = &mut frame.body else { return None };
        // Zeros, and copies of its own, are always there.
        if bulk.is_ours {
            return None;
        }
        let pin = match &bulk.region {
            Some(region) => Some(region.pin()?),
            None => None,
        };
        let skip = written.saturating_sub(bulk.head_len);
        let mut pieces = Vec::with_capacity(bulk.pieces.len());
        sys::cut(&bulk.pieces, skip, usize::MAX, &mut pieces);
        let mut before = skip;
        let mut found = blindly.then_some(skip);
        for piece in pieces {
            if let Some(at) = sys::first_unreadable(touch, piece) {
                found = Some(before + at);
                break;
            }
            before += piece.len();
        }
        drop(pin);
        let found = found?;
        let head = Head::parse(bulk.head.first_chunk::<HEAD>()?).ok()?;
        // What went wrong only when it was sent again cannot be told any more: the get may have ended.
        self.lost |= bulk.sent && self.retain && head.kind == Kind::GetData;
        bulk.forget();
        Some(Missing { kind: head.kind, number: head.number, at: head.word + found as u64 })
    }
}
