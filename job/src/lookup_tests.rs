//! Tests of publishing and looking up, over a server on a thread of this process.

use super::server::Server;
use super::wire::{Frame, MAX_CONTRIBUTION, MAX_KEYS, MAX_PUBLISHED};
use super::*;
use std::collections::HashMap as Map;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;

/// A server on a thread. Dropping this value ends the server.
struct Serving {
    exchange: String,
    stop: Option<UnixStream>,
    thread: Option<std::thread::JoinHandle<Server>>,
}

fn serve(size: usize) -> Serving {
    let mut server = Server::new(size, "j").unwrap();
    let exchange = server.listen_unix().unwrap();
    let (stop, stopped) = UnixStream::pair().unwrap();
    stopped.set_nonblocking(true).unwrap();
    let thread = std::thread::spawn(move || {
        use std::os::fd::AsRawFd;
        let told = || matches!((&stopped).read(&mut [0]), Ok(0));
        while !told() {
            server.turn(&[stopped.as_raw_fd()], None).unwrap();
        }
        server
    });
    Serving { exchange, stop: Some(stop), thread: Some(thread) }
}

impl Serving {
    fn join(&self, rank: usize, size: usize) -> Job {
        let set: Map<&str, String> = Map::from([
            ("TIELINE_RANK", rank.to_string()),
            ("TIELINE_SIZE", size.to_string()),
            ("TIELINE_JOB", "j".to_owned()),
            ("TIELINE_EXCHANGE", self.exchange.clone()),
        ]);
        Job::from_variables(&|name| set.get(name).cloned(), &|| Ok(Vec::new()), false).unwrap()
    }

    /// Opens a connection on which the test sends arbitrary frames.
    fn connect(&self, rank: u32, size: u32) -> UnixStream {
        let name = self.exchange.strip_prefix("unix:@").unwrap();
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        let hello = host::hello(rank as usize, size as usize, "j");
        stream.write_all(&Frame::Hello(hello).encode()).unwrap();
        stream
    }

    fn end(&mut self) -> Server {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads all frames of a connection until it closes.
fn all_frames(mut stream: UnixStream) -> Vec<Frame> {
    let (mut bytes, mut decoder) = (Vec::new(), wire::Decoder::new(usize::MAX));
    let _ = stream.read_to_end(&mut bytes);
    decoder.push(&bytes);
    std::iter::from_fn(|| decoder.next().unwrap()).collect()
}

#[test]
fn publication_is_found_by_earlier_and_later_and_own_lookups() {
    let serving = serve(3);
    let jobs: Vec<Job> = (0..3).map(|rank| serving.join(rank, 3)).collect();
    std::thread::scope(|scope| {
        let early = scope.spawn(|| jobs[1].lookup(0, 7).unwrap());
        jobs[0].publish(8, b"").unwrap();
        jobs[0].publish(7, b"zero").unwrap();
        assert_eq!(early.join().unwrap(), b"zero");
    });
    for job in &jobs {
        assert_eq!(job.lookup(0, 7).unwrap(), b"zero");
        assert_eq!(job.lookup(0, 8).unwrap(), b"");
    }
    let alone = Job::from_variables(&|_| None, &|| Ok(Vec::new()), false).unwrap();
    alone.publish(7, b"me").unwrap();
    assert_eq!(alone.lookup(0, 7).unwrap(), b"me");
}

#[test]
fn lookups_of_many_threads_and_an_exchange_share_one_connection() {
    let serving = serve(2);
    let jobs = [serving.join(0, 2), serving.join(1, 2)];
    std::thread::scope(|scope| {
        let exchanged = scope.spawn(|| jobs[1].exchange(b"one").unwrap());
        let jobs = &jobs;
        let looked: Vec<_> =
            (0..20).map(|key| scope.spawn(move || jobs[1].lookup(0, key).unwrap())).collect();
        // The exchange of rank 1 waits, and so do its lookups: each rank waits for the other's bytes.
        for key in (0..20).rev() {
            jobs[0].publish(key, &key.to_le_bytes()).unwrap();
        }
        for (key, looked) in looked.into_iter().enumerate() {
            assert_eq!(looked.join().unwrap(), (key as u32).to_le_bytes());
        }
        assert_eq!(jobs[0].exchange(b"zero").unwrap(), [&b"zero"[..], b"one"]);
        assert_eq!(exchanged.join().unwrap(), [&b"zero"[..], b"one"]);
    });
}

#[test]
fn lookup_timeout_says_whether_rank_joined_and_may_be_repeated() {
    let serving = serve(3);
    let mut asking = serving.join(0, 3);
    let silent = serving.join(1, 3);
    silent.publish(1, b"here").unwrap();
    assert_eq!(asking.lookup(1, 1).unwrap(), b"here", "so it has come");
    asking.set_deadline(Duration::from_millis(20));
    for (rank, says) in [(1, "has not published it within 20ms"), (2, "rank 2 has not come")] {
        let error = asking.lookup(rank, 7).unwrap_err();
        assert_eq!(error.status(), Status::TimedOut);
        assert!(error.to_string().contains(says), "{error}");
    }
    asking.set_deadline(DEADLINE);
    silent.publish(7, b"late").unwrap();
    assert_eq!(asking.lookup(1, 7).unwrap(), b"late");
    assert_eq!(asking.lookup(3, 7).unwrap_err().status(), Status::Invalid);
}

#[test]
fn lookup_names_rank_that_left_and_its_publications_stay() {
    let serving = serve(2);
    let (asking, leaving) = (serving.join(0, 2), serving.join(1, 2));
    leaving.publish(1, b"stays").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| asking.lookup(1, 2).unwrap_err());
        drop(leaving);
        let error = waiting.join().unwrap();
        assert_eq!(error.status(), Status::PeerFailed);
        assert!(error.to_string().contains("rank 1 (pid"), "{error}");
        assert!(error.to_string().contains("has left the exchange"), "{error}");
    });
    assert_eq!(asking.lookup(1, 1).unwrap(), b"stays");
    assert_eq!(asking.exchange(b"").unwrap_err().status(), Status::PeerFailed);
    assert_eq!(asking.lookup(1, 1).unwrap(), b"stays");
    asking.publish(3, b"mine").unwrap();
    assert_eq!(asking.lookup(0, 3).unwrap(), b"mine");
}

