//! A message-passing runtime on Tieline's public interface: tagged messages, collectives, memory windows.
//!
//! The runtime tests this interface, and shows the amount of code that a runtime on top of it needs. The runtime uses only the
//! public calls of `tieline` and of `tieline-tag`, and no unsafe code. A [`Runtime`] belongs to one thread. Its calls that wait
//! make progress.
//!
//! * A message's tag is in the header. A message of at most [`Runtime::eager`] bytes is sent inline, unless it is sent by
//!   [`Runtime::send_lent`]. A longer message becomes a rendezvous message from transiently registered memory. When a receive
//!   matches, the message is received into a buffer of that receive. An application with its own buffers registers them once
//!   ([`Runtime::lend`]), and sends from them and receives into them without a copy.
//! * The first message to a peer carries the sender's rank: later messages identify their sender by a number that the receiver's
//!   worker assigned.
//! * Handlers only match messages and receives. The resulting posts are made between progress calls, where they can be retried.

mod collectives;
mod peers;
mod transfers;
mod window;

pub use window::Window;

use peers::{Peer, rank};
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tieline::{
    Context, Endpoint, Error, Job, KeptMessage, Message, Outcome, PostError, Region, Rendezvous,
    SendOptions, Status, Worker,
};
use tieline_tag::{Arrival, Matcher, Pattern, Post};
use transfers::{Memory, Stage, Transfer, Transfers, part};

/// The id of the message whose header is the sender's rank.
const HELLO: u16 = 1;
/// The id of messages whose header is the tag, and whose payload is the bytes of the message.
const MESSAGE: u16 = 2;

/// The bit that marks tags of the runtime's own messages; tags of the application do not have it.
const OWN: u64 = 1 << 63;
/// The maximum number of completions that are drained in one call.
const AT_ONCE: usize = 64;
/// The time limit for peers to receive rendezvous messages during [`Runtime::finish`].
const CLOSING: Duration = Duration::from_secs(60);

/// A range of registered memory, from which a message is sent or into which it is received.
pub type Part<'a> = (&'a Rc<Region>, Range<usize>);

/// A message that was received.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The rank that sent the message.
    pub source: usize,
    /// The tag of the message.
    pub tag: u64,
    /// The length of the message in bytes.
    pub len: usize,
    /// The bytes of the message, unless it was received into registered memory.
    pub bytes: Vec<u8>,
}

/// A posted receive. The caller must wait for it or cancel it.
#[derive(Debug)]
#[must_use = "a message is lost that nobody waits for"]
pub struct Receiving(usize);

/// A sent message; it has a number until the send has ended.
#[derive(Debug)]
#[must_use = "whether it was fetched says only a wait"]
pub struct Sending(Option<usize>);

/// The state of a message without a matching receive.
enum Kept {
    Bytes(KeptMessage),
    Announced(Rendezvous),
}

/// The state that handlers change. A call borrows its parts together, once.
#[derive(Default)]
struct State {
    matching: RefCell<Matching>,
    /// The messages to receive, in order, each with its receive.
    due: RefCell<VecDeque<(usize, Rendezvous)>>,
    failed: RefCell<Option<Error>>,
    /// Whether a handler has changed this state since the last check.
    stirred: Cell<bool>,
}

#[derive(Default)]
struct Matching {
    matcher: Matcher<Kept>,
    /// The rank of each peer, by the peer number that this worker has assigned.
    ranks: Vec<Option<usize>>,
    /// The pending transfers, by the word with which they are posted.
    transfers: Transfers,
}

/// A rank of the runtime.
pub struct Runtime {
    // The order of the fields is the order in which they are dropped.
    /// The transfers that have ended, except that a peer's device may still access their memory.
    leaving: RefCell<Vec<u64>>,
    /// The ranks to which this rank has sent, by rank.
    peers: Vec<OnceCell<Peer>>,
    worker: Worker,
    context: Context,
    job: Job,
    addresses: Vec<Vec<u8>>,
    state: Rc<State>,
    collectives: Cell<u64>,
}

