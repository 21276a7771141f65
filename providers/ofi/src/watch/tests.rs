//! Tests in which two interfaces watch each other over loopback, and one of them ends, orderly or not.

use super::*;

fn settings() -> Settings {
    Settings {
        net: tieline_net::Settings { secret: b"job".to_vec(), ..tieline_net::Settings::default() },
        silence: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(30),
    }
}

fn opened(settings: &Settings, own: u64) -> Watch {
    Watch::open(&Hub::open(&settings.net).unwrap(), settings, own).unwrap()
}

/// Runs both sides until the condition holds; returns the reports of each side.
fn until(
    here: &mut Watch,
    there: &mut Watch,
    so: impl Fn(&Watch, &Watch, &[Ended]) -> bool,
) -> Vec<Ended> {
    let (mut told, began) = (Vec::new(), Instant::now());
    while !so(here, there, &told) {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come: {told:?}");
        told.extend(here.turn(Instant::now()));
        told.extend(there.turn(Instant::now()));
        std::thread::yield_now();
    }
    told
}

impl Watch {
    fn streams(&self, epoch: u64) -> usize {
        self.peers.get(&epoch).map_or(0, |peer| peer.streams.len())
    }

    /// Does what the kernel does when a process is killed.
    fn kill(mut self) {
        self.peers.clear();
    }
}

/// Makes two sides, the first of which has a channel to the second.
fn connected() -> (Watch, Watch) {
    let (mut here, mut there) = (opened(&settings(), 1), opened(&settings(), 2));
    here.join(2, Some(&there.contact()));
    there.join(1, None);
    let told = until(&mut here, &mut there, |here, there, _| {
        here.streams(2) == 1 && there.streams(1) == 1
    });
    assert_eq!(told, []);
    (here, there)
}

#[test]
fn the_death_of_a_process_is_told_once_on_whichever_side_it_was() {
    for dialler_dies in [false, true] {
        let (here, there) = connected();
        let (mut alive, dead) = if dialler_dies { (there, here) } else { (here, there) };
        let epoch = dead.own;
        dead.kill();
        let mut other = opened(&settings(), 3);
        let told = until(&mut alive, &mut other, |_, _, told| !told.is_empty());
        assert_eq!((told.len(), told[0].epoch, told[0].status), (1, epoch, Status::PeerFailed));
        assert!(told[0].words.contains("without a goodbye"), "{}", told[0].words);
        assert_eq!(alive.turn(Instant::now()), [], "and never again");
        alive.leave(epoch);
        assert!(alive.peers.is_empty() && alive.tokens.is_empty());
    }
}

#[test]
fn an_interface_that_closes_in_good_order_is_told_from_one_that_dies() {
    let (mut here, there) = connected();
    drop(there);
    let mut other = opened(&settings(), 3);
    let told = until(&mut here, &mut other, |_, _, told| !told.is_empty());
    assert_eq!((told[0].epoch, told[0].status), (2, Status::Closed));
}

#[test]
fn connected_peer_is_not_dialled() {
    let (here, mut there) = connected();
    there.join(1, Some(&here.contact()));
    assert!(!there.is_dialling());
    assert_eq!(there.streams(1), 1);
}

#[test]
fn idle_watch_is_kept_and_end_of_peer_without_channels_is_silent() {
    let (mut here, mut there) = connected();
    here.leave(2);
    assert_eq!(here.streams(2), 1);
    here.join(2, Some(&there.contact()));
    assert!(!here.is_dialling() && here.idle.is_empty());
    here.leave(2);
    there.leave(1);
    there.kill();
    let mut other = opened(&settings(), 3);
    let told = until(&mut here, &mut other, |here, _, _| here.peers.is_empty());
    assert_eq!(told, []);
}

#[test]
fn watch_closed_as_unused_is_reconnected_if_a_channel_exists() {
    let (mut here, mut there) = connected();
    // The far side does not know of the channel from the near side.
    there.leave(1);
    there.drop_idle(1);
    let told = until(&mut here, &mut there, |here, there, _| {
        !here.is_dialling() && here.streams(2) == 1 && there.streams(1) == 1
    });
    assert_eq!(told, []);
}

