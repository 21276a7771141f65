//! A message-passing runtime on Tieline's public interface: messages with tags, collectives, windows of memory.
//!
//! It is a test of that interface, and an example of how much code a runtime takes on it. Nothing but the public calls of `tieline`
//! and of `tieline-tag` is used, and nothing unsafe. A [`Runtime`] belongs to one thread; all of its calls that wait make progress.
//!
//! * A message has its tag in the header. One of at most [`Runtime::eager`] bytes is sent at once; a longer one the library announces,
//!   from memory that is lent for as long, and once a receive matches it is taken into a buffer of that receive's.
//! * Who sends first says his rank: messages name their sender by a number that the receiver's worker gave it.
//! * Handlers only match. What has to be posted then is done between progress calls, where posting may be tried again.

mod collectives;
mod window;

pub use window::Window;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tieline::{
    Announcement, Context, Endpoint, Error, Job, KeptMessage, Message, Outcome, PeerId, PostError,
    Region, Status, Worker,
};
use tieline_tag::{Arrival, Matcher, Pattern, Post, ReceiveId};

/// The header is the sender's rank.
const HELLO: u16 = 1;
/// The header is the tag, the payload the message.
const MESSAGE: u16 = 2;

/// Tags of the runtime's own messages have this bit; the application's have not.
const OWN: u64 = 1 << 63;
/// Completions that are taken at once.
const AT_ONCE: usize = 64;
/// What others may take to fetch what they were told.
const CLOSING: Duration = Duration::from_secs(60);

/// A message that was received.
#[derive(Debug, PartialEq, Eq)]
pub struct Received {
    /// The rank that sent it.
    pub source: usize,
    /// Its tag.
    pub tag: u64,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// A receive that was posted. It is waited for or cancelled.
#[derive(Debug)]
#[must_use = "a message is lost that nobody waits for"]
pub struct Receiving {
    word: u64,
    /// None where it had a message at once.
    id: Option<ReceiveId>,
}

/// A message that was sent. Its bytes may be changed already.
#[derive(Debug)]
#[must_use = "whether it was fetched says only a wait"]
pub struct Sending(Option<u64>);

/// What is kept of a message for which no receive was posted.
enum Kept {
    Bytes(KeptMessage),
    Announced(Announcement),
}

/// A message that is to be taken for a receive, or is being taken.
struct Taking<T> {
    word: u64,
    source: usize,
    tag: u64,
    what: T,
}

/// What handlers share with the calls.
#[derive(Default)]
struct State {
    matcher: RefCell<Matcher<Kept>>,
    /// Who is who. A number means nothing outside of this worker.
    ranks: RefCell<HashMap<PeerId, usize>>,
    /// Messages that receives have got, by the receive's word.
    received: RefCell<HashMap<u64, Received>>,
    /// What is to be taken, in this order.
    due: RefCell<VecDeque<Taking<Announcement>>>,
    failed: RefCell<Option<Error>>,
}

/// One rank.
pub struct Runtime {
    // In the order in which they end.
    /// Where messages are being taken to, by the receive's word.
    taking: RefCell<HashMap<u64, Taking<Region>>>,
    /// What was sent and is still needed here.
    sending: RefCell<HashSet<u64>>,
    peers: RefCell<Vec<Option<Endpoint>>>,
    worker: Worker,
    context: Context,
    job: Job,
    addresses: Vec<Vec<u8>>,
    state: Rc<State>,
    /// Words of receives and of messages that were sent.
    count: Cell<u64>,
    collectives: Cell<u64>,
}

impl Runtime {
    /// Joins the job that the environment names.
    ///
    /// # Errors
    /// Of the job, and of opening a context and a worker.
    pub fn start() -> Result<Runtime, Error> {
        let job = Job::from_env()?;
        let context = Context::open()?;
        let worker = context.worker()?;
        let state = Rc::<State>::default();
        state.listen(&worker)?;
        let addresses = job.exchange(&worker.address()?)?;
        let peers = RefCell::new(vec![None; job.size()]);
        let (taking, sending, count, collectives) = Default::default();
        let runtime = Runtime {
            taking,
            sending,
            peers,
            worker,
            context,
            job,
            addresses,
            state,
            count,
            collectives,
        };
        Ok(runtime)
    }

    /// Number of this process.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.job.rank()
    }

