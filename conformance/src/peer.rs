//! The other process of a check: opens the same module of the same file and carries out the commands on its standard input.
//!
//! Each command is one line, and so is its answer. Between commands the process makes progress, except after `sleep`.

use crate::case::{ALL_RIGHTS, Case, Desk, Mailbox, NEAR_COOKIE};
use crate::checks::count_remotely;
use crate::connector;
use crate::endpoint::Endpoint;
use crate::report::{Stop, succeeds};
use crate::sys::Memory;
use crate::watch;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use tieline_plugin_api::{Status, caps};

/// The first argument of a process that is to call [`serve`]; the file and `domain/module` follow.
pub(crate) const ARGUMENT: &str = "check-peer";
/// The length of the region that the peer offers, in bytes.
pub(crate) const REGION: usize = 32 << 10;
/// The initial bytes of the region.
pub(crate) const FILL: u8 = 0x6c;

/// Serves commands until standard input closes or progress fails. A failed command is answered with its error.
pub(crate) fn serve(path: &Path, module: &str, program: &Path) -> Result<(), String> {
    watch::endless();
    let case = Case::open(path, module, program)?;
    let (lines, commands) = channel();
    let _ = std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    if case.is_connector() {
        return connector::serve(&case, &commands).map_err(text);
    }
    let mut peer = Peer::new(&case).map_err(text)?;
    loop {
        match commands.recv_timeout(Duration::from_millis(1)) {
            Ok(line) => {
                let answer =
                    peer.obey(&line).unwrap_or_else(|stop| format!("error: {}", text(stop)));
                println!("{answer}");
                let _ = std::io::stdout().flush();
            }
            Err(RecvTimeoutError::Timeout) if peer.asleep => {}
            Err(RecvTimeoutError::Timeout) => peer.desk.turn().map_err(text)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn text(stop: Stop) -> String {
    match stop {
        Stop::Skip(why) | Stop::Fail(why) => why,
    }
}

struct Peer<'a> {
    case: &'a Case,
    desk: Desk,
    memory: Option<Memory>,
    /// Further connections to the same process.
    twins: Vec<Endpoint>,
    /// Whether the thread has agreed to sleep, and sleeps until the next command.
    asleep: bool,
}

impl<'a> Peer<'a> {
    fn new(case: &'a Case) -> Result<Peer<'a>, Stop> {
        let desk = Desk::of(case, Mailbox::new(case.interface()?));
        let memory = if case.attr.caps & (caps::PUT | caps::GET | caps::ATOMICS) != 0 {
            let memory = case.memory(REGION, ALL_RIGHTS)?;
            memory.write(0, &[FILL; REGION]);
            Some(memory)
        } else {
            None
        };
        Ok(Peer { case, desk, memory, twins: Vec::new(), asleep: false })
    }

    fn obey(&mut self, line: &str) -> Result<String, Stop> {
        self.asleep = false;
        let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
        let number = || argument.parse::<u64>().map_err(|e| Stop::Fail(format!("{line}: {e}")));
        let memory = || self.memory.as_ref().ok_or_else(|| Stop::Fail("no memory".to_string()));
        match command {
            "address" => Ok(hex(&self.case.address_of(&self.desk.boxes[0].interface)?)),
            "key" => Ok(hex(&self.case.key_of(memory()?)?)),
            "dump" => Ok(hex(&memory()?.all())),
            "zero" => {
                memory()?.write(0, &[0; REGION]);
                Ok("done".to_string())
            }
            // The answer is `-`, followed by the endpoint's address, which is empty for modules whose endpoints have none.
            "connect" => {
                self.desk.connect_as(&unhex(argument), &self.case.identity(), NEAR_COOKIE)?;
                let capacity = self.case.attr.max_endpoint_address_len as usize;
                let address = if capacity == 0 {
                    Vec::new()
                } else {
                    succeeds("the endpoint's address", self.desk.endpoint().address(capacity))?
                };
                Ok(format!("-{}", hex(&address)))
            }
            "twin" => {
                let first = self.desk.endpoint.take();
                self.desk.connect_as(&[], &self.case.identity(), NEAR_COOKIE + 1)?;
                let twin = self.desk.endpoint();
                self.desk.endpoint = first;
                let capacity = self.case.attr.max_endpoint_address_len as usize;
                let address = succeeds("the endpoint's address", twin.address(capacity))?;
                self.twins.push(twin);
                Ok(hex(&address))
            }
            "bind-twin" => {
                for twin in &self.twins {
                    succeeds("connect", twin.connect(&unhex(argument)))?;
                }
                Ok("done".to_string())
            }
            "bind" => {
                succeeds("connect", self.desk.endpoint().connect(&unhex(argument)))?;
                Ok("done".to_string())
            }
            "echo" => {
                for _ in 0..number()? {
                    let message = self.desk.receive()?;
                    self.desk.send(message.id + 1, !message.header, &message.data)?;
                }
                Ok("done".to_string())
            }
            "send" => {
                for n in 0..number()? {
                    self.desk.send(2, n, &n.to_le_bytes())?;
                }
                Ok("done".to_string())
            }
            "flush" => {
                let endpoint = self.desk.endpoint();
                let code = self.desk.retry(|| endpoint.flush(1))?;
                let _ = succeeds("flush", self.desk.complete(code, 1)?)?;
                Ok("done".to_string())
            }
            "sleep" => {
                let mut tries = 0..1000;
                while !succeeds("arm", self.desk.boxes[0].interface.arm())?
                    && tries.next().is_some()
                {
                    self.desk.turn()?;
                }
                self.asleep = true;
                Ok("done".to_string())
            }
            "count" => {
                let (key, times) = argument.split_once(' ').unwrap_or((argument, "0"));
                let times = times.parse().unwrap_or(0);
                count_remotely(self.case, &mut self.desk, &unhex(key), times)?;
                Ok("done".to_string())
            }
            other => Err(Stop::Fail(format!("no such command: {other}"))),
        }
    }
}

pub(crate) fn is_hard(status: Status) -> bool {
    status != Status::Again
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks_exact(2)
        .map_while(|pair| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
