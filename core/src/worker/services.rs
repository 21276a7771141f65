//! Client/server services: a worker listens under a name; a worker requests the service and is accepted, rejected or refused.
//!
//! ```
//! # fn main() -> Result<(), tieline::Error> {
//! use tieline::{Context, ServiceAnswer};
//! let context = Context::open()?;
//! let (server, client) = (context.worker()?, context.worker()?);
//! server.listen("store", 16, |request| {
//!     let shelf = format!("shelf 3 for {}", String::from_utf8_lossy(request.private()));
//!     let _endpoint = request.accept(shelf.as_bytes()); // or keep the request and answer later
//! })?;
//! let call = client.connect_to_service(&server.address()?, "store", b"number 7")?;
//! let answer = loop {
//!     let _ = (server.progress(), client.progress());
//!     if let Some(answer) = call.test() {
//!         break answer?;
//!     }
//! };
//! assert_eq!(answer, ServiceAnswer::Accepted(b"shelf 3 for number 7".to_vec()));
//! # Ok(()) }
//! ```
//!
//! Service names have their own namespace, separate from message ids. The request and the answer are messages of the two workers,
//! over any module that carries messages.

pub use tieline_lookup::ServiceAnswer;

use super::inner::Listener;
use super::{Worker, WorkerState};
use crate::address::WorkerAddress;
use crate::endpoint::{Endpoint, queued::QueuedOp};
use crate::interface::PeerId;
use crate::proto::emulate::Answer;
use crate::proto::{Origin, id};
use crate::{ConnectError, Error, Status};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tieline_lookup::{Arrival, ServiceAction};

/// A request of a client for a service. Dropping the request without an answer rejects it, if it still waits.
pub struct ServiceRequest {
    worker: Weak<WorkerState>,
    peer: PeerId,
    asked: Arrival,
    answered: bool,
}

impl fmt::Debug for ServiceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceRequest({} from {})", self.asked.service, self.peer)
    }
}

impl ServiceRequest {
    /// Returns the name of the service.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.asked.service
    }

    /// Returns the worker that sent the request.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the client's private data, at most 1 KiB.
    #[must_use]
    pub fn private(&self) -> &[u8] {
        &self.asked.private
    }

    /// Accepts the request, with up to 1 KiB of private data for the client. Returns an endpoint to the client, as
    /// [`Worker::endpoint_to`] does.
    ///
    /// # Errors
    /// `TooLarge` for too much private data, and the errors of [`Worker::endpoint_to`] if no route leads to the client. After these
    /// errors the client is rejected without private data, if it can be reached. `TimedOut` if the client has stopped waiting;
    /// `Closed` if the worker is closed.
    pub fn accept(mut self, private: &[u8]) -> Result<Endpoint, Error> {
        // The endpoint is made before the client receives the answer: the server must have an endpoint to an accepted client.
        let inner = self.open_worker()?.reply_endpoint(self.peer.0)?;
        self.answer(private, true)?;
        Ok(Endpoint::new(inner))
    }

    /// Rejects the request, with up to 1 KiB of private data for the client.
    ///
    /// # Errors
    /// The errors of [`ServiceRequest::accept`].
    pub fn reject(mut self, private: &[u8]) -> Result<(), Error> {
        self.answer(private, false)
    }

    fn open_worker(&self) -> Result<Rc<WorkerState>, Error> {
        let closed = || Error::from_status(Status::Closed);
        let worker = self.worker.upgrade().ok_or_else(closed)?;
        worker.check_open()?;
        Ok(worker)
    }

    fn answer(&mut self, private: &[u8], yes: bool) -> Result<(), Error> {
        let worker = self.open_worker()?;
        let answered = worker.services.borrow_mut().answer(&self.asked, private, yes);
        // A request is unanswered if the answer was too large, because the answer has not been sent.
        self.answered = !answered.as_ref().is_err_and(|e| e.status() == Status::TooLarge);
        worker.carry_out_services();
        answered
    }
}

impl Drop for ServiceRequest {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.answer(&[], false);
        }
    }
}

/// A request for a service that has been sent. Dropping the call discards the answer; the server is not notified.
pub struct ServiceCall {
    worker: Rc<WorkerState>,
    endpoint: Endpoint,
    token: u64,
}

impl fmt::Debug for ServiceCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceCall({})", self.token)
    }
}

impl ServiceCall {
    /// Returns the endpoint to the worker that received the request.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the answer, or `None` while there is no answer. [`ConnectError::Configure`]: the server refused the request, for
    /// example without a listener or with a full backlog. [`ConnectError::Retry`]: the server did not respond in time.
    /// [`ConnectError::Exchange`]: the route to the peer has failed. The call makes no progress. After an answer it returns the
    /// same answer again.
    #[must_use]
    pub fn test(&self) -> Option<Result<ServiceAnswer, ConnectError>> {
        let result = self.worker.services.borrow().result(self.token)?;
        Some(result.map_err(ConnectError::from))
    }
}

impl Drop for ServiceCall {
    fn drop(&mut self) {
        self.worker.services.borrow_mut().forget(self.token);
    }
}

impl Worker {
    /// Listens for requests for a service. `on_request` runs as a handler for each request within the backlog, and answers the
    /// request or keeps it. At most `backlog` requests wait for an answer at a time. Further requests are refused:
    /// [`ServiceCall::test`] returns an error at the client.
    ///
    /// # Errors
    /// `Busy` if this worker already listens for the service; `Invalid` for an invalid name; `Closed` if the worker is closed.
    pub fn listen(
        &self,
        service: &str,
        backlog: usize,
        on_request: impl Fn(ServiceRequest) + 'static,
    ) -> Result<(), Error> {
        self.inner.check_open()?;
        let worker = Rc::downgrade(&self.inner);
        let listener = move |peer, asked| {
            on_request(ServiceRequest { worker: worker.clone(), peer, asked, answered: false });
        };
        self.inner.services.borrow_mut().listen(service, backlog, Rc::new(listener))
    }

