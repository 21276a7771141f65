//! Gets into more pieces than the device fills in one read: several reads with one end.

use super::*;

impl RcEndpoint {
    /// Posts a read for each of as many pieces as the device takes; the last one's end is the end of all.
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
            // None of them is refused by itself: the registrations that the last one holds are of all.
            if connection.post(Work::Read { address, rkey }, part, ends, HOLD).is_err() {
                break; // it has no queue pair any more
            }
            address += part.iter().map(|piece| u64::from(piece.length)).sum::<u64>();
        }
        state.pieces = pieces;
        match flags & HOLD != 0 {
            true => state.post_later(self.slot),
            // Where the device takes nothing any more the connection is over, and this operation with it.
            false => drop(state.tell(self.slot)),
        }
        Ok(Posting::Pending)
    }
}
