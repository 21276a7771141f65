//! How ends go: dropped, broken, or in good order when the program is over.

use super::{ENDS, End, NEVER, Run, What, progress};
use crate::program::Step;
use tieline::Status;

impl Run {
    /// Drops an end with all that it has, and opens the next one.
    pub(super) fn reconnect(&mut self, end: usize) -> Result<(), String> {
        let Some(gone) = self.ends[end].take() else { return Ok(()) };
        let End { number, endpoint, keys, open, sent, .. } = gone;
        drop((keys, endpoint));
        self.model.lose_end(number);
        // What waits in its queue may go on without it, and ends one way or the other.
        for mut open in open {
            self.closing.add([open.landing.take(), open.source.take()]);
            self.leaving.push((end, open));
        }
        // What was queued and not sent may be lost with it, from some message on.
        self.past.push((number, sent));
        let fresh = self.connect(end).map_err(|error| error.to_string())?;
        self.ends[end] = Some(fresh);
        Ok(())
    }

    pub(super) fn break_end(&mut self, end: usize) -> Result<(), String> {
        let Some(world) = self.world else { return Ok(()) };
        if self.end(end).broken {
            return Ok(());
        }
        // Workers were opened in this order: the target's, then the ends'.
        for lane in world.lanes() {
            let (from, to) = (world.interface(end + 1, lane), world.interface(0, lane));
            world.break_endpoints(from, to, Status::TimedOut, "the cable is cut");
        }
        for _ in 0..NEVER {
            if self.end(end).endpoint.error().is_some() {
                break;
            }
            let _ = progress(&self.workers[end]);
        }
        let own = self.end(end);
        own.broken = own.endpoint.error().is_some();
        let (broken, number) = (own.broken, own.number);
        let other = self.end((end + 1) % ENDS).number;
        self.model.silence_all_but(other);
        if broken {
            self.model.lose_end(number);
        }
        Ok(())
    }

    /// Everything ends, and nothing is left.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        for _ in 0..NEVER {
            for who in 0..=ENDS {
                let _ = progress(self.workers.get(who).unwrap_or(&self.b));
            }
            self.ask()?;
            let quiet = self.ends.iter().flatten().all(|end| end.open.is_empty());
            if quiet && self.workers.iter().all(|worker| worker.pending() == 0) {
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
        // A last flush of each, and a look at what it promises.
        for end in 0..ENDS {
            if self.end(end).broken {
                continue;
            }
            for flush in [Step::Flush { end }, Step::FlushMessages { end }] {
                let mut tries = 0;
                loop {
                    let before = self.end(end).open.len();
                    self.step(flush)?;
                    let taken = self.end(end).open.len() > before;
                    for _ in 0..NEVER {
                        if self.end(end).open.is_empty() {
                            break;
                        }
                        let _ = (progress(&self.workers[end]), progress(&self.b));
                        self.ask()?;
                    }
                    tries += 1;
                    if taken || tries > 50 {
                        break;
                    }
                }
            }
            if !self.end(end).open.is_empty() {
                return Err("a flush of an idle endpoint never ends".into());
            }
        }
        self.look()?;
        let heard = self.heard.borrow();
        for end in self.ends.iter().flatten().filter(|end| !end.broken) {
            if let Some((serial, _)) =
                end.sent.iter().find(|(serial, _)| !heard.headers.contains(serial))
            {
                return Err(format!("message {serial:#x} was lost"));
            }
        }
        drop(heard);
        // What a put tells may come long after its end.
        for _ in 0..NEVER {
            if self.model.untold().is_none() {
                break;
            }
            let _ = progress(&self.b);
            self.hear()?;
        }
        if let Some(op) = self.model.untold() {
            return Err(format!("operation {op} was not told"));
        }
        self.close_all()
    }

    /// Without endpoints nothing is under way, and all memory is the application's.
    fn close_all(&mut self) -> Result<(), String> {
        self.ends.iter_mut().for_each(|end| drop(end.take()));
        for _ in 0..NEVER {
            for worker in self.workers.iter().chain([&self.b]) {
                let _ = progress(worker);
            }
            self.closing.try_all(&self.workers[0])?;
            if self.closing.held().is_none() {
                break;
            }
        }
        self.closing.look()?;
        self.prey.look()?;
        match self.closing.held() {
            None => Ok(()),
            Some(why) => Err(format!("without any endpoint: {why}")),
        }
    }
}
