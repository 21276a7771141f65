//! Checks of connection-only modules with many peers, and of connectors that fall asleep or are opened and closed.

use super::connectors::{fall_asleep, nothing_more, numbered, pair, receive, reliable};
use crate::case::Case;
use crate::connector::Post;
use crate::interface::readable;
use crate::measure::Held;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, same_bytes, succeeds};
use crate::watch::{Patience, patience_ms, share, waits_for};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use tieline_plugin_api::{Status, address_hash, event};

const CROWD: usize = 12;

/// Returns one connector, and a dozen with which it is connected in both directions.
fn crowd(case: &Case) -> Result<(Post, Vec<Post>), Stop> {
    let (one, first) = pair(case)?;
    let mut others = vec![first];
    while others.len() < CROWD {
        others.push(Post::open(case)?);
    }
    Ok((one, others))
}

pub(super) fn each_of_a_crowd_that_sends_to_one_keeps_its_order(case: &Case) -> Checked {
    reliable(case)?;
    const EACH: u64 = 100;
    for at_once in [16, 1] {
        let (mut one, mut others) = crowd(case)?;
        one.at_once = at_once;
        let hashes: Vec<u64> = others.iter().map(|other| address_hash(&other.address)).collect();
        let (mut random, mut sent, mut seen) = (Random(61), [0u64; CROWD], [0u64; CROWD]);
        let patience = Patience::new();
        for n in 0.. {
            if seen.iter().sum::<u64>() == EACH * CROWD as u64 {
                break;
            }
            let who = random.below(CROWD);
            if sent[who] < EACH {
                let datagram = [&[who as u8][..], &numbered(sent[who])].concat();
                match others[who].connector.send(&one.address, &datagram) {
                    Ok(()) => sent[who] += 1,
                    Err(Status::Again) => {}
                    Err(status) => return Err(fail("send of one of a crowd", "success", status)),
                }
            }
            let _ = others[who].turn()?;
            // Usually more datagrams are pending than one poll delivers.
            if n % 4 == 0 {
                let _ = one.turn()?;
            }
            while let Some(datagram) = one.datagrams.pop_front() {
                let from = datagram.first().map_or(CROWD, |from| usize::from(*from));
                holds(from < CROWD, "the first byte of a datagram", "its sender's", from)?;
                let what = format!("datagram {} of sender {from} of {CROWD}", seen[from]);
                same_bytes(&what, &numbered(seen[from]), &datagram[1..])?;
                seen[from] += 1;
                let header = one.headers.pop_front().unwrap_or(0);
                let whose = header == 0 || header == hashes[from];
                let expected = "0, or the address_hash of its sender's address";
                holds(whose, format!("the header of {what}"), expected, header)?;
            }
            patience.still("the datagrams of a crowd", "all", "some are missing")?;
        }
        others.push(one);
        nothing_more(&mut others.iter_mut().collect::<Vec<_>>())?;
    }
    Ok(())
}

pub(super) fn datagrams_go_to_the_connector_of_their_address(case: &Case) -> Checked {
    let (mut one, mut others) = crowd(case)?;
    for round in 0..10 {
        for (n, other) in others.iter().enumerate() {
            let datagram = numbered((round * CROWD + n) as u64);
            one.send(&other.address, &datagram, || Ok(()))?;
        }
        for n in 0..CROWD {
            let mut posts: Vec<&mut Post> = others.iter_mut().chain([&mut one]).collect();
            let what = format!("what connector {n} of {CROWD} was sent");
            let found = receive(&mut posts, n)?;
            same_bytes(what, &numbered((round * CROWD + n) as u64), &found)?;
        }
    }
    others.push(one);
    nothing_more(&mut others.iter_mut().collect::<Vec<_>>())
}

pub(super) fn the_end_of_one_connector_ends_no_other(case: &Case) -> Checked {
    reliable(case)?;
    let (mut one, mut others) = crowd(case)?;
    let mut gone = Vec::new();
    while others.len() > 1 {
        for (n, other) in others.iter_mut().enumerate() {
            let here = one.address.clone();
            one.send(&other.address.clone(), &numbered(n as u64), || other.turn().map(drop))?;
            other.send(&here, &numbered(n as u64 + 50), || one.turn().map(drop))?;
        }
        let patience = Patience::new();
        let mut came = 0;
        while came < others.len() || others.iter().any(|other| other.datagrams.is_empty()) {
            others.iter_mut().try_for_each(|other| other.turn().map(drop))?;
            let _ = one.turn()?;
            came += one.datagrams.drain(..).count();
            for left in one.left.drain(..) {
                let of_gone = gone.contains(&left.header);
                holds(of_gone, "PEER_LEFT while one of many closes", "that one's", left.header)?;
            }
            let left = others.iter().map(|other| other.left.len()).sum();
            equal("PEER_LEFT at those whose peer stays", 0usize, left)?;
            let (what, found) =
                ("datagrams to and from the remaining connectors", "some are missing");
            patience.still(what, "all", found)?;
        }
        for (n, other) in others.iter_mut().enumerate() {
            let found = other.datagrams.pop_front().unwrap_or_default();
            same_bytes("a datagram to one who stays", &numbered(n as u64), &found)?;
        }
        // The closed connector is alternately the first and the last.
        let closed = others.remove(if gone.len() % 2 == 0 { 0 } else { others.len() - 1 });
        gone.push(address_hash(&closed.address));
    }
    Ok(())
}

