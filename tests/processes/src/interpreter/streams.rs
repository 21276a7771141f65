//! Orders that detect loss, duplicates, reordering and changed bytes.

use super::{COUNTED, EXACT, Node, Seen, find, number, pattern, unhex};
use std::collections::VecDeque;
use tieline::{Endpoint, Error, Message, Outcome, PostError};

/// The lengths of the transfers of one turn of `mixed`.
const LENGTHS: [usize; 4] = [8, 1000, 4096, 40_000];
/// The offset of the first slot in the target's region, which consists of a counter and then a slot per length.
const FIRST_PLACE: usize = 4096;
const PLACE: usize = 65_536;

/// The length of a region for `mixed` by peers; the region `here` needs two slots.
pub const MIXED_REGION: usize = FIRST_PLACE + LENGTHS.len() * PLACE;

pub(super) fn arrived(seen: &Seen, m: &Message<'_>) {
    let mut next = seen.next_exact.borrow_mut();
    let expected = next.entry(m.peer()).or_insert(1);
    if *expected != m.header() {
        seen.wrong(format!("exact message {} came, not {expected}", m.header()));
    }
    *expected = m.header() + 1;
    let differs = m.payload().iter().enumerate().find(|(at, b)| **b != pattern(*at, m.header()));
    if let Some((at, _)) = differs {
        let len = m.payload().len();
        seen.wrong(format!("exact message {} differs at byte {at} of {len}", m.header()));
    }
    seen.exact.set(seen.exact.get() + 1);
}

