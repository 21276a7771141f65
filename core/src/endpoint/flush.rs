//! Order and completion: flush, fence, and what they cover.

use super::*;

impl Inner {
    pub(super) fn flush(&self) -> Result<Outcome, Error> {
        self.check_alive()?;
        let late = self.late_error.borrow_mut().take();
        let late = late.or_else(|| self.open_control()?.late_error.borrow_mut().take());
        let request = self.open_request(2);
        let _ = self.worker.requests.borrow_mut().part(request, late.map_or(Ok(0), Err));
        let mut task = Task::Flush { request, left: None };
        // An endpoint that nobody has used need not be connected for it.
        match self.queue_len() == 0 && self.attempt(&mut task) == Ok(true) {
            true => self.settle(&task, Ok(0)),
            false => self.enqueue(task),
        }
        self.outcome(request)
    }

    /// The part of a flush that needs everything posted before: each lane, and the peer when operations were
    /// emulated, owes one more event. `Again`: some of the lanes are left.
    pub(super) fn flush_lanes(
        &self,
        request: u64,
        left: &mut Option<Vec<RawEndpoint>>,
    ) -> Result<(), Status> {
        let requests = &self.worker.requests;
        if left.is_none() && self.emulated.get() {
            let ping = Task::control(emulate::id::PING, request, Vec::new());
            requests.borrow_mut().one_more(request);
            match self.open_control() {
                Some(control) => {
                    requests.borrow_mut().goes_through(request, control.index);
                    match control.check_alive() {
                        Ok(()) => control.enqueue(ping),
                        Err(error) => drop(requests.borrow_mut().part(request, Err(error))),
                    }
                }
                // A barrier may wait for this flush.
                None => self.enqueue_at(ping, true),
            }
        }
        let lanes = left.get_or_insert_with(|| self.all_lanes());
        while let Some(raw) = lanes.last() {
            match raw.flush(request) {
                OK => {}
                tieline_plugin_api::PENDING => requests.borrow_mut().one_more(request),
                code if Status::from_code(code) == Status::Again => return Err(Status::Again),
                code => {
                    let error = self.failure(Status::from_code(code));
                    requests.borrow_mut().one_more(request);
                    let _ = requests.borrow_mut().part(request, Err(error));
                }
            }
            let _ = lanes.pop();
        }
        Ok(())
    }

    pub(super) fn fence(&self) -> Result<(), Error> {
        self.check_alive()?;
        let mut wait = self.emulated.get() || !self.queue.borrow().is_empty();
        // Each lane orders what goes over itself.
        wait |= self.shared.replace(false);
        for raw in self.all_lanes() {
            match raw.fence() {
                OK => {}
                // No room for it: what follows waits here instead.
                code if Status::from_code(code) == Status::Again => wait = true,
                code => return Err(self.failure(Status::from_code(code))),
            }
        }
        if wait {
            if let Outcome::Pending(request) = self.flush()? {
                self.enqueue(Task::Barrier { request: request.id });
            }
        }
        Ok(())
    }

    /// Every lane that operations of this endpoint go through, those to the peer's service worker too.
    pub(super) fn all_lanes(&self) -> Vec<RawEndpoint> {
        let mut raws: Vec<RawEndpoint> = self.lanes.borrow().iter().map(|l| l.raw).collect();
        if let Some(control) = self.open_control() {
            raws.extend(control.lanes.borrow().iter().map(|l| l.raw));
        }
        raws
    }

    /// The lines among them: they belong to the worker and may outlive this endpoint.
    pub(super) fn all_lines(&self) -> Vec<u64> {
        let mut lines = self.worker.lines_of(self);
        let past = self.past_controls.borrow();
        for control in self.open_control().iter().chain(past.iter()) {
            lines.extend(self.worker.lines_of(control));
        }
        lines
    }

    /// An operation that had completed locally has failed at the target.
    pub(crate) fn note_late(&self, error: &Error) {
        let _ = self.late_error.borrow_mut().get_or_insert_with(|| error.clone());
    }

    pub(crate) fn note_emulated(&self) {
        self.emulated.set(true);
    }

    /// Where emulated operations go: the peer's service worker if it has one, else the peer's own worker.
    pub(crate) fn control(&self) -> Result<Option<Rc<Inner>>, Error> {
        let Some(address) = self.address.service_address() else { return Ok(None) };
        // One that failed is not the end of it: what went through it has ended, and the way may be there again.
        let usable = |control: &Rc<Inner>| control.is_alive() || !self.is_alive();
        if let Some(control) = self.open_control().filter(usable) {
            return Ok(Some(control));
        }
        let control = self.worker.connect_internal(address)?;
        let failed = self.control.replace(Some(control.clone()));
        // Its lanes stay open for the keys that go through them.
        let kept = failed.filter(|failed| failed.reaches_memory.get());
        self.past_controls.borrow_mut().extend(kept);
        Ok(Some(control))
    }

    /// The endpoint to the peer's service worker that there is.
    pub(super) fn open_control(&self) -> Option<Rc<Inner>> {
        self.control.borrow().clone()
    }
}
