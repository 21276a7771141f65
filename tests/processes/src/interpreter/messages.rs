//! Orders about messages.

use super::{COUNTED, Node, PING, find, number, unhex};
use crate::sys;
use std::rc::Rc;
use tieline::{AtomicOp, Error, Outcome, PostError, Status, Width, Worker};

impl Node {
    pub(super) fn messages(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            // `send` posts one message and waits for its completion.
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
            // `stream` sends numbered messages without pauses, until `count` is reached or a message fails permanently.
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
                            self.pause()?;
                            continue;
                        }
                        Err(e) => {
                            // The outstanding messages also end: with success, or with the same status.
                            for outcome in pending {
                                let ended = self.worker().finish(outcome);
                                assert!(
                                    ended.as_ref().is_err_and(|o| o.status() == e.status())
                                        || ended.is_ok(),
                                    "{ended:?}, while the endpoint failed with {e:?}"
                                );
                            }
                            return Err(e.into());
                        }
                    }
                    if header == 200 {
                        self.parent.say("streaming");
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
            ["flush"] => Ok(self.worker().flush().map(|()| String::new())?),
            // `post-all` posts one operation of each kind. Returns the status of each.
            ["post-all", name, key, local] => Ok(self.post_all(name, key, local)),
            // `chat` exchanges requests and answers without end, driven by the handlers.
            ["chat", name] => {
                let endpoint = self.endpoint(name).clone();
                *self.seen.chatting.borrow_mut() = Some(endpoint.clone());
                let _ = endpoint.send(PING, 1, b"over there")?;
                Ok(String::new())
            }
            _ => panic!("{words:?} is no order"),
        }
    }

    pub(super) fn post_all(&self, name: &str, key: &str, local: &str) -> String {
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
        let status = |outcome: Result<Outcome, PostError>| match outcome {
            Ok(Outcome::Done(_)) => "Done".to_string(),
            Ok(Outcome::Pending(_)) => "Pending".to_string(),
            Err(e) => format!("{:?}", e.status()),
        };
        let list: Vec<String> =
            posted.into_iter().map(|(what, o)| format!("{what}={}", status(o))).collect();
        list.join(",")
    }

    /// Sends numbered messages to all other nodes, and receives the same number from each.
    pub(super) fn all_to_all(
        &mut self,
        rank: usize,
        count: u64,
        addresses: &[&str],
    ) -> Result<String, Error> {
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
                        Err(e) => return Err(e.into()),
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

    /// Exchanges requests and answers, one after the other. `how` selects the kind of wait.
    pub(super) fn rounds(&self, name: &str, count: u64, how: &str) -> Result<String, Error> {
        let (endpoint, worker) = (self.endpoint(name), self.worker());
        self.seen.pongs.set(0);
        let epoll = sys::Epoll::over(worker.fd());
        for header in 1..=count {
            if how == "finish" {
                let _ = worker.finish(endpoint.flush_messages()?)?;
                continue;
            }
            let _ = worker.finish(endpoint.send(PING, header, b"question")?)?;
            if how == "wait-until" {
                let _ = worker.wait_until(|| self.seen.pongs.get() >= header, None)?;
                continue;
            }
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

    pub(super) fn worker_statuses(
        &self,
        worker: Option<Rc<Worker>>,
        name: &str,
        key: &str,
        local: &str,
    ) -> String {
        drop(worker);
        self.post_all(name, key, local)
    }
}
