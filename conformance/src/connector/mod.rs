//! An opened connection-only module with its received events, and the commands of another process that has one.

mod sys;

pub(crate) use sys::Connector;

use crate::case::Case;
use crate::interface::Received;
use crate::peer::{hex, unhex};
use crate::report::{Checked, Stop, fail, holds, same_bytes, succeeds};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tieline_plugin_api::abi::fixed_str;
use tieline_plugin_api::{Status, event};

/// The number of senders that are kept: those of the last datagrams.
const MOST_HEADERS: usize = 1000;

pub(crate) struct Post {
    pub(crate) connector: Connector,
    pub(crate) address: Vec<u8>,
    pub(crate) datagrams: VecDeque<Vec<u8>>,
    /// Senders of received datagrams, as the events name them.
    pub(crate) headers: VecDeque<u64>,
    pub(crate) at_once: usize,
    pub(crate) left: Vec<Received>,
}

impl Post {
    pub(crate) fn open(case: &Case) -> Result<Post, Stop> {
        let module = fixed_str(&case.attr.name).unwrap_or("");
        let connector = succeeds("open_connector", Connector::open(&case.domain, module))?;
        let address = connector.address(case.attr.max_address_len as usize);
        let address = succeeds("the connector's address", address)?;
        let (datagrams, headers) = (VecDeque::new(), VecDeque::new());
        Ok(Post { connector, address, datagrams, headers, at_once: 16, left: Vec::new() })
    }

    /// Polls once. Returns `false` if the poll delivered nothing.
    pub(crate) fn turn(&mut self) -> Result<bool, Stop> {
        let events = succeeds("poll", self.connector.poll(self.at_once))?;
        let any = !events.is_empty();
        for received in events {
            match received.kind {
                event::DATAGRAM => {
                    while self.headers.len() >= MOST_HEADERS {
                        let _ = self.headers.pop_front();
                    }
                    self.headers.push_back(received.header);
                    self.datagrams.push_back(received.data);
                }
                event::PEER_LEFT => {
                    let words =
                        !received.data.is_empty() && std::str::from_utf8(&received.data).is_ok();
                    holds(words, "the reason of PEER_LEFT", "words", "none")?;
                    holds(received.status < 0, "its status", "an error", received.status)?;
                    self.left.push(received);
                }
                kind => return Err(fail("an event of a connector", "DATAGRAM or PEER_LEFT", kind)),
            }
        }
        if !any {
            std::thread::yield_now();
        }
        Ok(any)
    }

    pub(crate) fn send(
        &mut self,
        to: &[u8],
        datagram: &[u8],
        mut meanwhile: impl FnMut() -> Checked,
    ) -> Checked {
        loop {
            match self.connector.send(to, datagram) {
                Err(Status::Again) => {
                    let _ = self.turn()?;
                    meanwhile()?;
                }
                other => return succeeds(format!("send of {} bytes", datagram.len()), other),
            }
        }
    }
}

/// Carries out the commands of another process: `address`, `echo ADDRESS COUNT`, `send ADDRESS COUNT`, `expect COUNT` (from another
/// sender) and `left`. Makes progress between commands.
pub(crate) fn serve(case: &Case, commands: &Receiver<String>) -> Checked {
    let mut post = Post::open(case)?;
    loop {
        match commands.recv_timeout(Duration::from_millis(1)) {
            Ok(line) => {
                let answer = obey(&mut post, &line).unwrap_or_else(|stop| match stop {
                    Stop::Skip(why) | Stop::Fail(why) => format!("error: {why}"),
                });
                println!("{answer}");
                let _ = std::io::stdout().flush();
            }
            Err(RecvTimeoutError::Timeout) => drop(post.turn()?),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn obey(post: &mut Post, line: &str) -> Result<String, Stop> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |text: &str| text.parse::<u64>().map_err(|e| Stop::Fail(format!("{line}: {e}")));
    match words[..] {
        ["address"] => return Ok(hex(&post.address)),
        ["echo", to, count] => {
            for _ in 0..number(count)? {
                let datagram = next(post)?;
                post.send(&unhex(to), &datagram, || Ok(()))?;
            }
        }
        ["send", to, count] => {
            for n in 0..number(count)? {
                post.send(&unhex(to), &n.to_le_bytes(), || Ok(()))?;
            }
        }
        ["expect", count] => {
            for n in 0..number(count)? {
                let found = next(post)?;
                same_bytes(format!("datagram {n}"), &n.to_le_bytes(), &found)?;
            }
        }
        ["left"] => loop {
            if let Some(left) = post.left.pop() {
                let words = String::from_utf8_lossy(&left.data).replace('\n', " ");
                return Ok(format!("{:016x} {words}", left.header));
            }
            let _ = post.turn()?;
        },
        _ => return Err(Stop::Fail(format!("no such command: {line}"))),
    }
    Ok("done".to_string())
}

fn next(post: &mut Post) -> Result<Vec<u8>, Stop> {
    loop {
        if let Some(datagram) = post.datagrams.pop_front() {
            return Ok(datagram);
        }
        let _ = post.turn()?;
    }
}
