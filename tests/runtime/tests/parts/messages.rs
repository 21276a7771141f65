//! Tests of messages of many lengths, tags and orders.

use super::{Numbers, bytes};
use tieline::Error;
use tieline_runtime::{Received, Receiving, Runtime, Sending};

/// Returns lengths around the limits of transports, the same on every rank; the last lengths are those of rendezvous messages.
/// Different transports may reach different ranks.
fn lengths(runtime: &Runtime) -> Result<Vec<usize>, Error> {
    let eager = runtime.eager((runtime.rank() + 1) % runtime.size())?;
    let limits = runtime.allgather(&(eager as u32).to_le_bytes())?;
    let limit = |bytes: Vec<u8>| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let mut lengths = vec![0, 1, 7, 8, 9, 40, 63, 64, 65, 255, 1000, 4096, 70_000, 300_001];
    lengths.extend(limits.into_iter().map(limit).flat_map(|limit| [limit - 1, limit, limit + 1]));
    lengths.sort_unstable();
    lengths.dedup();
    Ok(lengths)
}

/// Sends one message of each length to every rank, including this rank; the tag of a message is the index of its length.
fn send_all(runtime: &Runtime, lengths: &[usize]) -> Result<Vec<Sending>, Error> {
    let mut sending = Vec::new();
    for (len, tag) in lengths.iter().zip(0..) {
        for distance in 0..runtime.size() {
            let to = (runtime.rank() + distance) % runtime.size();
            sending.push(runtime.send(to, tag, &bytes(runtime.rank(), to, tag, *len))?);
        }
    }
    Ok(sending)
}

fn check(runtime: &Runtime, received: &Received, source: usize, tag: u64, len: usize) {
    assert_eq!((received.source, received.tag), (source, tag));
    assert_eq!(received.bytes.len(), len, "from {source} with tag {tag}");
    assert!(
        received.bytes == bytes(source, runtime.rank(), tag, len),
        "from {source}, {len} bytes"
    );
}

pub(crate) fn expected(runtime: &Runtime) -> Result<(), Error> {
    let lengths = lengths(runtime)?;
    let mut receiving: Vec<(usize, u64, usize, Receiving)> = Vec::new();
    for source in 0..runtime.size() {
        for (len, tag) in lengths.iter().zip(0..) {
            receiving.push((source, tag, *len, runtime.receive(Some(source), tag, 0)?));
        }
    }
    runtime.barrier()?;
    let sending = send_all(runtime, &lengths)?;
    for (source, tag, len, receiving) in receiving {
        check(runtime, &runtime.wait(receiving)?, source, tag, len);
    }
    sending.into_iter().try_for_each(|sending| runtime.wait_sent(sending))
}

pub(crate) fn unexpected(runtime: &Runtime) -> Result<(), Error> {
    let lengths = lengths(runtime)?;
    let sending = send_all(runtime, &lengths)?;
    runtime.barrier()?;
    // The receives are posted from the last tag to the first, with the sources in a rank-specific order.
    for (tag, len) in lengths.iter().enumerate().rev() {
        let tag = tag as u64;
        for distance in 0..runtime.size() {
            let source = (2 * runtime.rank() + distance) % runtime.size();
            let receiving = runtime.receive(Some(source), tag, 0)?;
            check(runtime, &runtime.wait(receiving)?, source, tag, *len);
        }
    }
    sending.into_iter().try_for_each(|sending| runtime.wait_sent(sending))
}

/// The number of messages from each rank to each rank; a tag consists of the message's number and three random bits.
const EACH: u64 = 60;

pub(crate) fn wildcards(runtime: &Runtime) -> Result<(), Error> {
    let (rank, size) = (runtime.rank(), runtime.size());
    let lengths = lengths(runtime)?;
    let tags = |from: usize, to: usize| {
        let mut numbers = Numbers::of((from * 1000 + to) as u64);
        (0..EACH).map(move |n| n << 3 | numbers.below(8))
    };
    let len = |tag: u64| lengths[(tag % 11) as usize * lengths.len() / 11];
    // The messages of one kind are received by their three lower bits, from any rank; then the messages of each rank; then the
    // rest.
    let mut receiving = Vec::new();
    let of_kind = |kind: u64| (0..size).flat_map(|s| tags(s, rank)).filter(move |t| t % 8 == kind);
    for kind in [3, 5] {
        for _ in of_kind(kind) {
            receiving.push((None, Some(kind), runtime.receive(None, kind, !7)?));
        }
    }
    let left = |t: &u64| ![3, 5].contains(&(t % 8));
    for source in 0..size / 2 {
        for _ in tags(source, rank).filter(left) {
            receiving.push((Some(source), None, runtime.receive(Some(source), 0, u64::MAX)?));
        }
    }
    let mut sending = Vec::new();
    for n in 0..EACH as usize {
        for to in 0..size {
            let tag = tags(rank, to).nth(n).unwrap_or_default();
            sending.push(runtime.send(to, tag, &bytes(rank, to, tag, len(tag)))?);
        }
    }
    for source in size / 2..size {
        for _ in tags(source, rank).filter(left) {
            receiving.push((None, None, runtime.receive(None, 0, u64::MAX)?));
        }
    }
    // The order of the fields is the order in which they are dropped.
    let mut last = vec![[None; 3]; size];
    let mut count = 0;
    for (source, kind, receiving) in receiving {
        let received = runtime.wait(receiving)?;
        let Received { source: from, tag, .. } = received;
        check(runtime, &received, from, tag, len(tag));
        assert!(source.is_none_or(|source| source == from));
        assert!(kind.is_none_or(|kind| kind == tag % 8));
        let last =
            &mut last[from][[Some(3), Some(5), None].iter().position(|k| *k == kind).unwrap_or(2)];
        assert!(last.is_none_or(|last| last < tag), "{tag} of {from} after {last:?}");
        *last = Some(tag);
        count += 1;
    }
    assert_eq!(count, EACH * size as u64);
    sending.into_iter().try_for_each(|sending| runtime.wait_sent(sending))
}

