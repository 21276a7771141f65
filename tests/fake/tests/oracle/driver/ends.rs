//! The end of endpoints: dropped, broken, or closed in order when the program is over.

use super::{ENDS, End, NEVER, Run, What, progress};
use crate::program::{Acknowledges, BETTER, Follows, Handler, Put, Send, Step};
use std::time::{Duration, Instant};
use tieline::{Error, Outcome, Status};
use tieline_fake::{Act, Rule, Slot};

/// The time limit for real transports, whose other side may have threads of its own or use the kernel's.
const ELSEWHERE: Duration = Duration::from_secs(20);

fn idle_steps(end: usize) -> [Step; 8] {
    [
        Step::Deliver { end, len: 8, how: Acknowledges::Returns },
        Step::Notify { end, follows: Follows::Everything, len: 8 },
        Step::Batch { end, cell: 1, puts: 0 },
        Step::Number { end, published: true },
        Step::Send { end, how: Send::Plain, len: 8, handler: Handler::Listens },
        Step::Put { end, how: Put::Bytes, cell: 0, len: 8, tells: false },
        Step::Flush { end },
        Step::FlushMessages { end },
    ]
}

impl Run {
    pub(super) fn connect(&mut self, end: usize) -> Result<End, Error> {
        let endpoint = self.workers[end].connect(&self.b.address()?)?;
        let key = self.target.remote_key()?;
        let first = endpoint.import_key(&key)?;
        let two = self.world.filter(|world| world.lanes().contains(&BETTER));
        let second = match two {
            Some(world) => {
                let refused = Act::Refuse(Status::KeyRejected);
                world.rule(Rule::every(Slot::ImportKey, refused).on(BETTER));
                let second = endpoint.import_key(&key)?;
                world.forget_rules();
                second
            }
            None => first.clone(),
        };
        let (number, keys) = (self.model.open_end(), [first, second]);
        Ok(End { number, endpoint, keys, open: Vec::new(), sent: Vec::new(), broken: false })
    }

    pub(super) fn meet(&mut self, end: usize) -> Result<(), Error> {
        let back = self.b.connect(&self.workers[end].address()?)?;
        if let Outcome::Pending(request) = back.flush_messages()? {
            while self.b.test(&request).is_none() {
                let _ = (progress(&self.b), progress(&self.workers[end]));
            }
        }
        self.back.push(back);
        Ok(())
    }