impl Runtime {
    /// Joins the job of the environment.
    ///
    /// # Errors
    /// Returns the errors of the job, and of opening a context and a worker.
    pub fn start() -> Result<Runtime, Error> {
        let job = Job::from_env()?;
        let context = Context::open()?;
        let worker = context.worker()?;
        let state = Rc::<State>::default();
        state.listen(&worker)?;
        let addresses = job.exchange(&worker.address()?)?;
        let peers = (0..job.size()).map(|_| OnceCell::new()).collect();
        let (leaving, collectives) = Default::default();
        let runtime =
            Runtime { leaving, peers, worker, context, job, addresses, state, collectives };
        Ok(runtime)
    }

    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.job.rank()
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.job.size()
    }

    /// Returns the lane that carries messages to a rank.
    ///
    /// # Errors
    /// Returns an error if the rank cannot be reached.
    pub fn path(&self, rank: usize) -> Result<String, Error> {
        Ok(self.peer(rank)?.endpoint.path())
    }

    /// Returns the length of the longest inline message to this rank. Longer messages are rendezvous messages.
    ///
    /// # Errors
    /// Returns an error if the rank cannot be reached.
    pub fn eager(&self, rank: usize) -> Result<usize, Error> {
        self.peer(rank)?.eager_now()
    }

    /// Sends bytes, which are copied. The call waits at most until the message is accepted.
    ///
    /// # Errors
    /// Returns `Invalid` for a tag of the runtime's own messages, and an error if the peer cannot be reached or any peer has died.
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) -> Result<Sending, Error> {
        check_tag(tag)?;
        self.send_any(to, tag, bytes)
    }

    /// Allocates memory of the library to send from and to receive into, which peers of this host can map.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn alloc(&self, len: usize) -> Result<Rc<Region>, Error> {
        Ok(Rc::new(self.context.alloc(len)?))
    }

    /// Registers memory to send from and to receive into; [`Region::into_buffer`] returns the memory.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn lend(&self, bytes: Vec<u8>) -> Result<Rc<Region>, Error> {
        Ok(Rc::new(self.context.register_transient(bytes)?))
    }

    /// Sends bytes without a copy: the bytes must not change until [`Runtime::wait_sent`] has returned.
    ///
    /// # Errors
    /// Returns the errors of [`Runtime::send`], and `OutOfRange`.
    pub fn send_lent(&self, to: usize, tag: u64, lent: Part<'_>) -> Result<Sending, Error> {
        check_tag(tag)?;
        self.send_part(&self.peer(to)?.endpoint, tag, lent)
    }

    fn send_any(&self, to: usize, tag: u64, bytes: &[u8]) -> Result<Sending, Error> {
        let peer = self.peer(to)?;
        // The limit may be higher once the connection is established.
        if bytes.len() > peer.eager.get() && bytes.len() > peer.eager_now()? {
            // The library limits the memory for its own copies of long messages: a rank that sends before it receives would
            // deadlock.
            let copied = Rc::new(self.context.register_transient(bytes)?);
            return self.send_part(&peer.endpoint, tag, (&copied, 0..bytes.len()));
        }
        let sent = self.posted(|| peer.endpoint.send(MESSAGE, tag, bytes))?;
        self.sending(&sent)
    }

    fn send_part(&self, peer: &Endpoint, tag: u64, part: Part<'_>) -> Result<Sending, Error> {
        let pieces = [(&**part.0, part.1)];
        let how = match pieces[0].1.len() > peer.eager_limit()? {
            true => SendOptions::new().rendezvous(),
            false => SendOptions::new(),
        };
        let sent = self.posted(|| peer.send_regions_with(MESSAGE, tag, &pieces, &how))?;
        self.sending(&sent)
    }

    #[inline]
    fn sending(&self, sent: &Outcome) -> Result<Sending, Error> {
        if sent.is_done() {
            return Ok(Sending(None));
        }
        let number = {
            let transfers = &mut self.state.matching.borrow_mut().transfers;
            let (number, transfer) = transfers.add();
            transfer.stage = Stage::Moving;
            number
        };
        self.worker.track(sent, number as u64)?;
        Ok(Sending(Some(number)))
    }

    /// Waits until the memory of a message can be reused: for a short message, when it was sent; for a long message, when it was
    /// received.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
    pub fn wait_sent(&self, sending: Sending) -> Result<(), Error> {
        sending.0.map_or(Ok(()), |number| self.waited(number).map(drop))
    }

    /// Posts a receive from one rank or from any rank. The tag must match except for the ignored bits.
    ///
    /// # Errors
    /// Returns `Invalid` for a tag of the runtime's own messages, and an error if the sender of a long message cannot be reached.
    pub fn receive(
        &self,
        source: Option<usize>,
        tag: u64,
        ignore: u64,
    ) -> Result<Receiving, Error> {
        check_tag(tag)?;
        self.receive_any(application(source, tag, ignore), None)
    }

    /// Posts a receive into registered memory. A message that is longer than the memory is an error that ends the runtime.
    ///
    /// # Errors
    /// Returns the errors of [`Runtime::receive`].
    pub fn receive_lent(
        &self,
        source: Option<usize>,
        tag: u64,
        ignore: u64,
        into: Part<'_>,
    ) -> Result<Receiving, Error> {
        check_tag(tag)?;
        self.receive_any(application(source, tag, ignore), Some(into))
    }

    #[inline]
    fn receive_any(&self, pattern: Pattern, into: Option<Part<'_>>) -> Result<Receiving, Error> {
        let state = &self.state;
        let mut matching = state.matching.borrow_mut();
        let Matching { matcher, transfers, .. } = &mut *matching;
        let (number, transfer) = transfers.add();
        if let Some((region, range)) = into {
            transfer.memory = Memory::Room((region.clone(), range));
        }
        match matcher.post(pattern, number as u64) {
            Post::Waiting(id) => {
                transfer.stage = Stage::Posted(id);
                Ok(Receiving(number))
            }
            Post::Matched(message, _) => {
                transfer.stage = Stage::Moving;
                drop(matching);
                self.receive_kept(number, message)
            }
        }
    }

    /// Receives a message that has arrived before its receive was posted.
    #[inline(never)] // keeps the rare case out of the posts of receives
    fn receive_kept(
        &self,
        number: usize,
        message: tieline_tag::Message<Kept>,
    ) -> Result<Receiving, Error> {
        let (state, mut matching) = (&self.state, self.state.matching.borrow_mut());
        let transfers = &mut matching.transfers;
        let from = (message.source as usize, message.tag);
        match message.payload {
            Kept::Bytes(kept) => {
                state.stirred.set(true);
                transfers.got(number, from, kept.payload())?;
            }
            Kept::Announced(what) => {
                state.announced(transfers, number, from, what)?;
                drop(matching);
                let _ = self.advance()?;
            }
        }
        Ok(Receiving(number))
    }

    /// Waits for the message of a receive.
    ///
    /// # Errors
    /// Returns an error if a peer has died, or if a long message could not be received.
    pub fn wait(&self, receiving: Receiving) -> Result<Received, Error> {
        self.waited(receiving.0)
    }

    #[inline]
    fn waited(&self, number: usize) -> Result<Received, Error> {
        if let Some(ended) = self.state.matching.borrow_mut().transfers.take_ended(number) {
            return ended;
        }
        self.waited_longer(number)
    }

    #[inline(never)] // keeps the progress loop out of the waits for what has ended
    fn waited_longer(&self, number: usize) -> Result<Received, Error> {
        let mut ended = None;
        self.until(|moved| {
            if moved {
                ended = self.state.matching.borrow_mut().transfers.take_ended(number);
            }
            ended.is_some()
        })?;
        ended.unwrap_or_else(|| Err(Status::Invalid.into()))
    }

    /// Cancels a receive that has no message. If the receive has a message, returns the receive as the error.
    ///
    /// # Errors
    /// Returns the receive, for which the caller must wait.
    pub fn cancel(&self, receiving: Receiving) -> Result<(), Receiving> {
        let Matching { matcher, transfers, .. } = &mut *self.state.matching.borrow_mut();
        let Some(transfer) = transfers.get_mut(receiving.0) else { return Err(receiving) };
        let Stage::Posted(id) = &transfer.stage else { return Err(receiving) };
        let _ = matcher.cancel(*id);
        transfers.free(receiving.0);
        Ok(())
    }

    /// Makes some progress, and returns the source and tag of the message that a receive would match.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
    pub fn probe(
        &self,
        source: Option<usize>,
        tag: u64,
        ignore: u64,
    ) -> Result<Option<(usize, u64)>, Error> {
        let _ = self.worker.progress();
        let _ = self.advance()?;
        let matcher = &mut self.state.matching.borrow_mut().matcher;
        let found = matcher.peek(application(source, tag, ignore));
        Ok(found.map(|message| (message.source as usize, message.tag)))
    }

    /// Waits for all ranks, and leaves the job. The caller must have waited for all sent messages.
    ///
    /// # Errors
    /// Returns an error if a peer has died, or has not received its messages in time.
    pub fn finish(self) -> Result<(), Error> {
        self.barrier()?;
        self.worker.close(CLOSING).map_err(|undelivered| undelivered.error)
    }

    // ---- Internals ----

    /// Returns a rank with its endpoint, over which the first message has sent this rank's number.
    #[inline]
    fn peer(&self, rank: usize) -> Result<&Peer, Error> {
        self.peers[rank].get().map_or_else(|| self.first_contact(rank), Ok)
    }

    #[cold]
    fn first_contact(&self, rank: usize) -> Result<&Peer, Error> {
        let endpoint = self.worker.connect(&self.addresses[rank])?;
        let _ = self.posted(|| endpoint.send(HELLO, self.rank() as u64, b""))?;
        let eager = Cell::new(endpoint.max_message()?);
        Ok(self.peers[rank].get_or_init(|| Peer { endpoint, eager }))
    }

    /// Posts an operation; makes progress and retries while the post returns `Again`.
    #[inline]
    fn posted(
        &self,
        mut post: impl FnMut() -> Result<Outcome, PostError>,
    ) -> Result<Outcome, Error> {
        let mut posted = post();
        if matches!(posted, Err(PostError::Retry(_))) {
            self.until(|_| {
                posted = post();
                !matches!(posted, Err(PostError::Retry(_)))
            })?;
        }
        Ok(posted?)
    }

    /// Makes progress until `done` returns true; the argument of `done` states whether the runtime's state has changed.
    fn until(&self, mut done: impl FnMut(bool) -> bool) -> Result<(), Error> {
        let mut advanced = Ok(false);
        let ends = || {
            advanced = self.advance();
            advanced.as_ref().map_or(true, |moved| done(*moved))
        };
        let _ = self.worker.wait_until(ends, None)?;
        advanced.map(drop)
    }

    /// Processes completions, and posts the receives that handlers have queued. Returns whether there was a completion or a
    /// receive.
    fn advance(&self) -> Result<bool, Error> {
        let mut ended = Ok(());
        let count = self.worker.take_completed(AT_ONCE, |word, result| {
            let dealt_with = result.map_err(|error| self.state.lost(word, error.into()));
            let dealt_with = dealt_with.and_then(|_| self.ended(word));
            ended = std::mem::replace(&mut ended, Ok(())).and(dealt_with);
        });
        let stirred = &self.state.stirred;
        // The flag stays set until everything is processed: after an error the next call continues.
        if count == 0 && !stirred.replace(true) && self.leaving.borrow().is_empty() {
            stirred.set(false);
            return Ok(false);
        }
        if let Some(error) = self.state.failed.borrow().as_ref() {
            return Err(error.clone());
        }
        self.leaving.take().into_iter().try_for_each(|number| self.ended(number))?;
        ended?;
        loop {
            let next = self.state.due.borrow_mut().pop_front();
            let Some((number, what)) = next else { break };
            let taken = self.take(number, what);
            if let Some(again) = taken.map_err(|error| self.state.lost(number as u64, error))? {
                self.state.due.borrow_mut().push_front((number, again));
                return Ok(true);
            }
        }
        stirred.set(false);
        Ok(true)
    }

    /// Records that a sent message was received, or that a received message is complete.
    fn ended(&self, number: u64) -> Result<(), Error> {
        let mut transfer = self.state.transfer(number as usize)?;
        match std::mem::take(&mut transfer.memory) {
            Memory::None | Memory::Room(_) => {}
            Memory::Lent(region) => match region.into_buffer() {
                Ok(buffer) => transfer.message.bytes = buffer.into_vec(),
                // Making progress lets peers' devices drop their access.
                Err(not) if not.error.status() == Status::Busy => {
                    transfer.memory = Memory::Lent(not.region);
                    self.leaving.borrow_mut().push(number);
                    return Ok(());
                }
                Err(not) => {
                    drop(transfer);
                    return Err(self.state.lost(number, not.into()));
                }
            },
        }
        transfer.stage = Stage::Ended;
        Ok(())
    }

    /// Starts to receive a message; returns the message if the post returns `Again`.
    fn take(&self, number: usize, what: Rendezvous) -> Result<Option<Rendezvous>, Error> {
        let mut transfer = self.state.transfer(number)?;
        let len = what.len();
        transfer.message.len = len;
        if let Memory::None = transfer.memory {
            transfer.memory = Memory::Lent(self.context.register_transient(vec![0; len])?);
        }
        let taken = match &transfer.memory {
            Memory::Room((into, range)) => what.receive_into(into, part(range, len)?),
            Memory::Lent(lent) => what.receive_into(lent, 0..len),
            Memory::None => return Err(Status::Invalid.into()),
        };
        match taken {
            Ok(outcome) => self.worker.track(&outcome, number as u64).map(|()| None),
            Err(not) if matches!(not.error, PostError::Retry(_)) => Ok(Some(not.announcement)),
            Err(not) => Err(not.into()),
        }
    }
}

