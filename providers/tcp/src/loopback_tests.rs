//! Two interfaces over loopback: connections that cross, break and stall, peers that are slow, rude or gone.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tieline_plugin_api::abi::{Event, Iov};
use tieline_plugin_api::{
    Armed, Domain, Endpoint, Interface, Posted, Posting, RmaOp, Status, access, event,
};

use crate::config::Settings;
use crate::domain::{MODULE, TcpDomain};
use crate::endpoint::StreamEndpoint;
use crate::interface::StreamInterface;
use crate::regions::Key;
use crate::sys;

const RIGHTS: u64 = access::REMOTE_READ | access::REMOTE_WRITE;
/// Only something that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(100);

fn domain(variables: &[(&str, &str)]) -> TcpDomain {
    let settings = Settings::read(|name| {
        let given = variables.iter().find(|(n, _)| *n == name);
        match (given, name) {
            (Some((_, value)), _) => Some((*value).to_string()),
            (None, "TIELINE_TCP_INTERFACES") => Some("lo".to_string()),
            _ => None,
        }
    });
    TcpDomain::open(settings.unwrap()).unwrap()
}

/// An interface, its endpoint, and what came in.
struct Side {
    endpoint: Option<StreamEndpoint>,
    interface: StreamInterface,
    messages: VecDeque<(u32, u64, Vec<u8>)>,
    completions: Vec<(u64, i32)>,
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
            failed: None,
            until: Instant::now() + PATIENCE,
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

/// Repeats until it is accepted.
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

fn rma(sides: &mut [Side; 2], put: bool, key: &Key, memory: &mut [u8], offset: u64, cookie: u64) {
    let len = memory.len();
    let iov = [sys::piece_mut(memory)];
    let op = RmaOp { iov: &iov, len, offset, cookie, flags: 0 };
    let posting = post(sides, |e| if put { e.put(key, &op) } else { e.get(key, &op) });
    assert_eq!(posting, Posting::Pending);
}

/// Bytes that tell their place.
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
    let region = domain.register(memory.as_mut_ptr(), memory.len(), RIGHTS).unwrap();
    let mut key = vec![0; 64];
    let len = domain.pack_key(&region, &mut key).unwrap();
    key.truncate(len);
    (region, key)
}

/// The descriptors of the streams that an endpoint uses.
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

#[test]
fn both_directions_opened_at_once_end_as_one_connection_per_stream() {
    for round in 0..150 {
        let streams = ["1", "2", "4"][round % 3];
        let count: usize = streams.parse().unwrap();
        let mut sides = pair(&[("TIELINE_TCP_STREAMS", streams)]);
        if round % 2 == 1 {
            // Both sides dial at once.
            for side in &sides {
                let conn = side.endpoint().conn();
                let mut inner = conn.inner.borrow_mut();
                inner.links.iter_mut().for_each(|link| link.dial_now());
                inner.tend_links(Instant::now());
            }
        }
        await_streams(&mut sides, count);
        send(&mut sides, 5, b"one way");
        assert_eq!(receive(&mut sides).2, b"one way");
        sides.swap(0, 1);
        send(&mut sides, 6, b"and back");
        assert_eq!(receive(&mut sides).2, b"and back");
        sides.swap(0, 1);
        let ends = sides.each_ref().map(|side| {
            let conn = side.endpoint().conn();
            let inner = conn.inner.borrow();
            assert_eq!(inner.links.len(), count);
            inner
                .links
                .iter()
                .map(|link| link.stream.as_ref().unwrap().addresses())
                .collect::<Vec<_>>()
        });
        for (near, far) in ends[0].iter().zip(&ends[1]) {
            assert_eq!((near.0, near.1), (far.1, far.0), "another connection on each side");
        }
    }
}

#[test]
fn the_smaller_number_of_streams_is_used_when_the_two_sides_ask_for_different_ones() {
    let domains =
        [domain(&[("TIELINE_TCP_STREAMS", "3")]), domain(&[("TIELINE_TCP_STREAMS", "2")])];
    let mut sides = pair_in([&domains[0], &domains[1]]);
    await_streams(&mut sides, 2);
    send(&mut sides, 1, b"hello");
    assert_eq!(receive(&mut sides).2, b"hello");
    assert_eq!(streams_of(&sides[0]).len(), 2);
}

