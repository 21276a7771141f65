//! Short puts (`max_short_put`), whose data is copied during the post. The device copies the data inline, or a buffer takes the
//! data if the queue pair inlines less.

use super::*;

/// Checks whether a put is short: one piece, copied during the post.
#[inline]
pub(super) fn is_short(state: &State, op: &RmaOp<'_>, piece: &Iov) -> bool {
    op.len.wrapping_sub(1) < state.short_puts
        && piece.len == op.len
        && op.flags & op_flags::MORE == 0
        && !untouchable(piece)
}

impl RcEndpoint {
    /// Posts a short put. With local completion the put is complete on return: no completion event follows, and a later failure
    /// fails the connection.
    #[inline(always)]
    pub(super) fn put_short(
        &self,
        state: &mut State,
        key: &PackedKey,
        op: &RmaOp<'_>,
        piece: &Iov,
    ) -> Posted {
        let address = key.grant.admit(access::REMOTE_WRITE, op.offset, op.len)?;
        let connection = connection!(state, self.slot);
        connection.may_post()?;
        let is_over = op.flags & op_flags::REMOTE_COMPLETION == 0;
        let silent = is_over || op.flags & op_flags::NO_EVENT != 0;
        let cookie = if is_over { None } else { Some(op.cookie) };
        let ends = Ends { cookie, silent, ..Ends::default() };
        let work = Work::Write { address, rkey: key.rkey };
        if op.len > connection.inline() {
            self.put_copied(state, work, op, ends)?;
        } else if let Err(refused) =
            connection.post(work, &[local(piece, 0)], ends, IBV_SEND_INLINE)
        {
            return Err(state.refused(self.slot, refused));
        }
        Ok(if is_over { Posting::Done } else { Posting::Pending })
    }

    /// Posts from a buffer of the provider, because the put is longer than this queue pair inlines.
    #[cold]
    fn put_copied(
        &self,
        state: &mut State,
        work: Work<'_>,
        op: &RmaOp<'_>,
        ends: Ends,
    ) -> Result<(), Status> {
        let buffer = state.sends.take()?;
        gather(op.iov, &mut state.sends.bytes_mut(buffer)[..op.len]);
        let ends = Ends { buffer: Some(buffer), ..ends };
        let sge = state.sends.sge(buffer, op.len);
        let connection = connection!(state, self.slot);
        connection.post(work, &[sge], ends, 0).map_err(|refused| state.refused(self.slot, refused))
    }
}
