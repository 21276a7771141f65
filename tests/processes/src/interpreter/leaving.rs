//! Orders that end a node in different ways, and the reports about peers that have left or died.

use super::{Node, number};
use std::time::{Duration, Instant};
use tieline::Error;

/// The id of messages that their receiver keeps.
pub const KEPT: u16 = 7;
/// The id of messages whose handler ends the process by `exit`.
pub const EXITS: u16 = 8;

impl Node {
    pub(super) fn watch_peers(&self) -> Result<(), Error> {
        let worker = self.worker();
        let seen = self.seen.clone();
        worker.on_peer_left(move |_| seen.left.set(seen.left.get() + 1));
        let seen = self.seen.clone();
        worker.on_endpoint_failure(move |_, error| {
            seen.ended.borrow_mut().push(format!("{error:?}"));
        });
        worker.on_message(EXITS, |_| std::process::exit(0))?;
        let seen = self.seen.clone();
        worker.on_message(KEPT, move |message| {
            seen.kept.borrow_mut().push(message.keep());
            seen.counted.set(seen.counted.get() + 1);
        })
    }

    pub(super) fn leaving(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            // `leave holding` closes the worker while endpoints, keys, regions and kept messages are alive.
            ["leave", "holding"] => {
                self.passive = true;
                self.worker().close(Duration::from_secs(10)).map_err(Error::from)?;
            }
            // `leave dropping` drops the worker and the context, and keeps all other objects.
            ["leave", "dropping"] => {
                self.passive = true;
                self.worker = None;
                self.context = None;
            }
            // `leave backwards` drops a region and the context first, and the worker last.
            ["leave", "backwards"] => {
                self.passive = true;
                self.regions.clear();
                self.context = None;
                self.worker = None;
            }
            ["leave", "exit"] => std::process::exit(0),
            // `alone` returns the failure of the last peer, or `no`.
            ["alone"] => {
                let failure = self.worker().last_peer_failure();
                return Ok(failure.map_or("no".into(), |failure| format!("{failure}")));
            }
            // `farewells` makes progress until `count` peers have left or failed. Returns the number of peers that left, the
            // failures, and the endpoints that failed.
            ["farewells", count] => {
                let come =
                    |node: &Node| node.seen.left.get() as usize + node.seen.failures.borrow().len();
                while come(self) < number(count) {
                    self.pause()?;
                }
            }
            // `rest` makes progress for `time` milliseconds.
            ["rest", time] => {
                let time = Duration::from_millis(number(time) as u64);
                let _ = self.worker().wait_until(|| false, Some(time))?;
            }
            // `sleeps` sleeps for `time` milliseconds. Returns the number of times that the sleep ended early.
            ["sleeps", time] => {
                let until = Instant::now() + Duration::from_millis(number(time) as u64);
                let mut ends = 0;
                loop {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(ends.to_string());
                    }
                    let _ = self.worker().wait(Some(left))?;
                    ends += 1;
                }
            }
            _ => panic!("{words:?} is no order"),
        }
        let (failures, ended) = (self.seen.failures.borrow(), self.seen.ended.borrow());
        Ok(format!(
            "{} left, {} failed, {} ended",
            self.seen.left.get(),
            failures.len(),
            ended.len()
        ))
    }
}
