//! The role `family`: a process that forks and exchanges messages with all its children, which also exchange messages with each
//! other.
//!
//! The role accepts one order: `WAY PATH NAME=VALUE...`. WAY selects the moment of the forks. PATH (the beginning, with `_` for
//! spaces) is the expected path of every key, and the remaining words are settings of each context. The answer is `well`, or the
//! error.

use crate::fork::{Child, End};
use crate::interpreter::{hex, pattern, unhex};
use crate::parent::Parent;
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tieline::{Context, Endpoint, Outcome, PostError, Region, RemoteKey, Status, Worker};

const CHILDREN: usize = 8;
/// The length of each put, in bytes.
const LEN: usize = 3000;
const PATIENCE: Duration = Duration::from_secs(30);
const DATA: u16 = 1;
const DONE: u16 = 2;
const OWN: u16 = 3;

type Done<T = ()> = Result<T, String>;

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs the role `family`.
pub fn family(parent: Parent) {
    while let Some(order) = parent.hear() {
        let words: Vec<&str> = order.split(' ').collect();
        let [way, path, settings @ ..] = &words[..] else { panic!("{order:?} is no order") };
        let path = path.replace('_', " ");
        let answer = head(way, &Plan { path: &path, settings });
        parent.say(&answer.map_or_else(|why| why, |()| "well".into()));
    }
}

struct Plan<'a> {
    path: &'a str,
    settings: &'a [&'a str],
}

impl Plan<'_> {
    fn open(&self) -> Done<Context> {
        let mut builder = Context::builder();
        for setting in self.settings {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            builder = builder.set(name, value);
        }
        builder.open().map_err(said)
    }
}

fn head(way: &str, plan: &Plan<'_>) -> Done {
    let child = |mine: usize, inherited: Option<Member>| {
        Child::fork(End::AtOnce, |line| match live(plan, mine, inherited, line) {
            Ok(()) => 0,
            Err(why) => {
                let _ = say(line, &format!("wrong {}", why.replace('\n', " ")));
                1
            }
        })
    };
    // The child's closure uses these objects, and the parent keeps them.
    let from_main = |member: &Member| -> Vec<Child> {
        (1..=CHILDREN).map(|mine| child(mine, Some(member.clone()))).collect()
    };
    let member;
    let children;
    match way {
        "before" => {
            children = (1..=CHILDREN).map(|mine| child(mine, None)).collect();
            member = Member::open(plan, 0)?;
        }
        "after" => {
            member = Member::open(plan, 0)?;
            member.goes_on(plan, 50)?;
            // Operations are in flight while the process forks.
            let begun: Vec<_> = (0..20).filter_map(|_| member.say_to_itself().ok()).collect();
            children = from_main(&member);
            begun.into_iter().try_for_each(|outcome| member.finished(outcome).map(drop))?;
        }
        "thread" => {
            member = Member::open(plan, 0)?;
            children = std::thread::scope(|scope| {
                let all = || (1..=CHILDREN).map(|mine| child(mine, None)).collect::<Vec<_>>();
                let forks = scope.spawn(all);
                while !forks.is_finished() {
                    member.goes_on(plan, 5)?;
                }
                Ok::<_, String>(forks.join().expect("it forks"))
            })?;
        }
        "posting" => {
            member = Member::open(plan, 0)?;
            children = beside_threads_that_post(plan, || from_main(&member))?;
        }
        // The children of this process are refused immediately, and take another route.
        "refused" => {
            member = Member::open(plan, 0)?;
            return refused(plan, &member);
        }
        _ => panic!("{way:?} is no way"),
    }
    lead(plan, &member, &children)?;
    for (mine, child) in (1..).zip(children) {
        let code = child.join();
        if code != Some(0) {
            return Err(format!("child {mine} ended with {code:?}"));
        }
    }
    member.goes_on(plan, 50)?;
    member.worker.close(PATIENCE).map_err(said)
}

