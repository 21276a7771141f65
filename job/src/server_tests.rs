//! Tests of the internal state of a server, turn by turn.

use super::coming::PAUSE;
use super::*;
use std::os::fd::OwnedFd;

/// Makes a server whose listener cannot accept any connection, as if no descriptor were left.
fn without_descriptors() -> Server {
    let mut server = Server::new(2, "j").expect("a poller");
    let (socket, _) = UnixStream::pair().expect("a socket that does not listen");
    server.add(Listener::Unix(UnixListener::from(OwnedFd::from(socket))));
    server
}

#[test]
fn accept_pauses_without_system_resources_and_resumes() {
    let mut server = without_descriptors();
    let before = Instant::now();
    assert!(server.accepts(before));
    assert_eq!(server.next_due(true), None, "there is nothing to wake up for");
    server.accept(0);
    let after = Instant::now();
    assert!(!server.accepts(before), "the listener would be asked without end");
    assert!(server.next_due(false).is_some_and(|due| due <= PAUSE), "it wakes up for it");
    assert!(server.accepts(after + PAUSE));
    assert_eq!((server.next_due(true), server.seats.all().count()), (None, 0));
    server.accept(0);
    assert!(!server.accepts(after), "and again");
}

#[test]
fn full_server_evicts_oldest_unnamed_connection_after_its_time() {
    use tieline_net::admission::HOLD;
    let mut server = Server::new(2, "j").expect("a poller");
    let (began, mut theirs) = (Instant::now(), Vec::new());
    while server.accepts(began) {
        let (ours, their) = UnixStream::pair().expect("two sockets");
        server.adopt(ours).expect("a flag");
        theirs.push(their);
        assert!(theirs.len() < 1000, "there is room without end");
    }
    let oldest = server.seats.nameless.oldest().expect("somebody is nameless");
    assert!(!server.accepts(oldest + HOLD - Duration::from_nanos(1)));
    assert!(server.accepts(oldest + HOLD), "it sleeps until then, and would not be woken again");
}

#[test]
fn silent_connection_is_dropped_after_patience() {
    let mut server = Server::new(2, "j").expect("a poller");
    let (ours, _theirs) = UnixStream::pair().expect("two sockets");
    let began = Instant::now();
    server.adopt(ours).expect("a flag");
    let due = server.next_due(true).expect("somebody is waited for");
    assert!(due <= PATIENCE && due + began.elapsed() >= PATIENCE, "{due:?}");
    server.expire();
    assert_eq!((server.seats.nameless.len(), server.turned_away), (1, 0));
    assert_eq!(server.seats.unname(0, began.checked_sub(PATIENCE).expect("an earlier time")), None);
    assert_eq!(server.next_due(true), Some(Duration::ZERO));
    server.expire();
    assert_eq!((server.seats.nameless.len(), server.turned_away), (0, 1));
    assert!(server.seats.get(0).is_none());
}

#[test]
fn requester_that_reads_nothing_is_paused_until_answers_are_sent() {
    use super::super::wire::MAX_PUBLISHED;
    use std::io::Write;
    let mut server = Server::new(1, "j").expect("a poller");
    let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
    server.adopt(ours).expect("a flag");
    let hello = Frame::Hello(super::super::host::hello(0, 1, "j"));
    let told = server.directory.publish(0, 1, vec![7; MAX_PUBLISHED]);
    assert_eq!(told, Ok(vec![]));
    let asks = (0..100).map(|id| Frame::Lookup { id, rank: 0, key: 1 });
    let said: Vec<u8> = [hello].into_iter().chain(asks).flat_map(|f| f.encode()).collect();
    theirs.write_all(&said).expect("it fits");
    theirs.set_nonblocking(true).expect("a flag");
    let mut answered = 0;
    for _ in 0..300 {
        while theirs.read(&mut [0; 1 << 16]).is_ok() {}
        server.turn(&[], Some(Duration::ZERO)).expect("a turn");
        let connection = server.seats.get(0).expect("it is there");
        let kept = connection.out.bytes();
        assert!(kept < 3 * MAX_PUBLISHED, "{kept} bytes wait");
        // A system with large buffers accepts the whole answer in one call, while other ranks are served.
        answered += connection.out.len().div_ceil(2);
        connection.out = super::super::connection::Outbox::default();
        server.settle(0);
    }
    assert_eq!(answered, 100);
}

