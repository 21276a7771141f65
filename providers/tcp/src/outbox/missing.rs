//! Frames whose payload is missing when it is sent: zeros replace it, because the frame's length was already promised.

use tieline_net::touch::Touch;

use super::{Body, Outbox, Track};
use crate::frame::{HEAD, Head, Kind};
use crate::sys;

/// An operation whose bytes are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The kind of the frame: `Put`, or `GetData` for a get of the peer.
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    /// The offset of the first missing byte: in the put's region, or in the get.
    pub(crate) at: u64,
}

impl Outbox {
    /// Handles a write in which the kernel could not read all memory gathered for this stream: fails the frames that lack memory.
    /// If all of the memory has reappeared, the first candidate fails, so the same write is not repeated endlessly.
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

    /// Checks one frame, of which `written` bytes are written.
    fn forget_one(
        &mut self,
        number: u64,
        written: usize,
        touch: &Touch,
        blindly: bool,
    ) -> Option<Missing> {
        let frame = self.frames.get_mut((number - self.first) as usize)?;
        let Body::Bulk(bulk) = &mut frame.body else { return None };
        // Zeros and private copies cannot be missing.
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
        // An error during a retransmission cannot be reported, because the get may have completed: the session is lost.
        self.lost |= bulk.sent && self.retain && head.kind == Kind::GetData;
        bulk.forget();
        Some(Missing { kind: head.kind, number: head.number, at: head.word + found as u64 })
    }
}
