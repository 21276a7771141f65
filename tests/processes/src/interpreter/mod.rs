//! The role `node`: executes the orders of the test one after another, and reports the result and the time of each.
//!
//! Between two orders the node makes progress, and sleeps when there is nothing to do; after `passive` it makes no calls at all.
//! Answers are `ok NANOSECONDS TEXT` and `error NANOSECONDS STATUS SCOPE TEXT`.

mod facts;
mod following;
mod forks;
mod leaving;
mod long;
mod memory;
mod messages;
mod remote;
mod spoiling;
mod streams;

use crate::fork::Aside;
use crate::mapped::{Mapped, Started};
use crate::node::SPACE;
use crate::parent::Parent;
use crate::spoiled::Spoiled;
use crate::sys;
pub use facts::{resident_kib, status_kib};
use following::Following;
pub use leaving::{EXITS, KEPT};
use long::{LONG, Long};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
pub use streams::MIXED_REGION;
use tieline::job::Job;
use tieline::{
    Context, Endpoint, Error, KeptMessage, Outcome, PeerId, PostError, Region, RemoteKey,
    RemotePointer, Status, Worker, WorkerName,
};

/// The id of messages that are counted; a header other than 0 numbers the messages of a sender, from 1.
pub const COUNTED: u16 = 1;
/// The id of messages that are answered with [`PONG`], the same header and the same payload.
pub const PING: u16 = 2;
/// The id of answers.
pub const PONG: u16 = 3;
/// The id of the messages of a stream without loss, duplicates, changes or reordering: see `streams.rs`.
pub const EXACT: u16 = 5;

/// Returns the byte at an offset of a filled region.
#[must_use]
pub fn pattern(at: usize, seed: u64) -> u8 {
    ((at as u64 * 7 + (at as u64 >> 8) * 13 + seed) % 251) as u8
}

#[derive(Default)]
struct Seen {
    counted: Cell<u64>,
    next: RefCell<HashMap<PeerId, u64>>,
    pongs: Cell<u64>,
    wrong: RefCell<Vec<String>>,
    failures: RefCell<Vec<String>>,
    /// The number of peers that have left in an orderly manner.
    left: Cell<u64>,
    /// The endpoints that have failed.
    ended: RefCell<Vec<String>>,
    kept: RefCell<Vec<KeptMessage>>,
    chatting: RefCell<Option<Endpoint>>,
    /// The notification words of peers' puts.
    words: RefCell<Vec<u32>>,
    exact: Cell<u64>,
    next_exact: RefCell<HashMap<PeerId, u64>>,
    /// The value of the counter of the last `mixed`, derived from the results of atomics.
    confirmed: Cell<u64>,
    /// The number of atomics whose execution is unknown.
    unknown: Cell<u64>,
    /// Whether the application carries datagrams, so that it may not sleep in a call of the library.
    carries: Cell<bool>,
}

impl Seen {
    fn wrong(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }
}

struct Node {
    regions: HashMap<String, Region>,
    /// The pages of some regions.
    pages: HashMap<String, Spoiled>,
    keys: HashMap<String, RemoteKey>,
    pointers: HashMap<String, RemotePointer>,
    endpoints: HashMap<String, Endpoint>,
    seen: Rc<Seen>,
    worker: Option<Rc<Worker>>,
    context: Option<Context>,
    job: Option<Job>,
    passive: bool,
    /// A forked child that waits.
    aside: Option<Aside>,
    /// A program that this process has started.
    started: Option<Started>,
    /// The registered memory of the application.
    mapped: HashMap<String, Mapped>,
    parent: Parent,
    /// The number of the last exact message, for each receiver.
    numbers: RefCell<HashMap<String, u64>>,
    long: Long,
    following: Following,
}

