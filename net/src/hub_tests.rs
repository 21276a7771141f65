//! Tests of the listener and the dialler over loopback: honest peers, and many kinds of unproven connections.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};
use tieline_testing::holds_in_child;

use super::*;
use crate::dial::{Dial, Progress, dial_blocking};
use crate::routes::{Route, routes};
use crate::sys::{Interest, Ready};

#[path = "crowd_tests.rs"]
mod crowds;
#[path = "refusal_tests.rs"]
mod refusals;

const SECRET: &[u8] = b"of this job";
const ME: [u8; 16] = [7; 16];

fn open(settings: Settings) -> Arc<Hub> {
    Hub::open(&Settings { secret: SECRET.to_vec(), ..settings }).expect("loopback is there")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn hello(purpose: u8) -> Hello {
    Hello::new(purpose, ME, b"hello").expect("short")
}

/// Returns the address at which the hub listens on loopback.
fn at(hub: &Hub, v6: bool) -> Option<SocketAddr> {
    let address = |address: &&ListenAddress| address.ip.is_loopback() && address.ip.is_ipv6() == v6;
    hub.addresses.iter().find(address).map(|address| SocketAddr::new(address.ip, address.port))
}

fn route(remote: SocketAddr) -> Route {
    Route { local: None, remote, why: "test".into() }
}

fn key(hub: &Hub) -> Key {
    Key::derive(SECRET, &hub.cookie)
}

/// Drives both sides until `done` returns a result.
fn until<T>(
    hub: &Hub,
    dial: Option<&mut Dial>,
    mut done: impl FnMut(Option<Progress>) -> Option<T>,
) -> T {
    let poller = Poller::new().expect("epoll");
    poller.watch(hub.fd().as_raw_fd(), Interest::READ, 0).expect("watched");
    let mut ready: Vec<Ready> = Vec::new();
    let mut dial = dial;
    loop {
        hub.poll();
        let mut timeout = None;
        let progress = dial.as_mut().map(|dial| {
            let progress = dial.advance(Instant::now());
            if let Some(fd) = dial.fd() {
                poller.watch(fd, dial.wants(), 1).expect("watched");
            }
            timeout = Some(dial.timeout().saturating_duration_since(Instant::now()));
            progress
        });
        if let Some(value) = done(progress) {
            return value;
        }
        poller.wait(&mut ready, timeout).expect("epoll");
    }
}

fn finish(hub: &Hub, dial: &mut Dial) -> Result<TcpStream, String> {
    until(hub, Some(dial), |progress| match progress {
        Some(Progress::Done(stream)) => Some(Ok(stream)),
        Some(Progress::Failed(words)) => Some(Err(words)),
        _ => None,
    })
}

fn dial(hub: &Hub, hello: Hello) -> Result<TcpStream, String> {
    let remote = at(hub, false).expect("127.0.0.1");
    finish(hub, &mut Dial::start(vec![route(remote)], key(hub), hello, soon()))
}

/// Reads until the other side has closed. Returns whether it has.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_proven_connection_arrives_with_its_hello_over_both_versions_of_ip() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let mut met = 0;
    for remote in [at(&hub, false), at(&hub, true)].into_iter().flatten() {
        let mut dial = Dial::start(vec![route(remote)], key(&hub), hello(3), soon());
        let mut there = finish(&hub, &mut dial).expect("accepted");
        let mut here = mailbox.take().expect("delivered");
        assert_eq!(here.hello, hello(3));
        assert_eq!(Some(here.from), there.local_addr().ok());
        here.stream.write_all(b"first bytes after").expect("connected");
        there.set_nonblocking(false).expect("an option");
        let mut bytes = [0; 17];
        there.read_exact(&mut bytes).expect("they follow at once");
        assert_eq!(&bytes, b"first bytes after");
        met += 1;
    }
    assert!(met > 0);
    assert_eq!(hub.counters(), Counters { accepted: met, ..Counters::default() });
}

#[test]
fn the_contact_leads_to_the_listener() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let contact = Contact::parse(&mailbox.contact().pack()).expect("our own");
    let routes = routes(hub.local(), &contact).expect("the same host");
    let key = Key::derive(SECRET, &contact.cookie);
    let _there = finish(&hub, &mut Dial::start(routes, key, hello(1), soon())).expect("accepted");
    assert!(mailbox.take().is_some() && mailbox.take().is_none());
}

