//! Checks of connection-only modules: datagrams, failures, sleep and threads.

use super::processes::Partner;
use super::waiting::TRIES;
use crate::case::Case;
use crate::connector::Post;
use crate::interface::{Received, readable};
use crate::peer::{hex, unhex};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, refused, same_bytes, succeeds};
use crate::watch::{patience_ms, waits_for};
use std::sync::mpsc::{Receiver, Sender, channel};
use tieline_plugin_api::{Status, address_hash, caps};

pub(super) fn every_slot_of_a_connector_is_there(case: &Case) -> Checked {
    super::attributes::every_slot_is_there(case)?;
    let table = &case.provider.tables.connector;
    let waits = ["arm", "event_fd"].into_iter().filter(|_| case.has(caps::EVENT_FD));
    waits.into_iter().try_for_each(|slot| {
        let what = format!("slot {slot} of a connection-only module that can be waited for");
        holds(table.has(slot), what, "a function", "none")
    })
}

pub(super) fn the_address_of_a_connector_fits_its_stated_length(case: &Case) -> Checked {
    let post = Post::open(case)?;
    let again = post.connector.address(case.attr.max_address_len as usize);
    same_bytes("the address, asked for again", &post.address, &succeeds("address", again)?)?;
    let whole = post.address.len();
    for capacity in [0, 1, whole.saturating_sub(1), whole] {
        let (len, overrun) = post.connector.address_into(capacity);
        equal(format!("the address's length with room for {capacity}"), whole as i64, len)?;
        let what = format!("an address into {capacity} bytes");
        holds(!overrun, what, "no byte beyond them", "some")?;
    }
    Ok(())
}

pub(super) fn bytes_that_are_no_address_of_a_connector_do_no_harm(case: &Case) -> Checked {
    let mut post = Post::open(case)?;
    // A connector need not reach itself; if it does not, it must reach another one.
    let mut other = match post.connector.reachable(&post.address) {
        Ok(()) => None,
        Err(_) => Some(Post::open(case)?),
    };
    let good = other.as_ref().unwrap_or(&post).address.clone();
    if let Err(why) = post.connector.reachable(&good) {
        return Err(Stop::Skip(format!("its own process is not reachable: {why}")));
    }
    let mut random = Random(20);
    let mut suspects: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    let cuts = suspects.len();
    suspects.extend((0..150).map(|n| random.bytes(n)));
    suspects.push([good.as_slice(), &[0; 17]].concat());
    suspects.push(vec![0xff; 4096]);
    for (n, address) in suspects.iter().enumerate() {
        let answer = post.connector.reachable(address);
        if n < cuts {
            let what = format!("the first {} bytes of an address", address.len());
            holds(answer.is_err(), what, "unreachable", "reachable")?;
        }
        in_words(answer)?;
        // The datagram may be refused immediately or reported later: both are correct if they do no harm.
        let _ = post.connector.send(address, b"anybody?");
        let _ = post.turn()?;
    }
    // These addresses may belong to existing peers: the check tests their reachability, and sends nothing.
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        in_words(post.connector.reachable(&flipped))?;
    }
    post.send(&good, b"still works", || Ok(()))?;
    let mut posts: Vec<&mut Post> = core::iter::once(&mut post).chain(&mut other).collect();
    let last = posts.len() - 1;
    same_bytes("a datagram", b"still works", &receive(&mut posts, last)?)
}

fn in_words(answer: Result<(), tieline_plugin_api::Failure>) -> Checked {
    let Err(failure) = answer else { return Ok(()) };
    let found = failure.status.constant();
    holds(!failure.text.is_empty(), "the reason of a refusal", "words", found)
}

/// Polls the connectors until the one at `at` has a datagram.
pub(super) fn receive(posts: &mut [&mut Post], at: usize) -> Result<Vec<u8>, Stop> {
    waits_for("a datagram that was sent");
    loop {
        if let Some(datagram) = posts[at].datagrams.pop_front() {
            return Ok(datagram);
        }
        for post in posts.iter_mut() {
            let _ = post.turn()?;
            if let Some(left) = post.left.first() {
                let words = String::from_utf8_lossy(&left.data).into_owned();
                return Err(fail("waiting for a datagram", "no PEER_LEFT", words));
            }
        }
    }
}

