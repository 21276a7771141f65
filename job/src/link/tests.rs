//! Tests of a rank's link to the server of its exchange.

use super::*;
use crate::host;
use std::os::unix::net::UnixStream;

fn link() -> (Link, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let hello = host::hello(0, 2, "");
    let link = Link::open(Stream::Unix(ours), hello, "the launcher", &long()).unwrap();
    (link, theirs)
}

fn long() -> Deadline {
    Deadline::new(Duration::from_secs(100))
}

fn gathered(round: u64, count: u8) -> Frame {
    Frame::Gathered { round, parts: (0..count).map(|n| vec![n]).collect() }
}

#[test]
fn a_dropped_link_has_ended_although_a_child_holds_a_copy() {
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (copy, patience) = (ours.try_clone().unwrap(), Duration::from_secs(10));
    let (hello, deadline) = (crate::host::hello(0, 2, "j"), Deadline::new(patience));
    drop(Link::open(Stream::Unix(ours), hello, "the server", &deadline).unwrap());
    theirs.set_read_timeout(Some(patience)).unwrap();
    assert!(theirs.read_to_end(&mut Vec::new()).is_ok(), "the server reads its end");
    drop(copy);
}

#[test]
fn answer_belongs_to_its_exchange_and_has_all_parts() {
    let (link, mut theirs) = link();
    for round in 0..3 {
        theirs.write_all(&gathered(round, 2).encode()).unwrap();
        assert_eq!(link.allgather(b"me", &long()).unwrap(), [[0], [1]]);
    }
    for (round, count) in [(1, 2), (0, 1), (0, 3)] {
        let (link, mut theirs) = self::link();
        theirs.write_all(&gathered(round, count).encode()).unwrap();
        let error = link.allgather(b"me", &long()).unwrap_err();
        assert_eq!(error.status(), Status::BadData, "{round}, {count}");
        assert!(error.to_string().contains("the launcher spoke out of turn"), "{error}");
        // An exchange that has failed once fails in all later calls.
        theirs.write_all(&gathered(0, 2).encode()).unwrap();
        let again = link.allgather(b"me", &long()).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
    }
}

#[test]
fn final_frame_of_server_is_reason_for_end_of_exchange() {
    let text = || "rank 1 has something".to_owned();
    for (frame, status) in [
        (Frame::Lost { text: text() }, Status::PeerFailed),
        (Frame::Late { text: text() }, Status::TimedOut),
        (Frame::Refused { text: text() }, Status::Invalid),
    ] {
        let (link, mut theirs) = link();
        theirs.write_all(&frame.encode()).unwrap();
        drop(theirs);
        let error = link.allgather(b"me", &long()).unwrap_err();
        assert_eq!(error.status(), status);
        assert!(error.to_string().contains(&text()), "{error}");
    }
    let (link, theirs) = link();
    drop(theirs);
    let error = link.allgather(b"me", &long()).unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed);
    assert!(error.to_string().contains("the launcher is gone"), "{error}");
    let (link, mut theirs) = self::link();
    theirs.write_all(&[0xff; 64]).unwrap();
    let error = link.allgather(b"me", &long()).unwrap_err();
    assert_eq!(error.status(), Status::BadData);
    assert!(error.to_string().contains("the launcher sent malformed data"), "{error}");
}

#[test]
fn timed_out_process_learns_missing_ranks_from_server() {
    let (link, mut theirs) = link();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut decoder, mut heard) = (Decoder::new(4096), Vec::new());
            let mut buffer = [0; 4096];
            while !matches!(heard.last(), Some(Frame::GiveUp { .. })) {
                match decoder.next().unwrap() {
                    Some(frame) => heard.push(frame),
                    None => {
                        let count = theirs.read(&mut buffer).unwrap();
                        decoder.push(&buffer[..count]);
                    }
                }
            }
            let text = "rank 1 has not come".to_owned();
            theirs.write_all(&Frame::Late { text }.encode()).unwrap();
            heard.pop()
        });
        let brief = Deadline::new(Duration::from_millis(20));
        let error = link.allgather(b"me", &brief).unwrap_err();
        assert_eq!(error.status(), Status::TimedOut);
        assert!(error.to_string().contains("rank 1 has not come"), "{error}");
        let asked = server.join().unwrap();
        assert!(matches!(asked, Some(Frame::GiveUp { waited_ms: 20 })), "{asked:?}");
    });
}

/// The server's window is full, so the unread rest stays in the buffers of this side.
#[test]
fn last_publication_arrives_although_an_answer_stayed_unread() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut theirs, _) = listener.accept().unwrap();
    let hello = host::hello(0, 2, "");
    let link = Link::open(Stream::Tcp(ours), hello, "rank 0", &long()).unwrap();
    let bytes = vec![7; wire::MAX_CONTRIBUTION];
    link.publish(1, &bytes, &long()).unwrap();
    theirs.write_all(&Frame::Found { id: 9, bytes: vec![1; 10_000] }.encode()).unwrap();
    // The answer was received, but no lookup has read it.
    let Stream::Tcp(ours) = &link.stream else { panic!("it is TCP") };
    while ours.peek(&mut [0; 10_000]).unwrap() < 10_000 {
        std::thread::yield_now();
    }
    drop(link);
    let mut heard = Vec::new();
    let _ = theirs.read_to_end(&mut heard).unwrap();
    let mut decoder = Decoder::new(wire::CONTRIBUTION_LIMIT);
    decoder.push(&heard);
    let frames: Vec<Frame> = std::iter::from_fn(|| decoder.next().unwrap()).collect();
    assert!(matches!(frames[0], Frame::Hello(_)));
    assert_eq!(frames[1..], [Frame::Publish { key: 1, bytes }]);
}

#[test]
fn partly_written_frame_is_completed_before_next_one() {
    let (link, mut theirs) = link();
    let brief = || Deadline::new(Duration::from_millis(5));
    let bytes = |key: u32| vec![key as u8; wire::MAX_CONTRIBUTION];
    // Publishes until only a part of a frame was sent. A call whose time ends before its first byte is sent leaves no part.
    let mut whole = Vec::new();
    let is_torn = |key: &u32| {
        let published = link.publish(*key, &bytes(*key), &brief());
        whole.extend(published.is_ok().then_some(*key));
        !link.writing.lock().unwrap().is_empty()
    };
    let torn = (0..).find(is_torn).unwrap();
    for key in [torn + 1, torn + 2] {
        let late = link.publish(key, &bytes(key), &brief()).unwrap_err();
        assert_eq!(late.status(), Status::TimedOut, "{late}");
    }
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut heard = Vec::new();
            let _ = theirs.read_to_end(&mut heard).unwrap();
            heard
        });
        link.publish(torn + 3, &bytes(torn + 3), &long()).unwrap();
        drop(link);
        let mut decoder = Decoder::new(wire::CONTRIBUTION_LIMIT);
        decoder.push(&server.join().unwrap());
        let frames: Vec<Frame> = std::iter::from_fn(|| decoder.next().unwrap()).collect();
        assert!(matches!(frames[0], Frame::Hello(_)));
        let keys = whole.into_iter().chain([torn, torn + 3]);
        let published: Vec<Frame> =
            keys.map(|key| Frame::Publish { key, bytes: bytes(key) }).collect();
        assert!(frames[1..] == published, "{} frames", frames.len());
    });
}
