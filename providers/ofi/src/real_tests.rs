//! Tests that run the same scenario over the simulated libfabric and over a real one, and compare error numbers, flags and received
//! data. If the two differ, the simulation is wrong.
//!
//! `double/sources.rs` names for each behaviour the test that compares it, or the reason why there is none.

use crate::abi::*;
use crate::config::Settings;
use crate::double::world::{Atomics, Manners, manners};
use crate::load::Library;
use crate::offers::{self, Offer};
use crate::sys::{Av, Cq, Domain, Ep, Local, Looked, Remote, Room};
use core::ffi::c_void;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_net::Filter;
use tieline_plugin_api::Failure;

/// The time limit for events that must happen, on a busy host.
const PATIENCE: Duration = Duration::from_secs(20);
/// The waiting time for events that must not happen. A host that is too slow to show a difference does not fail the test.
const A_WHILE: Duration = Duration::from_millis(60);
const PACKET: usize = crate::engine::LONGEST_PACKET;
const RIGHTS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Returns the file of a newer libfabric, or why it is not available.
fn newer() -> Result<String, String> {
    tieline_testing::libfabric::newer().map(|file| file.display().to_string())
}

fn settings(provider: &str) -> Settings {
    let interfaces = Filter::parse("lo").unwrap();
    Settings { providers: provider.into(), interfaces, ..Settings::test_defaults() }
}

fn first(library: &'static Library, settings: &Settings) -> Result<Offer, String> {
    let offers = offers::offers(library, settings).map_err(|failure| failure.text)?;
    offers.used.first().cloned().ok_or_else(|| offers.left_out().join("; "))
}

/// Returns a provider of the real library, or why it is not available.
fn real(file: &str, provider: &str) -> Result<Offer, String> {
    let library = crate::load::real(file).map_err(|failure: Failure| failure.text)?;
    first(library, &settings(provider))
}

/// Two endpoints of separate domains, with their memory.
struct Pair {
    near: Side,
    far: Side,
    to: u64,
}

struct Side {
    // The fields are in the order in which they are dropped.
    mr: crate::registered::sys::Mr,
    ep: Arc<Ep>,
    domain: Arc<Domain>,
    memory: Vec<u64>,
    /// The contexts of operations; each lives as long as the side.
    contexts: Vec<Box<[u64]>>,
    /// The completions by context: the relevant flags, bytes, and an error.
    ended: BTreeMap<usize, Vec<(u64, usize, i32)>>,
    order: Vec<usize>,
}

const KEY: u64 = 0x5eed;

impl Side {
    fn open(offer: &Offer, key: u64) -> Side {
        let domain = Domain::open(&offer.info).unwrap();
        let cq = Cq::open(&domain, 1024, false).unwrap();
        let av = Av::open(&domain).unwrap();
        let ep = Arc::new(Ep::open(&domain, cq, av, PACKET).unwrap());
        let memory = vec![0; 1 << 16];
        let base = memory.as_ptr().cast::<u8>().cast_mut();
        let mr = domain.register(base, size_of_val(&memory[..]) / 2, RIGHTS, key, None).unwrap();
        let (contexts, ended, order) = (Vec::new(), BTreeMap::new(), Vec::new());
        Side { mr, ep, domain, memory, contexts, ended, order }
    }

    fn context(&mut self) -> (usize, *mut c_void) {
        self.contexts.push(vec![0; CONTEXT_LEN / 8].into());
        let at = self.contexts.len() - 1;
        (at, self.contexts[at].as_mut_ptr().cast())
    }

    /// Returns memory after the part that is registered for peers.
    fn local(&mut self, at: usize, len: usize) -> Local {
        let base = &mut self.memory[(1 << 15) + at / 8..][..len.div_ceil(8)];
        Local { base: base.as_mut_ptr().cast(), len, desc: self.mr.desc() }
    }

