//! Operations that have not ended when the call that posted them returns.

use crate::region::Region;
use crate::worker::Inner as WorkerInner;
use crate::{Error, Status};
use std::fmt;
use std::rc::Rc;

/// How a posted operation stands.
///
/// `Done` carries the value of a fetching atomic, otherwise 0. `worker.finish(outcome)` waits for either.
#[must_use = "an operation may still be pending, or may have brought a value"]
#[derive(Debug)]
pub enum Outcome {
    /// It is complete.
    Done(u64),
    /// It completes later; dropping the request does not cancel it.
    Pending(Request),
}

impl Outcome {
    /// Whether it is complete already.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done(_))
    }
}

/// A pending operation of one worker.
pub struct Request {
    pub(crate) worker: Rc<WorkerInner>,
    pub(crate) id: u64,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:#x})", self.id)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.worker.requests.borrow_mut().forget(self.id);
    }
}

/// Local memory of an operation in flight.
#[derive(Clone)]
pub(crate) enum Memory {
    /// The application's, kept alive.
    Region(Region),
    /// A copy of bytes that the caller has got back.
    Bytes(Rc<[u8]>),
}

impl Memory {
    /// The first byte of a range.
    pub(crate) fn at(&self, at: usize, len: usize) -> Result<*mut u8, Status> {
        match self {
            Memory::Region(region) => region.inner.span.range(at, len),
            Memory::Bytes(bytes) => {
                let bytes = bytes.get(at..).and_then(|rest| rest.get(..len));
                // Only puts have bytes of their own, and they only read them.
                Ok(bytes.ok_or(Status::OutOfRange)?.as_ptr().cast_mut())
            }
        }
    }
}

/// What an operation in flight reads from or writes to.
pub(crate) struct Landing {
    pub(crate) memory: Memory,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) missing: usize,
}

pub(crate) struct Slot {
    generation: u32,
    state: State,
    /// The endpoint whose failure ends this operation.
    pub(crate) endpoint: usize,
    /// Another one whose failure ends it too; `usize::MAX`: none.
    through: usize,
    /// Events that must arrive before it is complete.
    parts: u32,
    pub(crate) landing: Option<Landing>,
    error: Option<Error>,
    detached: bool,
    /// The operation had completed locally: its failure is for the next flush.
    late: bool,
    /// A provider has it, and may touch its memory until it says how it ended.
    posted: bool,
}

enum State {
    Free,
    Open,
    Ended(Result<u64, Error>),
}

/// The open operations of a worker.
#[derive(Default)]
pub(crate) struct Requests {
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
}

fn split(id: u64) -> (usize, u32) {
    ((id & 0xffff_ffff) as usize, (id >> 32) as u32)
}

impl Requests {
    /// Opens an operation that ends after `parts` events.
    pub(crate) fn open(&mut self, endpoint: usize, parts: u32, landing: Option<Landing>) -> u64 {
        self.open += 1;
        let (index, generation) = match self.free.pop() {
            Some(index) => {
                // In place: a slot is long, and this is done for every operation.
                let slot = &mut self.slots[index as usize];
                slot.generation = slot.generation.wrapping_add(1);
                slot.state = State::Open;
                (slot.endpoint, slot.through) = (endpoint, usize::MAX);
                slot.parts = parts;
                slot.landing = landing;
                slot.error = None;
                (slot.detached, slot.late, slot.posted) = (false, false, false);
                (index, slot.generation)
            }
            None => {
                self.slots.push(Slot {
                    generation: 1,
                    state: State::Open,
                    endpoint,
                    through: usize::MAX,
                    parts,
                    landing,
                    error: None,
                    detached: false,
                    late: false,
                    posted: false,
                });
                ((self.slots.len() - 1) as u32, 1)
            }
        };
        u64::from(index) | u64::from(generation) << 32
    }

