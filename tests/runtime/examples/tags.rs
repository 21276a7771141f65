//! How fast the runtime's messages with tags are, between two ranks: `tieline run -n 2 tags lat|rate|bandwidth BYTES COUNT`. Rank 0 prints
//! a line of JSON.
//!
//! `lat` sends there and back, one at a time, and takes the median of half of that; `rate` and `bandwidth` send one way, and end when the
//! receiver has all and has said so, with as many under way as the rivals' programs are given (`OUTSTANDING`).

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::Instant;
use tieline::Error;
use tieline_runtime::Runtime;

/// Sends, and receives, that are not waited for at once.
const OUTSTANDING: usize = 32;
const TAG: u64 = 7;
const END: u64 = 8;
/// Of a measurement, so many messages come before it.
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
    let (mut out, mut room) = (vec![1; len], vec![0; len]);
    let mut times = Vec::with_capacity(count);
    runtime.barrier()?;
    for _ in 0..count + count / WARM_UP {
        let began = Instant::now();
        let receiving = runtime.receive_lent(Some(peer), TAG, 0, room)?;
        if runtime.rank() == 0 {
            out = runtime.wait_sent(runtime.send_lent(peer, TAG, out)?)?;
            room = runtime.wait(receiving)?.bytes;
        } else {
            room = runtime.wait(receiving)?.bytes;
            out = runtime.wait_sent(runtime.send_lent(peer, TAG, out)?)?;
        }
        times.push(began.elapsed().as_nanos() / 2);
    }
    let times = &mut times[count / WARM_UP..];
    times.sort_unstable();
    Ok(format!("{{\"p50_ns\": {}}}", times[times.len() / 2]))
}

fn one_way(runtime: &Runtime, len: usize, count: usize) -> Result<String, Error> {
    stream(runtime, len, count / WARM_UP)?;
    let began = Instant::now();
    stream(runtime, len, count)?;
    let seconds = began.elapsed().as_secs_f64();
    let rate = count as f64 / seconds;
    let bytes = rate * len as f64;
    Ok(format!("{{\"messages_per_second\": {rate}, \"bytes_per_second\": {bytes}}}"))
}

fn stream(runtime: &Runtime, len: usize, count: usize) -> Result<(), Error> {
    let mut buffers: Vec<Vec<u8>> = (0..OUTSTANDING).map(|_| vec![1; len]).collect();
    if runtime.rank() == 0 {
        let mut sending = VecDeque::new();
        for _ in 0..count {
            if buffers.is_empty() {
                let first = sending.pop_front().ok_or(tieline::Status::Invalid)?;
                buffers.push(runtime.wait_sent(first)?);
            }
            let buffer = buffers.pop().unwrap_or_default();
            sending.push_back(runtime.send_lent(1, TAG, buffer)?);
        }
        let end = runtime.receive(Some(1), END, 0)?;
        for first in sending {
            let _ = runtime.wait_sent(first)?;
        }
        let _ = runtime.wait(end)?;
        return Ok(());
    }
    let mut receiving = VecDeque::new();
    for _ in 0..count {
        if buffers.is_empty() {
            let first = receiving.pop_front().ok_or(tieline::Status::Invalid)?;
            buffers.push(runtime.wait(first)?.bytes);
        }
        let buffer = buffers.pop().unwrap_or_default();
        receiving.push_back(runtime.receive_lent(Some(0), TAG, 0, buffer)?);
    }
    for first in receiving {
        let _ = runtime.wait(first)?;
    }
    let _ = runtime.wait_sent(runtime.send(0, END, b"")?)?;
    Ok(())
}
