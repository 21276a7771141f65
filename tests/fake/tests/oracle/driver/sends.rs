//! Steps that send messages.

use super::{Run, What};
use crate::program::{Handler, Send};

/// The ids of messages, by the behaviour of their handler.
pub(super) const IDS: [u16; 4] = [10, 11, 12, 13];

pub(super) fn payload(serial: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (serial as usize).wrapping_mul(31).wrapping_add(at) as u8).collect()
}

impl Run {
    pub(super) fn send(
        &mut self,
        end: usize,
        how: Send,
        len: usize,
        handler: Handler,
    ) -> Result<(), String> {
        self.serial += 1;
        let own = self.ends[end].as_mut().expect("an end");
        let serial = (end as u64) << 56 | (own.number as u64) << 32 | self.serial;
        let (id, bytes) = (IDS[handler as usize], payload(serial, len));
        let sent = match how {
            Send::Plain => own.endpoint.send(id, serial, &bytes),
            Send::Packed => own.endpoint.send_packed(id, serial, len + 5, |buffer| {
                buffer[..len].copy_from_slice(&bytes);
                len
            }),
            Send::Regions => {
                let (first, second) = bytes.split_at(len / 3);
                let first = self.at_a.register(first.to_vec()).map_err(|e| e.to_string())?;
                let second = self.at_a.register(second.to_vec()).map_err(|e| e.to_string())?;
                let pieces = [(&first, 0..first.len()), (&second, 0..second.len())];
                own.endpoint.send_regions(id, serial, &pieces)
            }
        };
        if self.posted(end, What::Message(serial), sent, None, None)? {
            self.end(end).sent.push((serial, len));
        }
        Ok(())
    }
}