    /// Stops listening for a service. Requests that wait are refused: [`ServiceCall::test`] returns an error at the client.
    pub fn unlisten(&self, service: &str) {
        // The listener is dropped after the borrow has ended: it may hold requests, which answer when they are dropped.
        let _listener = self.inner.services.borrow_mut().unlisten(service);
        if self.inner.shared.same_process() {
            self.inner.carry_out_services();
        }
    }

    /// Requests a service from the worker with this address, with up to 1 KiB of private data.
    ///
    /// # Errors
    /// The errors of [`Worker::connect`]. [`ConnectError::Correct`] also for an invalid name or too much private data,
    /// [`ConnectError::Retry`] while too many calls wait for an answer.
    pub fn connect_to_service(
        &self,
        address: &[u8],
        service: &str,
        private: &[u8],
    ) -> Result<ServiceCall, ConnectError> {
        let parsed = WorkerAddress::parse(address)?;
        let peer = parsed.entry.worker;
        let endpoint = self.connect(address)?;
        let _ = self.inner.peer_number(&parsed);
        let now = self.inner.wiring.now();
        let token = self.inner.services.borrow_mut().ask(now, peer, service, private)?;
        let call = ServiceCall { worker: self.inner.clone(), endpoint, token };
        self.inner.carry_out_services();
        Ok(call)
    }

    /// Makes progress until the service has answered or the request has failed, and returns the result.
    ///
    /// # Errors
    /// The errors of [`ServiceCall::test`]. [`ConnectError::Correct`] inside a handler, and for a call of another worker.
    pub fn finish_call(&self, call: &ServiceCall) -> Result<ServiceAnswer, ConnectError> {
        self.inner.shared.check_no_handler("finish_call")?;
        self.inner.check_owner(&call.worker.shared)?;
        loop {
            if let Some(answer) = self.inner.wait_for(None, true, || call.test())? {
                return answer;
            }
        }
    }
}

impl WorkerState {
    /// Handles a message of the service protocol.
    pub(super) fn on_service(self: &Rc<Self>, from: Origin, data: &[u8]) -> Result<(), Status> {
        if self.closed.get() {
            // A closed worker has no listener and sends no messages.
            self.hang_up(from, Status::Closed);
            return Ok(());
        }
        let from = self.address_of_peer(from.peer).ok_or(Status::BadData)?.entry.worker;
        let now = self.wiring.now();
        let taken = self.services.borrow_mut().receive(now, from, data);
        self.carry_out_services();
        taken
    }

    /// Returns the address of a known peer, if the address was well-formed.
    pub(crate) fn address_of_peer(&self, peer: u32) -> Option<WorkerAddress> {
        self.peers.borrow().get(peer)?.address.clone()
    }

    /// Ends the calls that wait for a worker whose route has failed, and the requests of that worker.
    pub(crate) fn service_peer_lost(self: &Rc<Self>, peer: [u8; 16], error: &Error) {
        self.services.borrow_mut().peer_lost(peer, &error.to_string());
        self.carry_out_services();
    }

    pub(super) fn tick_services(self: &Rc<Self>) {
        let due = self.services.borrow().next_timer();
        if due.is_some_and(|at| at <= self.wiring.now()) {
            self.services.borrow_mut().tick(self.wiring.now());
            self.carry_out_services();
        }
    }

    /// Returns the time until the next time limit of a request.
    pub(super) fn next_service_timer(&self) -> Option<Duration> {
        let at = self.services.borrow().next_timer()?;
        Some(Duration::from_nanos(at.saturating_sub(self.wiring.now())))
    }

    /// Stops listening when the worker is about to close, and refuses the requests that wait. The listeners may hold the worker, so
    /// the caller drops them while nothing is borrowed.
    pub(super) fn refuse_requests(self: &Rc<Self>) -> Vec<Listener> {
        let listeners = self.services.borrow_mut().unlisten_all();
        if self.shared.same_process() {
            self.carry_out_services();
        }
        listeners
    }

    fn carry_out_services(self: &Rc<Self>) {
        loop {
            let action = self.services.borrow_mut().take_action();
            let Some(action) = action else { return };
            match action {
                ServiceAction::Send { peer, message, answers } => {
                    let number = self.peers.borrow().known_number(&peer);
                    let Some(number) = number else { continue };
                    match self.reply_endpoint(number) {
                        // Service answers count against the maximum of answers, and are sent before queued operations.
                        Ok(endpoint) if answers => {
                            let answer = Answer::Service(message.into());
                            if let Err((answer, status)) = endpoint.answer(answer, None) {
                                let to = Origin { peer: number, circuit: None };
                                self.keep_answer(to, answer, status);
                            }
                        }
                        Ok(endpoint) => {
                            endpoint.post(QueuedOp::tell(id::SERVICE, message));
                        }
                        Err(error) => self.service_peer_lost(peer, &error),
                    }
                }
                ServiceAction::Arrived(asked) => {
                    let listener = self.services.borrow().listener(&asked.service);
                    let number = self.peers.borrow().known_number(&asked.peer);
                    let peer = PeerId(number.unwrap_or(u32::MAX));
                    // Without a listener, the service has closed, which has refused the request.
                    if let Some(listener) = listener {
                        listener(peer, asked);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