#[test]
fn oldest_watches_without_channels_are_evicted() {
    let mut here = opened(&settings(), 1);
    let mut there: Vec<Watch> =
        (0..KEPT as u64 + 2).map(|n| opened(&settings(), 100 + n)).collect();
    for peer in &mut there {
        let contact = peer.contact();
        here.join(peer.own, Some(&contact));
        let own = peer.own;
        let _ = until(&mut here, peer, |here, _, _| here.streams(own) == 1);
        here.leave(own);
    }
    assert_eq!((here.peers.len(), here.idle.len()), (KEPT, KEPT));
    assert!(here.peers.contains_key(&(100 + KEPT as u64 + 1)) && !here.peers.contains_key(&100));
}

#[test]
fn unwatchable_process_is_reported_with_text() {
    let (mut here, there) = (opened(&settings(), 1), opened(&settings(), 2));
    let contact = there.contact();
    drop(there);
    here.join(2, Some(&contact));
    let mut net = settings().net;
    net.secret = b"another".to_vec();
    let mut stranger = opened(&Settings { net, ..settings() }, 3);
    here.join(3, Some(&stranger.contact()));
    let told = until(&mut here, &mut stranger, |_, _, told| told.len() == 2);
    let of = |epoch| told.iter().find(|ended| ended.epoch == epoch).unwrap();
    assert_eq!((of(2).status, of(3).status), (Status::PeerFailed, Status::Permission));
    assert!(of(3).words.contains("TIELINE_OFI_WATCH=off"), "{}", of(3).words);
}

#[test]
fn an_interface_does_not_watch_itself() {
    let mut here = opened(&settings(), 1);
    let contact = here.contact();
    here.join(1, Some(&contact));
    assert!(here.peers.is_empty() && !here.is_dialling());
    here.leave(1);
}

/// Neither side dials, although the peer should have.
#[test]
fn peer_that_never_connects_to_be_watched_times_out() {
    let mut here = opened(&settings(), 1);
    let joined = Instant::now();
    here.join(2, None);
    assert_eq!(here.turn(joined + PATIENCE - PAUSE), [], "it may compute");
    let told = here.turn(Instant::now() + PATIENCE + PAUSE);
    assert!(told.len() == 1 && told[0].words.contains("not come to be watched"), "{told:?}");
    assert_eq!((told[0].epoch, told[0].status), (2, Status::PeerFailed));
    assert_eq!(here.turn(Instant::now() + 2 * PATIENCE), [], "and never again");
}

#[test]
fn missing_peer_times_out_and_failed_dial_is_retried_after_pause() {
    const NANO: Duration = Duration::from_nanos(1);
    for connect in [30, 200] {
        let settings = Settings { connect_timeout: Duration::from_secs(connect), ..settings() };
        let patience = Duration::from_secs(connect.max(120));
        let mut here = opened(&settings, 1);
        assert_eq!(here.next_turn(), None);
        here.join(2, None);
        let since = here.peers[&2].since;
        assert_eq!(here.next_turn(), Some(since + patience));
        let again = since + 2 * PAUSE;
        here.peers.get_mut(&2).unwrap().again = Some(again);
        assert_eq!(here.next_turn(), Some(again), "that is sooner");
        here.look_for_missing(again - NANO);
        assert_eq!(here.peers[&2].again, Some(again));
        here.look_for_missing(again);
        assert_eq!(here.peers[&2].again, None);
        here.look_for_missing(since + patience - NANO);
        assert_eq!(here.ended, []);
        here.look_for_missing(since + patience);
        let words = "the process of this peer cannot be watched: it has not come to be watched \
                     (TIELINE_TCP_INTERFACES; TIELINE_OFI_WATCH=off does without)";
        let ended = Ended { epoch: 2, status: Status::PeerFailed, words: words.into() };
        assert_eq!((&here.ended[..], here.next_turn()), (&[ended][..], None));
        // A channel that begins later gets the same report.
        here.join(2, None);
        assert_eq!((here.ended.len(), &here.ended[0]), (2, &here.ended[1]));
        assert_eq!(here.channels(), [(2, 2)].into());
    }
}