#[test]
fn end_of_server_fails_lookups_with_that_reason() {
    let mut serving = serve(2);
    let asking = serving.join(0, 2);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| asking.lookup(1, 2).unwrap_err());
        drop(serving.end());
        let error = waiting.join().unwrap();
        assert_eq!(error.status(), Status::PeerFailed);
        assert!(error.to_string().contains("the launcher is gone"), "{error}");
    });
    assert_eq!(asking.lookup(1, 2).unwrap_err().status(), Status::PeerFailed);
    assert_eq!(asking.publish(1, b"").unwrap_err().status(), Status::PeerFailed);
}

#[test]
fn second_process_of_rank_is_refused_on_its_first_call() {
    let serving = serve(2);
    let first = serving.join(1, 2);
    first.publish(1, b"first").unwrap();
    assert_eq!(first.lookup(1, 1).unwrap(), b"first", "it has joined");
    let second = serving.join(1, 2);
    let error = second.lookup(0, 1).unwrap_err();
    assert_eq!(error.status(), Status::Invalid, "{error}");
    assert!(error.to_string().contains("rank 1 has joined already"), "{error}");
    assert_eq!(second.lookup(1, 1).unwrap_err(), error, "and again");
    assert_eq!(second.barrier().unwrap_err(), error);
    // The timeout error about an absent rank has the reasons of refused connections.
    let mut asking = serving.join(0, 2);
    asking.set_deadline(Duration::from_millis(20));
    let error = asking.lookup(1, 2).unwrap_err();
    assert!(error.to_string().contains("has not published it"), "{error}");
}

#[test]
fn lookup_of_absent_rank_names_refused_processes() {
    let serving = serve(2);
    let mut asking = serving.join(0, 2);
    asking.publish(1, b"").unwrap();
    assert_eq!(asking.lookup(0, 1).unwrap(), b"");
    let mut stranger = serving.connect(0, 2);
    assert_eq!(stranger.read(&mut [0; 1]).unwrap(), 1, "it is refused");
    asking.set_deadline(Duration::from_millis(20));
    let error = asking.lookup(1, 1).unwrap_err();
    assert_eq!(error.status(), Status::TimedOut);
    assert!(error.to_string().contains("rank 1 has not come (turned away: "), "{error}");
}

#[test]
fn more_threads_than_may_wait_at_a_time_are_refused_and_the_job_goes_on() {
    let serving = serve(2);
    let (asking, other) = (serving.join(0, 2), serving.join(1, 2));
    let (asking, told) = (&asking, std::sync::Barrier::new(2));
    let refused = std::sync::Mutex::new(0);
    std::thread::scope(|scope| {
        let ask = || match asking.lookup(1, 1) {
            Ok(found) => assert_eq!(found, b"late"),
            Err(error) => {
                assert_eq!(error.status(), Status::Again, "{error}");
                let mut refused = refused.lock().unwrap();
                *refused += 1;
                if *refused == 1 {
                    let _ = told.wait();
                }
            }
        };
        let threads: Vec<_> = (0..=wire::MAX_LOOKUPS)
            .map(|_| std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, ask))
            .collect();
        let _ = told.wait();
        other.publish(1, b"late").unwrap();
        threads.into_iter().for_each(|thread| thread.unwrap().join().unwrap());
        assert_eq!(*refused.lock().unwrap(), 1);
    });
    assert_eq!(asking.lookup(1, 1).unwrap(), b"late");
}

