//! Rendezvous messages (announcements): dispatching them in order, receiving their bytes into memory of the application's choice,
//! and answering them.
//!
//! Data from the peer is validated where it is used: the key when it is imported, the range when the transfer is posted, the access
//! rights by the executor of the transfer.

use super::WorkerState;
use super::announced::Taking;
use crate::PeerId;
use crate::endpoint::{Endpoint, MAX_MESSAGE_ID};
use crate::message::abi::Handed;
use crate::message::announced::{Announced, Rendezvous, Stage};
use crate::message::{ANNOUNCED, Message};
use crate::proto::announce::{Announce, KEPT};
use crate::proto::{Origin, emulate::Answer};
use crate::region::Region;
use crate::request::{Outcome, Request};
use crate::sys::Refusal;
use crate::{Error, PostError, Status};
use std::ops::Range;
use std::rc::{Rc, Weak};
use tieline_host::abi::events::{Polled, payload};
use tieline_plugin_api::abi::Event;

/// The length below which only one side copies a rendezvous message while its sender has other ones waiting: the destination then
/// stays in one processor's cache.
const WORTH_SHARING: usize = 1 << 20;

impl WorkerState {
    /// Handles the announcement of a message by a peer.
    #[inline(never)] // not part of the large function for rare events
    pub(super) fn on_announce(self: &Rc<Self>, index: usize, event: Handed<'_>, from: Origin) {
        let slot = &self.shared.interfaces[index];
        let Some(announced) = self.announced(&event, from) else { return event.give_back(slot) };
        let came = Polled::without_payload(Event {
            kind: ANNOUNCED,
            id: u32::from(announced.id),
            flags: 0,
            header: announced.header,
            cookie: announced.len as u64,
            ..**event
        });
        event.give_back(slot);
        self.hand_on_announced(index, &came, announced);
    }

    /// Adds the announcement of a peer. `None`: the announcement is not dispatched.
    fn announced(self: &Rc<Self>, event: &Polled, from: Origin) -> Option<Rc<Announced>> {
        let read = Announce::read(event.id as u16, payload(event)).ok();
        let read = read.filter(|read| read.id <= MAX_MESSAGE_ID && read.len <= isize::MAX as u64);
        let Some(read) = read else {
            self.count_bad(from.peer, Status::BadData);
            return None;
        };
        let announced = self.announcements.make((from, event.header), read);
        match self.announcements.insert(&announced) {
            Ok(()) => return Some(announced),
            Err(Status::BadData) => self.count_bad(from.peer, Status::BadData),
            Err(status) => self.say(&announced, Err(status)),
        }
        None
    }

    /// Runs the handler for the message's id, or refuses the message if there is none.
    fn hand_on_announced(
        self: &Rc<Self>,
        interface: usize,
        event: &Polled,
        announced: Rc<Announced>,
    ) {
        let worker: Weak<WorkerState> = Rc::downgrade(self);
        let announcement = Rendezvous::new(announced.clone(), self.shared.clone(), worker);
        let handlers = self.handlers.borrow();
        let Some(Some(handler)) = handlers.get(usize::from(announced.id)) else {
            let what = format!("a rendezvous message with the id {}", announced.id);
            self.dropped_unhandled(&what, PeerId(announced.from.peer));
            // The drop refuses the message.
            return drop(announcement);
        };
        self.inbox.current.set(Some(announcement));
        self.inbox.header_bytes.set(announced.header_bytes);
        let _clear = self.inbox.clear();
        handler(&Message::new(event, &self.inbox, interface));
    }

    /// Handles a sender's withdrawal of a message. An empty payload requests an answer.
    pub(super) fn on_withdraw(
        self: &Rc<Self>,
        token: u64,
        from: Origin,
        data: &[u8],
    ) -> Result<(), Status> {
        let known = self.announcements.get(from, token);
        // A transfer in progress continues, and an answered message needs no other answer.
        let Some(announced) = known.filter(|known| known.stage.get() == Stage::Waiting) else {
            return Ok(());
        };
        match data {
            [] => self.over(&announced, Err(Status::Canceled)),
            _ => self.forget_announced(&announced),
        }
        Ok(())
    }

    /// Ends the message and answers the sender.
    fn over(self: &Rc<Self>, announced: &Announced, result: Result<u64, Status>) {
        self.forget_announced(announced);
        self.say(announced, result);
    }

    fn forget_announced(&self, announced: &Announced) {
        announced.stage.set(Stage::Over);
        self.announcements.remove(announced);
    }

    fn say(self: &Rc<Self>, announced: &Announced, result: Result<u64, Status>) {
        self.answer(announced.from, Answer::reply(announced.token, result));
    }