#[test]
fn unanswered_dial_is_retried_until_timeout() {
    const NANO: Duration = Duration::from_nanos(1);
    let (mut here, silent) = (opened(&settings(), 1), opened(&settings(), 2));
    let call = |here: &mut Watch, after: Duration| {
        here.reach(2);
        assert!(here.is_dialling());
        let deadline = here.peers[&2].dial.as_ref().unwrap().dial.timeout();
        assert_eq!(here.next_turn(), Some(deadline));
        let now = here.peers[&2].since + after;
        here.advance(2, now);
        assert!(!here.is_dialling());
        now
    };
    here.join(2, Some(&silent.contact()));
    let now = call(&mut here, PATIENCE - NANO);
    assert_eq!((here.ended.len(), here.peers[&2].again), (0, Some(now + PAUSE)));
    let _ = call(&mut here, PATIENCE);
    assert_eq!((here.ended.len(), here.ended[0].status), (1, Status::Unreachable));
    here.reach(2);
    assert!(!here.is_dialling(), "and never again");
}

#[test]
fn unknown_watchers_are_bounded_and_known_ones_always_accepted() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let from = listener.local_addr().unwrap();
    let mut here = opened(&settings(), 1);
    let comes = |here: &mut Watch, purpose, payload: &[u8]| {
        let hello = Hello::new(purpose, [0; 16], payload).unwrap();
        here.welcome(Incoming { stream: TcpStream::connect(from).unwrap(), hello, from });
        here.peers.len()
    };
    let number = |epoch: u64| epoch.to_le_bytes();
    assert_eq!(comes(&mut here, PURPOSE + 1, &number(7)), 0, "it wants something else");
    assert_eq!(comes(&mut here, PURPOSE, &number(1)), 0, "it has our own number");
    assert_eq!(comes(&mut here, PURPOSE, &[7; 7]), 0, "it says no number");
    here.join(5, None);
    for epoch in 0..UNHEARD as u64 - 1 {
        let _ = here.peers.insert(1000 + epoch, Peer::new());
    }
    assert_eq!(comes(&mut here, PURPOSE, &number(7)), UNHEARD + 1, "the last one");
    assert_eq!(comes(&mut here, PURPOSE, &number(8)), UNHEARD + 1, "one too many");
    let _ = (comes(&mut here, PURPOSE, &number(5)), comes(&mut here, PURPOSE, &number(1000)));
    assert_eq!([7, 8, 5, 1000].map(|epoch| here.streams(epoch)), [1, 0, 1, 1]);
}

/// A listener with a full queue drops connection requests, as a host that has vanished does.
#[test]
fn host_that_answers_no_dial_is_reported_after_the_failure_timeout() {
    use socket2::{Domain, Socket, Type};
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    silent.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    silent.listen(0).unwrap();
    let at = silent.local_addr().unwrap().as_socket().unwrap();
    let _queued = TcpStream::connect(at).unwrap();
    let quick = Duration::from_millis(500);
    let settings = Settings { silence: quick, connect_timeout: quick, ..settings() };
    let (mut here, mut there) = (opened(&settings, 1), opened(&settings, 2));
    let mut contact = there.contact();
    contact.addresses.truncate(1);
    (contact.addresses[0].ip, contact.addresses[0].port) = (at.ip(), at.port());
    here.join(2, Some(&contact));
    let told = until(&mut here, &mut there, |_, _, told| !told.is_empty());
    assert_eq!((told.len(), told[0].epoch, told[0].status), (1, 2, Status::Unreachable));
    assert!(told[0].words.contains("no answer in time"), "{}", told[0].words);
}