#[test]
fn a_message_sent_before_the_peer_connects_arrives_when_it_does() {
    let domain = domain(&[]);
    let mut sides = [Side::new(&domain), Side::new(&domain)];
    let addresses = [sides[0].endpoint().address(), sides[1].endpoint().address()];
    sides[0].endpoint().connect(&addresses[1]).unwrap();
    for _ in 0..50 {
        turn(&mut sides);
        std::thread::sleep(Duration::from_millis(1));
    }
    sides[1].endpoint().connect(&addresses[0]).unwrap();
    send(&mut sides, 3, b"early");
    assert_eq!(receive(&mut sides), (7, 3, b"early".to_vec()));
}

/// Sends numbered messages and a big put while streams are cut; everything must arrive once.
fn survives_cuts(streams: &str, cuts: usize) {
    let domain = domain(&[("TIELINE_TCP_STREAMS", streams), ("TIELINE_TCP_RECONNECT", "on")]);
    let mut sides = pair_in([&domain, &domain]);
    let count: usize = streams.parse().unwrap();
    await_streams(&mut sides, count);
    let mut source = pattern(16 << 20, 3);
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let (mut sent, mut received) = (0u64, 0u64);
    for n in 0..cuts {
        target.fill(0);
        rma(&mut sides, true, &key, &mut source, 0, 100);
        for step in 0..400 {
            let payload = pattern((sent as usize * 131) % 5000, sent);
            if sides[0].endpoint().am_short(7, sent, &payload).is_ok() {
                sent += 1;
            }
            if step == 3 + 2 * n {
                let side = n % 2;
                let live: Vec<usize> = live_streams(&sides[side]);
                if let Some(&victim) = live.get(n % live.len().max(1)) {
                    cut(&sides[side], victim);
                }
            }
            turn(&mut sides);
        }
        assert_eq!(await_completion(&mut sides, 100), 0);
        assert!(target == source, "cut {n}: the target differs");
        let mut back = vec![0u8; 3 << 20];
        rma(&mut sides, false, &key, &mut back, 77, 101);
        if let Some(&victim) = live_streams(&sides[1]).first() {
            cut(&sides[1], victim);
        }
        assert_eq!(await_completion(&mut sides, 101), 0);
        assert!(back[..] == source[77..77 + back.len()], "cut {n}: what was got differs");
    }
    while received < sent {
        let (_, header, data) = receive(&mut sides);
        assert_eq!(header, received, "messages in order");
        assert_eq!(data, pattern((received as usize * 131) % 5000, received));
        received += 1;
    }
    for _ in 0..200 {
        turn(&mut sides);
    }
    assert!(sides[1].messages.is_empty(), "nothing twice");
    assert!(sides.iter().all(|side| side.failed.is_none()));
    await_streams(&mut sides, count);
    domain.deregister(region).unwrap();
}

fn live_streams(side: &Side) -> Vec<usize> {
    let conn = side.endpoint().conn();
    let inner = conn.inner.borrow();
    (0..inner.links.len()).filter(|&n| inner.links[n].stream.is_some()).collect()
}

#[test]
fn with_two_streams_one_that_is_cut_in_mid_transfer_costs_nothing() {
    survives_cuts("2", 6);
}

#[test]
fn with_three_streams_one_that_is_cut_in_mid_transfer_costs_nothing() {
    survives_cuts("3", 6);
}

#[test]
fn one_stream_that_keeps_what_it_sends_comes_back_after_a_cut() {
    survives_cuts("1", 4);
}

#[test]
fn a_stream_that_stalls_is_given_up_and_what_was_on_it_arrives_on_the_other() {
    let variables = [("TIELINE_TCP_STREAMS", "2"), ("TIELINE_TCP_STALL", "100ms")];
    let mut sides = pair(&variables);
    await_streams(&mut sides, 2);
    {
        let conn = sides[1].endpoint().conn();
        conn.inner.borrow_mut().links[1].stream.as_mut().unwrap().frozen = true;
    }
    for n in 0..3000 {
        send(&mut sides, n, &pattern(30_000, n));
    }
    for n in 0..3000 {
        assert_eq!(receive(&mut sides), (7, n, pattern(30_000, n)));
    }
    // Another connection takes its place.
    let is_frozen = |side: &Side| {
        let inner = side.endpoint().conn().inner.borrow();
        inner.links[1].stream.as_ref().is_none_or(|stream| stream.frozen)
    };
    while is_frozen(&sides[1]) {
        turn(&mut sides);
    }
    assert!(sides.iter().all(|side| side.failed.is_none()));
}

