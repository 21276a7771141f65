//! The role `node`: does one thing after another as the test says, and reports how each ended and when.
//!
//! Between two orders it makes progress and sleeps when there is nothing to do; after `passive` it calls
//! nothing at all. Answers are `ok NANOSECONDS TEXT` and `error NANOSECONDS STATUS KIND TEXT`.

use crate::parent::Parent;
use crate::sys;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tieline::{
    Access, AtomicOp, Context, Endpoint, Error, Outcome, PeerId, Region, RemoteKey, Status, Width,
    Worker,
};

/// Messages that are counted; a header other than 0 numbers them, for each sender from 1.
pub const COUNTED: u16 = 1;
/// Messages that are answered with [`PONG`], the same header and the same payload.
pub const PING: u16 = 2;
/// Answers.
pub const PONG: u16 = 3;

/// The byte at a place of a filled region.
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
    chatting: RefCell<Option<Endpoint>>,
}

impl Seen {
    fn wrong(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }
}

struct Node {
    regions: HashMap<String, Region>,
    keys: HashMap<String, RemoteKey>,
    endpoints: HashMap<String, Endpoint>,
    seen: Rc<Seen>,
    worker: Option<Rc<Worker>>,
    context: Option<Context>,
    passive: bool,
}

/// The role.
pub fn node(mut parent: Parent) {
    let mut node = Node {
        regions: HashMap::new(),
        keys: HashMap::new(),
        endpoints: HashMap::new(),
        seen: Rc::default(),
        worker: None,
        context: None,
        passive: false,
    };
    loop {
        let order = match (&node.worker, node.passive) {
            (Some(worker), false) => parent.serve(worker),
            _ => parent.hear(),
        };
        let Some(order) = order else { break };
        let words: Vec<&str> = order.split(' ').collect();
        let answer = node.obey(&parent, &words);
        let now = sys::now_ns();
        match answer {
            Ok(text) => parent.say(&format!("ok {now} {text}")),
            Err(e) => parent.say(&format!("error {now} {:?} {:?} {e}", e.status(), e.kind())),
        }
    }
    // Everything of the application's before the worker, the worker before its context.
    *node.seen.chatting.borrow_mut() = None;
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

/// Bytes as text.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Text as bytes.
///
/// # Panics
/// When it is none.
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

    fn finish(&self, outcome: Result<Outcome, Error>) -> Result<String, Error> {
        Ok(self.worker().finish(outcome?)?.to_string())
    }

    fn obey(&mut self, parent: &Parent, words: &[&str]) -> Result<String, Error> {
        match words {
            ["open", settings @ ..] => self.open(settings),
            ["close"] => {
                // In the order of a program that declares them in the usual one.
                self.keys.clear();
                self.endpoints.clear();
                *self.seen.chatting.borrow_mut() = None;
                self.worker = None;
                self.regions.clear();
                self.context = None;
                Ok(String::new())
            }
            // What is left in the hands of the application when its worker is gone.
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
            ["disconnect", name] => {
                self.keys.retain(|key, _| !key.starts_with(&format!("{name}.")));
                let _ = self.endpoints.remove(*name);
                Ok(String::new())
            }
            ["alloc", ..]
            | ["register", ..]
            | ["free", _]
            | ["key", _]
            | ["swap-local", ..]
            | ["fill", ..]
            | ["check", ..]
            | ["word", ..]
            | ["watch", ..] => self.memory(parent, words),
            ["import", ..]
            | ["path", _]
            | ["reaches-passive", _]
            | ["put", ..]
            | ["get", ..]
            | ["repeat", ..]
            | ["put-bytes", ..]
            | ["atomic", ..]
            | ["swap", ..] => self.remote(parent, words),
            ["send", ..]
            | ["stream", ..]
            | ["ping", _]
            | ["flush", ..]
            | ["chat", _]
            | ["gather", ..]
            | ["post-all", ..] => self.messages(parent, words),
            ["all-to-all", rank, count, addresses @ ..] => {
                self.all_to_all(number(rank), number(count) as u64, addresses)
            }
            ["rounds", name, count, how] => self.rounds(name, number(count) as u64, how),
            ["fork", name, key, local] => Ok(self.fork(parent, name, key, local)),
            ["passive"] => {
                self.passive = true;
                Ok(String::new())
            }
            ["active"] => {
                self.passive = false;
                Ok(String::new())
            }
            _ => self.facts(words),
        }
    }

    fn open(&mut self, settings: &[&str]) -> Result<String, Error> {
        let mut builder = Context::builder();
        for setting in settings.iter().filter(|s| !s.is_empty()) {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            builder = builder.set(name, value);
        }
        let context = builder.open()?;
        let worker = Rc::new(context.worker()?);
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
        let (seen, weak) = (self.seen.clone(), Rc::downgrade(&worker));
        worker.on_message(PING, move |m| {
            let Some(worker) = weak.upgrade() else { return };
            let sent = worker
                .endpoint_to(m.peer())
                .and_then(|back| back.send(PONG, m.header(), m.payload()));
            match sent {
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
        worker.on_peer_failure(move |_, error| {
            let text = format!("{} {:?}", sys::now_ns(), error.status());
            seen.failures.borrow_mut().push(text);
        });
        self.worker = Some(worker);
        self.context = Some(context);
        Ok(String::new())
    }

    fn memory(&mut self, parent: &Parent, words: &[&str]) -> Result<String, Error> {
        match words {
            ["alloc", name, len] => {
                let region = self.context().alloc(number(len))?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["alloc", name, len, "read"] => {
                let region = self.context().alloc_with(number(len), Access::READ)?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["register", name, len] => {
                let region = self.context().register(vec![0u8; number(len)])?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["register", name, len, "read"] => {
                let buffer = vec![0u8; number(len)];
                let region = self.context().register_with(buffer, Access::READ)?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["free", name] => drop(self.regions.remove(*name)),
            ["swap-local", name, value] => {
                let word = find(&self.regions, name).atomic_u64(0)?;
                word.store(number(value) as u64, Ordering::SeqCst);
            }
            ["key", name] => return find(&self.regions, name).remote_key().map(|k| hex(&k)),
            ["fill", name, seed] => {
                let region = find(&self.regions, name);
                let seed = number(seed) as u64;
                for start in (0..region.len()).step_by(1 << 20) {
                    let end = region.len().min(start + (1 << 20));
                    let bytes: Vec<u8> = (start..end).map(|at| pattern(at, seed)).collect();
                    region.write(start, &bytes)?;
                }
            }
            // Whether `len` bytes from `at` on are those of a fill from `from` on.
            ["check", name, at, len, seed, from] => {
                let region = find(&self.regions, name);
                let (at, len, from) = (number(at), number(len), number(from));
                let seed = number(seed) as u64;
                for start in (0..len).step_by(1 << 20) {
                    let end = len.min(start + (1 << 20));
                    let bytes = region.to_vec(at + start..at + end)?;
                    let wrong = (start..end).find(|&i| bytes[i - start] != pattern(from + i, seed));
                    if let Some(i) = wrong {
                        return Ok(format!("byte {i} differs"));
                    }
                }
                return Ok("same".into());
            }
            ["word", name, at] => {
                let word = find(&self.regions, name).atomic_u64(number(at))?;
                return Ok(word.load(Ordering::SeqCst).to_string());
            }
            // Looks at a word until somebody changes it, with or without progress.
            ["watch", name, at, how] => {
                let word = find(&self.regions, name).atomic_u64(number(at))?;
                let before = word.load(Ordering::SeqCst);
                parent.say("watching");
                while word.load(Ordering::SeqCst) == before {
                    if *how == "progress" {
                        let _ = self.worker().progress();
                    } else {
                        std::thread::yield_now();
                    }
                }
            }
            _ => panic!("{words:?} is no order"),
        }
        Ok(String::new())
    }

    fn remote(&mut self, parent: &Parent, words: &[&str]) -> Result<String, Error> {
        match words {
            ["import", name, key, bytes] => {
                let key_name = format!("{name}.{key}");
                let key = self.endpoint(name).import_key(&unhex(bytes))?;
                while key.is_settling() && self.endpoint(name).error().is_none() {
                    let _ = self.worker().wait(None)?;
                }
                let path = key.path();
                let _ = self.keys.insert(key_name, key);
                Ok(path)
            }
            ["path", key] => Ok(find(&self.keys, key).path()),
            ["reaches-passive", key] => {
                Ok(find(&self.keys, key).reaches_passive_target().to_string())
            }
            ["put" | "get", key, local, at, len, offset] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (endpoint, local) = (self.endpoint(name), find(&self.regions, local));
                let key = find(&self.keys, key);
                let (at, len) = (number(at), number(len));
                let offset = offset.parse().expect("an offset");
                parent.say("begins");
                let outcome = if words[0] == "put" {
                    endpoint.put(local, at..at + len, key, offset)
                } else {
                    endpoint.get(local, at..at + len, key, offset)
                };
                self.finish(outcome)
            }
            ["put-bytes", key, len, byte, offset] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let bytes = vec![number(byte) as u8; number(len)];
                let offset = offset.parse().expect("an offset");
                let outcome = self.endpoint(name).put_bytes(&bytes, find(&self.keys, key), offset);
                self.finish(outcome)
            }
            ["atomic", key, offset, operand] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let offset = offset.parse().expect("an offset");
                let operand = operand.parse().expect("an operand");
                let outcome = self.endpoint(name).fetch_add(find(&self.keys, key), offset, operand);
                self.finish(outcome)
            }
            ["swap", key, offset, operand] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (offset, operand) = (number(offset) as u64, number(operand) as u64);
                let outcome = self.endpoint(name).fetch(
                    AtomicOp::Swap,
                    Width::Bits32,
                    find(&self.keys, key),
                    offset,
                    operand,
                );
                self.finish(outcome)
            }
            // The same operation again and again, with what is asked for checked, until it fails.
            ["repeat", what, key] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (endpoint, key) = (self.endpoint(name), find(&self.keys, key));
                let local = find(&self.regions, "here");
                for turn in 0usize.. {
                    let len = [8, 100, 4096, 60_000][turn % 4];
                    let outcome = match *what {
                        "put" => endpoint.put(local, 0..len, key, 0),
                        "get" => endpoint.get(local, 0..len, key, 0),
                        _ => endpoint.fetch_add(key, 8, 1),
                    };
                    let ended = match outcome {
                        Ok(outcome) => self.worker().finish(outcome),
                        Err(e) => Err(e),
                    };
                    match ended {
                        Ok(_) => {}
                        Err(e) if e.status() == Status::Again => {}
                        Err(e) => return Err(e),
                    }
                    let _ = self.worker().progress();
                }
                Ok(String::new())
            }
            _ => panic!("{words:?} is no order"),
        }
    }

    fn messages(&mut self, parent: &Parent, words: &[&str]) -> Result<String, Error> {
        match words {
            // One message, posted once and waited for.
            ["send", name, id, header, len] => {
                let (id, header) = (number(id) as u16, number(header) as u64);
                let payload = vec![header as u8; number(len)];
                let outcome = self.endpoint(name).send(id, header, &payload);
                self.finish(outcome)
            }
            ["gather", name, region, pieces] => {
                let region = find(&self.regions, region);
                let count = number(pieces);
                let pieces: Vec<_> = (0..count).map(|i| (region, i..i + 1)).collect();
                let outcome = self.endpoint(name).send_regions(9, 0, &pieces);
                self.finish(outcome)
            }
            // Numbered messages, as fast as they go, until there were enough or one failed for good.
            ["stream", name, count, len] => {
                let endpoint = self.endpoint(name).clone();
                let count = number(count) as u64;
                let mut pending = std::collections::VecDeque::new();
                let mut header = 1;
                while header <= count {
                    let payload = vec![header as u8; number(len)];
                    match endpoint.send(COUNTED, header, &payload) {
                        Ok(Outcome::Done(_)) => {}
                        Ok(outcome) => pending.push_back(outcome),
                        Err(e) if e.status() == Status::Again => {
                            let _ = self.worker().wait(None)?;
                            continue;
                        }
                        Err(e) => {
                            // What is outstanding has ended, too, each with the same reason.
                            for outcome in pending {
                                let ended = self.worker().finish(outcome);
                                assert!(
                                    ended.as_ref().is_err_and(|o| o.status() == e.status())
                                        || ended.is_ok(),
                                    "{ended:?}, while the endpoint failed with {e:?}"
                                );
                            }
                            return Err(e);
                        }
                    }
                    if header == 200 {
                        parent.say("streaming");
                    }
                    header += 1;
                    while pending.len() > 64 {
                        let Some(outcome) = pending.pop_front() else { break };
                        let _ = self.worker().finish(outcome)?;
                    }
                }
                for outcome in pending {
                    let _ = self.worker().finish(outcome)?;
                }
                Ok(String::new())
            }
            ["ping", name] => {
                let outcome = self.endpoint(name).flush_messages();
                self.finish(outcome)
            }
            ["flush", name] => {
                let outcome = self.endpoint(name).flush();
                self.finish(outcome)
            }
            ["flush"] => self.worker().flush().map(|()| String::new()),
            // Everything that can be posted, each once: what the status of each is.
            ["post-all", name, key, local] => Ok(self.post_all(name, key, local)),
            // Question and answer without end, driven by the handlers.
            ["chat", name] => {
                let endpoint = self.endpoint(name).clone();
                *self.seen.chatting.borrow_mut() = Some(endpoint.clone());
                let _ = endpoint.send(PING, 1, b"over there")?;
                Ok(String::new())
            }
            _ => panic!("{words:?} is no order"),
        }
    }

    fn post_all(&self, name: &str, key: &str, local: &str) -> String {
        let endpoint = self.endpoint(name);
        let (key, local) = (find(&self.keys, key), find(&self.regions, local));
        let posted = [
            ("send", endpoint.send(COUNTED, 0, b"")),
            ("packed", endpoint.send_packed(COUNTED, 0, 100, |b| b.len())),
            ("gathered", endpoint.send_regions(COUNTED, 0, &[(local, 0..1)])),
            ("put", endpoint.put(local, 0..8, key, 0)),
            ("put_bytes", endpoint.put_bytes(b"12345678", key, 0)),
            ("get", endpoint.get(local, 0..8, key, 0)),
            ("atomic", endpoint.atomic(AtomicOp::Add, Width::Bits64, key, 0, 1)),
            ("fetch_add", endpoint.fetch_add(key, 0, 1)),
            ("compare_swap", endpoint.compare_swap(Width::Bits64, key, 0, 0, 1)),
            ("flush", endpoint.flush()),
            ("flush_messages", endpoint.flush_messages()),
            ("fence", endpoint.fence().map(|()| Outcome::Done(0))),
        ];
        let status = |outcome: Result<Outcome, Error>| match outcome {
            Ok(Outcome::Done(_)) => "Done".to_string(),
            Ok(Outcome::Pending(_)) => "Pending".to_string(),
            Err(e) => format!("{:?}", e.status()),
        };
        let list: Vec<String> =
            posted.into_iter().map(|(what, o)| format!("{what}={}", status(o))).collect();
        list.join(",")
    }

    /// Numbered messages to everybody but oneself, and as many from everybody.
    fn all_to_all(&mut self, rank: usize, count: u64, addresses: &[&str]) -> Result<String, Error> {
        let worker = self.worker().clone();
        let mut everybody = Vec::new();
        for address in addresses {
            everybody.push(worker.connect(&unhex(address))?);
        }
        for header in 1..=count {
            for turn in 1..everybody.len() {
                let to = &everybody[(rank + turn) % everybody.len()];
                let payload = [header as u8; 8];
                loop {
                    match to.send(COUNTED, header, &payload) {
                        Ok(_) => break,
                        Err(e) if e.status() == Status::Again => {
                            let _ = worker.wait(None)?;
                        }
                        Err(e) => return Err(e),
                    }
                }
                let _ = worker.progress();
            }
        }
        worker.flush()?;
        let expected = count * (everybody.len() as u64 - 1);
        while self.seen.counted.get() < expected {
            let _ = worker.wait(None)?;
        }
        for (index, endpoint) in everybody.into_iter().enumerate() {
            let _ = self.endpoints.insert(format!("n{index}"), endpoint);
        }
        Ok(String::new())
    }

    /// Question and answer, one after the other, waiting in the way named.
    fn rounds(&self, name: &str, count: u64, how: &str) -> Result<String, Error> {
        let (endpoint, worker) = (self.endpoint(name), self.worker());
        self.seen.pongs.set(0);
        let epoll = sys::Epoll::over(worker.fd());
        for header in 1..=count {
            if how == "finish" {
                let _ = worker.finish(endpoint.flush_messages()?)?;
                continue;
            }
            let _ = worker.finish(endpoint.send(PING, header, b"question")?)?;
            while self.seen.pongs.get() < header {
                if how == "wait" {
                    let _ = worker.wait(None)?;
                } else if worker.progress() == 0 && worker.arm()? {
                    epoll.wait();
                }
            }
        }
        Ok(String::new())
    }

    fn worker_statuses(
        &self,
        worker: Option<Rc<Worker>>,
        name: &str,
        key: &str,
        local: &str,
    ) -> String {
        drop(worker);
        self.post_all(name, key, local)
    }

    /// What a forked child gets for every operation; it then drops everything and ends.
    fn fork(&mut self, parent: &Parent, name: &str, key: &str, local: &str) -> String {
        let code = sys::in_forked_child(|| {
            let statuses = self.post_all(name, key, local);
            let connected = self.worker().address().and_then(|a| self.worker().connect(&a));
            let status = connected.map_or_else(|e| format!("{:?}", e.status()), |_| "Done".into());
            let events = self.worker().progress();
            parent.say(&format!("forked {statuses},connect={status},progress={events}"));
            self.keys.clear();
            self.endpoints.clear();
            *self.seen.chatting.borrow_mut() = None;
            self.worker = None;
            self.regions.clear();
            self.context = None;
            0
        });
        format!("{code:?}")
    }

    fn facts(&mut self, words: &[&str]) -> Result<String, Error> {
        Ok(match words {
            ["counted"] => self.seen.counted.get().to_string(),
            ["pongs"] => self.seen.pongs.get().to_string(),
            ["wrong"] => self.seen.wrong.borrow().join("; "),
            ["failures"] => self.seen.failures.borrow().join(";"),
            // Progress until so many peers were reported as failed.
            ["failures", count] => {
                while self.seen.failures.borrow().len() < number(count) {
                    let _ = self.worker().wait(None)?;
                }
                self.seen.failures.borrow().join(";")
            }
            ["error", name] => match self.endpoint(name).error() {
                Some(error) => format!("{:?} {error}", error.status()),
                None => "alive".into(),
            },
            // Progress until the endpoint has failed.
            ["await-error", name] => loop {
                if let Some(error) = self.endpoint(name).error() {
                    break format!("{:?} {error}", error.status());
                }
                let _ = self.worker().wait(None)?;
            },
            ["report", name] => {
                let records = self.endpoint(name).report();
                let line = |r: &tieline::explain::Record| format!("{}: {}", r.subject(), r.verdict);
                records.iter().map(line).collect::<Vec<_>>().join(" | ")
            }
            ["counters"] => format!("{:?}", self.worker().counters()),
            ["pending"] => self.worker().pending().to_string(),
            ["memory"] => {
                let list = self.worker().memory();
                let line = |m: &tieline::MemoryUse| {
                    format!(
                        "{} {} {} {} {}",
                        m.path, m.base_bytes, m.peers, m.peer_bytes, m.buffer_bytes
                    )
                };
                list.iter().map(line).collect::<Vec<_>>().join(";")
            }
            ["max-message", name] => self.endpoint(name).max_message()?.to_string(),
            ["descriptors"] => {
                std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count).to_string()
            }
            ["resident"] => resident_kib().to_string(),
            ["mapped"] => status_kib("VmSize").to_string(),
            ["limit", which, value] => {
                let which = match *which {
                    "descriptors" => sys::Limit::Descriptors,
                    _ => sys::Limit::AddressSpace,
                };
                sys::limit(which, number(value) as u64).to_string()
            }
            ["become", user] => sys::become_user(number(user) as u32).to_string(),
            ["pin", processor] => sys::pin(number(processor)).to_string(),
            _ => panic!("{words:?} is no order"),
        })
    }
}

/// A line of this process's status, in KiB.
#[must_use]
pub fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

/// Memory of this process that is not file contents: its own, and shared memory files that it maps.
#[must_use]
pub fn resident_kib() -> u64 {
    status_kib("RssAnon") + status_kib("RssShmem")
}