#[test]
fn dropped_mailbox_closes_untaken_connections_even_during_handshake() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let mut there = dial(&hub, hello(0)).expect("accepted");
    there.set_nonblocking(false).expect("an option");
    let handshake = hub.admits(&hello(0)).expect("one more that is just ending");
    drop(mailbox);
    assert!(is_closed(&mut there), "it waits for somebody who is gone");
    drop(handshake);
}

#[test]
fn a_scanner_costs_one_closed_socket_and_a_counter() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    for (n, words) in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0x16, 3, 1, 0], &[0; 4000], b"TLNx"]
        .into_iter()
        .enumerate()
    {
        let mut scanner = TcpStream::connect(at(&hub, false).expect("lo")).expect("listening");
        scanner.write_all(words).expect("connected");
        if words == b"TLNx" {
            scanner.shutdown(std::net::Shutdown::Write).expect("connected");
        }
        until(&hub, None, |_| (hub.counters().unproven > n as u64).then_some(()));
        assert!(is_closed(&mut scanner));
    }
    assert_eq!(hub.counters(), Counters { unproven: 4, ..Counters::default() });
    assert_eq!((hub.unproven_to_report(), hub.unproven_to_report()), (Some(4), None));
    let _there = dial(&hub, hello(0)).expect("those who belong still come in");
    assert!(mailbox.take().is_some());
}

#[test]
fn peer_of_other_version_gets_our_version_and_is_remembered() {
    let hub = open(Settings::default());
    assert_eq!(hub.take_other_version(), None);
    let mut other = TcpStream::connect(at(&hub, false).expect("lo")).expect("listening");
    let greeting = [&b"TLN"[..], &[crate::VERSION + 1], &[1; 32]].concat();
    other.write_all(&greeting).expect("connected");
    until(&hub, None, |_| (hub.counters().unproven == 1).then_some(()));
    assert_eq!(hub.take_other_version(), Some(crate::VERSION + 1));
    assert_eq!(hub.take_other_version(), None, "it is told once");
    let mut said = Vec::new();
    let _ = other.read_to_end(&mut said).expect("it is answered, then closed");
    assert_eq!(said[..4], [&b"TLN"[..], &[crate::VERSION]].concat());
}

#[test]
fn a_million_bytes_of_garbage_are_not_read() {
    let hub = open(Settings::default());
    let mut stranger = TcpStream::connect(at(&hub, false).expect("lo")).expect("listening");
    let writer = std::thread::spawn(move || {
        let greeting = [&b"TLN"[..], &[crate::VERSION], &[1; 32]].concat();
        let _ = stranger.write_all(&greeting);
        stranger.write_all(&vec![0xff; 1_000_000]).is_err() || is_closed(&mut stranger)
    });
    until(&hub, None, |_| (hub.counters().unproven == 1).then_some(()));
    assert!(writer.join().expect("no panic"), "the socket was closed");
}

#[test]
fn a_slow_sender_is_dismissed_at_its_deadline() {
    let timeout = Duration::from_millis(100);
    let hub = open(Settings { handshake_timeout: timeout, ..Settings::default() });
    let mut silent = TcpStream::connect(at(&hub, false).expect("lo")).expect("listening");
    let mut slow = TcpStream::connect(at(&hub, false).expect("lo")).expect("listening");
    slow.write_all(b"TL").expect("connected");
    // Only the listener's own descriptor wakes this wait.
    until(&hub, None, |_| (hub.counters().slow == 2).then_some(()));
    assert!(is_closed(&mut silent) && is_closed(&mut slow));
}

#[test]
fn another_secret_does_not_come_in_and_hears_why() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let remote = at(&hub, false).expect("lo");
    let wrong = Key::derive(b"of another job", &hub.cookie);
    let words = finish(&hub, &mut Dial::start(vec![route(remote)], wrong, hello(0), soon()))
        .expect_err("the secret is wrong");
    assert!(words.contains("wrong secret"), "{words}");
    assert!(words.contains(&remote.to_string()), "{words}");
    assert_eq!(hub.counters().unproven, 1);
    assert!(mailbox.take().is_none());
}

