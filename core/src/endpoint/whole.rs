//! One operation of several pending ones.

use super::EndpointState;
use crate::Error;
use crate::PostError;
use crate::request::{Outcome, Request};
use tieline_order::Kind;

impl EndpointState {
    /// Makes one operation of pending ones, which ends with the last of them. It fails with `failed`, or if one of them fails. The
    /// second value of each is its index in a list.
    pub(super) fn joined(
        &self,
        pending: Vec<(Request, Option<usize>)>,
        failed: Option<Error>,
    ) -> Result<Outcome, PostError> {
        if pending.is_empty() && failed.is_none() {
            return Ok(Outcome::Done(0));
        }
        let mut ops = self.shared.ops.borrow_mut();
        let whole = ops.open_inner(self.index, Kind::Whole)?;
        if let Some(error) = failed {
            ops.spoil(whole, error);
        }
        for (request, index) in &pending {
            match ops.take(request.id) {
                None => {
                    if let Some(index) = index {
                        ops.set_index(request.id, *index);
                    }
                    ops.then(request.id, whole);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    let index = index.or(error.index());
                    ops.spoil(whole, error.at_index(index));
                }
            }
        }
        drop(ops);
        drop(pending); // the whole operation reports the results of the parts
        self.shared.part(whole, Ok(0));
        Ok(self.outcome(whole)?)
    }
}
