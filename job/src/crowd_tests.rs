//! Tests of ranks that join while a large number of foreign clients connect to the same port.

use super::server::Server;
use super::{Deadline, Exchange, bootstrap::Bootstrap, host};
use crowd::{Crowd, percentile_95, size, ways};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[path = "../../net/src/crowd.rs"]
mod crowd;

const SECRET: &[u8] = b"of this job alone";
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn ranks_join_despite_slow_reconnecting_crowd() {
    crowd::raise_descriptors();
    let (count, honest) = size();
    for (name, how, bound) in ways(count) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let mut server = Server::new(honest, "j").unwrap();
        server.listen_tcp(listener, SECRET).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    server.turn(&[], Some(Duration::from_millis(100))).unwrap();
                }
                server.turned_away()
            });
            let crowd = Crowd::start(to, how);
            let mut links = Vec::new();
            let one = |rank| {
                let begun = Instant::now();
                let secret = || Ok(SECRET.to_vec());
                let at = to.to_string();
                let place = Bootstrap::new(at, "TIELINE_BOOTSTRAP", &secret).unwrap();
                let hello = host::hello(rank, honest, "j");
                let deadline = Deadline::new(PATIENCE);
                // The answer to the join shows that the rank has joined.
                let joined = place.join(hello, &deadline).and_then(|link| {
                    link.publish(1, b"here", &deadline)?;
                    let _ = link.lookup(rank, 1, &deadline)?;
                    Ok(link)
                });
                stop.store(joined.is_err(), Ordering::Relaxed);
                links.push(joined.unwrap());
                begun.elapsed()
            };
            let mut took: Vec<Duration> = (0..honest).map(one).collect();
            let p95 = percentile_95(&mut took);
            stop.store(true, Ordering::Relaxed);
            println!(
                "    join, {count} strangers, {name}: median {:?}, 95 % {p95:?}, longest {:?}, {} made, {} turned away",
                took[honest / 2],
                took[honest - 1],
                crowd.made(),
                server.join().unwrap()
            );
            assert!(honest < 40 || p95 <= bound, "{name}: {p95:?}");
        });
    }
}

/// Six hundred processes of one host join on one processor.
#[test]
fn six_hundred_ranks_join_together_from_one_address() {
    const SIZE: usize = 600;
    crowd::raise_descriptors();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let mut server = Server::new(SIZE, "j").unwrap();
    server.listen_tcp(listener, SECRET).unwrap();
    let joined = |rank| {
        let begun = Instant::now();
        let secret = || Ok(SECRET.to_vec());
        let place = Bootstrap::new(at.clone(), "TIELINE_BOOTSTRAP", &secret).unwrap();
        let deadline = Deadline::new(PATIENCE);
        let link = place.join(host::hello(rank, SIZE, "j"), &deadline).unwrap();
        let took = begun.elapsed();
        let all = link.allgather(&rank.to_le_bytes(), &deadline).unwrap();
        assert_eq!(all.len(), SIZE);
        took
    };
    let longest = std::thread::scope(|scope| {
        let joined = &joined;
        let ranks: Vec<_> = (0..SIZE)
            .map(|rank| {
                let small = std::thread::Builder::new().stack_size(128 << 10);
                small.spawn_scoped(scope, move || joined(rank)).unwrap()
            })
            .collect();
        while !ranks.iter().all(|rank| rank.is_finished()) {
            server.turn(&[], Some(Duration::from_millis(10))).unwrap();
        }
        ranks.into_iter().map(|rank| rank.join().unwrap()).max()
    });
    // On a slow processor, ranks whose handshake took too long connect again. Their earlier connections then make room.
    if longest < Some(super::handshake::SILENCE) {
        assert_eq!(server.turned_away(), 0);
    }
}