    /// Answers transfers that have ended, and sends notifications whose operations have ended.
    #[cold]
    pub(super) fn end_transfers(self: &Rc<Self>) -> usize {
        let mut count = 0;
        loop {
            let ended = self.shared.ops.borrow_mut().take_ended_transfer();
            let Some(id) = ended else { return count };
            count += 1;
            if self.end_notice(id) {
                continue;
            }
            let taking = self.announcements.taking.borrow_mut().remove(&id);
            let Some(Taking { announced, transfer, whole, key }) = taking else { continue };
            let result = self.shared.ops.borrow_mut().take(id);
            let result = result.unwrap_or_else(|| Err(Status::Closed.into()));
            let word = result.as_ref().map(|_| 0).map_err(|error| match error.status() {
                // The transfer was canceled on this side and not by the sender.
                Status::Canceled => Status::Closed,
                status => status,
            });
            self.over(&announced, word);
            let result = result.map(|_| 0).map_err(|error| match error.status() {
                Status::KeyRejected => taken_back(&announced),
                _ => error,
            });
            self.shared.part(whole, result);
            drop((transfer, key));
        }
    }

    /// Drops all transfers of a closed worker after all posted operations have ended.
    pub(super) fn drop_transfers(&self) {
        let gone = std::mem::take(&mut *self.announcements.taking.borrow_mut());
        // Keys hold endpoints, which hold the worker.
        drop(gone);
    }

    /// Refuses all messages that have not ended, when the worker is about to close. This includes those with a transfer in
    /// progress: if other endpoints keep the connection open, nothing else would notify their senders.
    pub(super) fn refuse_announced(self: &Rc<Self>) {
        if !self.shared.same_process() {
            return;
        }
        let _ = self.end_transfers();
        for announced in self.announcements.all() {
            self.over(&announced, Err(Status::Closed));
        }
    }

    /// Refuses a message that waits.
    pub(crate) fn refuse_one(self: &Rc<Self>, announced: &Announced) {
        if announced.stage.get() == Stage::Waiting {
            self.over(announced, Err(Status::Unsupported));
        }
    }

    /// Keeps the entry of a message that has ended for the next message.
    pub(crate) fn reuse_announced(&self, announced: &Rc<Announced>) {
        self.announcements.reuse(announced);
    }

    /// Returns the endpoint for the transfer of a message, and whether the answer takes it too.
    fn endpoint_for(self: &Rc<Self>, announced: &Announced) -> Result<(Endpoint, bool), PostError> {
        let peer = announced.from.peer;
        let has_left = announced.stage.get() == Stage::Left;
        let back = match self.reply_endpoint(peer) {
            Ok(back) if !has_left => back,
            Err(error) if !has_left && self.peers.borrow().get(peer).is_some() => {
                return Err(error.into());
            }
            _ => return Err(left(announced).into()),
        };
        // The application may have closed its endpoint.
        let is_open = back.is_open();
        let open = if is_open { back } else { self.own_endpoint(peer)? };
        // An answer to a message that no circuit carried takes the same endpoint.
        let answers = is_open && announced.from.circuit.is_none();
        Ok((Endpoint::internal(open), answers))
    }

    /// Checks whether the sender has further messages to work on, so that it is not asked to copy a part of this one.
    fn copies_alone(&self, announced: &Announced, len: usize) -> bool {
        let may_share = (self.shared.core.assist_size..WORTH_SHARING).contains(&len);
        may_share && self.announcements.of(announced.from.peer) > 1
    }

    /// Answers a message whose bytes were fetched. `over`: the endpoint that the answer takes.
    fn answer_fetched(
        self: &Rc<Self>,
        announced: &Announced,
        over: Option<&Endpoint>,
        is_kept: bool,
    ) {
        self.forget_announced(announced);
        let value = if is_kept { KEPT } else { 0 };
        let answer = Answer::reply(announced.token, Ok(value));
        match over {
            Some(endpoint) => self.answer_over(&endpoint.inner, announced.from, answer),
            None => self.answer(announced.from, answer),
        }
    }

    /// Fetches a message's first bytes into memory without a registration, if a lane does so within the call. Otherwise nothing has
    /// changed.
    pub(crate) fn take_at_once(
        self: &Rc<Self>,
        announced: &Announced,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let is_possible = self.check_open().is_ok()
            && announced.stage.get() == Stage::Waiting
            && (1..=announced.len).contains(&len);
        let Some((endpoint, answers)) =
            is_possible.then(|| self.endpoint_for(announced).ok()).flatten()
        else {
            return false;
        };
        // The cell is not borrowed while a lane is opened, which may call the application.
        let bytes = announced.key.take();
        let alone = self.copies_alone(announced, len);
        let fetched = endpoint.inner.fetch_at_once(&bytes, to, len, alone);
        if announced.stage.get() == Stage::Waiting {
            *announced.key.borrow_mut() = bytes;
        }
        let Ok(Some(is_kept)) = fetched else { return false };
        self.answer_fetched(announced, answers.then_some(&endpoint), is_kept);
        true
    }