impl Node {
    pub(super) fn streams(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            // `exact` sends numbered messages of these lengths in turn: `count` messages, or until the next order. Returns the
            // number of sent messages.
            ["exact", name, count, lengths @ ..] => {
                let lengths: Vec<usize> = lengths.iter().map(|len| number(len)).collect();
                self.exact(name, limit(count), &lengths)
            }
            // `mixed` makes in turn a message, a put, a get of the same bytes, and an atomic. The order waits for each operation,
            // and checks each result.
            ["mixed", name, region, count] => self.mixed(name, region, limit(count)),
            // `many` connects `count` endpoints to one address at the same time, and sends a message on each.
            ["many", name, address, count] => self.many(name, address, number(count)),
            // `reach` makes progress until `count` have arrived.
            ["reach", what, count] => {
                let count = number(count) as u64;
                loop {
                    let now = match *what {
                        "counted" => self.seen.counted.get(),
                        _ => self.seen.exact.get(),
                    };
                    if now >= count {
                        return Ok(now.to_string());
                    }
                    self.pause()?;
                }
            }
            _ => panic!("{words:?} is no order"),
        }
    }

    fn goes_on(&self, turn: u64, limit: Option<u64>) -> bool {
        match limit {
            Some(limit) => turn < limit,
            None => !self.parent.wants_something(),
        }
    }

    fn next_number(&self, name: &str) -> u64 {
        self.numbers.borrow().get(name).copied().unwrap_or(0) + 1
    }

    /// Posts one exact message, and retries while the queue is full. The message's number counts only after the post.
    fn post_exact(&self, endpoint: &Endpoint, name: &str, len: usize) -> Result<Outcome, Error> {
        let header = self.next_number(name);
        let payload: Vec<u8> = (0..len).map(|at| pattern(at, header)).collect();
        loop {
            match endpoint.send(EXACT, header, &payload) {
                Err(PostError::Retry(_)) => self.pause()?,
                Err(e) => return Err(e.into()),
                Ok(outcome) => {
                    let _ = self.numbers.borrow_mut().insert(name.to_string(), header);
                    return Ok(outcome);
                }
            }
        }
    }

    fn exact(&self, name: &str, limit: Option<u64>, lengths: &[usize]) -> Result<String, Error> {
        let endpoint = self.endpoint(name).clone();
        let mut pending = VecDeque::new();
        let mut turn = 0;
        let outcome = loop {
            if !self.goes_on(turn, limit) {
                break Ok(());
            }
            match self.post_exact(&endpoint, name, lengths[turn as usize % lengths.len()]) {
                Ok(outcome) => pending.push_back(outcome),
                Err(e) => break Err(e),
            }
            turn += 1;
            if turn == 20 {
                self.parent.say("streaming");
            }
            let _ = self.worker().progress();
            if pending.len() > 64 {
                let oldest = pending.pop_front().map_or(Ok(String::new()), |o| self.finish(Ok(o)));
                if let Err(e) = oldest {
                    break Err(e);
                }
            }
        };
        // Every posted operation ends once, and no operation succeeds after a failed one.
        let mut failed: Option<Error> = None;
        for posted in pending {
            match (self.finish(Ok(posted)), &failed) {
                (Ok(_), Some(e)) => self.seen.wrong(format!("a message got through after {e:?}")),
                (Ok(_), None) => {}
                (Err(e), _) => failed = Some(e),
            }
        }
        match (outcome, failed) {
            (Err(e), _) | (Ok(()), Some(e)) => Err(e),
            (Ok(()), None) => Ok((self.next_number(name) - 1).to_string()),
        }
    }

    fn mixed(&self, name: &str, region: &str, limit: Option<u64>) -> Result<String, Error> {
        let (endpoint, here) = (self.endpoint(name), find(&self.regions, "here"));
        let key = find(&self.keys, &format!("{name}.{region}"));
        self.seen.confirmed.set(0);
        self.seen.unknown.set(0);
        let mut begun = false;
        let mut turn = 0;
        while self.goes_on(turn, limit) {
            let len = LENGTHS[turn as usize % LENGTHS.len()];
            let place = (FIRST_PLACE + turn as usize % LENGTHS.len() * PLACE) as u64;
            let posted = self.post_exact(endpoint, name, len)?;
            let bytes: Vec<u8> = (0..len).map(|at| pattern(at, turn + 11)).collect();
            here.write(0, &bytes)?;
            let _ = self.finish(endpoint.put(here, 0..len, key, place))?;
            let _ = self.finish(endpoint.get(here, PLACE..PLACE + len, key, place))?;
            if here.to_vec(PLACE..PLACE + len)? != bytes {
                self.seen.wrong(format!("what was put in turn {turn} is not what is read back"));
            }
            self.count_up(self.finish(endpoint.fetch_add(key, 0, 1)), endpoint, &mut begun)?;
            let _ = self.finish(Ok(posted))?;
            turn += 1;
            if turn == 20 {
                self.parent.say("streaming");
            }
        }
        Ok((self.next_number(name) - 1).to_string())
    }

    /// Checks whether an atomic that adds one was executed once, or at most once if its result is unknown.
    fn count_up(
        &self,
        ended: Result<String, Error>,
        endpoint: &Endpoint,
        begun: &mut bool,
    ) -> Result<(), Error> {
        let seen = &self.seen;
        match ended {
            Ok(value) => {
                let value: u64 = value.parse().expect("a number");
                let least = if *begun { seen.confirmed.get() } else { value };
                if !(least..=least + seen.unknown.get()).contains(&value) {
                    seen.wrong(format!("an atomic brought {value}, not {least}"));
                }
                *begun = true;
                seen.unknown.set(0);
                seen.confirmed.set(value + 1);
                Ok(())
            }
            Err(e) => {
                seen.unknown.set(seen.unknown.get() + 1);
                // An atomic may fail with its lane while the connection has another lane.
                if endpoint.error().is_some() { Err(e) } else { Ok(()) }
            }
        }
    }

    fn many(&mut self, name: &str, address: &str, count: usize) -> Result<String, Error> {
        let address = unhex(address);
        let mut posted = Vec::new();
        for index in 0..count {
            let endpoint = self.worker().connect(&address)?;
            posted.push(endpoint.send(COUNTED, 0, &[0; 8]));
            let _ = self.endpoints.insert(format!("{name}{index}"), endpoint);
        }
        for outcome in posted {
            let _ = self.finish(outcome)?;
        }
        for index in 0..count {
            let endpoint = self.endpoint(&format!("{name}{index}")).clone();
            let _ = self.finish(endpoint.flush_messages())?;
        }
        Ok(String::new())
    }
}

fn limit(word: &str) -> Option<u64> {
    if word == "until-told" { None } else { Some(number(word) as u64) }
}
