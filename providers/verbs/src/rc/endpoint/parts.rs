//! Gets into more pieces than one read of the device can fill: several reads with one completion.

use super::*;

impl RcEndpoint {
    /// Posts one read per group of pieces. Each group has at most the number of pieces that the device accepts, and the last read
    /// completes the operation.
    pub(super) fn read_in_parts(
        &self,
        state: &mut State,
        work: Work<'_>,
        pieces: Vec<ibv_sge>,
        mut ends: Ends,
        flags: u32,
    ) -> Posted {
        let most = state.domain.max_read_pieces;
        let connection = connection!(state, self.slot);
        let Work::Read { mut address, rkey } = work else { return Err(Status::Invalid) };
        let parts = pieces.len().div_ceil(most);
        if connection.queue.room() < parts {
            state.pieces = pieces;
            return Err(Status::Again);
        }
        for (at, part) in pieces.chunks(most).enumerate() {
            let last = at + 1 == parts;
            let ends = if last { core::mem::take(&mut ends) } else { Ends::default() };
            let ends = Ends { foreign: true, ..ends };
            // The device cannot reject a single part, because all parts are held and posted together. The last part holds the
            // registrations of all parts.
            if connection.post(Work::Read { address, rkey }, part, ends, HOLD).is_err() {
                break; // the queue pair no longer exists
            }
            address += part.iter().map(|piece| u64::from(piece.length)).sum::<u64>();
        }
        state.pieces = pieces;
        match flags & HOLD != 0 {
            true => state.post_later(self.slot),
            // If the device rejects the parts permanently, the connection fails, and this operation with it.
            false => drop(state.tell(self.slot)),
        }
        Ok(Posting::Pending)
    }
}