#[test]
fn more_than_its_share_is_refused_before_it_is_sent() {
    let serving = serve(1);
    let job = serving.join(0, 1);
    job.publish(1, &[1]).unwrap();
    assert_eq!(job.publish(1, &[2]).unwrap_err().status(), Status::Invalid);
    assert_eq!(job.publish(2, &vec![0; MAX_PUBLISHED]).unwrap_err().status(), Status::TooLarge);
    job.publish(2, &vec![3; MAX_PUBLISHED - 1]).unwrap();
    assert_eq!(job.publish(3, &[0]).unwrap_err().status(), Status::TooLarge);
    for key in 3..=MAX_KEYS as u32 {
        job.publish(key, &[]).unwrap();
    }
    assert_eq!(job.publish(u32::MAX, &[]).unwrap_err().status(), Status::TooLarge);
    assert_eq!(job.lookup(0, 1).unwrap(), [1]);
    assert_eq!(job.lookup(0, 2).unwrap().len(), MAX_PUBLISHED - 1);
}

#[test]
fn requester_is_resumed_once_it_reads_answers() {
    let mut serving = serve(2);
    let job = serving.join(0, 2);
    job.publish(1, &vec![9; MAX_PUBLISHED]).unwrap();
    assert_eq!(job.lookup(0, 1).unwrap().len(), MAX_PUBLISHED);
    // A thousand answers of a mebibyte each, requested together.
    let mut greedy = serving.connect(1, 2);
    let asked: Vec<u8> =
        (0..1000).flat_map(|id| Frame::Lookup { id, rank: 0, key: 1 }.encode()).collect();
    greedy.write_all(&asked).unwrap();
    // The other ranks are served while these answers are pending.
    assert_eq!(job.lookup(0, 1).unwrap().len(), MAX_PUBLISHED);
    let mut decoder = wire::Decoder::new(MAX_CONTRIBUTION + 64);
    let (mut buffer, mut next) = (vec![0; 1 << 16], 0);
    while next < 1000 {
        match decoder.next().unwrap() {
            Some(Frame::Found { id, bytes }) => {
                assert_eq!((id, bytes.len()), (next, MAX_PUBLISHED));
                next += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => {
                let count = greedy.read(&mut buffer).unwrap();
                assert!(count > 0, "it is still served");
                decoder.push(&buffer[..count]);
            }
        }
    }
    drop(serving.end());
}

#[test]
fn process_that_breaks_protocol_is_refused_without_harm() {
    let twice = |frame: Frame| [frame.encode(), frame.encode()].concat();
    let publish = |key, len| Frame::Publish { key, bytes: vec![0; len] };
    let many: Vec<u8> = (0..=wire::MAX_LOOKUPS as u64)
        .flat_map(|id| Frame::Lookup { id, rank: 0, key: 9 }.encode())
        .collect();
    for breach in [
        twice(publish(1, 1)),
        [publish(1, MAX_PUBLISHED).encode(), publish(2, 1).encode()].concat(),
        twice(Frame::Lookup { id: 1, rank: 0, key: 9 }),
        many,
        Frame::Found { id: 1, bytes: vec![] }.encode(),
        Frame::Unknown { id: 1, text: String::new() }.encode(),
    ] {
        let mut serving = serve(2);
        let job = Arc::new(serving.join(0, 2));
        job.publish(7, b"well").unwrap();
        let mut stranger = serving.connect(1, 2);
        stranger.write_all(&breach).unwrap();
        let told = all_frames(stranger);
        assert!(matches!(told.last(), Some(Frame::Refused { .. })), "{told:?}");
        assert_eq!(job.lookup(0, 7).unwrap(), b"well");
        let error = job.lookup(1, 9).unwrap_err();
        assert!(error.to_string().contains("was turned away"), "{error}");
        drop(job);
        assert_eq!(serving.end().turned_away(), 1);
    }
    // A lookup that was never made may be forgotten.
    let serving = serve(2);
    let job = serving.join(0, 2);
    let mut odd = serving.connect(1, 2);
    odd.write_all(&Frame::Forget { id: 77 }.encode()).unwrap();
    odd.write_all(&publish(1, 3).encode()).unwrap();
    assert_eq!(job.lookup(1, 1).unwrap(), [0; 3]);
}
