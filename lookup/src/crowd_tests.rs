//! Tests of lookups by a name at a process whose listener gets many connections from strangers.

use crate::listener::NameService;
use crate::lookup::Lookup;
use crate::tests::{WORKER, address_of, loopback, parse};
use crowd::{Crowd, percentile_95, size, ways};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tieline_net::Settings;

#[path = "../../net/src/crowd.rs"]
mod crowd;

/// The interval between two polls, of the responder and of the requester.
const PAUSE: Duration = Duration::from_millis(1);

#[test]
fn a_name_is_looked_up_through_a_crowd_that_drips_and_comes_back() {
    crowd::raise_descriptors();
    let (count, honest) = size();
    for (how_said, how, bound) in ways(count) {
        let settings = Settings { expected: 0, ..loopback("of this job") };
        let service = NameService::open(&settings).unwrap();
        let name = service.publish(&WORKER, address_of(WORKER));
        let at = name.addresses().into_iter().find(|at| at.ip.is_ipv4()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    service.poll(|| None);
                    std::thread::park_timeout(PAUSE);
                }
            });
            let crowd = Crowd::start(SocketAddr::new(at.ip, at.port), how);
            let one = |_| {
                let begun = Instant::now();
                let deadline = begun + Duration::from_secs(60);
                let mut lookup = Lookup::start(&name, &settings, deadline).unwrap();
                let answer = loop {
                    if let Some(answer) = lookup.advance(Instant::now(), parse) {
                        break answer;
                    }
                    std::thread::park_timeout(PAUSE);
                };
                stop.store(answer.is_err(), Ordering::Relaxed);
                assert_eq!(answer.unwrap(), address_of(WORKER));
                begun.elapsed()
            };
            let mut took: Vec<Duration> = (0..honest).map(one).collect();
            let p95 = percentile_95(&mut took);
            stop.store(true, Ordering::Relaxed);
            println!(
                "    lookup, {count} strangers, {how_said}: median {:?}, 95 % {p95:?}, longest {:?}, {} made, {:?}",
                took[honest / 2],
                took[honest - 1],
                crowd.made(),
                service.mailbox.hub().counters()
            );
            assert!(honest < 40 || p95 <= bound, "{how_said}: {p95:?}");
        });
    }
}