impl State {
    fn listen(self: &Rc<Self>, worker: &Worker) -> Result<(), Error> {
        let state = self.clone();
        worker.on_message(HELLO, move |message| {
            let ranks = &mut state.matching.borrow_mut().ranks;
            let number = message.peer().get() as usize;
            let len = ranks.len().max(number + 1);
            ranks.resize(len, None);
            ranks[number] = Some(message.header() as usize);
        })?;
        let state = self.clone();
        worker.on_message(MESSAGE, move |message| {
            if let Err(error) = state.arrived(message) {
                state.fail(error);
            }
        })?;
        let state = self.clone();
        worker.on_peer_failure(move |peer, error| {
            let rank = rank(&state.matching.borrow().ranks, peer);
            let what =
                rank.map_or("a rank has died".to_owned(), |rank| format!("rank {rank} has died"));
            state.fail(Error::new(error.status(), what, error.to_string(), "start the job again"));
        });
        Ok(())
    }

    /// Records a failure; only the first reason is kept.
    fn fail(&self, error: Error) {
        self.stirred.set(true);
        let _ = self.failed.borrow_mut().get_or_insert(error);
    }

    /// Records that a transfer has failed, and returns the error.
    fn lost(&self, number: u64, error: Error) -> Error {
        if let Some(transfer) = self.matching.borrow_mut().transfers.get_mut(number as usize) {
            transfer.stage = Stage::Failed(Box::new(error.clone()));
        }
        error
    }

