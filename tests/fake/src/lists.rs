//! Lists of puts or gets, as an endpoint takes them.

use crate::calls::Slot;
use crate::key::FakeKey;
use crate::network::{Kind, Op};
use crate::provider::FakeEndpoint;
use tieline_plugin_api::{ListOp, Posted, Posting, RmaOp, Status};

/// The maximum number of parts of a list that one call takes, so that the core has to call again.
const LIST_PARTS: usize = 3;

impl FakeEndpoint {
    /// Takes parts of a list, which are complete when the call returns.
    pub(crate) fn list_now(&self, list: &ListOp<'_, FakeKey>, taken: &mut usize) -> Posted {
        let slot = if list.put { Slot::Put } else { Slot::Get };
        for part in list.parts.iter().take(LIST_PARTS) {
            let (iov, len) = (std::slice::from_ref(&part.local), part.local.len);
            let (cookie, flags) = (list.cookie, list.flags);
            let op = RmaOp { iov, len, offset: part.offset, cookie, flags };
            match self.rma(slot, part.key, &op, None) {
                Ok(Posting::Done) => *taken += 1,
                Ok(Posting::Pending) => return Err(Status::ProviderFailed),
                Err(status) if *taken == 0 => return Err(status),
                Err(_) => break,
            }
        }
        Ok(Posting::Done)
    }

    /// Takes parts of a list, which completes later.
    pub(crate) fn list_later(&self, list: &ListOp<'_, FakeKey>, taken: &mut usize) -> Posted {
        let slot = if list.put { Slot::Put } else { Slot::Get };
        let first = list.parts.first().ok_or(Status::Invalid)?;
        let verdict = self.call(slot, list.cookie, 0, first.local.len, list.flags)?;
        let mut state = self.world.state();
        let mut parts = Vec::new();
        for part in list.parts.iter().take(LIST_PARTS) {
            let (iov, len) = (std::slice::from_ref(&part.local), part.local.len);
            let (cookie, flags) = (list.cookie, list.flags);
            let op = RmaOp { iov, len, offset: part.offset, cookie, flags };
            let own = part.key.endpoint.is_none_or(|own| own == self.number);
            if !own || part.key.interface != self.interface {
                state.fault("a list has a key of another endpoint");
            }
            match self.checked(&mut state, slot, &op, None) {
                Ok(kind) => parts.push((kind, (part.key.region, op.offset, len))),
                Err(status) if parts.is_empty() => return Err(status),
                Err(_) => break,
            }
        }
        let number = parts.len();
        let op = Op::new(Kind::list(list.put, parts), list.cookie, (0, 0, 0), list.flags);
        let posted = self.post(&mut state, first.key, op, verdict, &mut 0)?;
        *taken = number;
        Ok(posted)
    }
}
