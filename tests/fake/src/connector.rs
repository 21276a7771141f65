//! A connection-only module, which sends datagrams to any connector whose number the sender knows.

use crate::calls::{Call, Slot};
use crate::provider::settled;
use crate::world::World;
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Connector, Events, Failure, Status, address_hash, event};

/// The world's state of a connector that a worker has opened.
pub(crate) struct Post {
    pub(crate) open: bool,
    /// The received datagrams: the sender and the bytes of each.
    inbox: VecDeque<(u64, Box<[u8]>)>,
    /// The cookies of targets that could not be reached.
    left: VecDeque<u64>,
    /// The bytes that the events of the last poll point to.
    handed: Vec<Box<[u8]>>,
}

impl Post {
    pub(crate) fn new() -> Post {
        Post { open: true, inbox: VecDeque::new(), left: VecDeque::new(), handed: Vec::new() }
    }
}

/// A worker's place on a lane that carries datagrams.
pub struct FakeConnector {
    /// A socket that holds one unread byte, so that it is always readable.
    signal: UnixStream,
    world: &'static World,
    lane: usize,
    number: usize,
}

impl FakeConnector {
    pub(crate) fn open(world: &'static World, lane: usize) -> Result<FakeConnector, Failure> {
        let failed = |error| Failure::from_io("a pair of sockets", &error);
        let (signal, mut other) = UnixStream::pair().map_err(failed)?;
        other.write_all(b"!").map_err(failed)?;
        let mut state = world.state();
        state.posts.push(Post::new());
        Ok(FakeConnector { signal, world, lane, number: state.posts.len() - 1 })
    }

    fn ask(&self, slot: Slot, len: usize) -> Result<(), Status> {
        let (interface, cookie) = (usize::MAX, self.number as u64);
        let call = Call { slot, interface, cookie, id: 0, len, flags: 0, refused: false };
        let verdict = self.world.state().call(self.lane, call);
        settled(self.world, verdict).map(|_| ())
    }

    fn parse(&self, address: &[u8]) -> Result<usize, Status> {
        let number = address.try_into().map_err(|_| Status::BadData)?;
        let number = usize::try_from(u64::from_le_bytes(number)).map_err(|_| Status::BadData)?;
        let there = number < self.world.state().posts.len();
        if there { Ok(number) } else { Err(Status::Unreachable) }
    }
}

impl Drop for FakeConnector {
    fn drop(&mut self) {
        self.world.state().posts[self.number].open = false;
        let _ = self.ask(Slot::CloseConnector, 0);
    }
}

impl Connector for FakeConnector {
    fn address(&self) -> Vec<u8> {
        (self.number as u64).to_le_bytes().to_vec()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        Ok(self.parse(address).map(|_| ())?)
    }

    fn send(&self, address: &[u8], datagram: &[u8]) -> Result<(), Status> {
        self.ask(Slot::Datagram, datagram.len())?;
        let to = self.parse(address)?;
        let from = address_hash(&self.address());
        let posts = &mut self.world.state().posts;
        match posts[to].open {
            true => posts[to].inbox.push_back((from, datagram.into())),
            false => posts[self.number].left.push_back(address_hash(address)),
        }
        Ok(())
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        self.ask(Slot::Collect, 0)?;
        let mut state = self.world.state();
        let post = &mut state.posts[self.number];
        post.handed.clear();
        while events.room() > 0 {
            if let Some(header) = post.left.pop_front() {
                let (kind, status) = (event::PEER_LEFT, Status::PeerFailed as i32);
                let _ = events.push(Event { kind, status, header, ..Event::empty() });
                continue;
            }
            let Some((from, bytes)) = post.inbox.pop_front() else { break };
            let (data, len) = (bytes.as_ptr(), bytes.len());
            let kind = event::DATAGRAM;
            let _ = events.push(Event { kind, header: from, data, len, ..Event::empty() });
            post.handed.push(bytes);
        }
        Ok(())
    }

    fn arm(&self) -> Result<Armed, Status> {
        self.ask(Slot::ArmConnector, 0)?;
        Ok(Armed::Ready)
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.signal.as_raw_fd())
    }
}
