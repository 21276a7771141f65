//! Tests of two interfaces over loopback: connections that cross, break and stall, and peers that are slow, misbehave or disappear.
//! This file has the common parts of the tests.

mod breaking;
mod buffers;
mod bulk;
mod connecting;
mod hostile;
mod moving;
mod notifying;
mod pieces;
mod sharing;
mod timing;
mod waiting;

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use tieline_plugin_api::abi::{Event, Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{
    Armed, Domain, Endpoint, Interface, Posted, Posting, RmaOp, Status, access, event, op_flags,
};

use crate::config::Settings;
use crate::domain::{MODULE, TcpDomain};
use crate::endpoint::StreamEndpoint;
use crate::interface::StreamInterface;
use crate::regions::Key;
use crate::sys;

const RIGHTS: u64 = access::REMOTE_READ | access::REMOTE_WRITE;
/// The time limit of a test, which only a hang reaches.
const TIMEOUT: Duration = Duration::from_secs(100);

fn domain(variables: &[(&str, &str)]) -> TcpDomain {
    let settings = Settings::of(|name| {
        let given = variables.iter().find(|(n, _)| *n == name);
        match (given, name) {
            (Some((_, value)), _) => Some((*value).to_string()),
            (None, "TIELINE_TCP_INTERFACES") => Some("lo".to_string()),
            _ => None,
        }
    });
    TcpDomain::open(settings.unwrap(), None).unwrap()
}

/// An interface, its endpoint, and the received events.
struct Side {
    endpoint: Option<StreamEndpoint>,
    interface: StreamInterface,
    messages: VecDeque<(u32, u64, Vec<u8>)>,
    completions: Vec<(u64, i32)>,
    notified: Vec<u64>,
    failed: Option<(Status, String)>,
    until: Instant,
}

impl Side {
    fn new(domain: &TcpDomain) -> Side {
        let interface = domain.open_interface(MODULE, [0; 16]).unwrap();
        let endpoint = Some(interface.connect(&[], &[], 1).unwrap());
        Side {
            endpoint,
            interface,
            messages: VecDeque::new(),
            completions: Vec::new(),
            notified: Vec::new(),
            failed: None,
            until: Instant::now() + TIMEOUT,
        }
    }

    fn endpoint(&self) -> &StreamEndpoint {
        self.endpoint.as_ref().unwrap()
    }

    fn turn(&mut self) {
        assert!(Instant::now() < self.until, "it hangs");
        for (Event { kind, id, header, status, cookie, peer, .. }, data) in
            sys::poll(&self.interface)
        {
            match kind {
                event::MESSAGE => {
                    assert_eq!(peer, 1);
                    self.messages.push_back((id, header, data));
                }
                event::NOTIFIED => {
                    assert_eq!(peer, 1);
                    self.notified.push(header);
                }
                event::COMPLETION => self.completions.push((cookie, status)),
                event::ENDPOINT_FAILED => {
                    assert!(self.failed.is_none(), "an endpoint fails once");
                    let words = String::from_utf8(data).unwrap();
                    self.failed = Some((Status::from_code(status), words));
                }
                kind => panic!("event {kind}"),
            }
        }
    }
}

fn pair_in(domains: [&TcpDomain; 2]) -> [Side; 2] {
    let sides = domains.map(Side::new);
    let addresses = [sides[0].endpoint().address(), sides[1].endpoint().address()];
    sides[0].endpoint().connect(&addresses[1]).unwrap();
    sides[1].endpoint().connect(&addresses[0]).unwrap();
    sides
}

fn pair(variables: &[(&str, &str)]) -> [Side; 2] {
    let domain = domain(variables);
    pair_in([&domain, &domain])
}

fn turn(sides: &mut [Side; 2]) {
    sides[0].turn();
    sides[1].turn();
}

/// Repeats a call until it is accepted.
fn post(sides: &mut [Side; 2], mut call: impl FnMut(&StreamEndpoint) -> Posted) -> Posting {
    loop {
        match call(sides[0].endpoint()) {
            Err(Status::Again) => turn(sides),
            other => return other.unwrap(),
        }
    }
}

fn send(sides: &mut [Side; 2], header: u64, payload: &[u8]) {
    assert_eq!(post(sides, |e| e.am_short(7, header, payload)), Posting::Done);
}

fn receive(sides: &mut [Side; 2]) -> (u32, u64, Vec<u8>) {
    loop {
        if let Some(message) = sides[1].messages.pop_front() {
            return message;
        }
        turn(sides);
    }
}

fn await_completion(sides: &mut [Side; 2], cookie: u64) -> i32 {
    loop {
        if let Some(at) = sides[0].completions.iter().position(|c| c.0 == cookie) {
            return sides[0].completions.remove(at).1;
        }
        turn(sides);
    }
}

/// Returns a piece in the form in which the core passes it.
fn iov(piece: sys::Piece) -> Iov {
    piece.iov()
}

fn rma(sides: &mut [Side; 2], put: bool, key: &Key, memory: &mut [u8], offset: u64, cookie: u64) {
    let len = memory.len();
    let iov = [iov(sys::piece_mut(memory))];
    let op = RmaOp { iov: &iov, len, offset, cookie, flags: op_flags::REMOTE_COMPLETION };
    let posting = post(sides, |e| if put { e.put(key, &op) } else { e.get(key, &op) });
    assert_eq!(posting, Posting::Pending);
}

/// Returns `len` bytes that `seed` determines.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = vec![0; len];
    for chunk in out.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    out
}

fn key_of(
    domain: &TcpDomain,
    memory: &mut [u8],
) -> (std::sync::Arc<crate::regions::Region>, Vec<u8>) {
    let region =
        domain.register(&RegisterParams::new(memory.as_mut_ptr(), memory.len(), RIGHTS)).unwrap();
    let mut key = vec![0; 64];
    let len = domain.pack_key(&region, &KeyParams::empty(), &mut key).unwrap();
    key.truncate(len);
    (region, key)
}

/// Returns the descriptors of the streams that an endpoint uses.
fn streams_of(side: &Side) -> Vec<i32> {
    let conn = side.endpoint().conn();
    let inner = conn.inner.borrow();
    inner.links.iter().filter_map(|link| Some(link.stream.as_ref()?.socket.as_raw_fd())).collect()
}

fn await_streams(sides: &mut [Side; 2], count: usize) {
    while sides.iter().any(|side| streams_of(side).len() < count) {
        turn(sides);
    }
}

/// Breaks a stream as a lost connection does.
fn cut(side: &Side, number: usize) {
    let conn = side.endpoint().conn();
    let inner = conn.inner.borrow();
    let stream = inner.links[number].stream.as_ref().unwrap();
    let _ = socket2::SockRef::from(&stream.socket).shutdown(std::net::Shutdown::Both);
}