    fn poll(&mut self) {
        let none = core::ptr::null_mut();
        let mut room = Room::default();
        let mut tell = |context: *mut c_void, told| {
            if context != none {
                let mut own = self.contexts.iter().map(|own| own.as_ptr().addr());
                let at = own.position(|own| own == context.addr()).unwrap();
                self.ended.entry(at).or_default().push(told);
                self.order.push(at);
            }
        };
        match self.ep.cq.look(self.ep.cq.read(&mut room)) {
            Looked::Nothing => {}
            Looked::Entries(count) => (0..count).map(|at| room.entry(at)).for_each(|entry| {
                let received = entry.flags & FI_RECV != 0;
                let len = if received { entry.len } else { 0 };
                tell(entry.op_context, (entry.flags & (FI_RECV | FI_MULTI_RECV), len, 0));
            }),
            Looked::Failed(entry) => tell(entry.op_context, (0, 0, entry.err)),
            Looked::Broken(code) => panic!("the queue fails: {code}"),
        }
    }
}

impl Pair {
    fn open(offer: &Offer) -> Pair {
        let (near, far) = (Side::open(offer, KEY - 1), Side::open(offer, KEY));
        let to = near.ep.av.insert(&far.ep.name().unwrap()).unwrap();
        Pair { near, far, to }
    }