#[test]
fn without_reconnecting_a_cut_fails_the_endpoint_in_words_and_everything_under_way() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut source = vec![1u8; 8 << 20];
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    rma(&mut sides, true, &key, &mut source, 0, 40);
    let mut back = vec![0u8; 1 << 20];
    rma(&mut sides, false, &key, &mut back, 0, 41);
    assert_eq!(sides[0].endpoint().flush(42), Ok(Posting::Pending));
    cut(&sides[0], 0);
    while sides.iter().any(|side| side.failed.is_none()) {
        turn(&mut sides);
    }
    for side in &sides {
        let (status, words) = side.failed.as_ref().unwrap();
        assert_eq!(*status, Status::PeerFailed, "{words}");
        assert!(words.contains("127.0.0.1") || words.contains("[::1]"), "{words}");
    }
    let mut cookies: Vec<u64> = sides[0].completions.iter().map(|c| c.0).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [40, 41, 42]);
    assert!(sides[0].completions.iter().all(|c| c.1 == Status::PeerFailed as i32));
    assert_eq!(sides[0].endpoint().am_short(1, 1, b"?"), Err(Status::PeerFailed));
    domain.deregister(region).unwrap();
}

#[test]
fn a_goodbye_is_closed_and_what_was_sent_before_arrives() {
    for streams in ["1", "2"] {
        let mut sides = pair(&[("TIELINE_TCP_STREAMS", streams)]);
        for n in 0..100 {
            send(&mut sides, n, &pattern(3000, n));
        }
        sides[0].endpoint = None;
        for n in 0..100 {
            assert_eq!(receive(&mut sides), (7, n, pattern(3000, n)));
        }
        while sides[1].failed.is_none() {
            turn(&mut sides);
        }
        let (status, words) = sides[1].failed.clone().unwrap();
        assert_eq!(status, Status::Closed, "{words}");
        assert_eq!(sides[1].endpoint().am_short(1, 1, b"?"), Err(Status::Closed));
        while sides[0].interface.memory().peers > 0 {
            turn(&mut sides);
        }
    }
}

#[test]
fn connecting_to_an_endpoint_that_was_closed_fails_in_words() {
    let domain = domain(&[]);
    let mut sides = [Side::new(&domain), Side::new(&domain)];
    let address = sides[1].endpoint().address();
    sides[1].endpoint = None;
    sides[0].endpoint().connect(&address).unwrap();
    while sides[0].failed.is_none() {
        turn(&mut sides);
    }
    let (status, words) = sides[0].failed.clone().unwrap();
    assert_eq!(status, Status::Closed, "{words}");
}

#[test]
fn a_slow_receiver_stops_the_sender_with_bounded_memory_and_loses_nothing() {
    for streams in ["1", "2"] {
        let mut sides = pair(&[("TIELINE_TCP_STREAMS", streams)]);
        await_streams(&mut sides, streams.parse().unwrap());
        let payload = pattern(10_000, 9);
        let mut sent = 0;
        let mut refused = 0;
        while refused < 1000 {
            match sides[0].endpoint().am_short(7, sent, &payload) {
                Ok(_) => sent += 1,
                Err(Status::Again) => {
                    refused += 1;
                    sides[0].turn();
                }
                Err(status) => panic!("{status}"),
            }
        }
        let memory = sides[0].interface.memory();
        assert!(memory.base_bytes + memory.buffer_bytes < 2 << 20, "{memory:?}");
        for n in 0..sent {
            let (_, header, data) = receive(&mut sides);
            assert_eq!(header, n);
            assert!(data == payload);
        }
        let memory = sides[1].interface.memory();
        assert!(memory.base_bytes + memory.buffer_bytes < 2 << 20, "{memory:?}");
    }
}

#[test]
fn garbage_ends_the_connection_it_came_on_and_nothing_else() {
    let mut sides = pair(&[]);
    let mut others = pair(&[]);
    await_streams(&mut sides, 1);
    await_streams(&mut others, 1);
    // To the listener.
    let place =
        tieline_net::Contact::parse_prefix(&sides[1].endpoint().address()).unwrap().0.places[0];
    for len in [1usize, 100, 100_000] {
        let mut stranger = std::net::TcpStream::connect((place.ip, place.port)).unwrap();
        let _ = stranger.write_all(&pattern(len, 5));
    }
    send(&mut sides, 1, b"still here");
    assert_eq!(receive(&mut sides).2, b"still here");
    // On a connection that stands.
    let fd = streams_of(&sides[0])[0];
    assert_eq!(sys::send(fd, &pattern(500, 11)).unwrap(), 500);
    while sides[1].failed.is_none() {
        turn(&mut sides);
    }
    let (status, words) = sides[1].failed.clone().unwrap();
    assert_eq!(status, Status::BadData, "{words}");
    send(&mut others, 1, b"unharmed");
    assert_eq!(receive(&mut others).2, b"unharmed");
}