    /// Iterates once per turn, until an event that has not happened counts as never happening.
    pub(super) fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let until = self.world.is_none().then(|| Instant::now() + ELSEWHERE);
        let waits = move || until.is_some_and(|until| Instant::now() < until);
        (0..).take_while(move |turn| *turn < NEVER || waits())
    }

    pub(super) fn reconnect(&mut self, end: usize) -> Result<(), String> {
        let Some(gone) = self.ends[end].take() else { return Ok(()) };
        let End { number, endpoint, keys, open, sent, .. } = gone;
        drop((keys, endpoint));
        self.model.lose_end(number);
        self.notices.may_be_lost(end);
        // Queued operations may still be sent, and end with success or failure.
        for mut open in open {
            self.notices.is_not_well(open.what);
            self.closing.add([open.landing.take(), open.source.take()]);
            self.leaving.push((end, open));
        }
        // Queued messages may be lost with the endpoint, from some message on.
        self.past.push((number, sent));
        let fresh = self.connect(end).map_err(|error| error.to_string())?;
        self.inherit_plan(end, fresh.number);
        self.ends[end] = Some(fresh);
        Ok(())
    }

    pub(super) fn break_end(&mut self, end: usize) -> Result<(), String> {
        let Some(world) = self.world else { return Ok(()) };
        if self.end(end).broken {
            return Ok(());
        }
        // The workers were opened in this order: the target's worker, then those of the ends.
        let is_asked = self.is_taking_of(end);
        for lane in world.lanes() {
            let (from, to) = (world.interface(end + 1, lane), world.interface(0, lane));
            world.break_endpoints(from, to, Status::TimedOut, "the cable is cut");
            // If an answer is lost with the connection, the requester also loses the connection.
            if is_asked {
                world.break_endpoints(to, from, Status::TimedOut, "the cable is cut");
            }
        }
        for _ in self.turns() {
            if self.end(end).endpoint.error().is_some() {
                break;
            }
            let _ = progress(&self.workers[end]);
        }
        let own = self.end(end);
        own.broken = own.endpoint.error().is_some();
        let (broken, number) = (own.broken, own.number);
        self.has_broken[end] = true;
        let other = self.ends[(end + 1) % ENDS].as_ref().map(|other| other.number);
        self.model.silence_all_but(other);
        self.notices.may_be_lost(end);
        if broken {
            // The call finds operations that had ended before and were not tested.
            self.ask()?;
            self.model.lose_end(number);
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<(), String> {
        if let Some(world) = self.world {
            world.forget_rules();
        }
        self.take_rest()?;
        self.acknowledge_rest();
        for _ in self.turns() {
            for who in 0..=ENDS {
                let _ = progress(self.workers.get(who).unwrap_or(&self.b));
            }
            self.ask()?;
            let quiet = self.ends.iter().flatten().all(|end| end.open.is_empty());
            if quiet
                && self.takes_nothing()
                && self.counts_nothing()
                && self.workers.iter().all(|worker| worker.pending() == 0)
            {
                break;
            }
        }
        if let Some(end) = self.ends.iter().flatten().find(|end| !end.open.is_empty()) {
            let open: Vec<What> = end.open.iter().map(|open| open.what).collect();
            return Err(format!("these never end: {open:?}"));
        }
        if let Some((_, open)) = self.leaving.first() {
            return Err(format!("{:?} of an end that is gone never ends", open.what));
        }
        for worker in &self.workers {
            if worker.pending() > 0 {
                return Err(format!("{} operations that nobody has are pending", worker.pending()));
            }
        }
        self.all_told()?;
        self.nothing_is_taken()?;
        // One flush reports the failures that were not reported before; other flushes report none.
        for end in (0..ENDS)
            .filter(|end| self.ends[*end].as_ref().is_some_and(|end| !end.broken))
            .collect::<Vec<_>>()
        {
            self.taken(end, Step::Flush { end })?;
        }
        self.calm();
        // Each end posts a last message, put and flush, and the test checks their guarantees.
        for end in 0..ENDS {
            if self.ends[end].as_ref().is_none_or(|end| end.broken) {
                continue;
            }
            for step in idle_steps(end) {
                self.taken(end, step)?;
            }
            if !self.end(end).open.is_empty() {
                return Err("what an idle endpoint took never ends".into());
            }
        }
        self.look()?;
        let heard = self.heard.borrow();
        for end in self.ends.iter().flatten().filter(|end| !end.broken) {
            if let Some((serial, _)) = end
                .sent
                .iter()
                .find(|(serial, _)| !heard.headers.contains(serial) && self.failing.stands(*serial))
            {
                return Err(format!("message {serial:#x} was lost"));
            }
        }
        drop(heard);
        // The notification of a put may arrive long after its completion.
        for _ in self.turns() {
            if self.model.untold().is_none() && self.unseen().is_none() {
                break;
            }
            let _ = progress(&self.b);
            self.hear()?;
        }
        if let Some(op) = self.model.untold() {
            return Err(format!("operation {op} was not told"));
        }
        if let Some(serial) = self.unseen() {
            return Err(format!("notification {serial:#x} was sent and has not arrived"));
        }
        self.notices_failed_for_a_reason()?;
        self.close_all()
    }

    /// Posts a step on an idle endpoint up to 50 times until it is accepted, since the lanes may refuse at times.
    fn taken(&mut self, end: usize, step: Step) -> Result<(), String> {
        for _ in 0..50 {
            let before = self.refusals;
            self.step(step)?;
            let taken = self.refusals == before;
            for _ in self.turns() {
                let _ = (progress(&self.workers[end]), progress(&self.b));
                self.ask()?;
                if self.end(end).open.is_empty() {
                    break;
                }
            }
            if taken {
                return Ok(());
            }
        }
        Err(format!("{step:?} is always to be tried again, although nothing is under way"))
    }

    /// Closes all memory. Without endpoints no operation is in flight, and the application owns all memory.
    fn close_all(&mut self) -> Result<(), String> {
        self.ends.iter_mut().for_each(|end| drop(end.take()));
        self.back.clear();
        for _ in self.turns() {
            for worker in self.workers.iter().chain([&self.b]) {
                let _ = progress(worker);
            }
            let open = self.open_worker();
            self.closing.try_all(open.as_deref())?;
            if self.closing.held().is_none() && self.memory_taken_into().is_none() {
                break;
            }
        }
        self.closing.look()?;
        self.prey.look()?;
        match self.closing.held().or_else(|| self.memory_taken_into()) {
            None => Ok(()),
            Some(why) => Err(format!("without any endpoint: {why}")),
        }
    }
}