#[test]
fn dialler_with_address_of_replaced_process_is_told_unknown_target() {
    let hub = open(Settings::default());
    let remote = at(&hub, false).expect("127.0.0.1");
    // The cookie and the target belong to another process.
    let old = Key::derive(SECRET, &[9; 16]);
    let mut dial = Dial::start(vec![route(remote)], old, hello(1), soon());
    let words = finish(&hub, &mut dial).expect_err("refused");
    assert!(words.contains("replaced"), "{words}");
    assert!(dial.is_refused() && !dial.is_wrong_secret());
    assert_eq!(hub.counters().unproven, 1);
}

#[test]
fn an_unknown_target_and_a_full_mailbox_are_told_apart() {
    let hub = open(Settings::default());
    let words = dial(&hub, hello(0)).expect_err("nobody has registered");
    assert!(words.contains("nobody there has that address"), "{words}");
    let mailbox = hub.register(ME).expect("free");
    assert!(hub.register(ME).is_err());
    let held: Vec<_> = (0..MAILBOX_ROOM).map(|_| dial(&hub, hello(0)).expect("room")).collect();
    let mut late =
        Dial::start(vec![route(at(&hub, false).expect("lo"))], key(&hub), hello(0), soon());
    let words = finish(&hub, &mut late).expect_err("no room");
    assert!(words.contains("no room"), "{words}");
    assert!(late.is_busy() && !late.is_refused() && !late.is_wrong_secret());
    assert!(mailbox.take().is_some());
    let _one_more = dial(&hub, hello(0)).expect("room again");
    drop(held);
    let Counters { unknown_target, refused, accepted, .. } = hub.counters();
    assert_eq!((unknown_target, refused, accepted), (1, 1, MAILBOX_ROOM as u64 + 1));
}

#[test]
fn an_answer_is_said_whole_also_where_a_socket_holds_little_at_first() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let mut there = dial(&hub, hello(0)).expect("room");
    let incoming = mailbox.take().expect("it came");
    let here = incoming.stream.try_clone().expect("a descriptor");
    let here = socket2::SockRef::from(&here);
    let held = |bytes: usize| {
        here.set_send_buffer_size(bytes).expect("an option");
        here.send_buffer_size().expect("an option")
    };
    // In the kernel's accounting, queued data takes a few times its bytes.
    let enough = held(400_000);
    assert!(held(4096) < enough);
    let answer = vec![7; 100_000];
    incoming.answer(&answer).expect("said");
    assert_eq!(here.send_buffer_size().expect("an option"), enough);
    there.set_nonblocking(false).expect("an option");
    let mut heard = Vec::new();
    let _ = there.read_to_end(&mut heard).expect("heard");
    assert_eq!(heard.len(), answer.len());
}

/// Makes `count` connections that send nothing, all waiting at the listener.
fn silent(hub: &Hub, count: usize) -> Vec<TcpStream> {
    let remote = at(hub, false).expect("lo");
    (0..count).map(|_| TcpStream::connect(remote).expect("the backlog is long")).collect()
}

/// Polls at the given time until `count` connections have been accepted.
fn accept(hub: &Hub, now: Instant, count: usize) {
    while lock(&hub.handshakes).state().0 < count {
        hub.poll_at(now);
    }
}

#[test]
fn slow_handshake_is_closed_despite_late_bytes() {
    let timeout = Duration::from_secs(10);
    let hub = open(Settings { handshake_timeout: timeout, ..Settings::default() });
    let t0 = Instant::now();
    let mut slow = silent(&hub, 1);
    accept(&hub, t0, 1);
    // Occasional bytes do not extend the time limit.
    for (n, byte) in (1..10u32).zip(b"TLN\x01abcdef") {
        slow[0].write_all(&[*byte]).expect("connected");
        hub.poll_at(t0 + timeout / 10 * n);
        assert_eq!(hub.counters().slow, 0);
    }
    slow[0].write_all(b"g").expect("connected");
    while hub.counters().slow == 0 {
        hub.poll_at(t0 + timeout);
    }
    assert!(is_closed(&mut slow[0]));
}