pub(super) fn the_bytes_of_a_datagram_stay_until_the_next_poll(case: &Case) -> Checked {
    let (near, mut far) = pair(case)?;
    let mut sent = 0;
    let fill = |sent: &mut u64| {
        let end = *sent + 300;
        while *sent < end && near.connector.send(&far.address, &numbered(*sent)).is_ok() {
            *sent += 1;
        }
    };
    let (mut seen, patience) = (0, Patience::new());
    while seen < 600 {
        fill(&mut sent);
        let received = succeeds("poll", far.connector.poll(8))?;
        // Each polled datagram may have made room, and so may the sender's own poll.
        let _ = succeeds("poll", near.connector.poll(16))?;
        fill(&mut sent);
        for one in received.iter().filter(|one| one.kind == event::DATAGRAM) {
            let what = format!("datagram {seen}, looked at again before the next poll");
            same_bytes(what, &one.data, &one.again())?;
            if case.attr.reliable == 1 {
                same_bytes(format!("datagram {seen}"), &numbered(seen), &one.data)?;
            }
            seen += 1;
        }
        patience.still("datagrams that were sent", "that they come", "too few of them")?;
    }
    far.datagrams.clear();
    Ok(())
}

/// One thread falls asleep repeatedly, and the other sends a datagram each time, a little earlier or later.
pub(super) fn a_datagram_that_comes_while_a_connector_falls_asleep_wakes_it(
    case: &Case,
) -> Checked {
    let (to_sleeper, from_sender) = channel();
    let (to_sender, from_sleeper) = channel();
    let (armed, over) = (&AtomicU64::new(0), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let ended = sleep(case, armed, &to_sender, &from_sender);
            over.store(true, SeqCst);
            ended
        });
        let sender = scope.spawn(move || send(case, armed, over, &to_sleeper, &from_sleeper));
        [sleeper, sender].into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".to_string()))?
        })
    })
}

fn introduced(
    post: &Post,
    mine: &Sender<Vec<u8>>,
    theirs: &Receiver<Vec<u8>>,
) -> Result<Vec<u8>, Stop> {
    let gone = || Stop::Fail("the other thread gave up".to_string());
    mine.send(post.address.clone()).map_err(|_| gone())?;
    let there = theirs.recv().map_err(|_| gone())?;
    match post.connector.reachable(&there) {
        Ok(()) => Ok(there),
        Err(why) => Err(Stop::Skip(format!("its own process is not reachable: {why}"))),
    }
}

fn hesitate(random: &mut Random) {
    let most = 1 << random.below(12);
    (0..random.below(most)).for_each(|_| core::hint::spin_loop());
}

fn sleep(
    case: &Case,
    armed: &AtomicU64,
    mine: &Sender<Vec<u8>>,
    theirs: &Receiver<Vec<u8>>,
) -> Checked {
    let mut post = Post::open(case)?;
    let _ = introduced(&post, mine, theirs)?;
    let mut random = Random(77);
    let (fd, end) = (fall_asleep(&mut post)?, Instant::now() + share(8));
    for n in 1..=200_000 {
        if Instant::now() > end && n > 100 {
            break;
        }
        armed.store(n, SeqCst);
        waits_for("a datagram that was sent while its receiver fell asleep");
        while post.datagrams.is_empty() {
            hesitate(&mut random);
            if succeeds("arm", post.connector.arm())? && !readable(fd, patience_ms()) {
                let what = format!(
                    "the descriptor after `arm` number {n}, during which a datagram was sent"
                );
                let found = match post.turn()? {
                    true => "silent, and the datagram is there",
                    false => "silent",
                };
                return Err(fail(
                    what,
                    "readable: no wake-up is lost while it falls asleep",
                    found,
                ));
            }
            let _ = post.turn()?;
        }
        let found = post.datagrams.pop_front().unwrap_or_default();
        same_bytes("a datagram", &n.to_le_bytes(), &found)?;
    }
    Ok(())
}

fn send(
    case: &Case,
    armed: &AtomicU64,
    over: &AtomicBool,
    mine: &Sender<Vec<u8>>,
    theirs: &Receiver<Vec<u8>>,
) -> Checked {
    let mut post = Post::open(case)?;
    let (there, mut random) = (introduced(&post, mine, theirs)?, Random(78));
    for n in 1u64.. {
        while armed.load(SeqCst) < n {
            if over.load(SeqCst) {
                return Ok(());
            }
            // A sent datagram may still need the sender's progress.
            let _ = post.turn()?;
        }
        hesitate(&mut random);
        post.send(&there, &n.to_le_bytes(), || Ok(()))?;
    }
    Ok(())
}

pub(super) fn connectors_that_come_and_go_leave_nothing_behind(case: &Case) -> Checked {
    const TIMES: usize = 300;
    let (mut stays, end) = (Post::open(case)?, Instant::now() + share(4));
    let mut some = |least: usize, most: usize| -> Result<usize, Stop> {
        let mut times = 0;
        while times < least || times < most && Instant::now() < end {
            let mut other = Post::open(case)?;
            let there = other.address.clone();
            if let Err(why) = stays.connector.reachable(&there) {
                return Err(Stop::Skip(format!("its own process is not reachable: {why}")));
            }
            stays.send(&there, b"hello", || Ok(()))?;
            same_bytes("a datagram", b"hello", &receive(&mut [&mut stays, &mut other], 1)?)?;
            other.send(&stays.address, b"hello", || Ok(()))?;
            same_bytes("a datagram", b"hello", &receive(&mut [&mut stays, &mut other], 0)?)?;
            drop(other);
            // The end of the connector is reported before the next one connects.
            while stays.turn()? {}
            stays.left.clear();
            times += 1;
        }
        Ok(times)
    };
    let _ = some(20, 20)?;
    // A table that grows once is no leak, because a leak grows every time.
    let mut grows = Ok(());
    for _ in 0..3 {
        let held = Held::now();
        let times = some(40, TIMES)?;
        grows =
            held.is_as_it_was(&format!("{times} connectors that were opened and closed"), times);
        if grows.is_ok() {
            break;
        }
    }
    grows
}
