//! Checks of connection-only modules whose peers die, sleep or call from several threads, and of resources that the modules keep.

use super::connectors::{fall_asleep, meet, numbered, pair, receive, reliable, wait_left};
use super::resources::{leaves_no_file, leaves_nothing};
use crate::case::Case;
use crate::connector::Post;
use crate::interface::readable;
use crate::peer::hex;
use crate::report::{Checked, Stop, equal, fail, holds, same_bytes};
use crate::watch::{Broken, Patience, share, waits_for};
use std::collections::BTreeSet;
use std::sync::{Barrier, Mutex};
use std::time::Instant;
use tieline_plugin_api::{Status, address_hash};

fn look_on(post: &mut Post) -> Checked {
    let began = Instant::now();
    while began.elapsed() < share(20) {
        let _ = post.turn()?;
    }
    Ok(())
}

pub(super) fn the_death_of_one_peer_of_a_connector_is_told_once(case: &Case) -> Checked {
    let (mut post, mut first, gone) = meet(case)?;
    let mut second = super::processes::Partner::start(case)?;
    second.tell("address")?;
    let there = crate::peer::unhex(&second.answer_while(|| post.turn().map(drop))?);
    for (partner, address) in [(&mut first, &gone), (&mut second, &there)] {
        partner.tell(&format!("echo {} 1", hex(&post.address)))?;
        post.send(address, b"hello", || Ok(()))?;
        same_bytes("an echo", b"hello", &receive(&mut [&mut post], 0)?)?;
        let _ = partner.answer_while(|| post.turn().map(drop))?;
    }
    first.kill();
    let _ = wait_left(&mut post, &gone)?;
    look_on(&mut post)?;
    let more: Vec<u64> = post.left.iter().map(|left| left.header).collect();
    equal("PEER_LEFT beyond one of the process that was killed", Vec::new(), more)?;
    second.tell(&format!("echo {} 1", hex(&post.address)))?;
    post.send(&there, b"still there", || Ok(()))?;
    same_bytes("an echo of the other one", b"still there", &receive(&mut [&mut post], 0)?)
}

pub(super) fn datagrams_of_a_dying_peer_are_whole_and_in_order(case: &Case) -> Checked {
    reliable(case)?;
    for most in [1u64, 50, 1000] {
        let (mut post, mut partner, _) = meet(case)?;
        partner.tell(&format!("send {} 1000000000", hex(&post.address)))?;
        let patience = Patience::new();
        while (post.datagrams.len() as u64) < most {
            let _ = post.turn()?;
            patience.still("datagrams of another process", "that they come", "too few")?;
        }
        partner.kill();
        look_on(&mut post)?;
        for (n, found) in post.datagrams.iter().enumerate() {
            let what = format!("datagram {n} of a process that was killed");
            same_bytes(what, &(n as u64).to_le_bytes(), found)?;
        }
    }
    Ok(())
}

pub(super) fn a_connector_that_is_full_towards_a_dead_peer_goes_on(case: &Case) -> Checked {
    reliable(case)?;
    let (mut post, mut partner, there) = meet(case)?;
    partner.tell(&format!("echo {} 1", hex(&post.address)))?;
    post.send(&there, b"hello", || Ok(()))?;
    let _ = receive(&mut [&mut post], 0)?;
    let _ = partner.answer_while(|| post.turn().map(drop))?;
    partner.stop();
    let datagram = vec![7; (case.attr.max_datagram as usize).min(4096)];
    let mut sent = 0u64;
    while post.connector.send(&there, &datagram).is_ok() {
        sent += 1;
        holds(sent < 1 << 20, "datagrams to a stopped process", "AGAIN", "room without end")?;
    }
    partner.kill();
    let _ = wait_left(&mut post, &there)?;
    // From here on the call may return the reason, but must not return AGAIN for ever.
    let patience = Patience::new();
    let said = loop {
        match post.connector.send(&there, b"anybody?") {
            Err(Status::Again) => drop(post.turn()?),
            said => break said,
        }
        let what = "send to a process that died when there was no room towards it";
        patience.still(what, "room, or the reason", "AGAIN for ever")?;
    };
    if said.is_ok() {
        let _ = wait_left(&mut post, &there)?;
    }
    post.left.clear();
    let mut other = Post::open(case)?;
    post.send(&other.address.clone(), b"others", || other.turn().map(drop))?;
    same_bytes("a datagram to another", b"others", &receive(&mut [&mut post, &mut other], 1)?)
}