#[test]
#[ignore = "the test after it runs it in a process of its own, since it takes all descriptors"]
fn no_descriptor_is_left_when_somebody_connects() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let remote = at(&hub, false).expect("lo");
    let poller = Poller::new().expect("epoll");
    poller.watch(hub.fd().as_raw_fd(), Interest::READ, 0).expect("watched");
    // The other end of the connection usually belongs to another process; in this test it is created first.
    let waiting = TcpStream::connect(remote).expect("the backlog is long");
    let highest = waiting.as_raw_fd();
    sys::limit_descriptors(u64::try_from(highest).expect("a descriptor") + 1);
    assert!(TcpStream::connect(remote).is_err(), "there is none left");
    let (begun, mut wakes, mut ready) = (Instant::now(), 0u32, Vec::new());
    while begun.elapsed() < 4 * handshakes::PAUSE {
        poller.wait(&mut ready, Some(handshakes::PAUSE)).expect("epoll");
        wakes += u32::from(!ready.is_empty());
        hub.poll();
    }
    // Each pause ends once, and a connection waits all the time.
    let pauses = (begun.elapsed().as_millis() / handshakes::PAUSE.as_millis()) as u32 + 2;
    assert!(wakes <= 2 * pauses, "woken {wakes} times in {pauses} pauses");
    assert_eq!(hub.counters(), Counters::default());
    // There is room again: the waiting connection is accepted and proves itself.
    sys::limit_descriptors(1000);
    drop(waiting);
    let _there = dial(&hub, hello(0)).expect("accepted");
    assert!(mailbox.take().is_some());
    println!("\nit did not spin");
}

#[test]
fn a_listener_without_descriptors_waits_and_does_not_spin() {
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", "hub::tests::no_descriptor_is_left_when_somebody_connects"])
        .args(["--ignored", "--nocapture"])
        .output()
        .expect("it runs");
    let words = String::from_utf8_lossy(&output.stdout);
    let more = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("it did not spin"), "{words}{more}");
}

#[test]
fn whichever_thread_polls_every_connection_arrives_once() {
    let hub = open(Settings::default());
    let mailboxes: Vec<_> = (0..4u8).map(|n| hub.register([n; 16]).expect("free")).collect();
    let remote = at(&hub, false).expect("lo");
    let (hub, mailboxes) = (&hub, &mailboxes);
    std::thread::scope(|scope| {
        for mailbox in mailboxes {
            let _ = scope.spawn(move || {
                for n in 0..25 {
                    let incoming = mailbox.wait(soon()).expect("it comes");
                    assert_eq!(incoming.hello.target, mailbox.target, "connection {n}");
                }
            });
        }
        for target in 0..4 {
            let _ = scope.spawn(move || {
                for n in 0..25u8 {
                    let hello = Hello::new(n, [target; 16], &[]).expect("short");
                    let _there =
                        dial_blocking(remote, &key(hub), &hello, soon()).expect("accepted");
                }
            });
        }
    });
    assert_eq!(hub.counters(), Counters { accepted: 100, ..Counters::default() });
}

#[test]
fn a_dial_walks_to_the_next_way() {
    let hub = open(Settings::default());
    let _mailbox = hub.register(ME).expect("free");
    let closed = TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    let mute = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mute_at = mute.local_addr().expect("bound");
    let routes = vec![route(closed), route(mute_at), route(at(&hub, false).expect("lo"))];
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut dial = Dial::start(routes, key(&hub), hello(0), deadline);
    let there = finish(&hub, &mut dial).expect("the third way");
    assert_eq!(there.peer_addr().ok(), at(&hub, false));
    assert_eq!(dial.attempt(), 3);
}