/// Runs the role `node`.
pub fn node(parent: Parent) {
    let mut node = Node {
        regions: HashMap::new(),
        pages: HashMap::new(),
        keys: HashMap::new(),
        pointers: HashMap::new(),
        endpoints: HashMap::new(),
        seen: Rc::default(),
        worker: None,
        context: None,
        job: None,
        passive: false,
        aside: None,
        started: None,
        mapped: HashMap::new(),
        parent,
        numbers: RefCell::default(),
        long: Long::default(),
        following: Following::default(),
    };
    loop {
        let order = match (&node.worker, node.passive) {
            (Some(worker), false) => node.parent.serve(worker),
            _ => node.parent.hear(),
        };
        let Some(order) = order else { break };
        let words: Vec<&str> = order.split(' ').collect();
        let answer = node.obey(&words);
        let now = sys::now_ns();
        match answer {
            Ok(text) => node.parent.say(&format!("ok {now} {text}")),
            Err(e) => node.parent.say(&format!("error {now} {:?} {:?} {e}", e.status(), e.scope())),
        }
    }
    // The application's objects are dropped before the worker, and the worker before its context.
    *node.seen.chatting.borrow_mut() = None;
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

/// Converts bytes to hexadecimal text.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Converts hexadecimal text to bytes.
///
/// # Panics
/// Panics if the text is not hexadecimal.
#[must_use]
pub fn unhex(text: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("two digits");
        u8::from_str_radix(pair, 16).expect("two digits")
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

fn find<'a, T>(map: &'a HashMap<String, T>, name: &str) -> &'a T {
    map.get(name).unwrap_or_else(|| panic!("there is no {name}"))
}

impl Node {
    fn worker(&self) -> &Rc<Worker> {
        self.worker.as_ref().expect("`open` comes first")
    }

    fn context(&self) -> &Context {
        self.context.as_ref().expect("`open` comes first")
    }

    fn endpoint(&self, name: &str) -> &Endpoint {
        find(&self.endpoints, name)
    }

    /// Waits for an operation, in the form that suits whether the application carries datagrams.
    fn finish(&self, outcome: Result<Outcome, PostError>) -> Result<String, Error> {
        let worker = self.worker();
        let value = match outcome? {
            Outcome::Pending(request) if self.seen.carries.get() => loop {
                if let Some(ended) = worker.test(&request) {
                    break ended?;
                }
                self.parent.pause(worker);
            },
            outcome => worker.finish(outcome)?,
        };
        Ok(value.to_string())
    }

    /// Sleeps until an event.
    fn pause(&self) -> Result<(), Error> {
        if self.seen.carries.get() {
            self.parent.pause(self.worker());
            return Ok(());
        }
        self.worker().wait(None).map(|_| ())
    }

