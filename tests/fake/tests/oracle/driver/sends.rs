//! Steps that send messages.

use super::{ANSWER, Heard, Run, What};
use crate::program::{Handler, Send};
use std::cell::RefCell;
use std::panic::resume_unwind;
use std::rc::Rc;
use tieline::{Error, Message, SendOptions, Worker};

/// The ids of messages, by the behaviour of their handler.
const IDS: [u16; 4] = [10, 11, 12, 13];

/// The length from which a message is sent without header bytes.
const LONGEST_HEADED: usize = 170;

pub(super) fn payload(serial: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (serial as usize).wrapping_mul(31).wrapping_add(at) as u8).collect()
}

/// Records a message, and checks its bytes.
pub(super) fn note(heard: &RefCell<Heard>, message: &Message<'_>) {
    let (serial, mut log) = (message.header(), heard.borrow_mut());
    log.headers.push(serial);
    if message.payload() != payload(serial, message.payload().len()) {
        log.trouble = Some(format!("message {serial:#x} has other bytes than were sent"));
    }
    let head = message.header_bytes();
    if !head.is_empty() && *head != serial.to_le_bytes() {
        log.trouble = Some(format!("message {serial:#x} has another head"));
    }
}

pub(super) fn listen(b: &Rc<Worker>, heard: &Rc<RefCell<Heard>>) -> Result<(), Error> {
    let handlers = [Handler::Listens, Handler::Answers, Handler::Connects, Handler::Panics];
    for (handler, id) in handlers.into_iter().zip(IDS) {
        let (log, worker) = (heard.clone(), Rc::downgrade(b));
        b.on_message(id, move |message| {
            note(&log, message);
            let Some(worker) = worker.upgrade() else { return };
            match handler {
                Handler::Listens => {}
                Handler::Answers => {
                    let (serial, kept) = (message.header(), message.keep());
                    let sent = worker
                        .endpoint_to(message.peer())
                        .is_ok_and(|back| back.send(ANSWER, serial, kept.payload()).is_ok());
                    if sent {
                        log.borrow_mut().answered[(serial >> 56) as usize].push(serial);
                    }
                }
                Handler::Connects => drop(worker.address().map(|own| worker.connect(&own))),
                Handler::Panics => resume_unwind(Box::new("a handler that panics")),
            }
        })?;
    }
    Ok(())
}

impl Run {
    /// Returns the number of the next message of an end, which contains the end and its endpoint.
    pub(super) fn next_serial(&mut self, end: usize) -> u64 {
        self.serial += 1;
        (end as u64) << 56 | (self.end(end).number as u64) << 32 | self.serial
    }

    pub(super) fn send(
        &mut self,
        end: usize,
        how: Send,
        len: usize,
        handler: Handler,
    ) -> Result<(), String> {
        let serial = self.next_serial(end);
        let own = self.ends[end].as_mut().expect("an end");
        let (id, bytes) = (IDS[handler as usize], payload(serial, len));
        let sent = match how {
            // The head must not make a rendezvous message of it.
            Send::Headed if len < LONGEST_HEADED => {
                let head = serial.to_le_bytes();
                let options = SendOptions::new().header_bytes(&head);
                own.endpoint.send_with(id, serial, &bytes, &options)
            }
            Send::Plain | Send::Headed => own.endpoint.send(id, serial, &bytes),
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