    /// Opens the second half of an operation that completes locally: nobody asks for its result.
    pub(crate) fn open_late(&mut self, endpoint: usize) -> u64 {
        let id = self.open(endpoint, 1, None);
        if let Some(slot) = self.get(id) {
            (slot.detached, slot.late) = (true, true);
        }
        id
    }

    /// The endpoint of an open operation whose failure is for the next flush.
    pub(crate) fn late_endpoint(&mut self, id: u64) -> Option<usize> {
        self.get(id).filter(|slot| slot.late).map(|slot| slot.endpoint)
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Slot> {
        let (index, generation) = split(id);
        self.slots
            .get_mut(index)
            .filter(|s| s.generation == generation && matches!(s.state, State::Open))
    }

    /// One of its events has arrived; `true` when that was the last one.
    pub(crate) fn part(&mut self, id: u64, result: Result<u64, Error>) -> bool {
        let Some(slot) = self.get(id) else { return false };
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                let _ = slot.error.get_or_insert(error);
                0
            }
        };
        slot.parts = slot.parts.saturating_sub(1);
        if slot.parts > 0 {
            return false;
        }
        slot.landing = None;
        let result = slot.error.take().map_or(Ok(value), Err);
        self.end(id, result);
        true
    }

    fn end(&mut self, id: u64, result: Result<u64, Error>) {
        let (index, _) = split(id);
        let slot = &mut self.slots[index];
        self.open -= 1;
        if slot.detached {
            slot.state = State::Free;
            self.free.push(index as u32);
        } else {
            slot.state = State::Ended(result);
        }
    }

    /// The result, once there is one, until it is forgotten.
    pub(crate) fn take(&mut self, id: u64) -> Option<Result<u64, Error>> {
        let (index, generation) = split(id);
        let slot = self.slots.get_mut(index).filter(|s| s.generation == generation)?;
        match &slot.state {
            State::Ended(result) => Some(result.clone()),
            State::Open => None,
            State::Free => Some(Err(Error::from_status(Status::Closed))),
        }
    }

    /// Nobody will ask for the result any more.
    pub(crate) fn forget(&mut self, id: u64) {
        let (index, generation) = split(id);
        let Some(slot) = self.slots.get_mut(index).filter(|s| s.generation == generation) else {
            return;
        };
        match slot.state {
            State::Open => slot.detached = true,
            State::Ended(_) => {
                slot.state = State::Free;
                self.free.push(index as u32);
            }
            State::Free => {}
        }
    }

    /// It takes one more event to end it.
    pub(crate) fn one_more(&mut self, id: u64) {
        if let Some(slot) = self.get(id) {
            slot.parts += 1;
        }
    }

    /// A part of it goes through this endpoint too, which may fail alone.
    pub(crate) fn goes_through(&mut self, id: u64, endpoint: usize) {
        if let Some(slot) = self.get(id) {
            slot.through = endpoint;
        }
    }

    /// A provider has taken the operation and will say how it ended.
    pub(crate) fn posted(&mut self, id: u64) {
        if let Some(slot) = self.get(id) {
            slot.posted = true;
        }
    }

    /// Ends every operation of an endpoint with its error. What is returned is memory that providers may
    /// still touch: it is to be kept until their endpoints are closed.
    #[must_use]
    pub(crate) fn fail_endpoint(&mut self, endpoint: usize, error: &Error) -> Vec<Landing> {
        let mut held = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.endpoint != endpoint && slot.through != endpoint {
                continue;
            }
            // A provider that has ended it just before said only the status.
            if let State::Ended(Err(bare)) = &mut slot.state {
                if bare.why().is_empty() && bare.status() == error.status() {
                    *bare = error.clone();
                }
            }
            if matches!(slot.state, State::Open) {
                let landing = slot.landing.take();
                held.extend(landing.filter(|_| slot.posted));
                let id = index as u64 | u64::from(slot.generation) << 32;
                self.end(id, Err(error.clone()));
            }
        }
        held
    }

    /// Operations of an endpoint that a provider has just ended with nothing but this status get its words.
    pub(crate) fn explain(&mut self, endpoint: usize, error: &Error) {
        let bare = |e: &Error| e.why().is_empty() && e.status() == error.status();
        for slot in self.slots.iter_mut().filter(|slot| slot.endpoint == endpoint) {
            if let State::Ended(Err(ended)) = &mut slot.state {
                if bare(ended) {
                    *ended = error.clone();
                }
            }
            if let Some(part) = slot.error.as_mut().filter(|part| bare(part)) {
                *part = error.clone();
            }
        }
    }

    /// The endpoint is dropped, and its connection lives on: what a provider has goes on without it.
    pub(crate) fn orphan_posted(&mut self, endpoint: usize) {
        for slot in self.slots.iter_mut().filter(|slot| slot.endpoint == endpoint && slot.posted) {
            slot.endpoint = usize::MAX;
        }
    }

    /// How many operations are open.
    pub(crate) fn open_count(&self) -> usize {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_ends_once_and_its_number_is_not_mistaken_for_the_next() {
        let mut requests = Requests::default();
        let first = requests.open(0, 2, None);
        assert!(!requests.part(first, Ok(1)));
        assert!(requests.take(first).is_none());
        assert!(requests.part(first, Ok(7)));
        assert!(!requests.part(first, Ok(8)));
        assert_eq!(requests.take(first), Some(Ok(7)));
        requests.forget(first);
        let second = requests.open(0, 1, None);
        assert_ne!(first, second);
        assert!(!requests.part(first, Ok(9)));
        assert!(requests.take(second).is_none());
        assert_eq!(requests.open_count(), 1);
    }

    #[test]
    fn a_failed_endpoint_ends_its_operations_and_no_others() {
        let mut requests = Requests::default();
        let (mine, other) = (requests.open(4, 1, None), requests.open(5, 1, None));
        let held = requests.fail_endpoint(4, &Error::from_status(Status::PeerFailed));
        assert!(held.is_empty());
        assert_eq!(requests.take(mine).unwrap().unwrap_err().status(), Status::PeerFailed);
        assert!(requests.take(other).is_none());
    }

    #[test]
    fn an_operation_ends_when_either_endpoint_fails_that_it_goes_through() {
        let mut requests = Requests::default();
        let flush = requests.open(4, 1, None);
        requests.one_more(flush);
        requests.goes_through(flush, 9);
        assert!(!requests.part(flush, Ok(0)));
        let _ = requests.fail_endpoint(9, &Error::from_status(Status::TimedOut));
        assert_eq!(requests.take(flush).unwrap().unwrap_err().status(), Status::TimedOut);
    }

    #[test]
    fn an_operation_that_ended_with_a_bare_status_gets_the_words_that_come_after_it() {
        let mut requests = Requests::default();
        let (whole, part) = (requests.open(4, 1, None), requests.open(4, 2, None));
        let other = requests.open(5, 1, None);
        for id in [whole, part, other] {
            let _ = requests.part(id, Err(Error::from_status(Status::TimedOut)));
        }
        let words = Error::new(Status::TimedOut, "the connection failed", "the cable is cut", "");
        requests.explain(4, &words);
        assert!(requests.part(part, Ok(0)));
        let why =
            |requests: &mut Requests, id| requests.take(id).unwrap().unwrap_err().why().to_owned();
        assert_eq!(why(&mut requests, whole), "the cable is cut");
        assert_eq!(why(&mut requests, part), "the cable is cut");
        assert_eq!(why(&mut requests, other), "");
    }

    #[test]
    fn a_forgotten_operation_frees_its_place_when_it_ends() {
        let mut requests = Requests::default();
        let id = requests.open(0, 1, None);
        requests.forget(id);
        assert!(requests.part(id, Ok(0)));
        let next = requests.open(0, 1, None);
        assert_eq!(next & 0xffff_ffff, id & 0xffff_ffff);
    }
}