    fn obey(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            ["open", settings @ ..] => self.open(settings, None),
            // `open-carrying` opens a worker whose datagrams the application carries, under this name.
            ["open-carrying", name, settings @ ..] => self.open(settings, Some(name)),
            ["fresh-worker"] => {
                self.keys.clear();
                self.endpoints.clear();
                *self.seen.chatting.borrow_mut() = None;
                self.worker = None;
                // The next worker assigns new numbers to its peers, and its peers assign a new number to it.
                self.numbers.borrow_mut().clear();
                self.seen.next.borrow_mut().clear();
                self.seen.next_exact.borrow_mut().clear();
                self.seen.counted.set(0);
                self.seen.exact.set(0);
                self.open_worker(None)
            }
            ["close"] => {
                // The objects are dropped in the order of a program that declares them in the usual order.
                self.keys.clear();
                self.endpoints.clear();
                *self.seen.chatting.borrow_mut() = None;
                self.worker = None;
                self.regions.clear();
                self.context = None;
                Ok(String::new())
            }
            // `close-worker` closes the worker, and returns the state of the objects that remain.
            ["close-worker", name, key, local] => {
                self.passive = true;
                let context = self.context.take();
                let worker = self.worker.take();
                let held = self.worker_statuses(worker, name, key, local);
                drop(context);
                Ok(held)
            }
            ["address"] => self.worker().address().map(|a| hex(&a)),
            ["connect", name, address] => {
                let endpoint = self.worker().connect(&unhex(address))?;
                let _ = self.endpoints.insert((*name).to_string(), endpoint);
                Ok(String::new())
            }
            ["name"] => self.worker().name().map(|name| hex(name.as_bytes())),
            ["connect-by-name", name, bytes] => {
                let peer = WorkerName::from_bytes(&unhex(bytes))?;
                let endpoint = self.worker().endpoint_by_name(&peer)?;
                let _ = self.endpoints.insert((*name).to_string(), endpoint);
                Ok(String::new())
            }
            ["disconnect", name] => {
                self.keys.retain(|key, _| !key.starts_with(&format!("{name}.")));
                let _ = self.endpoints.remove(*name);
                Ok(String::new())
            }
            ["alloc", ..]
            | ["map", ..]
            | ["register", ..]
            | ["free", _]
            | ["churn", _]
            | ["close", _]
            | ["shared", _]
            | ["put-and-unmap", ..]
            | ["key", _]
            | ["handle", _]
            | ["swap-local", ..]
            | ["fill", ..]
            | ["check", ..]
            | ["word", ..]
            | ["rally-own", ..]
            | ["watch", ..] => self.memory(words),
            ["import", ..]
            | ["import-handle", ..]
            | ["path", _]
            | ["reaches-passive", _]
            | ["put", ..]
            | ["get", ..]
            | ["repeat", ..]
            | ["time-gets", ..]
            | ["held", ..]
            | ["put-bytes", ..]
            | ["atomic", ..]
            | ["swap", ..]
            | ["point", ..]
            | ["load", ..]
            | ["store", ..]
            | ["rally", ..]
            | ["forget-key", _]
            | ["forget-pointer", _] => self.remote(words),
            ["send", ..]
            | ["stream", ..]
            | ["ping", _]
            | ["flush", ..]
            | ["chat", _]
            | ["gather", ..]
            | ["post-all", ..] => self.messages(words),
            ["long", ..]
            | ["long-end"]
            | ["long-cancel"]
            | ["long-came"]
            | ["long-take", ..]
            | ["long-refuse"] => self.long(words),
            ["ask-delivery", ..]
            | ["delivery-end"]
            | ["acknowledgement"]
            | ["acknowledge"]
            | ["notify-behind-long", ..]
            | ["notify", ..]
            | ["notify-end"]
            | ["notices"]
            | ["new-calls", _] => self.following(words),
            ["place", ..] | ["spoil", ..] | ["long-of", ..] | ["put-notify", ..] | ["words"] => {
                self.spoiling(words)
            }
            ["exact", ..] | ["mixed", ..] | ["many", ..] | ["reach", ..] => self.streams(words),
            ["all-to-all", rank, count, addresses @ ..] => {
                self.all_to_all(number(rank), number(count) as u64, addresses)
            }
            // `join` joins the job of the environment. Returns the rank and the number of ranks, in the job and on this host.
            ["join"] => {
                let job = Job::from_env()?;
                let places = [job.rank(), job.size(), job.local_rank(), job.local_size()]
                    .map(|n| n.to_string());
                self.job = Some(job);
                Ok(places.join(" "))
            }
            // `meet` exchanges addresses through the job, then sends messages to all ranks.
            ["meet", count] => {
                let job = self.job.as_ref().expect("`join` comes first");
                let (rank, mine) = (job.rank(), self.worker().address()?);
                let everybody: Vec<String> = job.exchange(&mine)?.iter().map(|a| hex(a)).collect();
                let addresses: Vec<&str> = everybody.iter().map(String::as_str).collect();
                let _ = self.all_to_all(rank, number(count) as u64, &addresses)?;
                // Other processes may still need this process's progress.
                let (job, worker) = (self.job.as_ref(), self.worker());
                let nap = Some(Duration::from_millis(1));
                let met = job.map(|job| job.barrier_while(|| worker.wait(nap).map(drop)));
                met.unwrap_or(Ok(())).map(|()| String::new())
            }
            ["rounds", name, count, how] => self.rounds(name, number(count) as u64, how),
            ["leave", _] | ["farewells", _] | ["rest", _] | ["sleeps", _] | ["alone"] => {
                self.leaving(words)
            }
            ["fork", ..]
            | ["fork-aside", ..]
            | ["fork-aside-same", _]
            | ["fork-joined"]
            | ["fork-anew", ..]
            | ["start", _]
            | ["start-ended"]
            | ["become-another"] => self.forks(words),
            ["passive"] => {
                self.passive = true;
                Ok(String::new())
            }
            // `compute` makes one progress call, and then none until `active`.
            ["compute"] => {
                let _ = self.worker().progress();
                self.passive = true;
                Ok(String::new())
            }
            ["active"] => {
                self.passive = false;
                Ok(String::new())
            }
            // `stop` ends a stream that runs until the next order.
            ["stop"] => Ok(String::new()),
            _ => self.facts(words),
        }
    }

    fn open(&mut self, settings: &[&str], carrying: Option<&str>) -> Result<String, Error> {
        let mut builder = Context::builder();
        for setting in settings.iter().filter(|s| !s.is_empty()) {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            builder = builder.set(name, &value.replace(SPACE, " "));
        }
        if carrying.is_some() {
            builder = builder.out_of_band(true);
        }
        self.context = Some(builder.open()?);
        self.open_worker(carrying)
    }

    fn open_worker(&mut self, carrying: Option<&str>) -> Result<String, Error> {
        let worker = Rc::new(self.context().worker()?);
        if let Some(name) = carrying {
            worker.set_out_of_band(name.as_bytes(), |to, datagram| {
                let to = String::from_utf8_lossy(to);
                Parent::default().say(&format!("datagram {to} {}", hex(datagram)));
                true
            })?;
            self.seen.carries.set(true);
        }
        let seen = self.seen.clone();
        worker.on_message(COUNTED, move |m| {
            if m.payload().iter().any(|&b| b != m.header() as u8) {
                seen.wrong(format!("message {} has other bytes", m.header()));
            }
            if m.header() != 0 {
                let mut next = seen.next.borrow_mut();
                let expected = next.entry(m.peer()).or_insert(1);
                if *expected != m.header() {
                    seen.wrong(format!("{} came, not {expected}", m.header()));
                }
                *expected = m.header() + 1;
            }
            seen.counted.set(seen.counted.get() + 1);
        })?;
        let seen = self.seen.clone();
        worker.on_notification(move |_, word| seen.words.borrow_mut().push(word))?;
        let (seen, weak) = (self.seen.clone(), Rc::downgrade(&worker));
        worker.on_message(PING, move |m| {
            let Some(worker) = weak.upgrade() else { return };
            let answer = || -> Result<_, Error> {
                Ok(worker.endpoint_to(m.peer())?.send(PONG, m.header(), m.payload())?)
            };
            match answer() {
                Ok(_) => {}
                Err(e) if e.status() == Status::PeerFailed => {}
                Err(e) => seen.wrong(format!("an answer: {e:?}")),
            }
        })?;
        let seen = self.seen.clone();
        worker.on_message(PONG, move |m| {
            let last = seen.pongs.get();
            if m.header() != last + 1 {
                seen.wrong(format!("answer {} came after {last}", m.header()));
            }
            seen.pongs.set(m.header());
            let Some(partner) = seen.chatting.borrow().clone() else { return };
            if let Err(e) = partner.send(PING, m.header() + 1, m.payload()) {
                seen.wrong(format!("the next question: {e:?}"));
            }
        })?;
        let seen = self.seen.clone();
        worker.on_message(EXACT, move |m| streams::arrived(&seen, m))?;
        let came = self.long.came.clone();
        worker.on_message(LONG, move |m| came.borrow_mut().extend(m.rendezvous()))?;
        self.following.listen(&worker)?;
        let seen = self.seen.clone();
        worker.on_peer_failure(move |_, error| {
            let text = format!("{} {:?}", sys::now_ns(), error.status());
            seen.failures.borrow_mut().push(text);
        });
        self.worker = Some(worker);
        self.watch_peers()?;
        Ok(String::new())
    }
}