/// Tests a child that cannot open the providers of its parent, and opens other providers.
fn refused(plan: &Plan<'_>, member: &Member) -> Done {
    member.goes_on(plan, 50)?;
    let child = Child::fork(End::InOrder, |line| {
        let why = plan.open().and_then(|context| context.worker().map_err(said)).err();
        let _ = say(line, &why.unwrap_or_else(|| "it opens".into()).replace('\n', " "));
        let shm = Plan { path: "emulated over shm/ring", settings: &["TIELINE_PROVIDERS=shm"] };
        let other = Member::open(&shm, 1).and_then(|member| member.goes_on(&shm, 50));
        u8::from(other.is_err())
    });
    let why = Line::new(&child.line).wait(member)?;
    if child.join() != Some(0) {
        return Err(format!("the child has no other way; {why}"));
    }
    member.goes_on(plan, 50)?;
    member.worker.close(PATIENCE).map_err(said)?;
    Err(why)
}

/// Forks while one thread posts, and another one opens and closes contexts, so that locks may be held at the fork.
fn beside_threads_that_post(
    plan: &Plan<'_>,
    forks: impl FnOnce() -> Vec<Child>,
) -> Done<Vec<Child>> {
    let (stop, began) = (AtomicBool::new(false), std::sync::Barrier::new(3));
    let opens = || {
        let mut contexts = 0;
        while !stop.load(Ordering::Relaxed) || contexts == 0 {
            let member = Member::open(plan, 0)?;
            if contexts == 0 {
                let _ = began.wait();
            }
            member.goes_on(plan, 1)?;
            member.worker.close(PATIENCE).map_err(said)?;
            contexts += 1;
        }
        Ok(())
    };
    let posts = || {
        let member = Member::open(plan, 0)?;
        let _ = began.wait();
        while !stop.load(Ordering::Relaxed) {
            member.goes_on(plan, 10)?;
        }
        member.worker.close(PATIENCE).map_err(said)
    };
    std::thread::scope(|scope| {
        let beside: [_; 2] = [scope.spawn(opens), scope.spawn(posts)];
        let _ = began.wait();
        let children = forks();
        stop.store(true, Ordering::Relaxed);
        for thread in beside {
            let ended: Done = thread.join().map_err(|_| "a thread panicked".to_string())?;
            ended?;
        }
        Ok(children)
    })
}

/// Runs two rounds in which all processes exchange messages. Between them two more children drop their parent's handles, and end.
fn lead(plan: &Plan<'_>, member: &Member, children: &[Child]) -> Done {
    let mut lines: Vec<Line<'_>> = children.iter().map(|child| Line::new(&child.line)).collect();
    let mut cards = vec![member.card()?];
    for line in &mut lines {
        cards.push(line.wait(member)?);
    }
    let cards = cards.join(" ");
    for round in 0..2 {
        for line in &lines {
            say(line.socket, &cards)?;
        }
        if let Err(why) = member.talk(plan, &cards, 0, round) {
            // The error text of a child is closer to the cause than that of the parent.
            let theirs: Vec<String> =
                lines.iter_mut().filter_map(|line| line.next()?.err()).collect();
            return Err(format!("{why}; {}", theirs.join("; ")));
        }
        for line in &mut lines {
            let _ = line.wait(member)?;
        }
        if round == 0 {
            for end in [End::AtOnce, End::InOrder] {
                let mut inherited = Some(member.clone());
                let code = Child::fork(end, |_| {
                    inherited = None;
                    0
                })
                .join();
                if code != Some(0) {
                    return Err(format!("a child that dropped everything ended with {code:?}"));
                }
            }
            member.goes_on(plan, 20)?;
        }
    }
    // A process may leave only when no other process needs its progress.
    for line in &lines {
        say(line.socket, "end")?;
    }
    // A close requires progress only of this process.
    lines.iter_mut().try_for_each(|line| line.wait(member).map(drop))
}

fn live(plan: &Plan<'_>, mine: usize, inherited: Option<Member>, line: &UnixStream) -> Done {
    let mut inherited = inherited;
    if let Some(parents) = &inherited {
        let refused = parents.say_to_itself().err().map(|refused| refused.status());
        if refused != Some(Status::Invalid) || parents.worker.progress() > 0 {
            return Err("what belongs to the parent is of use to the child".into());
        }
    }
    if mine % 2 == 0 {
        inherited = None;
    }
    let member = Member::open(plan, mine)?;
    let mut line = Line::new(line);
    say(line.socket, &member.card()?)?;
    for round in 0.. {
        let order = line.wait(&member)?;
        if order == "end" {
            break;
        }
        member.talk(plan, &order, mine, round)?;
        say(line.socket, "talked")?;
    }
    member.worker.close(PATIENCE).map_err(said)?;
    drop(inherited);
    say(line.socket, "closed")
}