pub(super) fn nothing_more(posts: &mut [&mut Post]) -> Checked {
    for _ in 0..5 {
        for post in posts.iter_mut() {
            let _ = post.turn()?;
        }
    }
    let more: usize = posts.iter().map(|post| post.datagrams.len()).sum();
    equal("datagrams that were not sent", 0, more)
}

pub(super) fn reliable(case: &Case) -> Checked {
    if case.attr.reliable == 1 {
        return Ok(());
    }
    Err(Stop::Skip("does not claim to be reliable".to_string()))
}

pub(super) fn pair(case: &Case) -> Result<(Post, Post), Stop> {
    let (near, far) = (Post::open(case)?, Post::open(case)?);
    if let Err(why) = near.connector.reachable(&far.address) {
        return Err(Stop::Skip(format!("its own process is not reachable: {why}")));
    }
    Ok((near, far))
}

pub(super) fn a_datagram_to_oneself_arrives(case: &Case) -> Checked {
    let mut post = Post::open(case)?;
    let own = post.address.clone();
    if let Err(why) = post.connector.reachable(&own) {
        return Err(Stop::Skip(format!("does not reach itself: {why}")));
    }
    for n in 0..100u32 {
        post.send(&own, &n.to_le_bytes(), || Ok(()))?;
        same_bytes("a datagram", &n.to_le_bytes(), &receive(&mut [&mut post], 0)?)?;
    }
    nothing_more(&mut [&mut post])
}

pub(super) fn datagrams_of_every_length_arrive_whole(case: &Case) -> Checked {
    let (mut near, mut far) = pair(case)?;
    let most = case.attr.max_datagram as usize;
    let mut lengths: Vec<usize> = (0..=17).collect();
    for power in 5..=24 {
        lengths.extend((-9i64..=9).step_by(3).map(|delta| ((1i64 << power) + delta) as usize));
    }
    lengths.extend([most - 1, most]);
    lengths.retain(|&len| len <= most);
    let mut random = Random(21);
    for len in lengths {
        let data = random.bytes(len);
        near.send(&far.address, &data, || Ok(()))?;
        let found = receive(&mut [&mut near, &mut far], 1)?;
        same_bytes(format!("a datagram of {len} bytes"), &data, &found)?;
    }
    nothing_more(&mut [&mut near, &mut far])
}

pub(super) fn a_datagram_longer_than_the_limit_is_refused(case: &Case) -> Checked {
    let (mut near, mut far) = pair(case)?;
    let most = case.attr.max_datagram as usize;
    for len in [most + 1, 2 * most, most + (1 << 20)] {
        let sent = near.connector.send(&far.address, &vec![1; len]);
        refused(format!("send of {len} bytes"), sent, &[Status::TooLarge])?;
    }
    near.send(&far.address, b"as before", || Ok(()))?;
    same_bytes("a datagram", b"as before", &receive(&mut [&mut near, &mut far], 1)?)
}

pub(super) fn numbered(n: u64) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(8 + (n as usize * 37) % 300, n as u8);
    bytes
}

pub(super) fn ten_thousand_datagrams_keep_their_order(case: &Case) -> Checked {
    reliable(case)?;
    let (mut near, mut far) = pair(case)?;
    let mut seen = 0;
    for n in 0..10_000 {
        near.send(&far.address.clone(), &numbered(n), || far.turn().map(drop))?;
        while let Some(found) = far.datagrams.pop_front() {
            same_bytes(format!("datagram {seen}"), &numbered(seen), &found)?;
            seen += 1;
        }
    }
    while seen < 10_000 {
        let found = receive(&mut [&mut near, &mut far], 1)?;
        same_bytes(format!("datagram {seen}"), &numbered(seen), &found)?;
        seen += 1;
    }
    nothing_more(&mut [&mut near, &mut far])
}