#[test]
fn lookup_of_ended_rank_has_reason_after_its_last_frames() {
    use super::super::host::hello;
    use super::super::wire::Decoder;
    use std::io::Write;
    let mut server = Server::new(3, "j").expect("a poller");
    server.set_grace(Duration::from_secs(3600));
    let process = |server: &mut Server, rank, frames: &[Frame]| {
        let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
        server.adopt(ours).expect("a flag");
        let hello = Frame::Hello(hello(rank, 3, "j"));
        let said: Vec<u8> = std::iter::once(&hello).chain(frames).flat_map(Frame::encode).collect();
        theirs.write_all(&said).expect("it fits");
        server.turn(&[], None).expect("a turn");
        theirs
    };
    let lookup = |id, rank, key| Frame::Lookup { id, rank, key };
    let mut asking = process(&mut server, 0, &[lookup(1, 1, 1), lookup(2, 2, 1), lookup(3, 2, 2)]);
    let mut decoder = Decoder::new(1 << 20);
    let mut told = |asking: &mut UnixStream| {
        asking.set_nonblocking(true).expect("a flag");
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = asking.read(&mut buffer) {
            decoder.push(&buffer[..n]);
        }
        let unknown = std::iter::from_fn(|| decoder.next().expect("a frame"));
        let unknown = unknown.filter(|frame| !matches!(frame, Frame::Lost { .. }));
        let mut unknown: Vec<_> = unknown.collect();
        unknown.sort_by_key(|frame| match frame {
            Frame::Unknown { id, .. } | Frame::Found { id, .. } => *id,
            other => panic!("{other:?}"),
        });
        unknown
    };
    assert_eq!(told(&mut asking), []);
    server.ended(1, "rank 1 exited with code 0");
    let text = "rank 1 exited with code 0".to_owned();
    assert_eq!(told(&mut asking), [Frame::Unknown { id: 1, text }]);
    // The end of a disconnected rank is reported only when the reason is known.
    let leaving = process(&mut server, 2, &[]);
    drop(leaving);
    server.turn(&[], None).expect("a turn");
    assert_eq!(told(&mut asking), []);
    server.ended(2, "rank 2 was ended by signal 9");
    let text = "rank 2 was ended by signal 9".to_owned();
    let unknown = |id| Frame::Unknown { id, text: text.clone() };
    assert_eq!(told(&mut asking), [unknown(2), unknown(3)]);
    // The server first handles frames that a rank sent before its end. The server does not wait for a process that shares the
    // connection.
    let mut server = Server::new(3, "j").expect("a poller");
    let mut asking = process(&mut server, 0, &[lookup(4, 1, 1), lookup(5, 1, 2)]);
    let mut last = process(&mut server, 1, &[]);
    let said = Frame::Publish { key: 1, bytes: b"last".to_vec() };
    last.write_all(&said.encode()).expect("it fits");
    let childs = last.try_clone().expect("a descriptor");
    drop(last);
    assert_eq!(told(&mut asking), []);
    server.ended(1, "rank 1 exited with code 3");
    let text = "rank 1 exited with code 3".to_owned();
    let answers = [Frame::Found { id: 4, bytes: b"last".to_vec() }, Frame::Unknown { id: 5, text }];
    assert_eq!(told(&mut asking), answers);
    drop(childs);
    server.turn(&[], None).expect("a turn");
    assert!(!server.has(1), "that was its hang-up");
}

#[test]
fn many_frames_of_one_process_are_handled_over_several_turns() {
    use super::super::host::hello;
    use std::io::Write;
    let mut server = Server::new(2, "j").expect("a poller");
    let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
    server.adopt(ours).expect("a flag");
    let hello = Frame::Hello(hello(0, 2, "j"));
    let asks = (0..500).map(|id| Frame::Lookup { id, rank: 1, key: 1 });
    let said: Vec<u8> = std::iter::once(hello).chain(asks).flat_map(|f| f.encode()).collect();
    theirs.write_all(&said).expect("it fits");
    let mut turns = 0;
    while server.directory.waits() < 500 {
        let before = server.directory.waits();
        server.turn(&[], None).expect("it wakes up by itself for the rest");
        turns += 1;
        assert!(server.directory.waits() - before <= FRAMES_PER_TURN);
    }
    assert!(turns >= 500 / FRAMES_PER_TURN);
}

#[test]
fn rank_that_leaves_is_gone_although_child_shares_descriptor() {
    let mut server = Server::new(2, "j").expect("a poller");
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    // The clone of the descriptor is like that of a forked child that has not executed another program.
    let childs = ours.try_clone().expect("a descriptor");
    server.adopt(ours).expect("a flag");
    drop(theirs);
    server.turn(&[], Some(Duration::ZERO)).expect("a turn");
    assert!(server.seats.get(0).is_none(), "it has left");
    let mut ready = Vec::new();
    server.poller.wait(&mut ready, Some(Duration::ZERO)).expect("a look");
    assert_eq!(ready, [], "nobody is there of whom anything could be told");
    drop(childs);
}

#[test]
fn a_listener_without_a_caller_is_no_trouble() {
    let mut server = Server::new(2, "j").expect("a poller");
    let _ = server.listen_unix().expect("a name of its own");
    match &server.listeners[0] {
        Listener::Unix(listener) => listener.set_nonblocking(true).expect("a flag"),
        Listener::Tcp(..) => panic!("it was asked for another"),
    }
    server.accept(0);
    assert!(server.accepts(Instant::now()) && server.seats.all().count() == 0);
    assert_eq!(server.turned_away, 0);
}
