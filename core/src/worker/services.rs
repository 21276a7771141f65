//! Client/server services: a worker listens under a name; another worker requests the service and is accepted or rejected.
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

pub use super::service_state::ServiceAnswer;

use super::service_state::{Answered, Asked};
use super::{Worker, WorkerState};
use crate::address::WorkerAddress;
use crate::endpoint::{Endpoint, queued::QueuedOp};
use crate::interface::PeerId;
use crate::proto::emulate::Answer;
use crate::proto::{Origin, id};
use crate::wireup::ReasonKind;
use crate::wireup::service::ServiceAction;
use crate::{ConnectError, Error, Status};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// A request of a client for a service. Dropping the request without an answer rejects it.
pub struct ServiceRequest {
    worker: Weak<WorkerState>,
    asked: Asked,
    answered: bool,
}

impl fmt::Debug for ServiceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceRequest({} from {})", self.asked.service, self.asked.peer)
    }
}

impl ServiceRequest {
    fn new(worker: Weak<WorkerState>, asked: Asked) -> ServiceRequest {
        ServiceRequest { worker, asked, answered: false }
    }

    /// Returns the name of the service.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.asked.service
    }

    /// Returns the worker that sent the request.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.asked.peer
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
    /// errors the client is rejected without private data. `TimedOut` if the client has stopped waiting; `Closed` if the worker is
    /// closed.
    pub fn accept(mut self, private: &[u8]) -> Result<Endpoint, Error> {
        // The endpoint is made before the client receives the answer: the server must have an endpoint to an accepted client.
        let inner = self.open_worker()?.reply_endpoint(self.asked.peer.0)?;
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
        let said = {
            let mut services = worker.services.services.borrow_mut();
            match yes {
                true => services.accept(self.asked.id, private),
                false => services.reject(self.asked.id, private),
            }
        };
        // A request is unanswered if the answer was too large, because the answer has not been sent.
        self.answered = said.is_ok();
        worker.carry_out_services();
        match said {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::new(
                Status::TimedOut,
                format!("no client waits for this answer of service {}", self.asked.service),
                "the client gave up, or is gone",
                "answer within TIELINE_CONNECT_TIMEOUT",
            )),
            Err(reason) => Err(Error::new(
                Status::TooLarge,
                format!("an answer of service {}", self.asked.service),
                reason.text,
                "",
            )),
        }
    }
}

impl Drop for ServiceRequest {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.answer(&[], false);
        }
    }
}

/// A request for a service that has been sent. Dropping the call abandons the request.
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

    /// Returns the answer, or `None` while there is no answer. Errors: no listener exists or the listener's backlog is full
    /// ([`ConnectError::Configure`]), the request timed out ([`ConnectError::Retry`]), or the peer is gone
    /// ([`ConnectError::Exchange`]). The call makes no progress. After an answer it returns the same answer again.
    #[must_use]
    pub fn test(&self) -> Option<Result<ServiceAnswer, ConnectError>> {
        let answer = self.worker.services.calls.borrow().get(&self.token)?.clone()?;
        Some(answer.map_err(ConnectError::from))
    }
}

impl Drop for ServiceCall {
    fn drop(&mut self) {
        let _ = self.worker.services.calls.borrow_mut().remove(&self.token);
    }
}

