//! A message-passing runtime on Tieline's public interface: messages with tags, collectives, windows of memory.
//!
//! It is a test of that interface, and an example of how much code a runtime takes on it. Nothing but the public calls of `tieline`
//! and of `tieline-tag` is used, and nothing unsafe. A [`Runtime`] belongs to one thread; all of its calls that wait make progress.
//!
//! * A message of at most [`Runtime::eager`] bytes is sent at once, its tag in the header. A longer one is announced, with the key of a
//!   region that holds its bytes; the receiver, once a receive matches, gets them and says so.
//! * Who sends first says his rank: messages name their sender by a number that the receiver's worker gave it.
//! * Handlers only match. What has to be posted then is done between progress calls, where posting may be tried again.

mod collectives;
mod window;

pub use window::Window;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tieline::{
    Context, Endpoint, Error, Job, KeptMessage, Message, Outcome, PeerId, PostError, Region,
    RemoteKey, Request, Status, Worker,
};
use tieline_tag::{Arrival, Matcher, Pattern, Post, ReceiveId};

/// The header is the sender's rank.
const HELLO: u16 = 1;
/// The header is the tag, the payload the message.
const EAGER: u16 = 2;
/// The header is the tag, the payload [`Announced`].
const ANNOUNCED: u16 = 3;
/// The header is the number of an announcement: its bytes have been fetched.
const FETCHED: u16 = 4;

/// Tags of the runtime's own messages have this bit; the application's have not.
const OWN: u64 = 1 << 63;
/// Longer messages are announced, also where the transport would carry them.
const EAGER_LIMIT: usize = 8192;
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

/// A message whose bytes are still with their sender.
struct Announced {
    source: usize,
    tag: u64,
    number: u64,
    len: usize,
    key: Vec<u8>,
}

/// What is kept of a message for which no receive was posted.
enum Kept {
    Bytes(KeptMessage),
    Announced(Announced),
}

/// What is to be posted, in this order.
enum Due {
    Fetch(u64, Announced),
    Fetched(usize, u64),
}

/// A get that is under way.
struct Fetch {
    word: u64,
    from: Announced,
    request: Request,
    region: Region,
    _key: RemoteKey,
}

/// What handlers share with the calls.
#[derive(Default)]
struct State {
    matcher: RefCell<Matcher<Kept>>,
    /// Who is who. A number means nothing outside of this worker.
    ranks: RefCell<HashMap<PeerId, usize>>,
    /// Messages that receives have got, by the receive's word.
    received: RefCell<HashMap<u64, Received>>,
    due: RefCell<VecDeque<Due>>,
    /// What was announced and not yet fetched.
    announced: RefCell<HashMap<u64, Region>>,
    failed: RefCell<Option<Error>>,
}

