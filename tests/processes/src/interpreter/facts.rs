//! Queries about a node and its connections.

use super::{Node, number};
use crate::sys;
use tieline::Error;

impl Node {
    pub(super) fn facts(&mut self, words: &[&str]) -> Result<String, Error> {
        Ok(match words {
            ["counted"] => self.seen.counted.get().to_string(),
            ["exact-count"] => self.seen.exact.get().to_string(),
            // `atomics` returns the value of the counter after the last `mixed`, and the number of further additions that may have
            // been executed.
            ["atomics"] => {
                format!("{} {}", self.seen.confirmed.get(), self.seen.unknown.get())
            }
            ["pongs"] => self.seen.pongs.get().to_string(),
            ["wrong"] => self.seen.wrong.borrow().join("; "),
            ["failures"] => self.seen.failures.borrow().join(";"),
            // `failures` makes progress until `count` peers were reported as failed.
            ["failures", count] => {
                while self.seen.failures.borrow().len() < number(count) {
                    self.pause()?;
                }
                self.seen.failures.borrow().join(";")
            }
            ["error", name] => match self.endpoint(name).error() {
                Some(error) => format!("{:?} {error}", error.status()),
                None => "alive".into(),
            },
            // `await-error` makes progress until the endpoint has failed.
            ["await-error", name] => loop {
                if let Some(error) = self.endpoint(name).error() {
                    break format!("{:?} {error}", error.status());
                }
                self.pause()?;
            },
            // `context-report` returns the context's complete report, as JSON.
            ["context-report"] => self.context().report().to_json(),
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
                    "file-size" => sys::Limit::FileSize,
                    "processor-time" => sys::Limit::ProcessorTime,
                    _ => sys::Limit::AddressSpace,
                };
                sys::limit(which, number(value) as u64).to_string()
            }
            ["forbid", call] => sys::forbid(call).to_string(),
            // `look` returns the live status of another process.
            ["look", process] => {
                let shown = tieline::live::status_of(number(process) as u32)?;
                shown.iter().map(ToString::to_string).collect()
            }
            ["status"] => self.worker().status().to_string(),
            ["warnings"] => self.context().report().warnings.join(" | "),
            ["become", user] => sys::become_user(number(user) as u32).to_string(),
            ["pin", processor] => sys::pin(number(processor)).to_string(),
            _ => panic!("{words:?} is no order"),
        })
    }
}

/// Returns the value of a line in this process's status, in KiB.
#[must_use]
pub fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

/// Returns the resident memory of this process without file contents, in KiB: its private memory, and the shared memory files that
/// it maps.
#[must_use]
pub fn resident_kib() -> u64 {
    status_kib("RssAnon") + status_kib("RssShmem")
}