pub(super) fn a_flood_of_datagrams_is_answered_again_and_loses_nothing(case: &Case) -> Checked {
    reliable(case)?;
    let (mut near, mut far) = pair(case)?;
    near.send(&far.address, &numbered(0), || Ok(()))?;
    same_bytes("datagram 0", &numbered(0), &receive(&mut [&mut near, &mut far], 1)?)?;
    let len = (case.attr.max_datagram as usize).min(4096);
    let large = |n: u64| {
        let mut bytes = n.to_le_bytes().to_vec();
        bytes.resize(len, n as u8);
        bytes
    };
    let mut sent = 1u64;
    loop {
        match near.connector.send(&far.address, &large(sent)) {
            Ok(()) => sent += 1,
            Err(Status::Again) => break,
            Err(status) => return Err(fail("send in a flood", "success or AGAIN", status)),
        }
        if sent as usize * len > 64 << 20 {
            let found = format!("{sent} datagrams of {len} bytes accepted");
            return Err(fail("a receiver that does not poll", "AGAIN before 64 MiB", found));
        }
    }
    for n in 1..sent {
        let found = receive(&mut [&mut near, &mut far], 1)?;
        same_bytes(format!("datagram {n}"), &large(n), &found)?;
    }
    nothing_more(&mut [&mut near, &mut far])
}

pub(super) fn two_that_send_to_each_other_at_once_lose_nothing(case: &Case) -> Checked {
    reliable(case)?;
    for round in 0..30 {
        let (mut near, mut far) = pair(case)?;
        let (here, there) = (near.address.clone(), far.address.clone());
        for n in 0..10 {
            near.send(&there, &numbered(n), || far.turn().map(drop))?;
            far.send(&here, &numbered(n + 100), || near.turn().map(drop))?;
            if round % 2 == 1 {
                let _ = near.turn()?;
                let _ = far.turn()?;
            }
        }
        for n in 0..10 {
            let what = format!("datagram {n} of round {round}");
            same_bytes(&what, &numbered(n), &receive(&mut [&mut near, &mut far], 1)?)?;
            same_bytes(&what, &numbered(n + 100), &receive(&mut [&mut near, &mut far], 0)?)?;
        }
        nothing_more(&mut [&mut near, &mut far])?;
    }
    Ok(())
}

fn nowhere(case: &Case) -> Result<Vec<u8>, Stop> {
    Ok(Post::open(case)?.address.clone())
}

/// Polls until a peer is reported, which must be the one at `address`.
pub(super) fn wait_left(post: &mut Post, address: &[u8]) -> Result<Received, Stop> {
    waits_for("PEER_LEFT of a closed connector's address");
    while post.left.is_empty() {
        let _ = post.turn()?;
    }
    let left = post.left.remove(0);
    equal("the hash in PEER_LEFT", address_hash(address), left.header)?;
    Ok(left)
}

pub(super) fn an_address_where_nobody_is_any_more_is_reported_with_the_reason(
    case: &Case,
) -> Checked {
    let (gone, mut post) = (nowhere(case)?, Post::open(case)?);
    for _ in 0..3 {
        match post.connector.send(&gone, b"anybody?") {
            Ok(()) | Err(Status::Again) => {
                let _ = wait_left(&mut post, &gone)?;
            }
            Err(Status::Unreachable | Status::PeerFailed | Status::Closed) => {}
            Err(status) => return Err(fail("send to a closed connector", "UNREACHABLE", status)),
        }
    }
    for _ in 0..20 {
        let _ = post.turn()?;
    }
    equal("reports beyond one for each attempt", 0, post.left.len())
}

/// Polls until the connector agrees to sleep.
pub(super) fn fall_asleep(post: &mut Post) -> Result<i32, Stop> {
    let fd = succeeds("event_fd", post.connector.event_fd())?;
    holds(fd >= 0, "event_fd", "a descriptor", fd)?;
    for _ in 0..TRIES {
        while post.turn()? {}
        if succeeds("arm", post.connector.arm())? {
            return Ok(fd);
        }
        let _ = readable(fd, 1);
    }
    let within = format!("0 (sleep) in {TRIES} tries");
    Err(fail("arm with nothing to poll", within, "1 (poll first)"))
}

