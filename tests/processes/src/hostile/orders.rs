//! What a hostile peer can be told.

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
    /// Connections that said nothing, or something that is no greeting.
    strangers: Vec<OwnedFd>,
    /// The other ends of what was sent, which nobody reads.
    unread: Vec<TcpListener>,
    /// Threads that close what was sent.
    closing: Vec<JoinHandle<()>>,
    impostor: Option<Impostor>,
}

/// The role.
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
            // Everything that follows is against this worker. Says whether its socket has an abstract name.
            ["aim", address] => {
                let target = Target::of(&unhex(address));
                let named = if target.is_abstract() { "abstract" } else { "in a directory" };
                self.target = Some(target);
                named.to_string()
            }
            // Connections with a proper greeting, and a channel each.
            ["greet", count] => {
                for _ in 0..number(count) {
                    let channel = self.target().greet(b"nobody you know")?;
                    self.channels.push(channel);
                }
                self.channels.len().to_string()
            }
            // One of somebody who says that it is the worker with this address.
            ["greet-as", address] => {
                let channel = self.target().greet(&unhex(address))?;
                self.channels.push(channel);
                self.channels.len().to_string()
            }
            // What somebody of the next version is told.
            ["greet-in-the-next-version"] => hex(&self.target().greet_in_the_next_version()?),
            // Connections without a word.
            ["silent", count] => {
                for _ in 0..number(count) {
                    let socket = self.target().connect()?;
                    self.strangers.push(socket);
                }
                self.strangers.len().to_string()
            }
            // How many of the greeted connections the victim has not closed.
            ["open"] => {
                let open = |c: &&Channel| c.socket().is_some_and(sys::is_open);
                self.channels.iter().filter(open).count().to_string()
            }
            // Hangs up, and keeps the rings.
            ["hang-up"] => {
                self.channels.iter_mut().for_each(Channel::hang_up);
                self.strangers.clear();
                String::new()
            }
            // Moves every channel into its fast box.
            ["switch"] => {
                let moved =
                    self.channels.iter_mut().filter_map(|c| c.switch().then_some(())).count();
                moved.to_string()
            }
            // The same record on every channel, as often as it takes it up to so many times: how many in all.
            ["say", record, times] => self.say(&unhex(record), number(times)).to_string(),
            // The same for as long as nothing else is ordered: how many in all.
            ["flood", record] => {
                parent.say("streaming");
                let (record, mut said) = (unhex(record), 0);
                while !parent.wants_something() {
                    said += self.say(&record, 1000);
                }
                said.to_string()
            }
            // Greetings that bring a TCP socket whose closing takes five minutes.
            ["linger", count] => {
                for _ in 0..number(count) {
                    let (tcp, unread) = sys::lingering(300)?;
                    self.unread.push(unread);
                    let greeted = self.greet_with(std::slice::from_ref(&tcp));
                    // Where the victim closed first, or took nothing, it is this close that lasts.
                    self.closing.push(spawn(move || drop(tcp)));
                    greeted?;
                }
                self.strangers.len().to_string()
            }
            // When all of them are closed here. What nobody has taken yet is then the victim's to close.
            ["closed"] => {
                for thread in self.closing.drain(..) {
                    thread.join().expect("closing does not panic");
                }
                String::new()
            }
            // Greetings that bring other things than memory, and as many as the system takes.
            ["odd"] => {
                for kind in 0..sys::ODD_KINDS {
                    let odd = sys::odd_descriptors(kind)?;
                    self.greet_with(&odd)?;
                }
                self.strangers.len().to_string()
            }
            // Messages into every ring, for as long as nothing else is ordered: how many in all.
            ["write"] => {
                parent.say("streaming");
                self.write(parent).to_string()
            }
            // The same by somebody who hangs up when the rings are full for the first time.
            ["haunt"] => {
                let first = self.fill();
                self.channels.iter_mut().for_each(Channel::hang_up);
                parent.say("streaming");
                (first + self.write(parent)).to_string()
            }
            // Messages on every channel out of a file of huge pages, which is given a hole meanwhile.
            ["huge"] => {
                let huge = Memory::of_huge_pages()?;
                for channel in &mut self.channels {
                    channel.say(&wire::first_segment(huge.len()), &[huge.file()])?;
                    let body = [0, 64 << 32, 0]; // 64 bytes at its beginning
                    let _ = channel.push(slot::POOLED, 16, &body);
                    huge.punch_hole()?;
                    let _ = channel.push(slot::POOLED, 16, &body);
                }
                String::new()
            }
            // Takes the name of the worker with this address, for memory of its with this key: the address to use.
            ["impersonate", address, key] => {
                let impostor = Impostor::of(&unhex(address), &unhex(key))?;
                let address = hex(&impostor.address);
                self.impostor = Some(impostor);
                address
            }
            // Plays that worker for as long as nothing else is ordered: how often it was asked for memory.
            ["play"] => {
                parent.say("streaming");
                let impostor = self.impostor.as_mut().expect("`impersonate` comes first");
                impostor.serve(|| parent.wants_something()).to_string()
            }
            // What was written to a place of the memory that it gave away.
            ["got", at] => {
                let impostor = self.impostor.as_ref().expect("`impersonate` comes first");
                impostor.memory.load(number(at)).to_string()
            }
            // Ends `write`, `haunt`, `flood` and `play`.
            ["stop"] => String::new(),
            _ => panic!("{words:?} is no order"),
        })
    }

    /// As many messages as the rings have room for.
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
            // Sent away before we could say anything: another user's process is.
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
