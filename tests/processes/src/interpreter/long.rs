//! Orders about rendezvous messages (`Rendezvous`).

use super::{Node, number, pattern};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{Error, Outcome, Region, Rendezvous, Status};

/// The id of rendezvous messages that are kept when they arrive: the header is the seed of the bytes.
pub(super) const LONG: u16 = 6;

#[derive(Default)]
pub(super) struct Long {
    /// A message that was sent and may not have ended, with the memory of the message.
    sent: Option<(Result<Outcome, Error>, Region)>,
    pub(super) came: Rc<RefCell<Vec<Rendezvous>>>,
}

impl Long {
    /// Returns the operation of the message that was sent.
    pub(super) fn posted(&self) -> Option<&Outcome> {
        self.sent.as_ref().and_then(|(sent, _)| sent.as_ref().ok())
    }
}

impl Node {
    pub(super) fn long(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            // `long` posts a message from transiently registered memory (`lend`).
            ["long", name, len, seed] => {
                let (len, seed) = (number(len), number(seed) as u64);
                let bytes: Vec<u8> = (0..len).map(|at| pattern(at, seed)).collect();
                let memory = self.context().register_transient(bytes)?;
                let pieces = [(&memory, 0..len)];
                let sent = self.endpoint(name).send_regions(LONG, seed, &pieces);
                self.long.sent = Some((sent.map_err(Error::from), memory));
                Ok(String::new())
            }
            // `long-end` returns the result of that message, after the message's memory was returned.
            ["long-end"] => {
                let (sent, memory) = self.long.sent.take().expect("`long` comes first");
                let ended = sent.and_then(|sent| self.finish(Ok(sent)));
                let mut memory = Some(memory);
                let _ = self.worker().wait_until(
                    || {
                        let Some(region) = memory.take() else { return true };
                        memory = region.into_buffer().err().map(|not| not.region);
                        memory.is_none()
                    },
                    None,
                )?;
                ended
            }
            ["long-cancel"] => {
                let (sent, _) = self.long.sent.as_ref().expect("`long` comes first");
                let Ok(Outcome::Pending(request)) = sent else {
                    return Err(Status::Invalid.into());
                };
                self.worker().cancel(request)?;
                Ok(String::new())
            }
            // `long-came` waits until a message has arrived.
            ["long-came"] => {
                let came = self.long.came.clone();
                let _ = self.worker().wait_until(|| !came.borrow().is_empty(), None)?;
                Ok(came.borrow()[0].len().to_string())
            }
            // `long-take` receives the message, and checks every byte and the surrounding bytes. With `aloud` it reports the start
            // of the receive.
            ["long-take", aloud @ ..] => {
                let announcement = self.long.came.borrow_mut().remove(0);
                let (len, seed) = (announcement.len(), announcement.header());
                let memory = self.context().register_transient(vec![0xee; len + 16])?;
                if !aloud.is_empty() {
                    self.parent.say("streaming");
                }
                let taken = announcement.receive_into(&memory, 8..len + 8)?;
                let _ = self.finish(Ok(taken))?;
                let got = memory.into_buffer()?;
                let right = |(at, byte): (usize, &u8)| *byte == pattern(at, seed);
                let inside = got[8..len + 8].iter().enumerate().all(right);
                let outside = got[..8].iter().chain(&got[len + 8..]).all(|byte| *byte == 0xee);
                Ok(format!("{}", inside && outside))
            }
            ["long-refuse"] => {
                drop(self.long.came.borrow_mut().remove(0));
                Ok(String::new())
            }
            _ => panic!("{words:?} is no order"),
        }
    }
}
