//! The orders of a hostile peer.

use super::impostor::Impostor;
use super::wire::{self, Channel, Target, slot};
use crate::interpreter::{hex, unhex};
use crate::parent::Parent;
use crate::sys::{self, Memory};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::thread::{JoinHandle, spawn};

#[derive(Default)]
struct Hostile {
    target: Option<Target>,
    channels: Vec<Channel>,
    /// The connections that sent nothing, or something other than a greeting.
    strangers: Vec<OwnedFd>,
    /// The other ends of sockets that were sent, which are never read.
    unread: Vec<TcpListener>,
    /// The threads that close sockets that were sent.
    closing: Vec<JoinHandle<()>>,
    impostor: Option<Impostor>,
}

/// Runs the role `hostile`.
pub fn hostile(parent: Parent) {
    let mut hostile = Hostile::default();
    while let Some(order) = parent.hear() {
        let words: Vec<&str> = order.split(' ').collect();
        let answer = hostile.obey(&words, &parent);
        let now = sys::now_ns();
        match answer {
            Ok(text) => parent.say(&format!("ok {now} {text}")),
            Err(e) => parent.say(&format!("error {now} {:?} System {e}", e.kind())),
        }
    }
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

impl Hostile {
    fn target(&self) -> &Target {
        self.target.as_ref().expect("`aim` comes first")
    }

    fn obey(&mut self, words: &[&str], parent: &Parent) -> io::Result<String> {
        Ok(match words {
            ["become", user] => sys::become_user(number(user) as u32).to_string(),
            // `aim` selects the worker for the following orders. Returns whether the worker's socket has an abstract name.
            ["aim", address] => {
                let target = Target::of(&unhex(address));
                let named = if target.is_abstract() { "abstract" } else { "in a directory" };
                self.target = Some(target);
                named.to_string()
            }
            // `greet` makes connections with a proper greeting, each with a channel.
            ["greet", count] => {
                for _ in 0..number(count) {
                    let channel = self.target().greet(b"nobody you know")?;
                    self.channels.push(channel);
                }
                self.channels.len().to_string()
            }
            // `greet-as` makes a connection that claims to come from the worker with this address.
            ["greet-as", address] => {
                let channel = self.target().greet(&unhex(address))?;
                self.channels.push(channel);
                self.channels.len().to_string()
            }
            // This order returns the answer to a greeting of the next version.
            ["greet-in-the-next-version"] => hex(&self.target().greet_in_the_next_version()?),
            // `silent` makes connections that send nothing.
            ["silent", count] => {
                for _ in 0..number(count) {
                    let socket = self.target().connect()?;
                    self.strangers.push(socket);
                }
                self.strangers.len().to_string()
            }
            // `open` returns the number of greeted connections that the victim has not closed.
            ["open"] => {
                let open = |c: &&Channel| c.socket().is_some_and(sys::is_open);
                self.channels.iter().filter(open).count().to_string()
            }
            // `hang-up` closes the connections, and keeps the rings.
            ["hang-up"] => {
                self.channels.iter_mut().for_each(Channel::hang_up);
                self.strangers.clear();
                String::new()
            }
            // `switch` moves channels into their fast boxes. Returns the number of channels that moved.
            ["switch"] => {
                let moved =
                    self.channels.iter_mut().filter_map(|c| c.switch().then_some(())).count();
                moved.to_string()
            }
            // `say` sends the same record on every channel while the channel accepts it, at most `times` times. Returns the total.
            ["say", record, times] => self.say(&unhex(record), number(times)).to_string(),
            // `flood` sends the same record until the next order. Returns the total.
            ["flood", record] => {
                parent.say("streaming");
                let (record, mut said) = (unhex(record), 0);
                while !parent.wants_something() {
                    said += self.say(&record, 1000);
                }
                said.to_string()
            }
            // `linger` sends greetings with a TCP socket whose close takes five minutes.
            ["linger", count] => {
                for _ in 0..number(count) {
                    let (tcp, unread) = sys::lingering(300)?;
                    self.unread.push(unread);
                    let greeted = self.greet_with(std::slice::from_ref(&tcp));
                    // If the victim closed its copy first, or received none, this close is the one that blocks.
                    self.closing.push(spawn(move || drop(tcp)));
                    greeted?;
                }
                self.strangers.len().to_string()
            }
            // `closed` waits until the sockets of `linger` are closed in this process. The victim then closes the last copies that
            // it has received.
            ["closed"] => {
                for thread in self.closing.drain(..) {
                    thread.join().expect("closing does not panic");
                }
                String::new()
            }
            // `odd` sends greetings with descriptors that the receiver does not expect, and with the maximum number of descriptors.
            ["odd"] => {
                for kind in 0..sys::ODD_KINDS {
                    let odd = sys::odd_descriptors(kind)?;
                    self.greet_with(&odd)?;
                }
                self.strangers.len().to_string()
            }
            // `write` writes messages into every ring until the next order. Returns the total.
            ["write"] => {
                parent.say("streaming");
                self.write(parent).to_string()
            }
            // `haunt` writes messages as `write` does, and disconnects when the rings are full for the first time.
            ["haunt"] => {
                let first = self.fill();
                self.channels.iter_mut().for_each(Channel::hang_up);
                parent.say("streaming");
                (first + self.write(parent)).to_string()
            }
            // `huge` sends messages on every channel from a file of huge pages, into which a hole is punched during that time.
            ["huge"] => {
                let huge = Memory::with_huge_pages()?;
                for channel in &mut self.channels {
                    channel.say(&wire::first_segment(huge.len()), &[huge.file()])?;
                    let body = [0, 64 << 32, 0]; // 64 bytes at the beginning
                    let _ = channel.push(slot::POOLED, 16, &body);
                    huge.punch_hole()?;
                    let _ = channel.push(slot::POOLED, 16, &body);
                }
                String::new()
            }
            // `impersonate` acts as the worker with this address, for its memory with this key. Returns the address to use.
            ["impersonate", address, key] => {
                let impostor = Impostor::of(&unhex(address), &unhex(key))?;
                let address = hex(&impostor.address);
                self.impostor = Some(impostor);
                address
            }
            // `play` serves as the impersonated worker until the next order. Returns the number of requests for memory.
            ["play"] => {
                parent.say("streaming");
                let impostor = self.impostor.as_mut().expect("`impersonate` comes first");
                impostor.serve(|| parent.wants_something()).to_string()
            }
            // `got` returns the word at an offset of the presented memory.
            ["got", at] => {
                let impostor = self.impostor.as_ref().expect("`impersonate` comes first");
                impostor.memory.load(number(at)).to_string()
            }
            // `stop` ends `write`, `haunt`, `flood` and `play`.
            ["stop"] => String::new(),
            _ => panic!("{words:?} is no order"),
        })
    }

    /// Writes messages until all rings are full.
    fn fill(&mut self) -> usize {
        let filled = |channel: &mut Channel| {
            std::iter::repeat_with(|| channel.push(slot::INLINE, 8, &[0, 0]))
                .take_while(|&p| p)
                .count()
        };
        self.channels.iter_mut().map(filled).sum()
    }

    fn write(&mut self, parent: &Parent) -> usize {
        let mut written = 0;
        while !parent.wants_something() {
            written += self.fill();
        }
        written
    }

    fn greet_with(&mut self, descriptors: &[OwnedFd]) -> io::Result<()> {
        let socket = self.target().connect()?;
        let hello = self.target().hello(b"nobody you know");
        match sys::send_record(&socket, &hello, &wire::borrowed(descriptors)) {
            // The victim has disconnected before the greeting was sent, as it does for a process of another user.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => {
                sent?;
                self.strangers.push(socket);
                Ok(())
            }
        }
    }

    fn say(&self, record: &[u8], times: usize) -> usize {
        let sent = |channel: &Channel| {
            (0..times).take_while(|_| channel.say(record, &wire::borrowed(&[])).is_ok()).count()
        };
        self.channels.iter().map(sent).sum()
    }
}