#[test]
fn a_listener_that_closes_without_a_word_is_asked_again_for_a_while() {
    // This listener closes the first connections as if it had no room, and accepts a later one.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let remote = listener.local_addr().expect("bound");
    let (cookie, listen) = ([5; 16], Listen::At(remote));
    let key = Key::derive(SECRET, &cookie);
    let mut dial = Dial::start(vec![route(remote)], key, hello(4), soon());
    for n in 0..3 {
        assert!(matches!(dial.advance(Instant::now()), Progress::Waiting));
        let (stream, _) = listener.accept().expect("it comes");
        if n == 1 {
            crate::options::reset(&stream);
        }
        drop(stream);
        let before = dial.attempt();
        while dial.attempt() == before {
            assert!(matches!(dial.advance(Instant::now()), Progress::Waiting));
        }
        // The pause's descriptor wakes its waiter.
        let (poller, mut ready) = (Poller::new().expect("epoll"), Vec::new());
        let timer = dial.fd().expect("a timer");
        poller.watch(timer, dial.wants(), 0).expect("watched");
        poller.wait(&mut ready, None).expect("epoll");
        assert!(dial.timeout() <= Instant::now());
    }
    drop(listener);
    let hub = open(Settings { listen, cookie: Some(cookie), ..Settings::default() });
    let mailbox = hub.register(ME).expect("free");
    let _there = finish(&hub, &mut dial).expect("the fourth time");
    assert!(mailbox.take().is_some() && dial.failures().is_empty());
    assert_eq!(dial.attempt(), 7, "four attempts, and three pauses");
    // The retries are limited, in this test by the deadline.
    let closes = TcpListener::bind("127.0.0.1:0").expect("loopback");
    closes.set_nonblocking(true).expect("an option");
    let remote = closes.local_addr().expect("bound");
    let deadline = soon();
    let mut dial = Dial::start(vec![route(remote)], Key::derive(b"", &cookie), hello(0), deadline);
    let words = loop {
        drop(closes.accept());
        let just_before = deadline - Duration::from_millis(1);
        let now = if dial.attempt() < 5 { Instant::now() } else { just_before };
        if let Progress::Failed(words) = dial.advance(now) {
            break words;
        }
    };
    assert!(words.contains("times"), "{words}");
}

#[test]
fn last_route_is_tried_until_the_deadline_if_its_listener_keeps_closing() {
    let closes = TcpListener::bind("127.0.0.1:0").expect("loopback");
    closes.set_nonblocking(true).expect("an option");
    let remote = closes.local_addr().expect("bound");
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(60);
    let mut dial = Dial::start(vec![route(remote)], Key::derive(b"", &[5; 16]), hello(0), deadline);
    // The test plays a clock of 59 seconds of attempts and pauses.
    for step in 0..590 {
        drop(closes.accept());
        let now = begun + Duration::from_millis(100 * step);
        assert!(matches!(dial.advance(now), Progress::Waiting), "after {:?}", now - begun);
    }
    assert!(dial.attempt() > 100, "{} attempts", dial.attempt());
}

#[test]
fn a_dial_that_fails_names_every_way_and_its_reason() {
    let hub = open(Settings::default());
    let closed = TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    let mute = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mute_at = mute.local_addr().expect("bound");
    let deadline = Instant::now() + Duration::from_millis(300);
    let routes = vec![route(closed), route(mute_at)];
    let words = finish(&hub, &mut Dial::start(routes, key(&hub), hello(0), deadline))
        .expect_err("none leads there");
    assert!(words.contains(&format!("{closed} (test): Connection refused")), "{words}");
    assert!(words.contains(&format!("{mute_at} (test): connected, but the process")), "{words}");
    let words = finish(&hub, &mut Dial::start(Vec::new(), key(&hub), hello(0), deadline))
        .expect_err("there is none");
    assert!(words.contains("no address"), "{words}");
}

#[test]
fn advice_about_firewall_follows_route_without_answer() {
    let hub = open(Settings::default());
    let closed = TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    // The listener's queue is full with one connection: later ones are dropped.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("loopback");
    full.listen(0).expect("it listens");
    let full_at = full.local_addr().ok().and_then(|at| at.as_socket()).expect("bound");
    let _queued = TcpStream::connect(full_at).expect("the first");
    let deadline = Instant::now() + Duration::from_millis(300);
    let routes = vec![route(full_at), route(closed)];
    let words = finish(&hub, &mut Dial::start(routes, key(&hub), hello(0), deadline))
        .expect_err("none leads there");
    let (first, second) = words.split_once("; ").expect("two ways");
    assert!(first.contains("no answer in time (a firewall that drops"), "{words}");
    assert!(second.starts_with(&closed.to_string()) && !second.contains("firewall"), "{words}");
}

#[test]
fn a_range_of_ports_that_is_taken_is_a_clear_error() {
    // The test needs two adjacent free ports: one hub takes them, then a second hub asks for the same.
    let range = (0..50)
        .find_map(|_| {
            let port = TcpListener::bind("0.0.0.0:0").ok()?.local_addr().ok()?.port();
            let ports = Ports::parse(&format!("{port}-{}", port.checked_add(1)?)).ok()?;
            let settings = || Settings { listen: Listen::Ports(ports), ..Settings::default() };
            let first = Hub::open(&settings()).ok()?;
            let second = Hub::open(&settings()).ok()?;
            Some((settings(), port, first, second))
        })
        .expect("two free neighbours");
    let (settings, port, first, second) = range;
    let taken: Vec<u16> = [&first, &second].iter().map(|hub| hub.addresses[0].port).collect();
    assert!(taken.contains(&port) && taken.contains(&(port + 1)), "{taken:?}");
    let words = Hub::open(&settings).expect_err("both are taken");
    assert!(words.contains(&format!("every port of {port}-{} is taken", port + 1)), "{words}");
    drop(first);
    let _again = Hub::open(&settings).expect("a closed listener gives its port back");
}

