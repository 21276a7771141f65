//! The speed of the runtime's tagged messages between two ranks: `tieline run -n 2 tags lat|rate|bandwidth BYTES COUNT`. Rank 0
//! prints a line of JSON.
//!
//! `lat` is a ping-pong, one message at a time, and reports the median of half the round trip. `rate` and `bandwidth` send in one
//! direction, and end when the receiver has confirmed all messages. Both keep `OUTSTANDING` messages in flight, as the compared
//! programs do. The library allocates the memory, as in the compared programs.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;
use tieline::{Error, Region};
use tieline_runtime::{Runtime, Sending};

const OUTSTANDING: usize = 32;
const TAG: u64 = 7;
const END: u64 = 8;
const WARM_UP: usize = 10;

fn main() -> ExitCode {
    match measured() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("tags: {text}");
            ExitCode::FAILURE
        }
    }
}

fn measured() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, len, count] = &words[..] else {
        return Err("say what is measured, how many bytes, and how many messages".to_owned());
    };
    let number = |word: &str| word.parse::<usize>().map_err(|e| format!("`{word}`: {e}"));
    let (len, count) = (number(len)?, number(count)?);
    let runtime = Runtime::start().map_err(|e| e.to_string())?;
    let figures = match what.as_str() {
        "lat" => there_and_back(&runtime, len, count),
        "rate" | "bandwidth" => one_way(&runtime, len, count),
        _ => return Err(format!("there is no `{what}`: lat, rate, bandwidth")),
    };
    let figures = figures.map_err(|e| e.to_string())?;
    if runtime.rank() == 0 {
        println!("{figures}");
    }
    runtime.finish().map_err(|e| e.to_string())
}

fn there_and_back(runtime: &Runtime, len: usize, count: usize) -> Result<String, Error> {
    let peer = 1 - runtime.rank();
    let (out, room) = (runtime.alloc(len)?, runtime.alloc(len)?);
    let send = || send(runtime, peer, &out);
    let mut times = Vec::with_capacity(count);
    let receive = || {
        let receiving = runtime.receive_lent(Some(peer), TAG, 0, (&room, 0..len))?;
        runtime.wait(receiving).map(drop)
    };
    runtime.barrier()?;
    // The clock is read once per message, as in the compared programs.
    let mut began = Instant::now();
    for _ in 0..count + count / WARM_UP {
        if runtime.rank() == 0 {
            runtime.wait_sent(send()?)?;
            receive()?;
        } else {
            receive()?;
            runtime.wait_sent(send()?)?;
        }
        let now = Instant::now();
        times.push((now - began).as_nanos() / 2);
        began = now;
    }
    let times = &mut times[count / WARM_UP..];
    times.sort_unstable();
    Ok(format!("{{\"p50_ns\": {}}}", times[times.len() / 2]))
}

/// Sends a message; a short message is sent from a local variable.
fn send(runtime: &Runtime, to: usize, memory: &Rc<Region>) -> Result<Sending, Error> {
    match memory.len() {
        8 => runtime.send(to, TAG, &[1; 8]),
        len => runtime.send_lent(to, TAG, (memory, 0..len)),
    }
}

fn one_way(runtime: &Runtime, len: usize, count: usize) -> Result<String, Error> {
    let memory = runtime.alloc(len)?;
    stream(runtime, &memory, count / WARM_UP)?;
    let began = Instant::now();
    stream(runtime, &memory, count)?;
    let seconds = began.elapsed().as_secs_f64();
    let rate = count as f64 / seconds;
    let bytes = rate * len as f64;
    Ok(format!("{{\"messages_per_second\": {rate}, \"bytes_per_second\": {bytes}}}"))
}

/// Sends a stream of messages from one buffer to one buffer, as the compared programs do: separate buffers would measure the size
/// of the caches.
fn stream(runtime: &Runtime, memory: &Rc<Region>, count: usize) -> Result<(), Error> {
    let all = || (memory, 0..memory.len());
    if runtime.rank() == 0 {
        let mut sending = VecDeque::new();
        for _ in 0..count {
            if sending.len() == OUTSTANDING {
                sending.pop_front().map_or(Ok(()), |first| runtime.wait_sent(first))?;
            }
            sending.push_back(send(runtime, 1, memory)?);
        }
        let end = runtime.receive(Some(1), END, 0)?;
        sending.into_iter().try_for_each(|first| runtime.wait_sent(first))?;
        return runtime.wait(end).map(drop);
    }
    let mut receiving = VecDeque::new();
    for _ in 0..count {
        if receiving.len() == OUTSTANDING {
            receiving.pop_front().map_or(Ok(()), |first| runtime.wait(first).map(drop))?;
        }
        receiving.push_back(runtime.receive_lent(Some(0), TAG, 0, all())?);
    }
    receiving.into_iter().try_for_each(|first| runtime.wait(first).map(drop))?;
    runtime.wait_sent(runtime.send(0, END, b"")?)
}