fn say(mut line: &UnixStream, words: &str) -> Done {
    line.write_all(format!("{words}\n").as_bytes()).map_err(said)
}

/// One end of a connection to another process. Each message is a line of text.
struct Line<'a> {
    socket: &'a UnixStream,
    read: Vec<u8>,
}

impl Line<'_> {
    fn new(socket: &UnixStream) -> Line<'_> {
        Line { socket, read: Vec::new() }
    }

    fn next(&mut self) -> Option<Done<String>> {
        let mut some = [0; 4096];
        self.socket.set_nonblocking(true).expect("a flag");
        let came = self.socket.read(&mut some);
        self.socket.set_nonblocking(false).expect("a flag");
        match came {
            Ok(0) => return Some(Err("the other end of the line is gone".into())),
            Ok(count) => self.read.extend(&some[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Some(Err(error.to_string())),
        }
        let end = self.read.iter().position(|byte| *byte == b'\n')?;
        let words: Vec<u8> = self.read.drain(..=end).collect();
        let words = String::from_utf8_lossy(&words[..end]).into_owned();
        Some(if words.starts_with("wrong") { Err(words) } else { Ok(words) })
    }

    /// Waits for the next line; this process makes progress while it waits.
    fn wait(&mut self, member: &Member) -> Done<String> {
        let came = member.worker.wait_for(|| self.next(), Some(PATIENCE)).map_err(said)?;
        came.ok_or_else(|| "nothing was said in time".to_string())?
    }
}

#[derive(Default)]
struct Came {
    data: Cell<usize>,
    done: Cell<usize>,
    own: Cell<usize>,
    wrong: RefCell<Vec<String>>,
}

#[derive(Clone)]
struct Member {
    came: Rc<Came>,
    own: Endpoint,
    own_key: Rc<RemoteKey>,
    /// The memory to which other processes put, and the memory that this process uses for its puts and gets.
    there: Rc<Region>,
    here: Rc<Region>,
    worker: Rc<Worker>,
    _context: Rc<Context>,
}

impl Member {
    fn open(plan: &Plan<'_>, mine: usize) -> Done<Member> {
        let context = plan.open()?;
        let worker = context.worker().map_err(said)?;
        let came = Rc::new(Came::default());
        let note = came.clone();
        let data = move |message: &tieline::Message<'_>| {
            let seed = message.header();
            let right = |(at, byte): (usize, &u8)| *byte == pattern(at, seed);
            if message.payload().len() != LEN || !message.payload().iter().enumerate().all(right) {
                note.wrong.borrow_mut().push(format!("a message of {seed} is another one"));
            }
            note.data.set(note.data.get() + 1);
        };
        worker.on_message(DATA, data).map_err(said)?;
        let note = came.clone();
        worker.on_message(DONE, move |_| note.done.set(note.done.get() + 1)).map_err(said)?;
        let note = came.clone();
        worker.on_message(OWN, move |_| note.own.set(note.own.get() + 1)).map_err(said)?;
        let note = came.clone();
        worker.on_endpoint_failure(move |_, why| {
            note.wrong.borrow_mut().push(format!("an endpoint of {mine} failed: {why}"));
        });
        let memory = |len: usize| context.register(vec![0; len]).map(Rc::new).map_err(said);
        // The last slot belongs to this process.
        let (there, here) = (memory((CHILDREN + 2) * LEN)?, memory(2 * LEN)?);
        let own = worker.connect(&worker.address().map_err(said)?).map_err(said)?;
        let own_key = own.import_key(&there.remote_key().map_err(said)?).map_err(said)?;
        let (worker, own_key) = (Rc::new(worker), Rc::new(own_key));
        Ok(Member { came, own, own_key, there, here, worker, _context: Rc::new(context) })
    }

    fn card(&self) -> Done<String> {
        let (address, key) = (self.worker.address().map_err(said)?, self.there.remote_key());
        Ok(format!("{}:{}", hex(&address), hex(&key.map_err(said)?)))
    }

    /// Posts until the post is accepted, and waits for the completion.
    fn does(&self, post: impl Fn() -> Result<Outcome, PostError>) -> Done {
        let until = Instant::now() + PATIENCE;
        loop {
            match post() {
                Ok(outcome) => return self.finished(outcome).map(drop),
                Err(error) if error.status() == Status::Again && Instant::now() < until => {
                    let _ = self.worker.wait(Some(Duration::from_millis(10))).map_err(said)?;
                }
                Err(error) => return Err(said(error)),
            }
        }
    }

    fn finished(&self, outcome: Outcome) -> Done<u64> {
        self.worker.finish(outcome).map_err(said)
    }

    fn say_to_itself(&self) -> Result<Outcome, PostError> {
        self.own.send(OWN, 0, b"to myself")
    }

    fn goes_on(&self, plan: &Plan<'_>, count: usize) -> Done {
        let at = (CHILDREN + 1) * LEN;
        for number in 0..count {
            let came = self.came.own.get();
            self.does(|| self.say_to_itself())?;
            self.comes(|| self.came.own.get() > came, "its own message")?;
            let bytes = [number as u8; 100];
            self.here.write(0, &bytes).map_err(said)?;
            self.does(|| self.own.put(&self.here, 0..100, &self.own_key, at as u64))?;
            if self.there.to_vec(at..at + 100).map_err(said)? != bytes {
                return Err("its own put has not arrived".into());
            }
        }
        if !self.own_key.path().starts_with(plan.path) {
            return Err(format!("it reaches itself by {}", self.own_key.path()));
        }
        self.nothing_wrong()
    }

    fn comes(&self, condition: impl FnMut() -> bool, what: &str) -> Done {
        match self.worker.wait_until(condition, Some(PATIENCE)).map_err(said)? {
            true => Ok(()),
            false => Err(format!("{what} has not come in time")),
        }
    }

    fn nothing_wrong(&self) -> Done {
        let wrong = self.came.wrong.borrow();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Sends, puts and gets between this process and each other process, and checks the results.
    fn talk(&self, plan: &Plan<'_>, cards: &str, mine: usize, round: usize) -> Done {
        let seed = |of: usize| (of + 20 * round) as u64;
        let bytes = |of: usize| (0..LEN).map(|at| pattern(at, seed(of))).collect::<Vec<u8>>();
        let others = cards.split(' ').enumerate().filter(|(other, _)| *other != mine);
        for (other, card) in others.clone() {
            let words = |why: String| format!("process {mine} to {other}: {why}");
            self.reaches(plan, card, mine, seed(mine), &bytes(mine)).map_err(words)?;
        }
        let all = (round + 1) * CHILDREN;
        let came = || self.came.data.get() == all && self.came.done.get() == all;
        self.comes(came, "what the others say")?;
        for (other, _) in others {
            let put = self.there.to_vec(other * LEN..(other + 1) * LEN).map_err(said)?;
            if put != bytes(other) {
                return Err(format!("{other} has put something else to {mine}"));
            }
        }
        self.nothing_wrong()
    }

    fn reaches(&self, plan: &Plan<'_>, card: &str, mine: usize, seed: u64, bytes: &[u8]) -> Done {
        let (address, key) = card.split_once(':').ok_or("no card")?;
        let endpoint = self.worker.connect(&unhex(address)).map_err(said)?;
        let key = endpoint.import_key(&unhex(key)).map_err(said)?;
        self.does(|| endpoint.send(DATA, seed, bytes))?;
        self.here.write(0, bytes).map_err(said)?;
        self.does(|| endpoint.put(&self.here, 0..LEN, &key, (mine * LEN) as u64))?;
        self.does(|| endpoint.get(&self.here, LEN..2 * LEN, &key, (mine * LEN) as u64))?;
        if self.here.to_vec(LEN..2 * LEN).map_err(said)? != bytes {
            return Err("what was put is not what is got".into());
        }
        if !key.path().starts_with(plan.path) {
            return Err(format!("it is reached by {}", key.path()));
        }
        self.does(|| endpoint.send(DONE, 0, b""))?;
        self.does(|| endpoint.flush())
    }
}