#[test]
fn users_share_one_listener_that_closes_with_the_last() {
    let shared = SharedHub::new();
    let first = shared.get(&Settings::default()).expect("opens");
    let second = shared.get(&Settings::default()).expect("the same");
    assert!(Arc::ptr_eq(&first, &second));
    let remote = at(&first, false).expect("lo");
    drop((first, second));
    assert!(TcpStream::connect(remote).is_err(), "nobody listens any more");
    let third = shared.get(&Settings::default()).expect("opens again");
    assert!(at(&third, false).is_some());
}

#[test]
fn a_forked_child_listens_for_itself_and_leaves_its_parents_listener() {
    let shared = SharedHub::new();
    let parents = shared.get(&Settings::default()).expect("opens");
    let parents_at = at(&parents, false).expect("lo");
    // Another thread of the parent may be opening a hub.
    let held = lock(&shared.hub);
    assert!(holds_in_child(|| {
        let own = shared.get(&Settings::default()).expect("opens");
        let again = shared.get(&Settings::default()).expect("the same");
        let own_at = at(&own, false).expect("lo");
        let apart =
            Arc::ptr_eq(&own, &again) && own_at != parents_at && own.cookie != parents.cookie;
        drop((own, again));
        apart && TcpStream::connect(own_at).is_err() && TcpStream::connect(parents_at).is_ok()
    }));
    drop(held);
    assert!(Arc::ptr_eq(&parents, &shared.get(&Settings::default()).expect("the same")));
    until(&parents, None, |_| (parents.counters().unproven == 1).then_some(()));
}

#[test]
fn only_allowed_interfaces_are_offered_and_let_peers_in() {
    let filter = Filter::parse("127.0.0.2").expect("a filter");
    assert!(Hub::open(&Settings { filter, ..Settings::default() }).is_err());
    let filter = Filter::parse("127.0.0.1").expect("a filter");
    let hub = open(Settings { filter, ..Settings::default() });
    assert!(hub.addresses.iter().all(|address| address.ip == IpAddr::from([127, 0, 0, 1])));
    let port = at(&hub, false).expect("lo").port();
    let mut elsewhere = TcpStream::connect(("127.0.0.3", port)).expect("listening");
    until(&hub, None, |_| (hub.counters().unproven == 1).then_some(()));
    assert!(is_closed(&mut elsewhere));
}

#[test]
fn an_address_given_by_the_user_is_listened_at_and_nowhere_else() {
    let cookie = [0; 16];
    let listen = Listen::At("127.0.0.1:0".parse().expect("an address"));
    let hub = open(Settings { listen, cookie: Some(cookie), ..Settings::default() });
    assert_eq!(hub.addresses.len(), 1);
    let mailbox = hub.register(ME).expect("free");
    let remote = at(&hub, false).expect("lo");
    std::thread::scope(|scope| {
        let key = Key::derive(SECRET, &cookie);
        let there = scope.spawn(move || dial_blocking(remote, &key, &hello(9), soon()));
        assert_eq!(mailbox.wait(soon()).expect("it comes").hello.purpose, 9);
        assert!(there.join().expect("no panic").is_ok());
    });
    let words = mailbox.wait(Instant::now()).expect_err("nobody else");
    assert!(words.contains("in time"), "{words}");
}

#[test]
fn a_dropped_mailbox_closes_what_waited_in_it() {
    let hub = open(Settings::default());
    let mailbox = hub.register(ME).expect("free");
    let mut there = dial(&hub, hello(0)).expect("accepted");
    there.set_nonblocking(false).expect("an option");
    drop(mailbox);
    assert!(is_closed(&mut there));
    assert!(dial(&hub, hello(0)).is_err());
    let _again = hub.register(ME).expect("the id is free again");
}