    #[inline(always)] // inlined into the handler
    fn arrived(&self, message: &Message<'_>) -> Result<(), Error> {
        let Matching { matcher, ranks, transfers } = &mut *self.matching.borrow_mut();
        let (source, tag) = (rank(ranks, message.peer())?, message.header());
        if let Some(announced) = message.rendezvous() {
            let kept = matcher.arrive(source as u64, tag, announced, Kept::Announced);
            if let Arrival::Matched(receive, what) = kept {
                self.announced(transfers, receive.word as usize, (source, tag), what)?;
            }
            return Ok(());
        }
        let keep = |message: &Message<'_>| Kept::Bytes(message.keep());
        let matched = |number: &u64, message: &Message<'_>| {
            self.stirred.set(true);
            transfers.got(*number as usize, (source, tag), message.payload())
        };
        matcher.arrive_with(source as u64, tag, message, matched, keep).unwrap_or(Ok(()))
    }

    /// Queues the receive of a rendezvous message. `from` is a rank and a tag.
    fn announced(
        &self,
        transfers: &mut Transfers,
        number: usize,
        from: (usize, u64),
        what: Rendezvous,
    ) -> Result<(), Error> {
        let transfer = transfers.get_mut(number).ok_or(Status::Invalid)?;
        (transfer.message.source, transfer.message.tag) = from;
        transfer.stage = Stage::Moving;
        self.stirred.set(true);
        self.due.borrow_mut().push_back((number, what));
        Ok(())
    }

    fn transfer(&self, number: usize) -> Result<RefMut<'_, Transfer>, Error> {
        let matching = self.matching.borrow_mut();
        let found = RefMut::filter_map(matching, |all| all.transfers.get_mut(number));
        found.map_err(|_| Status::Invalid.into())
    }
}

fn check_tag(tag: u64) -> Result<(), Error> {
    let (why, fix) = ("the upper bit is the runtime's own", "use a tag below 2^63");
    let error = || Error::new(Status::Invalid, format!("a tag of {tag:#x}"), why, fix);
    (tag & OWN == 0).then_some(()).ok_or_else(error)
}

fn application(source: Option<usize>, tag: u64, ignore: u64) -> Pattern {
    Pattern { source: source.map(|source| source as u64), tag, ignore: ignore & !OWN }
}