impl Worker {
    /// Listens for requests for a service. `on_request` runs as a handler for each request, and answers the request or keeps it. At
    /// most `backlog` requests wait for an answer at a time. Further requests are refused: [`ServiceCall::test`] returns an error
    /// at the client.
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
        let state = &self.inner.services;
        let known = state.listeners.borrow().contains_key(service);
        state.services.borrow_mut().listen(service, backlog).map_err(|reason| {
            let status = if known { Status::Busy } else { Status::Invalid };
            Error::new(status, format!("cannot listen for service `{service}`"), reason.text, "")
        })?;
        let worker = Rc::downgrade(&self.inner);
        let listener = move |asked| {
            on_request(ServiceRequest::new(worker.clone(), asked));
        };
        let _ = state.listeners.borrow_mut().insert(service.to_owned(), Rc::new(listener));
        Ok(())
    }

    /// Stops listening for a service. Requests that wait are refused: [`ServiceCall::test`] returns an error at the client.
    pub fn unlisten(&self, service: &str) {
        // The listener is dropped after the borrow has ended: it may hold requests, which answer when they are dropped.
        let _listener = self.inner.services.listeners.borrow_mut().remove(service);
        self.inner.services.services.borrow_mut().unlisten(service);
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
        let state = &self.inner.services;
        let now = self.inner.wiring.now();
        let asked = state.services.borrow_mut().ask(now, peer, service, private);
        let token = asked.map_err(|reason| {
            let status = match reason.kind {
                ReasonKind::Busy => Status::Again,
                _ => Status::Invalid,
            };
            Error::new(status, format!("cannot ask for service `{service}`"), reason.text, "")
        })?;
        let _ = state.calls.borrow_mut().insert(token, None);
        let call = ServiceCall { worker: self.inner.clone(), endpoint, token };
        self.inner.carry_out_services();
        Ok(call)
    }

    /// Makes progress until the service has answered, and returns the answer.
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
            // The worker has no listener any more, and no route for an error to the requester.
            self.hang_up(from, Status::Closed);
            return Ok(());
        }
        let from = self.address_of_peer(from.peer).ok_or(Status::BadData)?.entry.worker;
        let now = self.wiring.now();
        let taken = self.services.services.borrow_mut().receive(now, from, data);
        self.carry_out_services();
        taken.map_err(|_| Status::BadData)
    }

    /// Returns the address that a peer sent when it connected.
    pub(crate) fn address_of_peer(&self, peer: u32) -> Option<WorkerAddress> {
        self.peers.borrow().get(peer)?.address.clone()
    }

    /// Ends the calls that wait for a worker whose route has failed.
    pub(crate) fn service_peer_lost(self: &Rc<Self>, peer: [u8; 16], error: &Error) {
        self.services.services.borrow_mut().peer_lost(peer, &error.to_string());
        self.carry_out_services();
    }

    pub(super) fn tick_services(self: &Rc<Self>) {
        let due = self.services.services.borrow().next_timer();
        if due.is_some_and(|at| at <= self.wiring.now()) {
            self.services.services.borrow_mut().tick(self.wiring.now());
            self.carry_out_services();
        }
    }

    /// Returns the time until a request times out.
    pub(super) fn next_service_timer(&self) -> Option<Duration> {
        let at = self.services.services.borrow().next_timer()?;
        Some(Duration::from_nanos(at.saturating_sub(self.wiring.now())))
    }

    /// Refuses the requests that wait, when the worker is about to close; it accepts no more requests.
    pub(super) fn refuse_requests(self: &Rc<Self>) {
        if !self.shared.same_process() {
            return;
        }
        let names: Vec<String> = self.services.listeners.borrow().keys().cloned().collect();
        names.iter().for_each(|name| self.services.services.borrow_mut().unlisten(name));
        self.carry_out_services();
    }

    fn carry_out_services(self: &Rc<Self>) {
        loop {
            let action = self.services.services.borrow_mut().take_action();
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
                ServiceAction::Arrived { id, service, peer, private } => {
                    let listener = self.services.listeners.borrow().get(&service).cloned();
                    let number = self.peers.borrow().known_number(&peer);
                    let peer = PeerId(number.unwrap_or(u32::MAX));
                    let asked = Asked { id, service, peer, private };
                    match listener {
                        Some(listener) => listener(asked),
                        // Dropping the request rejects it.
                        None => drop(ServiceRequest::new(Rc::downgrade(self), asked)),
                    }
                }
                // The holder of the request receives the error when it answers.
                ServiceAction::Withdrawn { .. } => {}
                ServiceAction::Accepted { token, private } => {
                    self.call_ended(token, Ok(ServiceAnswer::Accepted(private)));
                }
                ServiceAction::Rejected { token, private } => {
                    self.call_ended(token, Ok(ServiceAnswer::Rejected(private)));
                }
                ServiceAction::Failed { token, reason } => {
                    let (status, fix) = match reason.kind {
                        ReasonKind::TimedOut => {
                            (Status::TimedOut, "see that the server makes progress")
                        }
                        ReasonKind::Transport => (Status::PeerFailed, ""),
                        _ => (Status::Unreachable, "see what the server listens for"),
                    };
                    let error = Error::new(status, "the service gave no answer", reason.text, fix);
                    self.call_ended(token, Err(error));
                }
            }
        }
    }

    fn call_ended(&self, token: u64, answer: Answered) {
        if let Some(call) = self.services.calls.borrow_mut().get_mut(&token) {
            *call = Some(answer);
        }
    }
}

#[cfg(test)]
mod tests;
