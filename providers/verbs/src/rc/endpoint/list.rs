//! Lists of puts or gets: one request per part, one doorbell for all of them, and one completion, that of the last request.

use super::*;
use crate::endpoint::RemoteKey;
use tieline_plugin_api::{ListOp, ListPart};

/// The request of a part: the work, its piece of local memory, and the device's flags.
type Request = (Work<'static>, ibv_sge, u32);

impl RcEndpoint {
    /// Takes the parts before the first one that needs a buffer, a transient registration or more room than the queue has. If that
    /// is the first or the second part, the first part is posted like a single put or get.
    pub(crate) fn rma_list(&self, list: &ListOp<'_, RemoteKey>, taken: &mut usize) -> Posted {
        if let Some(posted) = self.post_parts(list, taken)? {
            return Ok(posted);
        }
        let Some(part) = list.parts.first() else { return Err(Status::Invalid) };
        let (iov, len) = (std::slice::from_ref(&part.local), part.local.len);
        let (cookie, flags) = (list.cookie, list.flags);
        let op = RmaOp { iov, len, offset: part.offset, cookie, flags };
        let posted = match list.put {
            true => self.put(&part.key.0, &op),
            false => self.get(&part.key.0, &op),
        };
        *taken = usize::from(posted.is_ok());
        posted
    }

    /// Posts several parts. `None`: there are not two parts that can be posted together, and nothing was posted.
    fn post_parts(
        &self,
        list: &ListOp<'_, RemoteKey>,
        taken: &mut usize,
    ) -> Result<Option<Posting>, Status> {
        let state = &mut *self.state.borrow_mut();
        let connection = connection!(state, self.slot);
        connection.may_post()?;
        let (inline, most) = (connection.inline(), state.domain.max_message);
        let parts = list.parts.iter().take(connection.queue.room());
        let mut requests = parts.map_while(|part| part_request(list.put, part, inline, most));
        let (Some(mut last), Some(second)) = (requests.next(), requests.next()) else {
            return Ok(None);
        };
        let mut count = 1;
        // The completion of the last part stands for all parts, so each part is posted when another one follows.
        for request in std::iter::once(second).chain(requests) {
            let ends = Ends { foreign: true, list: Some(0), ..Ends::default() };
            hold_part(connection, std::mem::replace(&mut last, request), ends);
            count += 1;
        }
        let silent = list.flags & op_flags::NO_EVENT != 0;
        let (cookie, number) = (Some(list.cookie), Some(count as u32));
        let ends = Ends { cookie, silent, foreign: true, list: number, ..Ends::default() };
        hold_part(connection, last, ends);
        *taken = count;
        // If the device has no memory now, the requests are posted later. If it rejects them permanently, the connection fails, and
        // the list with it.
        match list.flags & op_flags::MORE != 0 {
            true => state.post_later(self.slot),
            false => drop(state.tell(self.slot)),
        }
        Ok(Some(Posting::Pending))
    }
}

/// Appends the request of a part to the held sends. The device cannot reject a single one.
fn hold_part(connection: &mut Connection, (work, sge, flags): Request, ends: Ends) {
    // An error means that the queue pair no longer exists; the end of the connection then ends the list.
    let _ = connection.post(work, &[sge], ends, flags | HOLD);
}

/// Returns the request of a part whose memory the device reaches as it is, if the part is well-formed and not empty.
#[inline]
fn part_request(
    put: bool,
    part: &ListPart<'_, RemoteKey>,
    inline: usize,
    most: usize,
) -> Option<Request> {
    let (piece, key) = (&part.local, &part.key.0);
    let right = if put { access::REMOTE_WRITE } else { access::REMOTE_READ };
    if piece.len == 0 || piece.len > most {
        return None;
    }
    let address = key.grant.admit(right, part.offset, piece.len).ok()?;
    let rkey = key.rkey;
    if !put {
        return Some((Work::Read { address, rkey }, registered(piece, true)?, 0));
    }
    let work = Work::Write { address, rkey };
    if piece.len <= inline && !untouchable(piece) {
        return Some((work, local(piece, 0), IBV_SEND_INLINE));
    }
    Some((work, registered(piece, false)?, 0))
}
