//! The time and the memory of starting a job with a large number of ranks, each of which communicates with a few other ranks:
//!
//! ```sh
//! cargo run --release -p tieline-job --example many_ranks -- 100000 48
//! ```
//!
//! The ranks are simulated by connections of one process that send the same frames as [`tieline_job::Job`]; the server is that of
//! `tieline run` and of rank 0 in a bootstrap over TCP. Each rank publishes the given number of bytes, for instance 48 for a
//! worker's name or 660 for an address of shm and tcp. If the limit of descriptors does not allow all connections at the same time,
//! the first ranks leave after they have published. Their bytes can still be looked up.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};
use tieline_job::server::Server;
use tieline_job::wire::{Decoder, Frame, Hello};

const LOOKUPS: usize = 8;
/// The number of descriptors that are not used for ranks.
const OTHERS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |at| std::env::args().nth(at).map(|n: String| n.parse::<usize>()).transpose();
    let (size, len) = (number(1)?.unwrap_or(1000), number(2)?.unwrap_or(660));
    let room = (descriptors().saturating_sub(OTHERS) / 2).max(1);
    let mut server = Server::new(size, "many")?;
    let exchange = server.listen_unix()?;
    let name = SocketAddr::from_abstract_name(exchange.strip_prefix("unix:@").unwrap_or_default())?;
    let _serving = std::thread::spawn(move || while server.turn(&[], None).is_ok() {});
    let before = memory();

    let mut ranks: VecDeque<UnixStream> = VecDeque::new();
    let joined = timed(|| {
        for rank in 0..size {
            if ranks.len() == room {
                // The answer shows that the rank's bytes are published before the rank leaves.
                ranks.pop_front().map_or(Ok(()), |mut first| ask(&mut first, rank - room, len))?;
            }
            let mut stream = UnixStream::connect_addr(&name)?;
            let hello = Hello {
                rank: u32::try_from(rank)?,
                size: u32::try_from(size)?,
                job: "many".into(),
                ..Hello::default()
            };
            let address = Frame::Publish { key: 1, bytes: vec![rank as u8; len] };
            stream.write_all(&[hello_bytes(hello), address.encode()].concat())?;
            ranks.push_back(stream);
        }
        // The bytes of the last rank are published, so those of all ranks are.
        ranks.front_mut().map_or(Ok(()), |rank| ask(rank, size - 1, len))
    })?;
    let kept = memory().saturating_sub(before);

    let asked = ranks.len().min(10_000);
    let looked = timed(|| {
        for (rank, stream) in ranks.iter_mut().enumerate().take(asked) {
            for distance in 0..LOOKUPS {
                ask(stream, (rank + 1 + distance * size / LOOKUPS) % size, len)?;
            }
        }
        Ok(())
    })?;
    let each = looked.as_secs_f64() * 1e6 / (asked * LOOKUPS) as f64;
    let at_once = ranks.len();
    println!(
        "{size} simulated ranks, {at_once} at once: joined and published {len} B each in {joined:.2?}"
    );
    println!(
        "one lookup: {each:.1} us; {LOOKUPS} for each of them: {:.1} s",
        each * (size * LOOKUPS) as f64 / 1e6
    );
    println!("this process, which serves and is the ranks: {} B for each rank", kept / size as u64);
    println!(
        "a rank keeps nothing of those it does not look up; an exchange of all would be {} MB for each",
        size * len / 1_000_000
    );
    Ok(())
}

fn hello_bytes(hello: Hello) -> Vec<u8> {
    Frame::Hello(hello).encode()
}

/// Looks up the bytes of one rank, and checks the answer.
fn ask(stream: &mut UnixStream, rank: usize, len: usize) -> Result<(), Box<dyn std::error::Error>> {
    let rank = u32::try_from(rank)?;
    stream.write_all(&Frame::Lookup { id: u64::from(rank), rank, key: 1 }.encode())?;
    let (mut decoder, mut buffer) = (Decoder::new(4096), [0; 4096]);
    loop {
        match decoder.next()? {
            Some(Frame::Found { bytes, .. }) if bytes == vec![rank as u8; len] => return Ok(()),
            // The server reports that a rank has left, which ends exchanges. The rank's published bytes remain available.
            Some(Frame::Lost { .. }) => {}
            Some(other) => return Err(format!("{other:?}").into()),
            None => {
                let count = stream.read(&mut buffer)?;
                decoder.push(&buffer[..count]);
            }
        }
    }
}

fn timed(
    work: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// Returns the limit of descriptors of this process.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(1024)
}

/// Returns the resident memory of this process, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() * 1024
}