    /// Retries a post until it is accepted. Returns the error if the post is refused for another reason than a full queue.
    fn post(&mut self, post: impl Fn(&Ep, u64) -> Result<(), i32>) -> Result<(), i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            match post(&self.near.ep, self.to) {
                Err(FI_EAGAIN) if Instant::now() < until => {
                    self.near.poll();
                    self.far.poll();
                }
                other => return other,
            }
        }
    }

    fn until(&mut self, what: &str, so: impl Fn(&Pair) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !so(self) {
            assert!(Instant::now() < until, "it does not come: {what}");
            self.near.poll();
            self.far.poll();
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, i32> {
        let (at, context) = self.near.context();
        let piece = self.near.local(at * 64, bytes.len());
        for (n, byte) in bytes.iter().enumerate() {
            let word = &mut self.near.memory[(1 << 15) + (at * 64 + n) / 8];
            let shift = 8 * (n % 8);
            *word = *word & !(0xff << shift) | u64::from(*byte) << shift;
        }
        self.post(|ep, to| ep.send(to, piece, context)).map(|()| at)
    }

    fn buffer(&mut self, at: usize, len: usize, many: bool) -> usize {
        let (number, context) = self.far.context();
        let room = self.far.local(at, len);
        self.far.ep.post_buffer(room, many, context).unwrap();
        number
    }

    fn transfer(&mut self, put: bool, len: usize, to: (u64, u64)) -> Result<usize, i32> {
        let (at, context) = self.near.context();
        let local = [self.near.local(0, len)];
        let remote = |peer| Remote { peer, address: to.0, key: to.1 };
        self.post(|ep, peer| ep.transfer(put, &local, remote(peer), context)).map(|()| at)
    }

    /// Waits for an operation of the near side and returns its result.
    fn end_of(&mut self, at: usize) -> i32 {
        self.until("an end", |pair| pair.near.ended.contains_key(&at));
        self.near.ended[&at][0].2
    }

    /// Sends one message, so that the connection has formed.
    fn warm(&mut self) {
        let buffer = self.buffer(200_000, 64, false);
        let sent = self.send(b"first").unwrap();
        self.until("a message", |pair| pair.far.ended.contains_key(&buffer));
        assert_eq!(self.end_of(sent), 0);
    }
}

/// Compares the observations of a scenario, and prints the pairs that are not available.
fn same<T: PartialEq + core::fmt::Debug>(
    against: &[(Result<String, String>, &str)],
    set: impl Fn(&mut Manners),
    scenario: impl Fn(&Offer) -> T,
) {
    manners(|manners| set(manners));
    let library = crate::load::library("").unwrap();
    let played = scenario(&first(library, &Settings::test_defaults()).unwrap());
    for (file, provider) in against {
        let offer = file.clone().and_then(|file| real(&file, provider));
        match offer {
            Err(why) => println!("skipped: {provider}: {why}"),
            Ok(offer) => assert_eq!(played, scenario(&offer), "played, and {}", offer.provider),
        }
    }
}

/// Returns the file of Debian's library.
fn debian() -> Result<String, String> {
    Ok("libfabric.so.1".into())
}

#[test]
fn messages_come_in_order_one_for_each_buffer_as_they_are_played() {
    let all =
        [(debian(), "tcp"), (debian(), "sockets"), (newer(), "tcp"), (newer(), "tcp;ofi_rxm")];
    same(
        &all,
        |_| {},
        |offer| {
            let mut pair = Pair::open(offer);
            let buffers: Vec<usize> =
                (0..20).map(|n| pair.buffer(n * 128, 100 + n, false)).collect();
            let sent: Vec<usize> =
                (0..20).map(|n| pair.send(&vec![n as u8 + 1; 100 + n]).unwrap()).collect();
            pair.until("twenty messages", |pair| pair.far.order.len() == 20);
            let ends: Vec<i32> = sent.iter().map(|at| pair.end_of(*at)).collect();
            let bytes: Vec<u64> =
                (0..20).map(|n| pair.far.memory[(1 << 15) + n * 16] & 0xff).collect();
            let in_order = pair.far.order == buffers;
            (in_order, ends, bytes, pair.far.ended.clone())
        },
    );
}

#[test]
fn buffers_for_many_messages_are_given_back_with_the_last_as_it_is_played() {
    same(
        &[(newer(), "tcp")],
        |_| {},
        |offer| {
            let mut pair = Pair::open(offer);
            let buffer = pair.buffer(0, PACKET + 1000, true);
            // After the third message, the remaining room is below the minimum.
            for n in 0..3 {
                let _ = pair.send(&vec![n + 1; 400]).unwrap();
            }
            pair.until("three messages", |pair| pair.far.order.len() >= 3);
            pair.far.ended[&buffer].clone()
        },
    );
}

#[test]
fn a_message_that_is_longer_than_its_buffer_fails_there_as_it_is_played() {
    same(
        &[(debian(), "tcp"), (debian(), "sockets"), (newer(), "tcp")],
        |_| {},
        |offer| {
            let mut pair = Pair::open(offer);
            let buffer = pair.buffer(0, 64, false);
            let _ = pair.send(&[7; 200]).unwrap();
            pair.until("an error", |pair| pair.far.ended.contains_key(&buffer));
            pair.far.ended[&buffer][0].2
        },
    );
}

/// Checks whether a put and a get complete within this time while their target makes no progress, and their final results.
fn waits_for_its_target(offer: &Offer, patience: Duration) -> Vec<(bool, i32, bool)> {
    let mut pair = Pair::open(offer);
    pair.warm();
    [true, false]
        .map(|put| {
            pair.near.memory[1 << 15..][..4096].fill(if put { 3 } else { 4 });
            pair.far.memory[..4096].fill(if put { 5 } else { 6 });
            let at = pair.transfer(put, 32768, (0, pair.far.mr.key())).unwrap();
            let began = Instant::now();
            while began.elapsed() < patience && !pair.near.ended.contains_key(&at) {
                pair.near.poll();
            }
            let early = pair.near.ended.contains_key(&at);
            let end = pair.end_of(at);
            (early, end, pair.far.memory[4095] == pair.near.memory[(1 << 15) + 4095])
        })
        .into()
}

#[test]
fn puts_and_gets_wait_for_a_target_that_has_to_poll_as_it_is_played() {
    same(&[(debian(), "tcp")], |_| {}, |offer| waits_for_its_target(offer, A_WHILE));
}

#[test]
fn puts_and_gets_do_not_wait_where_threads_move_the_data_as_it_is_played() {
    let set = |manners: &mut Manners| manners.manual = false;
    same(&[(debian(), "sockets")], set, |offer| waits_for_its_target(offer, PATIENCE));
}

/// Returns the results of posts to a peer that has ended.
fn to_nobody(offer: &Offer) -> (Result<(), i32>, usize) {
    let mut pair = Pair::open(offer);
    let (_, context) = pair.near.context();
    let piece = pair.near.local(0, 100);
    assert!(pair.far.ep.shut());
    let began = Instant::now();
    let mut said = Err(FI_EAGAIN);
    while said == Err(FI_EAGAIN) && began.elapsed() < A_WHILE {
        said = pair.near.ep.send(pair.to, piece, context);
        pair.near.poll();
    }
    (said, pair.near.order.len())
}

#[test]
fn posts_to_nobody_are_told_to_come_again_without_an_end_as_it_is_played() {
    same(&[(debian(), "tcp"), (newer(), "tcp")], |_| {}, to_nobody);
}

#[test]
fn posts_to_nobody_are_refused_by_sockets_as_it_is_played() {
    same(&[(debian(), "sockets")], |manners| manners.refuse_send = Some(libc::ENOENT), to_nobody);
}

#[test]
fn bad_key_range_or_right_fails_one_operation_as_simulated() {
    same(
        &[(debian(), "sockets")],
        |manners| manners.manual = false,
        |offer| {
            let mut pair = Pair::open(offer);
            pair.warm();
            let (key, len) = (pair.far.mr.key(), 1u64 << 18);
            let mut ends = Vec::new();
            for to in [(0, key + 1), (len - 8, key), (len - 64, key), (1 << 40, key)] {
                let at = pair.transfer(true, 64, to).unwrap();
                ends.push(pair.end_of(at));
            }
            let base = pair.far.memory.as_ptr().cast::<u8>().cast_mut();
            let less = RIGHTS & !FI_REMOTE_WRITE;
            let mr = pair.far.domain.register(base, 4096, less, KEY + 7, None).unwrap();
            for put in [true, false] {
                let at = pair.transfer(put, 64, (0, mr.key())).unwrap();
                ends.push(pair.end_of(at));
            }
            ends
        },
    );
}

#[test]
fn a_key_that_is_taken_is_refused_as_it_is_played() {
    let all = [(debian(), "tcp"), (debian(), "sockets"), (newer(), "tcp")];
    same(
        &all,
        |_| {},
        |offer| {
            let side = Side::open(offer, KEY);
            let base = side.memory.as_ptr().cast::<u8>().cast_mut();
            let again = side.domain.register(base, 4096, RIGHTS, KEY, None).err();
            let other = side.domain.register(base, 4096, RIGHTS, KEY + 1, None);
            (side.mr.key(), again, other.map(|mr| mr.key()).ok())
        },
    );
}

#[test]
fn gets_from_somebody_who_goes_fail_with_the_connection_as_it_is_played() {
    same(
        &[(debian(), "tcp"), (newer(), "tcp")],
        |_| {},
        |offer| {
            let mut pair = Pair::open(offer);
            pair.warm();
            let at: Vec<usize> = (0..4)
                .map(|_| pair.transfer(false, 4096, (0, pair.far.mr.key())).unwrap())
                .collect();
            assert!(pair.far.ep.shut());
            let until = Instant::now() + PATIENCE;
            while at.iter().any(|at| !pair.near.ended.contains_key(at)) {
                assert!(Instant::now() < until, "they do not end");
                pair.near.poll();
            }
            let gone = [libc::ENOTCONN, libc::ECANCELED, libc::ECONNRESET];
            at.iter().map(|at| gone.contains(&pair.near.ended[at][0].2)).collect::<Vec<_>>()
        },
    );
}

#[test]
fn atomics_that_would_cost_the_provider_are_left_out_as_it_is_played() {
    let told = |library: &'static Library, settings: &Settings| {
        let offers = offers::offers(library, settings).unwrap();
        let words = offers.left_out().into_iter().filter(|line| line.contains("atomics alone"));
        let words: Vec<String> =
            words.map(|line| line.split_once(": ").unwrap().1.to_owned()).collect();
        (offers.used.iter().map(|offer| offer.atomics).collect::<Vec<_>>(), words)
    };
    let trusting = |provider: &str| Settings { trust: "atomics".into(), ..settings(provider) };
    manners(|manners| manners.atomics = Atomics::Dear);
    let library = crate::load::library("").unwrap();
    let played = told(library, &Settings { trust: "atomics".into(), ..Settings::test_defaults() });
    let library = newer().and_then(|file| crate::load::real(&file).map_err(|why| why.text));
    match library {
        Err(why) => println!("skipped: {why}"),
        Ok(library) => assert_eq!(played, told(library, &trusting("tcp"))),
    }
}