#[test]
fn a_gigabyte_crosses_three_streams_unharmed() {
    let domain = domain(&[("TIELINE_TCP_STREAMS", "3")]);
    let mut sides = pair_in([&domain, &domain]);
    let mut source = pattern(1 << 30, 17);
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    await_streams(&mut sides, 3);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    rma(&mut sides, true, &key, &mut source, 0, 9);
    let mut echoes = 0;
    while sides[0].completions.is_empty() {
        // Messages are not held up by it.
        if echoes < 20 {
            send(&mut sides, echoes, b"between");
            assert_eq!(receive(&mut sides).1, echoes);
            echoes += 1;
        }
        turn(&mut sides);
    }
    assert_eq!((echoes, await_completion(&mut sides, 9)), (20, 0));
    assert!(source == target);
    domain.deregister(region).unwrap();
}

#[test]
fn deregistering_in_the_middle_of_a_transfer_cuts_it_off() {
    for put in [true, false] {
        let domain = domain(&[]);
        let mut sides = pair_in([&domain, &domain]);
        await_streams(&mut sides, 1);
        let mut local = vec![0x55u8; 64 << 20];
        let mut target = vec![0xaau8; local.len()];
        let (region, packed) = key_of(&domain, &mut target);
        let key = sides[0].endpoint().import_key(&packed).unwrap();
        rma(&mut sides, put, &key, &mut local, 0, 5);
        for _ in 0..3 {
            turn(&mut sides);
        }
        domain.deregister(region).unwrap();
        // From here on the memory belongs to somebody else.
        target.fill(0xcc);
        assert_eq!(await_completion(&mut sides, 5), Status::KeyRejected as i32, "put: {put}");
        assert!(target.iter().all(|&byte| byte == 0xcc), "written after deregistering");
        if !put {
            assert!(!local.contains(&0xcc), "read after deregistering");
        }
        send(&mut sides, 1, b"the endpoint lives");
        assert_eq!(receive(&mut sides).2, b"the endpoint lives");
    }
}

#[test]
fn a_fence_holds_a_message_back_until_the_gets_before_it_are_done() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![1u8; 4 << 20];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut local = vec![0u8; target.len()];
    rma(&mut sides, false, &key, &mut local, 0, 5);
    sides[0].endpoint().fence().unwrap();
    assert_eq!(sides[0].endpoint().am_short(7, 1, b"after"), Err(Status::Again));
    send(&mut sides, 1, b"after");
    assert_eq!(sides[0].completions, [(5, 0)]);
    assert_eq!(receive(&mut sides).2, b"after");
    domain.deregister(region).unwrap();
}

#[test]
fn a_closed_endpoint_leaves_its_operations_memory_alone() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut source = pattern(32 << 20, 23);
    let original = source.clone();
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    rma(&mut sides, true, &key, &mut source, 0, 5);
    sides[0].endpoint = None;
    source.fill(0xee);
    while sides[1].failed.is_none() {
        turn(&mut sides);
    }
    assert_eq!(sides[1].failed.as_ref().unwrap().0, Status::Closed);
    for (n, (got, was)) in target.iter().zip(&original).enumerate() {
        assert!(got == was || *got == 0, "byte {n} is of the memory that was given back");
    }
    domain.deregister(region).unwrap();
}

#[test]
fn a_sleeping_interface_wakes_for_room_and_for_messages() {
    let mut sides = pair(&[]);
    send(&mut sides, 0, b"first");
    let _ = receive(&mut sides);
    let payload = vec![1u8; 60_000];
    let mut sent = 1;
    while sides[0].endpoint().am_short(7, sent, &payload).is_ok() {
        sent += 1;
    }
    let fd = sides[0].interface.event_fd().unwrap();
    while sides[0].interface.arm().unwrap() == Armed::Ready {
        sides[0].turn();
    }
    assert!(!readable(fd, 0), "nothing happens");
    for n in 1..sent {
        while sides[1].messages.is_empty() {
            sides[1].turn();
            if readable(fd, 0) {
                sides[0].turn();
            }
        }
        assert_eq!(sides[1].messages.pop_front().unwrap().1, n);
    }
}