pub(super) fn a_datagram_wakes_a_sleeping_connector(case: &Case) -> Checked {
    let (mut near, mut far) = pair(case)?;
    for n in 0..100u64 {
        let far_fd = fall_asleep(&mut far)?;
        near.send(&far.address, &numbered(n), || Ok(()))?;
        let near_fd = fall_asleep(&mut near)?;
        // A sleeping side polls only when it is woken, on the first contact and later.
        let found = loop {
            let woken = readable_any([far_fd, near_fd]);
            holds(woken, format!("descriptors before datagram {n}"), "readable", "silent")?;
            if readable(far_fd, 0) {
                let _ = fall_asleep(&mut far)?;
            }
            if readable(near_fd, 0) {
                let _ = fall_asleep(&mut near)?;
            }
            if let Some(found) = far.datagrams.pop_front() {
                break found;
            }
        };
        same_bytes(format!("datagram {n}"), &numbered(n), &found)?;
    }
    Ok(())
}

/// Waits for one of two descriptors, in turns. Returns whether one became readable.
fn readable_any(fds: [i32; 2]) -> bool {
    (0..patience_ms()).any(|_| readable(fds[0], 1) || readable(fds[1], 0))
}

pub(super) fn an_unreachable_address_wakes_a_sleeping_connector(case: &Case) -> Checked {
    let (gone, mut post) = (nowhere(case)?, Post::open(case)?);
    if post.connector.send(&gone, b"anybody?").is_err() {
        return Ok(()); // the call reported the failure
    }
    loop {
        if !succeeds("arm", post.connector.arm())? {
            let _ = post.turn()?;
        } else {
            let fd = succeeds("event_fd", post.connector.event_fd())?;
            holds(readable(fd, patience_ms()), "the descriptor", "readable", "silent")?;
            let _ = post.turn()?;
        }
        if !post.left.is_empty() {
            return wait_left(&mut post, &gone).map(drop);
        }
    }
}

pub(super) fn opening_and_closing_connectors_leaves_no_descriptor_open(case: &Case) -> Checked {
    let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let exchange = || -> Checked {
        let (mut near, mut far) = pair(case)?;
        near.send(&far.address, b"x", || Ok(()))?;
        receive(&mut [&mut near, &mut far], 1).map(drop)
    };
    exchange()?; // the exchange may open objects that stay for the life of the process
    let before = open();
    for _ in 0..30 {
        exchange()?;
    }
    let after = open();
    holds(after <= before + 2, "open descriptors after 30 pairs of connectors", before, after)
}

pub(super) fn closing_with_datagrams_in_flight_harms_nobody(case: &Case) -> Checked {
    for polls in [0, 1, 3, 10] {
        for sender_closes in [true, false] {
            let (mut near, mut far) = pair(case)?;
            let there = far.address.clone();
            for n in 0..50 {
                near.send(&there, &numbered(n), || Ok(()))?;
            }
            for _ in 0..polls {
                let _ = near.turn()?;
                let _ = far.turn()?;
            }
            let (mut stays, seen) = if sender_closes { (far, true) } else { (near, false) };
            for _ in 0..20 {
                let _ = stays.turn()?;
            }
            // Received datagrams must be complete and in order; not all need arrive.
            for (n, found) in stays.datagrams.iter().enumerate().filter(|_| seen) {
                same_bytes(format!("datagram {n}"), &numbered(n as u64), found)?;
            }
        }
    }
    let (mut near, mut far) = pair(case)?;
    near.send(&far.address, b"still works", || Ok(()))?;
    same_bytes("a datagram", b"still works", &receive(&mut [&mut near, &mut far], 1)?)
}

