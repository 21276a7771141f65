//! The wire format of shm, implemented a second time: an attacker does not link the victim's code.

use crate::forge;
use crate::sys::{self, Memory};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

const PAGE: usize = 4096;
/// The size in bytes of the fast box of the peer's channels.
const FAST_BOX: usize = 4096;
/// The length of a slot in bytes.
const SLOT: usize = 64;
/// The offset of the first slot of the cold ring, and the number of slots.
const COLD: (usize, usize) = (512, 32);
/// The offset of the first slot of the fast box, and the number of slots.
const FAST: (usize, usize) = (PAGE, FAST_BOX / SLOT);
/// The offset of the word in which the receiver reports the number of consumed slots.
const TAIL: usize = 128;

/// The first byte of each record.
pub mod record {
    /// The record that greets the owner.
    pub const HELLO: u8 = 1;
    /// The record that asks the receiver to poll its rings.
    pub const WAKE: u8 = 4;
    /// The record that requests the segment of a remote key.
    pub const KEY_REQUEST: u8 = 7;
    /// The record with a segment's memory and the table of keys.
    pub const KEY_REPLY: u8 = 8;
    /// The record with a segment of the pool.
    pub const SEGMENT: u8 = 5;
}

/// The kinds of slots.
pub mod slot {
    /// A message whose payload is in the slot.
    pub const INLINE: u8 = 1;
    /// A message whose payload is in the pool.
    pub const POOLED: u8 = 2;
    /// A slot after which the sender rings the doorbell.
    pub const BELL_ON: u8 = 3;
    /// A slot by which the sender requests a fast box.
    pub const WANT_FAST: u8 = 4;
    /// A slot after which the sender continues in the fast box.
    pub const SWITCH: u8 = 5;
}

/// An interface of shm, as its address describes it.
#[derive(Clone, Debug)]
pub struct Target {
    version: u8,
    /// The secret that a greeting must contain.
    pub cookie: [u8; 16],
    /// The domain to which the interface's keys belong.
    pub domain: [u8; 16],
    /// The socket's name, `sun_path`: a leading zero makes the name abstract.
    pub socket: Vec<u8>,
}

impl Target {
    /// Parses the description of the interface in a worker's address.
    ///
    /// # Panics
    /// Panics if the address has no candidate of shm.
    #[must_use]
    pub fn of(address: &[u8]) -> Target {
        let shm = &address[forge::candidate(address, b"shm")];
        // The fields of the candidate: version, cookie, boot, two namespaces, process, domain, length of the name, name.
        let id = |at: usize| <[u8; 16]>::try_from(&shm[at..at + 16]).expect("16 bytes");
        Target { version: shm[0], cookie: id(1), domain: id(49), socket: shm[66..].to_vec() }
    }

    /// Checks whether the name of the socket is abstract.
    #[must_use]
    pub fn is_abstract(&self) -> bool {
        self.socket[0] == 0
    }

    /// Makes a connection without a greeting.
    ///
    /// # Errors
    /// Returns an error if the connection is not accepted.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        sys::connect_unix(&self.socket)
    }

    /// Makes the greeting of a peer that has the address.
    #[must_use]
    pub fn hello(&self, identity: &[u8]) -> Vec<u8> {
        let mut out = vec![record::HELLO, self.version];
        out.extend(self.cookie);
        out.push(1); // ordered by membarrier, which does not matter for an attacker
        out.extend((FAST_BOX as u32).to_le_bytes());
        out.extend((identity.len() as u32).to_le_bytes());
        out.extend(identity);
        out
    }

    /// Sends a greeting of the next version, and returns the owner's answers until the owner disconnects.
    ///
    /// # Errors
    /// Returns an error if the connection is not accepted, or not answered.
    pub fn greet_in_the_next_version(&self) -> io::Result<Vec<u8>> {
        let memory = Memory::sealed(PAGE + FAST_BOX)?;
        let socket = self.connect()?;
        let next = Target { version: self.version + 1, ..self.clone() };
        sys::send_record(&socket, &next.hello(b"a later one"), &[memory.file()])?;
        let mut said = Vec::new();
        let mut socket = UnixStream::from(socket);
        socket.set_nonblocking(false)?;
        let _ = socket.read_to_end(&mut said)?;
        Ok(said)
    }

    /// Makes a channel with a correct greeting.
    ///
    /// # Errors
    /// Returns an error if the connection is not accepted.
    pub fn greet(&self, identity: &[u8]) -> io::Result<Channel> {
        let memory = Memory::sealed(PAGE + FAST_BOX)?;
        let socket = self.connect()?;
        sys::send_record(&socket, &self.hello(identity), &[memory.file()])?;
        Ok(Channel { socket: Some(socket), memory, position: 0, origin: 0, fast: false })
    }
}

/// A connection with its ring.
pub struct Channel {
    socket: Option<OwnedFd>,
    /// The memory that is shared with the victim.
    pub memory: Memory,
    position: u64,
    /// The position of the ring at which the fast box starts, when all slots of the fast box are free.
    origin: u64,
    fast: bool,
}

impl Channel {
    /// Returns the socket, unless it was closed.
    #[must_use]
    pub fn socket(&self) -> Option<&OwnedFd> {
        self.socket.as_ref()
    }

    /// Closes the socket. The ring remains, and can be written.
    pub fn hang_up(&mut self) {
        self.socket = None;
    }

    /// Sends a record over the socket.
    ///
    /// # Errors
    /// Returns an error if the socket is full, or closed on either side.
    pub fn say(&self, record: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        sys::send_record(socket, record, descriptors)
    }

    /// Writes one slot at the victim's next position, if the victim has consumed that slot. Returns whether the victim had consumed
    /// it.
    pub fn push(&mut self, kind: u8, len: u8, body: &[u64]) -> bool {
        let (start, count) = if self.fast { FAST } else { COLD };
        let count = count as u64;
        if self.position >= self.memory.load(TAIL).max(self.origin) + count {
            return false;
        }
        let at = start + (self.position % count) as usize * SLOT;
        for (i, word) in body.iter().enumerate().take(7) {
            self.memory.store(at + 8 + i * 8, *word);
        }
        let lap = self.position / count + 1;
        let head = 1 | u64::from(len) << 16 | u64::from(kind) << 24;
        self.memory.store(at, lap << 32 | head);
        self.position += 1;
        true
    }

    /// Continues in the fast box, which the victim reads in every poll. Returns whether the slot that announces the change was
    /// written.
    pub fn switch(&mut self) -> bool {
        let count = FAST.1 as u64;
        let switched = self.push(slot::SWITCH, 0, &[]);
        if switched {
            self.position = self.position.next_multiple_of(count);
            self.origin = self.position;
            self.fast = true;
        }
        switched
    }
}

/// Makes the record that passes the first segment of a pool.
#[must_use]
pub fn first_segment(len: usize) -> Vec<u8> {
    let mut out = vec![record::SEGMENT, 0, 0, 0, 0];
    out.extend((len as u64).to_le_bytes());
    out
}

/// Borrows descriptors that are to be sent.
#[must_use]
pub fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
