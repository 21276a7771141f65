//! The two processes: contexts, the endpoint to the other process, and exchanges of small values through the job.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tieline::explain::Verdict;
use tieline::{Context, Endpoint, Error, Job, Outcome, PostError, Region, RemoteKey, Worker};

/// The id of messages with pieces of the file.
pub(super) const PIECE: u16 = 1;
pub(super) const NOTE: u16 = 2;

pub(super) struct Pair<'a> {
    pub(super) job: &'a Job,
    pub(super) context: Context,
    pub(super) endpoint: Endpoint,
    pub(super) arriving: Rc<RefCell<Vec<u8>>>,
    /// The number of bytes in the buffer that have arrived.
    pub(super) arrived: Rc<Cell<usize>>,
    /// Numbers that the other process has sent, oldest first.
    notes: Rc<RefCell<Vec<u64>>>,
    failed: Rc<RefCell<Option<Error>>>,
    worker: Worker,
}

impl<'a> Pair<'a> {
    pub(super) fn connect(job: &'a Job) -> Result<Pair<'a>, Error> {
        let context = Context::open()?;
        let worker = context.worker()?;
        let (arriving, arrived) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
        let notes = Rc::new(RefCell::new(Vec::new()));
        let failed = Rc::new(RefCell::new(None));
        let (into, count) = (arriving.clone(), arrived.clone());
        worker.on_message(PIECE, move |m| {
            let (mut into, at) = (into.borrow_mut(), m.header() as usize);
            // The offset comes from the other process. Bytes that do not fit are dropped, and the checksum then differs.
            if let Some(place) =
                into.get_mut(at..).and_then(|rest| rest.get_mut(..m.payload().len()))
            {
                place.copy_from_slice(m.payload());
            }
            count.set(count.get() + m.payload().len());
        })?;
        let list = notes.clone();
        worker.on_message(NOTE, move |m| list.borrow_mut().push(m.header()))?;
        let reason = failed.clone();
        worker.on_peer_failure(move |_, error| *reason.borrow_mut() = Some(error.clone()));
        let addresses = job.exchange(&worker.address()?)?;
        let endpoint = worker.connect(&addresses[1 - job.rank()])?;
        Ok(Pair { job, context, endpoint, arriving, arrived, notes, failed, worker })
    }

    pub(super) fn worker_to_itself(&self) -> Result<Endpoint, Error> {
        Ok(self.worker.connect(&self.worker.address()?)?)
    }

    pub(super) fn is_source(&self) -> bool {
        self.job.rank() == 0
    }

    /// Makes progress; returns an error if the other process is gone.
    pub(super) fn step(&self) -> Result<(), Error> {
        if self.worker.progress() == 0 {
            if let Some(error) = self.failed.borrow_mut().take() {
                return Err(error);
            }
            self.endpoint.error().map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Sends a message, and retries until it is accepted.
    pub(super) fn send(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Error> {
        self.post(|| self.endpoint.send(id, header, payload)).map(drop)
    }

    /// Posts an operation, and retries until it is accepted.
    pub(super) fn post(
        &self,
        mut post: impl FnMut() -> Result<Outcome, PostError>,
    ) -> Result<Outcome, Error> {
        loop {
            match post() {
                Err(PostError::Retry(_)) => self.step()?,
                outcome => return Ok(outcome?),
            }
        }
    }

    pub(super) fn finish(&self, outcome: Outcome) -> Result<u64, Error> {
        let request = match outcome {
            Outcome::Done(value) => return Ok(value),
            Outcome::Pending(request) => request,
        };
        loop {
            match self.worker.test(&request) {
                Some(result) => return Ok(result?),
                None => self.step()?,
            }
        }
    }

    /// Sends a number to the other process, waits for the other's number, and returns rank 0's number and rank 1's number. The call
    /// is also a barrier, in which both processes make progress.
    pub(super) fn agree(&self, number: u64) -> Result<(u64, u64), Error> {
        self.send(NOTE, number, &[])?;
        while self.notes.borrow().is_empty() {
            self.step()?;
        }
        let other = self.notes.borrow_mut().remove(0);
        Ok(if self.is_source() { (number, other) } else { (other, number) })
    }

    /// Sends the key of this process's region to the other process, and receives the other's key.
    pub(super) fn exchange_keys(&self, mine: &Region) -> Result<RemoteKey, Error> {
        let keys = self.job.exchange(&mine.remote_key()?)?;
        let key = self.endpoint.import_key(&keys[1 - self.job.rank()])?;
        while key.is_settling() {
            self.step()?;
        }
        Ok(key)
    }

    pub(super) fn chosen_for(&self, role: &str) -> String {
        self.choices()
            .find(|c| c.roles.iter().any(|r| r == role))
            .map_or("emulated".into(), |c| c.path)
    }

    /// Returns the reason why `path` carries messages, or puts and gets: the record contains a reason for each role in turn.
    pub(super) fn why(&self, path: &str, messages: bool) -> String {
        let Some(choice) = self.choices().find(|c| c.path == path) else { return String::new() };
        let mut clauses = choice.because.split("; ");
        let carries_messages = choice.roles.iter().any(|role| role == "message");
        match (messages, carries_messages.then(|| clauses.next()).flatten()) {
            (true, Some(first)) => first.to_owned(),
            _ => clauses.take(2).collect::<Vec<_>>().join("; "),
        }
    }

    fn choices(&self) -> impl Iterator<Item = Choice> {
        self.endpoint.report().into_iter().filter_map(|record| match record.verdict {
            Verdict::ChosenFor { roles, because } => {
                let (domain, module) = (record.domain?, record.module?);
                Some(Choice { path: format!("{domain}/{module}"), roles, because })
            }
            _ => None,
        })
    }
}

struct Choice {
    path: String,
    roles: Vec<String>,
    because: String,
}
