//! Runs a program over a set of providers, and compares each result with the oracle.

mod closing;
mod counted;
mod delivery;
mod ends;
mod failing;
mod lies;
mod long;
mod notices;
mod numbers;
mod puts;
mod sends;
mod sys;
mod told;
mod workers;

use crate::model::Model;
use crate::program::{ENDS, Program, Step, TARGET};
use closing::{Closing, Own};
use counted::Counted;
use delivery::Acknowledged;
use failing::Failing;
use lies::Prey;
use long::Long;
use notices::{Notices, Seen};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use tieline::{
    Access, CompletionError, ConnectError, Context, Endpoint, Error, Outcome, PostError, Region,
    RemoteKey, Rendezvous, Request, Status, Worker,
};
use tieline_fake::World;
use told::Told;
use workers::Unheard;

pub(crate) struct Providers {
    pub(crate) settings: Vec<(&'static str, String)>,
    /// The world of the fake provider, if it is among them.
    pub(crate) world: Option<&'static World>,
    pub(crate) alloc: bool,
}

/// The number of polls after which an event counts as never happening.
const NEVER: usize = 4_000;
/// The maximum number of operations in one program: a put writes its number as a byte.
const MOST: usize = 240;
const ANSWER: u16 = 20;

thread_local! {
    /// The workers of the running program. A wait inside a call must make progress on them.
    static WORKERS: RefCell<Vec<Weak<Worker>>> = const { RefCell::new(Vec::new()) };
    static WAITING: Cell<bool> = const { Cell::new(false) };
}

/// Makes progress on all workers while a call of the program waits, because one worker may wait for the others. The fake provider
/// calls this function in each poll.
pub(crate) fn meanwhile() {
    if !WAITING.replace(false) {
        return;
    }
    let workers: Vec<Rc<Worker>> =
        WORKERS.with_borrow(|workers| workers.iter().filter_map(Weak::upgrade).collect());
    for worker in workers {
        let _ = progress(&worker);
    }
    WAITING.set(true);
}

/// Makes progress, even if handlers panic.
fn progress(worker: &Worker) -> usize {
    catch_unwind(AssertUnwindSafe(|| worker.progress())).unwrap_or(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Memory(usize),
    Message(u64),
    Long(u64),
    /// A message whose operation ends with the acknowledgement.
    Delivery(u64),
    Notice(u64),
    /// A lookup of the key of a number.
    Key {
        published: bool,
    },
    Flush {
        end: usize,
        posted: u64,
    },
    FlushMessages {
        sent: usize,
    },
}

struct Open {
    what: What,
    outcome: Outcome,
    /// The word with which the operation is tracked; a tracked operation is not tested.
    word: Option<u64>,
    /// The destination of a get, with a guard on either side of its range.
    landing: Option<Own>,
    /// The source of a put, which is overwritten after its end.
    source: Option<Own>,
}

impl Open {
    fn request(&self) -> &Request {
        match &self.outcome {
            Outcome::Pending(request) => request,
            Outcome::Done(_) => unreachable!("only pending operations are open"),
        }
    }
}

/// An endpoint, and the objects that belong to it.
struct End {
    number: usize,
    endpoint: Endpoint,
    /// The two keys of the target's memory. Every other operation uses the second key, whose operations may take another lane.
    keys: [RemoteKey; 2],
    open: Vec<Open>,
    sent: Vec<(u64, usize)>,
    broken: bool,
}

#[derive(Default)]
struct Heard {
    headers: Vec<u64>,
    trouble: Option<String>,
    /// The notifications, each with the contents of the target's memory at that time.
    told: Vec<(Seen, Vec<u8>)>,
    acknowledged: Acknowledged,
    /// The accepted answers, by the worker number of the end.
    answered: [Vec<u64>; ENDS],
    kept: Vec<(u64, Rendezvous)>,
    /// The rendezvous messages that were refused, or could not be received and were dropped.
    refused: Vec<u64>,
    refuses: [bool; ENDS],
}

struct Run {
    model: Model,
    world: Option<&'static World>,
    ends: Vec<Option<End>>,
    /// The target's endpoints to the workers of the ends.
    back: Vec<Endpoint>,
    /// The messages of former ends that can still arrive.
    past: Vec<(usize, Vec<(u64, usize)>)>,
    leaving: Vec<(usize, Open)>,
    /// The ends whose worker was closed and has reported a loss.
    has_lost: [bool; ENDS],
    is_closed: [bool; ENDS],
    has_broken: [bool; ENDS],
    unheard: Unheard,
    serial: u64,
    refusals: usize,
    /// The operations that are lists.
    lists: BTreeSet<usize>,
    heard: Rc<RefCell<Heard>>,
    answers: Rc<RefCell<[Vec<u64>; ENDS]>>,
    target: Region,
    workers: Vec<Rc<Worker>>,
    b: Rc<Worker>,
    at_a: Context,
    at_b: Context,
    /// Memory that may still be in use, and memory of closed regions.
    closing: Closing,
    failing: Failing,
    told: Told,
    notices: Notices,
    counted: Counted,
    prey: Rc<Prey>,
    long: Long,
}

/// Runs one program. Returns the reason if the program fails.
pub(crate) fn run(program: &Program, providers: &Providers) -> Result<(), String> {
    let world = providers.world;
    let mut run = Run::open(program, providers).map_err(|error| format!("opening: {error}"))?;
    for (at, step) in program.steps.iter().enumerate() {
        let result = run.step(*step).and_then(|()| run.look());
        result.map_err(|why| format!("step {at}, {step:?}: {why}"))?;
    }
    run.finish().map_err(|why| format!("in the end: {why}"))?;
    drop(run);
    let Some(world) = world else { return Ok(()) };
    if !world.faults().is_empty() {
        return Err(format!("rules of the binary interface: {:?}", world.faults()));
    }
    match world.left() {
        [0, 0, 0, 0, 0] => Ok(()),
        left => {
            Err(format!("left open: interfaces, endpoints, keys, registrations, lent: {left:?}"))
        }
    }
}

impl Run {
    fn open(program: &Program, providers: &Providers) -> Result<Run, Error> {
        let context = || {
            let mut builder = Context::builder();
            for (name, value) in &providers.settings {
                builder = builder.set(name, value);
            }
            let builder = builder.set("TIELINE_QUEUE_BYTES", &program.queue_bytes.to_string());
            builder.publish_keys(true).open()
        };
        let (at_a, at_b) = (context()?, context()?);
        let b = Rc::new(at_b.worker()?);
        let target = match providers.alloc {
            true => at_b.alloc(TARGET)?,
            false => at_b.register_with(vec![0; TARGET], Access::ALL)?,
        };
        target.publish(numbers::PUBLISHED)?;
        let heard: Rc<RefCell<Heard>> = Rc::default();
        let answers: Rc<RefCell<[Vec<u64>; ENDS]>> = Rc::default();
        sends::listen(&b, &heard)?;
        delivery::listen(&b, &heard)?;
        long::listen(&b, &heard)?;
        notices::listen(&b, &heard, &target)?;
        let prey = Rc::new(Prey::new(&at_a, &at_b)?);
        lies::listen(&b, &prey)?;
        let (log, memory, lied) = (heard.clone(), target.clone(), prey.clone());
        b.on_notification(move |_, word| {
            lied.hear(word);
            let bytes = memory.to_vec(0..TARGET).unwrap_or_default();
            log.borrow_mut().told.push((Seen::Word(word), bytes));
        })?;
        let mut workers = Vec::new();
        for end in 0..ENDS {
            let worker = at_a.worker()?;
            let log = answers.clone();
            worker.on_message(ANSWER, move |m| log.borrow_mut()[end].push(m.header()))?;
            workers.push(Rc::new(worker));
        }
        WORKERS.set(workers.iter().chain([&b]).map(Rc::downgrade).collect());
        let mut run = Run {
            model: Model::new(program.wants.values),
            world: providers.world,
            ends: Vec::new(),
            back: Vec::new(),
            past: Vec::new(),
            leaving: Vec::new(),
            has_lost: [false; ENDS],
            is_closed: [false; ENDS],
            has_broken: [false; ENDS],
            unheard: Unheard::default(),
            serial: 0,
            refusals: 0,
            lists: BTreeSet::new(),
            heard,
            answers,
            target,
            workers,
            b,
            at_a,
            at_b,
            closing: Closing::default(),
            failing: Failing::default(),
            told: Told::default(),
            notices: Notices::default(),
            counted: Counted::default(),
            prey,
            long: Long::default(),
        };
        for end in 0..ENDS {
            let opened = run.connect(end)?;
            run.ends.push(Some(opened));
            run.meet(end)?;
        }
        Ok(run)
    }

    fn end(&mut self, end: usize) -> &mut End {
        self.ends[end].as_mut().expect("an end is there between steps")
    }

    /// Records the result of a post, which is an operation of the model or a message.
    fn posted(
        &mut self,
        end: usize,
        what: What,
        result: Result<Outcome, PostError>,
        landing: Option<Own>,
        source: Option<Own>,
    ) -> Result<bool, String> {
        match result {
            Ok(Outcome::Done(value)) => {
                self.ended(end, what, Ok(value), landing, source)?;
                Ok(true)
            }
            Ok(Outcome::Pending(request)) => {
                self.pends(end, what, request, [landing, source])?;
                Ok(true)
            }
            Err(error) => {
                if let What::Memory(op) = what {
                    match (&error, self.lists.contains(&op)) {
                        // Descriptors before the failed one have been carried out.
                        (PostError::Correct(_) | PostError::Reconnect(_), true) => {
                            self.model.lose(op);
                        }
                        _ => self.model.refuse(op),
                    }
                    if error.status() == Status::TooLarge && self.lists.contains(&op) {
                        return Ok(false);
                    }
                }
                if self.is_planned(end, error.status()) {
                    return Ok(false);
                }
                let broken = self.end(end).broken;
                match error {
                    PostError::Retry(_) if !broken => {
                        self.refusals += 1;
                        Ok(false)
                    }
                    PostError::Reconnect(ConnectError::Retry(why))
                        if broken && why.status() == Status::TimedOut =>
                    {
                        Ok(false)
                    }
                    error => Err(format!("{error} ({:?})", error.status())),
                }
            }
        }
    }

    fn ended(
        &mut self,
        end: usize,
        what: What,
        result: Result<u64, CompletionError>,
        landing: Option<Own>,
        source: Option<Own>,
    ) -> Result<(), String> {
        let broken = self.ends[end].as_ref().is_some_and(|end| end.broken);
        let value = match result {
            Ok(value) => value,
            Err(CompletionError::Unknown(why)) if broken && why.status() == Status::TimedOut => {
                if let What::Memory(op) = what {
                    self.model.lose(op);
                }
                self.notices.is_not_well(what);
                // A provider may still use the memory.
                self.closing.add([landing, source]);
                return Ok(());
            }
            Err(error) => return self.failed(end, what, &error, [landing, source]),
        };
        match what {
            What::Memory(op) => {
                self.model.end(op, value)?;
                if let Some(own) = landing {
                    let bytes = own.bytes();
                    let inner = &bytes[8..bytes.len() - 8];
                    if bytes[..8] != [0xee; 8] || bytes[bytes.len() - 8..] != [0xee; 8] {
                        return Err(format!("get {op} wrote beside its range"));
                    }
                    self.model.check_got(op, inner)?;
                    self.closing.close(own)?;
                }
                // The memory belongs to the application again.
                source.map_or(Ok(()), |own| self.closing.close(own))
            }
            What::Message(_) => Ok(()),
            What::Long(serial) => self.is_taken(end, serial),
            What::Delivery(serial) => self.is_delivered(serial),
            What::Notice(serial) => self.is_sent(serial),
            What::Key { published } => numbers::is_found(published),
            What::Flush { end: number, posted } => {
                self.model.flushed(number, posted);
                Ok(())
            }
            What::FlushMessages { sent } => self.arrived(end, sent),
        }
    }

    fn arrived(&mut self, end: usize, sent: usize) -> Result<(), String> {
        let heard = self.heard.borrow();
        let own = self.ends[end].as_ref().expect("an end");
        let lost = |serial: &u64| !heard.headers.contains(serial) && self.failing.stands(*serial);
        match own.sent[..sent].iter().find(|(serial, _)| lost(serial)) {
            Some((serial, _)) => {
                Err(format!("message {serial:#x} was flushed and has not arrived"))
            }
            None => Ok(()),
        }
    }

    fn ask(&mut self) -> Result<(), String> {
        self.hear()?;
        self.ask_taking()?;
        self.ask_counted()?;
        for end in (0..ENDS).filter(|end| self.ends[*end].is_some()).collect::<Vec<_>>() {
            let open = std::mem::take(&mut self.end(end).open);
            for operation in open {
                match self.how(end, &operation)? {
                    None => self.end(end).open.push(operation),
                    Some(result) => {
                        let Open { what, landing, source, outcome, .. } = operation;
                        drop(outcome);
                        self.ended(end, what, result, landing, source)?;
                    }
                }
            }
        }
        self.ask_leaving()
    }

    fn ask_leaving(&mut self) -> Result<(), String> {
        let leaving = std::mem::take(&mut self.leaving);
        for (end, open) in leaving {
            match self.how(end, &open)? {
                None => self.leaving.push((end, open)),
                Some(Ok(_)) => {}
                // A rendezvous message was refused, or the target has no memory of that number.
                Some(Err(CompletionError::Refused(_) | CompletionError::Unknown(_)))
                    if matches!(open.what, What::Long(_) | What::Notice(_) | What::Key { .. }) => {}
                Some(Err(error))
                    if matches!(error.status(), Status::Canceled | Status::TimedOut)
                        || self.has_lost[end] && error.status() == Status::Closed
                        || self.is_planned(end, error.status()) => {}
                Some(Err(error)) => {
                    return Err(format!("{:?} of an end that is gone: {error}", open.what));
                }
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), String> {
        self.ask()?;
        let memory = self.target.to_vec(0..TARGET).map_err(|e| e.to_string())?;
        self.model.look(&memory)?;
        let heard = self.heard.borrow();
        if let Some(trouble) = &heard.trouble {
            return Err(trouble.clone());
        }
        // Each end's messages arrive once, in order, without a gap.
        let current = self.ends.iter().flatten().map(|end| (end.number, &end.sent));
        for (number, sent) in self.past.iter().map(|(number, sent)| (*number, sent)).chain(current)
        {
            let own = |serial: &&u64| (**serial >> 32) as usize & 0xff_ffff == number;
            let arrived: Vec<u64> = heard.headers.iter().filter(own).copied().collect();
            let sent = sent.iter().map(|(serial, _)| *serial);
            let stands = sent.filter(|serial| self.failing.stands(*serial));
            let expected: Vec<u64> = stands.take(arrived.len()).collect();
            if arrived != expected {
                return Err(format!(
                    "end {number} sent {expected:x?}, and what arrived is {arrived:x?}"
                ));
            }
        }
        for (end, arrived) in self.answers.borrow().iter().enumerate() {
            if !heard.answered[end].starts_with(arrived) {
                return Err(format!("answers {:x?} arrived as {arrived:x?}", heard.answered[end]));
            }
        }
        self.closing.look()?;
        self.prey.look()?;
        if self.world.is_some_and(|world| !world.faults().is_empty()) {
            return Err(format!("{:?}", self.world.map(World::faults)));
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        if step.end().is_some_and(|end| self.ends[end].is_none()) {
            return Ok(()); // its worker is closed
        }
        match step {
            Step::Put { end, how, cell, len, tells } => self.put(end, how, (cell, len), tells),
            Step::Get { end, cell, len, how } => self.get(end, (cell, len), how),
            Step::Atomic { end, word, fetch, how } => self.atomic(end, word, fetch, how),
            Step::Send { end, how, len, handler } => self.send(end, how, len, handler),
            Step::Deliver { end, len, how } => self.deliver(end, len, how),
            Step::Acknowledge { nth, gives } => {
                self.acknowledge(nth, gives);
                Ok(())
            }
            Step::Notify { end, follows, len } => self.notify(end, follows, len),
            Step::Batch { end, cell, puts } => self.batch(end, cell, puts),
            Step::Number { end, published } => self.look_up(end, published),
            Step::SendLong { end, more } => self.send_long(end, more),
            Step::Take { nth, quarters } => self.take(nth, quarters),
            Step::Refuse { nth } => {
                self.refuse(nth);
                Ok(())
            }
            Step::Flush { end } => {
                let posted = self.model.now();
                let number = self.end(end).number;
                let flush = self.end(end).endpoint.flush();
                if self.posted(end, What::Flush { end: number, posted }, flush, None, None)? {
                    self.notices.start_anew(number, posted);
                }
                Ok(())
            }
            Step::FlushMessages { end } => {
                let sent = self.end(end).sent.len();
                let flush = self.end(end).endpoint.flush_messages();
                self.posted(end, What::FlushMessages { sent }, flush, None, None).map(|_| ())
            }
            Step::FlushWorker { end } => self.flush_worker(end),
            Step::Fence { end } => {
                let fenced = self.end(end).endpoint.fence();
                let broken = self.end(end).broken;
                match fenced {
                    Ok(()) if !broken => {
                        let number = self.end(end).number;
                        self.model.fence(number);
                    }
                    Err(error) if error.status() == Status::Again && !broken => {}
                    Err(error) if error.status() == Status::TimedOut && broken => {}
                    said => return Err(format!("{said:?}")),
                }
                Ok(())
            }
            Step::Turn { who, times } => {
                for _ in 0..times {
                    let _ = progress(self.workers.get(who).unwrap_or(&self.b));
                    self.look()?;
                }
                Ok(())
            }
            Step::Forget { end } => {
                let open = std::mem::take(&mut self.end(end).open);
                // The next flush reports the failure of an operation whose request was dropped.
                let fails =
                    |what| matches!(what, What::Long(_) | What::Delivery(_) | What::Notice(_));
                let stays = |open: &Open| open.word.is_some() || fails(open.what);
                let (told, open): (_, Vec<_>) = open.into_iter().partition(stays);
                self.end(end).open = told;
                open.iter().for_each(|open| self.give_up(open.what));
                let messages = open.iter().filter_map(|open| match open.what {
                    What::Message(serial) => Some(serial),
                    _ => None,
                });
                self.unheard.forgotten.extend(messages);
                self.closing.add(open.into_iter().flat_map(|open| [open.landing, open.source]));
                Ok(())
            }
            Step::Reconnect { end } => self.reconnect(end),
            Step::Break { end } => self.break_end(end),
            Step::Cancel { end, nth } => self.cancel(end, nth),
            Step::Fail { end, slot, lane, later } => {
                self.plan(end, slot, lane, later);
                Ok(())
            }
            Step::Close { end } => self.closing.try_all(Some(&self.workers[end])),
            Step::CloseWorker { end, patient } => self.close_worker(end, patient),
            Step::Lie { end, id, of, status } => {
                self.lie(end, id, of, status);
                Ok(())
            }
            Step::Forge { end, to_target, lie, wrong } => self.forge(end, to_target, lie, wrong),
        }
    }
}