    /// Number of processes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.job.size()
    }

    /// What carries messages to a rank.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn path(&self, rank: usize) -> Result<String, Error> {
        Ok(self.peer(rank)?.path())
    }

    /// Messages to this rank that are longer are announced.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn eager(&self, rank: usize) -> Result<usize, Error> {
        Ok(self.peer(rank)?.max_message()?)
    }

    /// Sends bytes; waits for room to do so at most.
    ///
    /// # Errors
    /// `Invalid` for a tag of the runtime's own; when the peer cannot be reached, or any has died.
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) -> Result<Sending, Error> {
        check_tag(tag)?;
        self.send_any(to, tag, bytes)
    }

    fn send_any(&self, to: usize, tag: u64, bytes: &[u8]) -> Result<Sending, Error> {
        let peer = self.peer(to)?;
        // Of what the library copies for long messages it bounds how much: who sends before it receives would wait for itself.
        let sent = if bytes.len() <= peer.max_message()? {
            self.posted(|| peer.send(MESSAGE, tag, bytes))?
        } else {
            let lent = self.context.lend(bytes)?;
            self.posted(|| peer.send_regions(MESSAGE, tag, &[(&lent, 0..lent.len())]))?
        };
        if sent.is_done() {
            return Ok(Sending(None));
        }
        let word = self.next();
        self.worker.track(&sent, word)?;
        let _ = self.sending.borrow_mut().insert(word);
        Ok(Sending(Some(word)))
    }

    /// Waits until what was sent is no more needed here: a short message when it was sent, a long one when it was received.
    ///
    /// # Errors
    /// When a peer has died.
    pub fn wait_sent(&self, sending: Sending) -> Result<(), Error> {
        let Some(word) = sending.0 else { return Ok(()) };
        self.until(|| !self.sending.borrow().contains(&word))
    }

    /// Posts a receive: from a rank or any, of a tag but for the bits that are ignored.
    ///
    /// # Errors
    /// `Invalid` for a tag of the runtime's own; when the sender of a long message cannot be reached.
    pub fn receive(
        &self,
        source: Option<usize>,
        tag: u64,
        ignore: u64,
    ) -> Result<Receiving, Error> {
        check_tag(tag)?;
        self.receive_any(application(source, tag, ignore))
    }

    fn receive_any(&self, pattern: Pattern) -> Result<Receiving, Error> {
        let word = self.next();
        let post = self.state.matcher.borrow_mut().post(pattern, word);
        let message = match post {
            Post::Waiting(id) => return Ok(Receiving { word, id: Some(id) }),
            Post::Matched(message) => message,
        };
        let (source, tag) = (message.source as usize, message.tag);
        match message.payload {
            Kept::Bytes(kept) => self.state.got(word, source, tag, kept.payload().to_vec()),
            Kept::Announced(what) => {
                self.state.due.borrow_mut().push_back(Taking { word, source, tag, what });
                self.advance()?;
            }
        }
        Ok(Receiving { word, id: None })
    }

    /// Waits for the message of a receive.
    ///
    /// # Errors
    /// When a peer has died, or a long message could not be fetched.
    pub fn wait(&self, receiving: Receiving) -> Result<Received, Error> {
        let mut received = None;
        self.until(|| {
            received = self.state.received.borrow_mut().remove(&receiving.word);
            received.is_some()
        })?;
        received.ok_or_else(|| Status::Invalid.into())
    }

    /// Ends a receive that has no message; gives it back if it has.
    ///
    /// # Errors
    /// The receive, which is to be waited for.
    pub fn cancel(&self, receiving: Receiving) -> Result<(), Receiving> {
        let mut matcher = self.state.matcher.borrow_mut();
        let ended = receiving.id.and_then(|id| matcher.cancel(id));
        ended.map(|_| ()).ok_or(receiving)
    }

    /// The source and tag of the message that a receive would take now, after some progress.
    ///
    /// # Errors
    /// When a peer has died.
    pub fn probe(
        &self,
        source: Option<usize>,
        tag: u64,
        ignore: u64,
    ) -> Result<Option<(usize, u64)>, Error> {
        let _ = self.worker.progress();
        self.advance()?;
        let mut matcher = self.state.matcher.borrow_mut();
        let found = matcher.peek(application(source, tag, ignore));
        Ok(found.map(|message| (message.source as usize, message.tag)))
    }

    /// Waits for all ranks, and leaves.
    ///
    /// # Errors
    /// When a peer has died, or has not taken in time what it was sent.
    pub fn finish(self) -> Result<(), Error> {
        self.until(|| {
            let taken = self.taking.borrow().is_empty() && self.state.due.borrow().is_empty();
            taken && self.sending.borrow().is_empty()
        })?;
        self.barrier()?;
        self.worker.close(CLOSING).map_err(|undelivered| undelivered.error)
    }

    // ---- inside ----

    fn next(&self) -> u64 {
        self.count.set(self.count.get() + 1);
        self.count.get()
    }

    /// The endpoint to a rank, over which it knows who we are.
    fn peer(&self, rank: usize) -> Result<Endpoint, Error> {
        if let Some(peer) = &self.peers.borrow()[rank] {
            return Ok(peer.clone());
        }
        let peer = self.worker.connect(&self.addresses[rank])?;
        self.peers.borrow_mut()[rank] = Some(peer.clone());
        let _ = self.posted(|| peer.send(HELLO, self.rank() as u64, b""))?;
        Ok(peer)
    }

    /// Posts something, with room made where there is none.
    fn posted(
        &self,
        mut post: impl FnMut() -> Result<Outcome, PostError>,
    ) -> Result<Outcome, Error> {
        let mut posted = post();
        if matches!(posted, Err(PostError::Retry(_))) {
            self.until(|| {
                posted = post();
                !matches!(posted, Err(PostError::Retry(_)))
            })?;
        }
        Ok(posted?)
    }

    /// Makes progress until something is so.
    fn until(&self, mut done: impl FnMut() -> bool) -> Result<(), Error> {
        let mut advanced = Ok(());
        let ends = || {
            advanced = self.advance();
            advanced.is_err() || done()
        };
        let _ = self.worker.wait_until(ends, None)?;
        advanced
    }

    /// Deals with what has ended, and posts what handlers have left.
    fn advance(&self) -> Result<(), Error> {
        if let Some(error) = self.state.failed.borrow().as_ref() {
            return Err(error.clone());
        }
        let mut ended = Ok(());
        let _ = self.worker.take_completed(AT_ONCE, |word, result| {
            let dealt_with = result.map_err(Error::from).and_then(|_| self.ended(word));
            ended = std::mem::replace(&mut ended, Ok(())).and(dealt_with);
        });
        ended?;
        loop {
            let next = self.state.due.borrow_mut().pop_front();
            let Some(due) = next else { return Ok(()) };
            if let Some(again) = self.take(due)? {
                self.state.due.borrow_mut().push_front(again);
                return Ok(());
            }
        }
    }

    /// What was sent was taken, or what is taken is here.
    fn ended(&self, word: u64) -> Result<(), Error> {
        if self.sending.borrow_mut().remove(&word) {
            return Ok(());
        }
        let taken = self.taking.borrow_mut().remove(&word);
        let Taking { word, source, tag, what } = taken.ok_or(Status::Invalid)?;
        self.state.got(word, source, tag, what.into_buffer()?.into_vec());
        Ok(())
    }

    /// Takes a message; gives it back where there is no room for that.
    fn take(&self, due: Taking<Announcement>) -> Result<Option<Taking<Announcement>>, Error> {
        let Taking { word, source, tag, what } = due;
        let memory = self.context.lend(vec![0; what.len()])?;
        match what.take_into(&memory, 0..memory.len()) {
            Ok(outcome) => {
                self.worker.track(&outcome, word)?;
                let taking = Taking { word, source, tag, what: memory };
                let _ = self.taking.borrow_mut().insert(word, taking);
                Ok(None)
            }
            Err(not) if matches!(not.error, PostError::Retry(_)) => {
                Ok(Some(Taking { word, source, tag, what: not.announcement }))
            }
            Err(not) => Err(not.into()),
        }
    }
}