pub(super) fn two_threads_exchange_datagrams(case: &Case) -> Checked {
    reliable(case)?;
    let (to_a, from_b) = channel();
    let (to_b, from_a) = channel();
    std::thread::scope(|scope| {
        let a = scope.spawn(move || converse(case, &to_b, &from_b));
        let b = scope.spawn(move || converse(case, &to_a, &from_a));
        [a, b].into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".to_string()))?
        })
    })
}

fn converse(case: &Case, mine: &Sender<Vec<u8>>, theirs: &Receiver<Vec<u8>>) -> Checked {
    const DATAGRAMS: u64 = 4_000;
    let gone = || Stop::Fail("the other thread gave up".to_string());
    let mut post = Post::open(case)?;
    mine.send(post.address.clone()).map_err(|_| gone())?;
    let there = theirs.recv().map_err(|_| gone())?;
    let (mut sent, mut seen) = (0, 0);
    while sent < DATAGRAMS || seen < DATAGRAMS {
        if sent < DATAGRAMS {
            match post.connector.send(&there, &numbered(sent)) {
                Ok(()) => sent += 1,
                Err(Status::Again) => {}
                Err(status) => return Err(fail("send between threads", "success", status)),
            }
        }
        let _ = post.turn()?;
        while let Some(found) = post.datagrams.pop_front() {
            same_bytes(format!("datagram {seen}"), &numbered(seen), &found)?;
            seen += 1;
        }
    }
    // Neither side closes while the other still waits for its datagrams.
    mine.send(Vec::new()).map_err(|_| gone())?;
    while theirs.try_recv().is_err() {
        let _ = post.turn()?;
    }
    Ok(())
}

/// Returns a connector of this process and one in another process, with the latter's address.
pub(super) fn meet(case: &Case) -> Result<(Post, Partner, Vec<u8>), Stop> {
    let mut partner = Partner::start(case)?;
    let mut post = Post::open(case)?;
    partner.tell("address")?;
    let there = unhex(&partner.answer_while(|| post.turn().map(drop))?);
    if let Err(why) = post.connector.reachable(&there) {
        return Err(Stop::Skip(format!("another process is not reachable: {}", why.text)));
    }
    Ok((post, partner, there))
}

pub(super) fn two_processes_exchange_datagrams(case: &Case) -> Checked {
    reliable(case)?;
    const DATAGRAMS: u64 = 3_000;
    let (mut post, mut partner, there) = meet(case)?;
    partner.tell(&format!("echo {} {DATAGRAMS}", hex(&post.address)))?;
    let mut seen = 0;
    for n in 0..DATAGRAMS {
        post.send(&there, &numbered(n), || Ok(()))?;
        let _ = post.turn()?;
        while let Some(found) = post.datagrams.pop_front() {
            same_bytes(format!("echo {seen}"), &numbered(seen), &found)?;
            seen += 1;
        }
    }
    while seen < DATAGRAMS {
        let found = receive(&mut [&mut post], 0)?;
        same_bytes(format!("echo {seen}"), &numbered(seen), &found)?;
        seen += 1;
    }
    equal("the other process", "done", &*partner.answer_while(|| post.turn().map(drop))?)?;
    nothing_more(&mut [&mut post])
}

pub(super) fn a_killed_peer_of_a_connector_is_reported(case: &Case) -> Checked {
    let (mut post, mut partner, there) = meet(case)?;
    partner.tell(&format!("echo {} 1", hex(&post.address)))?;
    post.send(&there, b"hello", || Ok(()))?;
    let _ = receive(&mut [&mut post], 0)?;
    partner.kill();
    let _ = wait_left(&mut post, &there)?;
    // A retry fails with the same reason.
    match post.connector.send(&there, b"anybody?") {
        Ok(()) | Err(Status::Again) => wait_left(&mut post, &there).map(drop),
        Err(_) => Ok(()),
    }?;
    let mut other = Post::open(case)?;
    post.send(&other.address, b"others are reached", || Ok(()))?;
    let found = receive(&mut [&mut post, &mut other], 1)?;
    same_bytes("a datagram to another", b"others are reached", &found)
}