fn readable(fd: i32, millis: u64) -> bool {
    let poller = tieline_net::Poller::new().unwrap();
    poller.watch(fd, tieline_net::Interest::READ, 0).unwrap();
    let mut ready = Vec::new();
    poller.wait(&mut ready, Some(Duration::from_millis(millis))).unwrap();
    !ready.is_empty()
}

#[test]
fn an_idle_connection_costs_little_memory() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    let mut more = Vec::new();
    for n in 0..100u64 {
        let ends = [2, 3]
            .map(|c| (c, &sides[c as usize - 2].interface))
            .map(|(_, interface)| interface.connect(&[], &[], 1).unwrap());
        ends[0].connect(&ends[1].address()).unwrap();
        ends[1].connect(&ends[0].address()).unwrap();
        while ends[0].am_short(1, n, b"one message").is_err() {
            turn(&mut sides);
        }
        let _ = receive(&mut sides);
        more.push(ends);
    }
    for side in &mut sides {
        while side.interface.arm().unwrap() == Armed::Ready {
            side.turn();
        }
        side.turn();
        let memory = side.interface.memory();
        assert_eq!(memory.peers, 101);
        let each = (memory.peer_bytes + memory.buffer_bytes) / memory.peers;
        println!("{each} bytes for an idle endpoint: {memory:?}");
        assert!(memory.peer_bytes / memory.peers < 2500, "{memory:?}");
        assert!(memory.buffer_bytes < 1 << 20, "{memory:?}");
    }
    drop(more);
}

// ---- another process ----

const ROLE: &str = "TIELINE_TCP_TEST_PEER";

/// What the other process does: connects, then sends for ever.
#[test]
fn the_peer_process() {
    let Ok(address) = std::env::var(ROLE) else { return };
    let mut side = Side::new(&domain(&[]));
    let bytes: Vec<u8> = (0..address.len() / 2)
        .map(|n| u8::from_str_radix(&address[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    let own: String = side.endpoint().address().iter().map(|b| format!("{b:02x}")).collect();
    println!("\naddress {own}");
    side.endpoint().connect(&bytes).unwrap();
    let mut n = 0;
    while side.failed.is_none() {
        if side.endpoint().am_short(7, n, &pattern(2000, n)).is_ok() {
            n += 1;
        }
        side.turn();
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_killed_process(variables: &[(&str, &str)]) {
    use std::io::BufRead;
    let mut side = Side::new(&domain(variables));
    let own: String = side.endpoint().address().iter().map(|b| format!("{b:02x}")).collect();
    let mut child = Killed(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "loopback_tests::the_peer_process", "--nocapture"])
            .env(ROLE, own)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let output = std::io::BufReader::new(child.0.stdout.take().unwrap());
    let line = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("address ").map(str::to_string))
        .unwrap();
    let address: Vec<u8> = (0..line.len() / 2)
        .map(|n| u8::from_str_radix(&line[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    side.endpoint().connect(&address).unwrap();
    let mut next = 0;
    while next < 5000 {
        side.turn();
        while let Some((_, header, data)) = side.messages.pop_front() {
            assert_eq!(header, next);
            assert!(data == pattern(2000, next), "a whole message");
            next += 1;
        }
    }
    drop(child);
    while side.failed.is_none() {
        side.turn();
    }
    for (_, header, data) in &side.messages {
        assert_eq!(*header, next);
        assert!(*data == pattern(2000, next), "a whole message");
        next += 1;
    }
    let (status, words) = side.failed.unwrap();
    assert_eq!(status, Status::PeerFailed, "{words}");
    assert!(words.contains("127.0.0.1") || words.contains("[::1]"), "{words}");
}

#[test]
fn a_killed_peer_is_a_failed_peer_and_leaves_whole_messages() {
    a_killed_process(&[]);
}

#[test]
fn a_killed_peer_is_told_from_a_broken_connection_when_reconnecting() {
    a_killed_process(&[("TIELINE_TCP_RECONNECT", "on")]);
}

#[test]
fn a_piece_of_an_operation_may_be_empty() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 100_000];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut local = pattern(50_000, 2);
    let (a, b) = local.split_at_mut(20_000);
    let empty = Iov { base: std::ptr::null_mut(), len: 0 };
    let iov = [empty, sys::piece_mut(a), empty, sys::piece_mut(b), empty];
    let op = RmaOp { iov: &iov, len: 50_000, offset: 10, cookie: 3, flags: 0 };
    assert_eq!(post(&mut sides, |e| e.put(&key, &op)), Posting::Pending);
    assert_eq!(await_completion(&mut sides, 3), 0);
    assert!(target[10..50_010] == local);
    domain.deregister(region).unwrap();
}
