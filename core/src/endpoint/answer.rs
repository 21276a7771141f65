//! Sending answers to a peer's requests, whole or in pieces.

use super::{EndpointState, State};
use crate::Status;
use crate::proto::emulate::{Answer, GET_DATA_HEAD, Target, data_head, refusal_words, reply_bytes};
use crate::proto::id;
use crate::region::Access;
use crate::sys::Refusal;
use std::cell::Cell;
use tieline_host::abi::PackBuffer;

impl EndpointState {
    /// Sends an answer, or the part of the answer that the transport accepts now.
    pub(crate) fn send_answer(&self, answer: &mut Answer) -> Result<(), Status> {
        match answer {
            Answer::Reply { token, status, value } => {
                self.message_now(id::REPLY, *token, &reply_bytes(*status, *value))
            }
            Answer::Key { token, key } if key.len() <= self.most() => {
                self.message_now(id::KEY_IS, *token, key)
            }
            Answer::Key { token, .. } => {
                let why = reply_bytes(Status::TooLarge as i32, 0);
                self.message_now(id::REPLY, *token, &why)
            }
            Answer::Delivered { status, numbers } => {
                self.message_now(id::DELIVERED, i64::from(*status) as u64, numbers)
            }
            Answer::Service(message) => self.message_now(id::SERVICE, 0, message),
            Answer::Data { token, target, len, sent } => self.stream(*token, target, *len, sent),
        }
    }

    /// Sends an answer without data. `false`: it was not sent, and [`EndpointState::answer`] handles it.
    pub(crate) fn reply_now(&self, token: u64, status: i32, value: u64) -> bool {
        self.state.get() == State::Ready
            && self.answers.borrow().is_empty()
            && self.message_now(id::REPLY, token, &reply_bytes(status, value)).is_ok()
    }

    /// Sends the part of a get's answer that the transport accepts now.
    fn stream(&self, token: u64, target: &Target, len: u64, sent: &mut u64) -> Result<(), Status> {
        let piece = self.most_behind(GET_DATA_HEAD)? as u64;
        let (memory, touch) = (&self.shared.core.memory, &self.shared.touch);
        let fault = Cell::new(None);
        loop {
            let n = piece.min(len - *sent);
            let from = Target { offset: target.offset + *sent, ..*target };
            let pack = |out: &mut PackBuffer<'_>| {
                out.put(&data_head(*sent, 0))?;
                let packed = from.reach(&memory.regions, n, Access::READ, |bytes, offset| {
                    bytes.pack(touch, offset, n as usize, out)
                });
                packed.map_err(|refusal: Refusal| {
                    fault.set(refusal.fault);
                    refusal.status
                })
            };
            match self.pack_now(id::GET_DATA, token, GET_DATA_HEAD + n as usize, pack) {
                Ok(()) => *sent += n,
                // The region was deregistered before its answer was completely sent, so the rest of the answer is an error.
                Err(status @ (Status::KeyRejected | Status::OutOfRange)) => {
                    return self.message_now(id::GET_DATA, token, &data_head(*sent, status as i32));
                }
                // Missing memory also ends the answer with an error.
                Err(status) => {
                    let Some(at) = fault.take() else { return Err(status) };
                    memory.note_fault((target.region, target.generation), at);
                    let (status, place) = refusal_words(Refusal::fault(at));
                    return self.message_now(id::GET_DATA, token, &data_head(place, status));
                }
            }
            if *sent >= len {
                return Ok(());
            }
        }
    }
}