/// One rank.
pub struct Runtime {
    // In the order in which they end.
    fetches: RefCell<Vec<Fetch>>,
    peers: RefCell<Vec<Option<Endpoint>>>,
    worker: Worker,
    context: Context,
    job: Job,
    addresses: Vec<Vec<u8>>,
    state: Rc<State>,
    /// Words of receives and numbers of announcements.
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
        let (fetches, count, collectives) = Default::default();
        Ok(Runtime { fetches, peers, worker, context, job, addresses, state, count, collectives })
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
        Ok(self.peer(rank)?.max_message()?.min(EAGER_LIMIT))
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
        if bytes.len() <= self.eager(to)? {
            let _ = self.posted(|| peer.send(EAGER, tag, bytes))?;
            return Ok(Sending(None));
        }
        let region = self.context.register(bytes)?;
        let number = self.next();
        let key = region.remote_key()?;
        let mut announcement = Vec::from(number.to_le_bytes());
        announcement.extend((bytes.len() as u64).to_le_bytes());
        announcement.extend(key);
        let _ = self.state.announced.borrow_mut().insert(number, region);
        let _ = self.posted(|| peer.send(ANNOUNCED, tag, &announcement))?;
        Ok(Sending(Some(number)))
    }

    /// Waits until what was sent is no more needed here: a short message when it was sent, a long one when it was received.
    ///
    /// # Errors
    /// When a peer has died.
    pub fn wait_sent(&self, sending: Sending) -> Result<(), Error> {
        let Some(number) = sending.0 else { return Ok(()) };
        self.until(|| !self.state.announced.borrow().contains_key(&number))
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
            Kept::Announced(from) => {
                self.state.due.borrow_mut().push_back(Due::Fetch(word, from));
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
            let fetches = self.fetches.borrow().is_empty() && self.state.due.borrow().is_empty();
            fetches && self.state.announced.borrow().is_empty()
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

    /// Posts what handlers have left, and looks which gets have ended.
    fn advance(&self) -> Result<(), Error> {
        if let Some(error) = self.state.failed.borrow().as_ref() {
            return Err(error.clone());
        }
        let mut fetches = self.fetches.borrow_mut();
        let mut at = 0;
        while at < fetches.len() {
            match self.worker.test(&fetches[at].request) {
                None => at += 1,
                Some(ended) => {
                    let _ = ended?;
                    let Fetch { word, from, region, .. } = fetches.swap_remove(at);
                    self.fetched(word, &from, &region)?;
                }
            }
        }
        drop(fetches);
        loop {
            let next = self.state.due.borrow_mut().pop_front();
            let Some(due) = next else { return Ok(()) };
            if let Some(again) = self.attempt(due)? {
                self.state.due.borrow_mut().push_front(again);
                return Ok(());
            }
        }
    }

    /// Posts what is due; gives back what finds no room.
    fn attempt(&self, due: Due) -> Result<Option<Due>, Error> {
        match due {
            Due::Fetched(to, number) => match self.peer(to)?.send(FETCHED, number, b"") {
                Err(PostError::Retry(_)) => return Ok(Some(due)),
                sent => _ = sent?,
            },
            Due::Fetch(word, from) => {
                let peer = self.peer(from.source)?;
                let key = peer.import_key(&from.key)?;
                let region = self.context.register(vec![0; from.len])?;
                match peer.get(&region, 0..from.len, &key, 0) {
                    Err(PostError::Retry(_)) => return Ok(Some(Due::Fetch(word, from))),
                    outcome => match outcome? {
                        Outcome::Done(_) => self.fetched(word, &from, &region)?,
                        Outcome::Pending(request) => {
                            let fetch = Fetch { word, from, request, region, _key: key };
                            self.fetches.borrow_mut().push(fetch);
                        }
                    },
                }
            }
        }
        Ok(None)
    }

    fn fetched(&self, word: u64, from: &Announced, region: &Region) -> Result<(), Error> {
        self.state.got(word, from.source, from.tag, region.to_vec(0..from.len)?);
        self.state.due.borrow_mut().push_back(Due::Fetched(from.source, from.number));
        Ok(())
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
        handle(EAGER, State::arrived)?;
        handle(ANNOUNCED, State::was_announced)?;
        handle(FETCHED, |state, message| {
            let region = state.announced.borrow_mut().remove(&message.header());
            region.map(drop).ok_or_else(|| Status::BadData.into())
        })?;
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
        let keep = |message: &Message<'_>| Kept::Bytes(message.keep());
        let arrival = self.matcher.borrow_mut().arrive(source as u64, tag, message, keep);
        if let Arrival::Matched(receive, message) = arrival {
            self.got(receive.word, source, tag, message.payload().to_vec());
        }
        Ok(())
    }

    fn was_announced(&self, message: &Message<'_>) -> Result<(), Error> {
        let (source, tag) = (self.rank(message.peer())?, message.header());
        let bad = || Error::from(Status::BadData);
        let (number, rest) = message.payload().split_first_chunk().ok_or_else(bad)?;
        let (len, key) = rest.split_first_chunk().ok_or_else(bad)?;
        let (number, len) = (u64::from_le_bytes(*number), u64::from_le_bytes(*len) as usize);
        let from = Announced { source, tag, number, len, key: key.to_vec() };
        let arrival = self.matcher.borrow_mut().arrive(source as u64, tag, from, Kept::Announced);
        if let Arrival::Matched(receive, from) = arrival {
            self.due.borrow_mut().push_back(Due::Fetch(receive.word, from));
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