impl State {
    fn listen(self: &Rc<Self>, worker: &Worker) -> Result<(), Error> {
        let handle = |id, handler: fn(&State, &Message<'_>) -> Result<(), Error>| {
            let state = self.clone();
            worker.on_message(id, move |message| {
                if let Err(error) = handler(&state, message) {
                    state.fail(error);
                }
            })
        };
        handle(HELLO, |state, message| {
            let _ = state.ranks.borrow_mut().insert(message.peer(), message.header() as usize);
            Ok(())
        })?;
        handle(MESSAGE, State::arrived)?;
        let state = self.clone();
        worker.on_peer_failure(move |peer, error| {
            let rank = state.ranks.borrow().get(&peer).copied();
            let what =
                rank.map_or("a rank has died".to_owned(), |rank| format!("rank {rank} has died"));
            state.fail(Error::new(error.status(), what, error.to_string(), "start the job again"));
        });
        Ok(())
    }

    /// The first reason counts.
    fn fail(&self, error: Error) {
        let _ = self.failed.borrow_mut().get_or_insert(error);
    }

    fn rank(&self, peer: PeerId) -> Result<usize, Error> {
        self.ranks.borrow().get(&peer).copied().ok_or_else(|| Status::BadData.into())
    }

    fn arrived(&self, message: &Message<'_>) -> Result<(), Error> {
        let (source, tag) = (self.rank(message.peer())?, message.header());
        if let Some(announced) = message.announcement() {
            let kept =
                self.matcher.borrow_mut().arrive(source as u64, tag, announced, Kept::Announced);
            if let Arrival::Matched(receive, what) = kept {
                let word = receive.word;
                self.due.borrow_mut().push_back(Taking { word, source, tag, what });
            }
            return Ok(());
        }
        let keep = |message: &Message<'_>| Kept::Bytes(message.keep());
        let arrival = self.matcher.borrow_mut().arrive(source as u64, tag, message, keep);
        if let Arrival::Matched(receive, message) = arrival {
            self.got(receive.word, source, tag, message.payload().to_vec());
        }
        Ok(())
    }

    fn got(&self, word: u64, source: usize, tag: u64, bytes: Vec<u8>) {
        let _ = self.received.borrow_mut().insert(word, Received { source, tag, bytes });
    }
}

fn check_tag(tag: u64) -> Result<(), Error> {
    match tag & OWN {
        0 => Ok(()),
        _ => Err(Error::new(
            Status::Invalid,
            format!("a message with tag {tag:#x}"),
            "the upper bit is the runtime's own",
            "use a tag below 2^63",
        )),
    }
}

/// A pattern of the application's, which never has to do with the runtime's own messages.
fn application(source: Option<usize>, tag: u64, ignore: u64) -> Pattern {
    Pattern { source: source.map(|source| source as u64), tag, ignore: ignore & !OWN }
}