    /// Posts the transfer of a message's first bytes into this memory.
    pub(crate) fn take_announced(
        self: &Rc<Self>,
        announced: &Rc<Announced>,
        pieces: &[(&Region, Range<usize>)],
    ) -> Result<Outcome, PostError> {
        self.check_open()?;
        let mut len = 0usize;
        for (local, range) in pieces {
            let n = range.end.wrapping_sub(range.start);
            let inside = local.inner.span.range(range.start, n);
            let _ = inside.map_err(|status| local.outside(status, range.start, n))?;
            len = len.saturating_add(n);
        }
        if len > announced.len {
            return Err(too_much(len, announced.len).into());
        }
        let (endpoint, answers) = self.endpoint_for(announced)?;
        pieces.iter().try_for_each(|(local, _)| endpoint.inner.check_local(local))?;
        let ended_without = |whole| {
            self.shared.part(whole, Err(taken_back(announced)));
            Ok(Outcome::Pending(Request::new(self.shared.clone(), whole)))
        };
        if announced.stage.get() != Stage::Waiting {
            return ended_without(endpoint.inner.open(tieline_order::Kind::Whole)?);
        }
        if len == 0 {
            self.over(announced, Ok(0));
            return Ok(Outcome::Done(0));
        }
        // The cell is not borrowed while a lane is opened, which may call the application.
        let bytes = announced.key.take();
        let alone = self.copies_alone(announced, len);
        let fetched = match pieces {
            [(local, range)] => {
                let to = local.inner.span.range(range.start, len).map_err(Error::from);
                to.and_then(|to| endpoint.inner.fetch_at_once(&bytes, to, len, alone))
            }
            _ => Ok(None),
        };
        if let Ok(Some(is_kept)) = fetched {
            *announced.key.borrow_mut() = bytes;
            self.answer_fetched(announced, answers.then_some(&endpoint), is_kept);
            return Ok(Outcome::Done(0));
        }
        let import = |_| endpoint.import_announced(&bytes, announced.len);
        let key = fetched.map_err(PostError::from).and_then(import);
        if announced.stage.get() == Stage::Waiting {
            *announced.key.borrow_mut() = bytes;
        }
        let key = key?;
        // The sender may help with the copy, and can then access only the range of the receive.
        key.inner.in_parts.set(true);
        key.inner.alone.set(alone);
        let whole = endpoint.inner.open(tieline_order::Kind::Whole)?;
        let posted = match pieces {
            [(local, range)] => endpoint.get(local, range.clone(), &key, 0),
            pieces => endpoint.get_pieces(pieces, &key, 0),
        };
        match posted {
            Ok(Outcome::Pending(transfer)) => {
                announced.stage.set(Stage::Taking);
                let id = transfer.id;
                let taking = Taking { announced: announced.clone(), transfer, whole, key };
                let _ = self.announcements.taking.borrow_mut().insert(id, taking);
                self.shared.with_ops(|ops| ops.watch_transfer(id));
                Ok(Outcome::Pending(Request::new(self.shared.clone(), whole)))
            }
            // The sender's key is not valid any more, so the result is the same as if the transfer had found that later.
            Err(error) if error.status() == Status::KeyRejected => {
                self.over(announced, Err(Status::KeyRejected));
                ended_without(whole)
            }
            posted => {
                self.shared.with_ops(|ops| ops.withdraw(whole));
                match &posted {
                    Ok(_) => self.over(announced, Ok(0)),
                    Err(error) if error.status() == Refusal::FAULT => {
                        self.over(announced, Err(Refusal::FAULT));
                    }
                    Err(_) => {}
                }
                posted
            }
        }
    }
}

#[cold]
fn too_much(len: usize, announced: usize) -> Error {
    Error::new(
        Status::OutOfRange,
        format!("{len} bytes of a message of {announced}"),
        "it has no more",
        "take no more than its announced length",
    )
}

#[cold]
fn taken_back(announced: &Announced) -> Error {
    Error::new(
        Status::Canceled,
        format!("a rendezvous message of {} bytes", announced.len),
        "its sender has canceled it, or has ended",
        "",
    )
}

#[cold]
fn left(announced: &Announced) -> Error {
    Error::new(
        Status::PeerFailed,
        format!("a rendezvous message of {} bytes", announced.len),
        "its sender has left",
        "",
    )
}