/// Tests registered memory: several messages are sent from it together, and messages are received into it without a write outside
/// of the message's range.
pub(crate) fn lent(runtime: &Runtime) -> Result<(), Error> {
    let (rank, size) = (runtime.rank(), runtime.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let lengths = lengths(runtime)?;
    let longest = lengths.last().copied().unwrap_or_default();
    let held = bytes(rank, next, 0, longest + 3);
    let (out, room) = (runtime.lend(held.clone())?, runtime.lend(vec![0xaa; 2 * longest + 300])?);
    for (len, tag) in lengths.iter().chain(lengths.iter().rev()).zip(0..) {
        // Receives are posted before the messages arrive or afterwards, with the length of the message or a larger one.
        let (early, more) = (tag % 2 == 0, tag as usize % 3);
        let begins = |n: usize| 100 + n * (len + 100);
        let receive = |n: usize| {
            runtime.receive_lent(Some(before), tag, 0, (&room, begins(n)..begins(n) + len + more))
        };
        let receive = || [0, 1].map(receive).into_iter().collect::<Result<Vec<_>, _>>();
        let posted = if early { Some(receive()?) } else { None };
        runtime.barrier()?;
        let send = |from: usize| runtime.send_lent(next, tag, (&out, from..from + len));
        let sending = [send(0)?, send(3)?];
        if !early {
            while runtime.probe(Some(before), tag, 0)?.is_none() {}
        }
        for receiving in posted.map_or_else(receive, Ok)? {
            let Received { source, tag: of, len: came, bytes } = runtime.wait(receiving)?;
            assert_eq!((source, of, came, bytes.len()), (before, tag, *len, 0));
        }
        sending.into_iter().try_for_each(|sending| runtime.wait_sent(sending))?;
        let (theirs, mut expected) = (bytes(before, rank, 0, len + 3), vec![0xaa; room.len()]);
        for (n, from) in [0, 3].into_iter().enumerate() {
            expected[begins(n)..begins(n) + len].copy_from_slice(&theirs[from..from + len]);
        }
        assert!(room.to_vec(0..room.len())? == expected, "two messages of {len} bytes");
        room.write(0, &vec![0xaa; room.len()])?;
    }
    let cancelled = runtime.receive_lent(None, 1, 0, (&room, 0..70_000))?;
    runtime.cancel(cancelled).expect("nobody has sent anything");
    assert!(out.to_vec(0..out.len())? == held, "what was sent is another now");
    Ok(())
}

pub(crate) fn probes(runtime: &Runtime) -> Result<(), Error> {
    let (rank, size) = (runtime.rank(), runtime.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    assert!(
        runtime.send(next, 1 << 63, b"").is_err() && runtime.receive(None, 1 << 63, 0).is_err()
    );
    for round in 0..20 {
        let tag = 100 + round;
        // The receive would match the message, and is cancelled before the message can be sent.
        let cancelled = runtime.receive(None, tag, u64::MAX)?;
        let stays = runtime.receive(Some(before), tag + 1000, 0)?;
        runtime.cancel(cancelled).expect("nobody has sent anything");
        runtime.barrier()?;
        assert_eq!(runtime.probe(None, tag + 2000, 0)?, None);
        let len = if round % 2 == 0 { 100 } else { 100_000 };
        let sending = runtime.send(next, tag, &bytes(rank, next, tag, len))?;
        let mut found = None;
        while found.is_none() {
            found = runtime.probe(None, 0, u64::MAX)?;
        }
        assert_eq!(found, Some((before, tag)));
        assert_eq!(runtime.probe(Some(before), tag, 0)?, Some((before, tag)), "it stays");
        let receiving = runtime.receive(Some(before), tag, 0)?;
        check(runtime, &runtime.wait(receiving)?, before, tag, len);
        assert_eq!(runtime.probe(None, 0, u64::MAX)?, None);
        runtime.wait_sent(sending)?;
        runtime.barrier()?;
        let sending = runtime.send(next, tag + 1000, b"late")?;
        let stays = match round % 3 {
            0 => stays,
            _ => {
                // A receive that has a message, or will get one, can be cancelled at most once.
                match runtime.cancel(stays) {
                    Ok(()) => runtime.receive(Some(before), tag + 1000, 0)?,
                    Err(matched) => matched,
                }
            }
        };
        assert_eq!(runtime.wait(stays)?.bytes, b"late");
        runtime.wait_sent(sending)?;
        runtime.barrier()?;
    }
    Ok(())
}