pub(super) fn the_death_of_a_peer_raises_no_signal_in_a_connector(case: &Case) -> Checked {
    let (mut post, mut partner, there) = meet(case)?;
    partner.tell(&format!("echo {} 1", hex(&post.address)))?;
    post.send(&there, b"hello", || Ok(()))?;
    let _ = receive(&mut [&mut post], 0)?;
    // The check behaves like a C program: signals that Rust programs ignore would end such a program.
    let signals = Broken::watched();
    partner.kill();
    let datagram = vec![7; (case.attr.max_datagram as usize).min(4096)];
    for _ in 0..50 {
        let _ = post.connector.send(&there, &datagram);
        let _ = post.connector.send(&there, &datagram);
        let _ = post.turn()?;
    }
    drop(post);
    holds(
        !signals.raised(),
        "a write of a connector to a peer that has died",
        "an error, of a send with MSG_NOSIGNAL",
        "SIGPIPE, which ends a program in C",
    )
}

pub(super) fn room_after_again_wakes_a_sleeping_connector(case: &Case) -> Checked {
    reliable(case)?;
    let (mut near, mut far) = pair(case)?;
    let there = far.address.clone();
    near.send(&there, &numbered(0), || Ok(()))?;
    let _ = receive(&mut [&mut near, &mut far], 1)?;
    let datagram = vec![9; (case.attr.max_datagram as usize).min(2048)];
    // The room appears alternately while the connector sleeps, and while it falls asleep.
    for early in [false, true, false, true] {
        let mut sent = 0;
        loop {
            match near.connector.send(&there, &datagram) {
                Ok(()) => sent += 1,
                Err(Status::Again) => break,
                Err(status) => return Err(fail("send", "success or AGAIN", status)),
            }
            holds(sent < 1 << 20, "a receiver that does not poll", "AGAIN", "room without end")?;
        }
        let (mut came, patience) = (0, Patience::new());
        if early {
            for _ in 0..200 {
                let _ = far.turn()?;
            }
        }
        waits_for("room for a datagram after AGAIN");
        let fd = near.connector.event_fd().map_err(|_| Stop::Skip("no descriptor".to_string()))?;
        // Room that appears before the connector falls asleep keeps it awake.
        let mut waits = early;
        while waits || near.connector.send(&there, &datagram) == Err(Status::Again) {
            waits = false;
            // After AGAIN the sender retries only when it may not sleep, or is woken.
            let sleeps = near.connector.arm() == Ok(true);
            while sleeps && !readable(fd, 1) {
                let _ = far.turn()?;
                came += far.datagrams.drain(..).count();
                let what = "the descriptor of a connector after AGAIN";
                let found = format!("silent, with {came} of {sent} polled");
                patience.still(what, "readable when there is room", &found)?;
            }
            let _ = near.turn()?;
        }
        came += far.datagrams.drain(..).count();
        while came < sent + 1 {
            let _ = (near.turn()?, far.turn()?);
            came += far.datagrams.drain(..).count();
            patience.still("accepted datagrams", "all of them", "too few")?;
        }
        let _ = fall_asleep(&mut near)?;
    }
    Ok(())
}

pub(super) fn connectors_that_threads_open_at_once_are_different(case: &Case) -> Checked {
    const EACH: usize = 40;
    const THREADS: usize = 4;
    let addresses = Mutex::new(BTreeSet::new());
    let some = |kept: &mut Vec<Post>| -> Checked {
        for _ in 0..EACH {
            let post = Post::open(case)?;
            let again = post.connector.address(case.attr.max_address_len as usize);
            equal("the address of a connector", Ok(&post.address), again.as_ref())?;
            let mut all = addresses.lock().map_err(|_| Stop::Fail("a thread panicked".into()))?;
            let new = all.insert(address_hash(&post.address));
            holds(new, "the addresses of connectors", "different ones", "one twice")?;
            kept.push(post);
        }
        Ok(())
    };
    // A closed connector may leave its address to the next connector.
    let all_are_open = Barrier::new(THREADS);
    let open = || -> Checked {
        let mut kept = Vec::new();
        let opened = some(&mut kept);
        let _ = all_are_open.wait();
        opened
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".to_string()))?
        })
    })
}

pub(super) fn polls_and_datagrams_leave_no_memory_behind(case: &Case) -> Checked {
    let (mut near, mut far) = pair(case)?;
    leaves_nothing("polls that brought nothing", (20_000, 4000), |_| near.turn().map(drop))?;
    let there = far.address.clone();
    leaves_nothing("datagrams", (6_000, 1200), |n| {
        near.send(&there, &numbered(n as u64 % 8), || Ok(()))?;
        let found = receive(&mut [&mut near, &mut far], 1)?;
        same_bytes("a datagram", &numbered(n as u64 % 8), &found)
    })
}

pub(super) fn no_file_of_a_connector_stays_behind(case: &Case) -> Checked {
    leaves_no_file(|| {
        let (mut near, mut far) = pair(case)?;
        near.send(&far.address.clone(), b"hello", || Ok(()))?;
        same_bytes("a datagram", b"hello", &receive(&mut [&mut near, &mut far], 1)?)
    })
}
