//! Latency and rate of the ring between two processes, and the cost of atomics and empty polls, through the provider's C tables.
//!
//! `cargo run --release -p tieline-provider-shm --example pingpong` starts its own peer on another CPU.

#[path = "../tests/common/sys.rs"]
mod sys;

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use sys::{Endpoint, Interface, Provider, data, events};
use tieline_plugin_api::{Status, event};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .filter_map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok())
        .collect()
}

#[inline(always)]
fn send(endpoint: &Endpoint<'_>, interface: &Interface<'_>, id: u32, payload: &[u8]) {
    let mut buffer = events::<16>();
    loop {
        let sent = if payload.len() <= 8192 {
            endpoint.short(id, 7, payload)
        } else {
            endpoint.packed(id, 7, payload, payload.len())
        };
        match sent {
            Ok(_) => return,
            Err(Status::Again) => {
                for event in interface.poll(&mut buffer) {
                    assert_eq!(event.kind, event::PEER_ARRIVED);
                }
            }
            Err(status) => panic!("send: {status}"),
        }
    }
}

/// Waits for `n` messages and returns the id of the last one.
#[inline(always)]
fn receive(interface: &Interface<'_>, n: usize) -> u32 {
    let mut buffer = events::<64>();
    let (mut seen, mut id) = (0, 0);
    while seen < n {
        for event in interface.poll(&mut buffer) {
            if event.kind == event::MESSAGE {
                seen += 1;
                id = event.id;
                let _ = std::hint::black_box(event.header);
            } else {
                assert_ne!(event.kind, event::PEER_LEFT);
            }
        }
    }
    id
}

const STOP: u32 = 9;

fn echo(address: &str) {
    sys::pin(1);
    let provider = Provider::open(&config()).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let endpoint = interface.connect(&unhex(address), &interface.address(), 1).unwrap();
    let memory = domain.alloc(4096, 7).unwrap();
    send(&endpoint, &interface, 1, &domain.key(&memory));
    let mut buffer = events::<64>();
    let mut count = 0u64;
    loop {
        for event in interface.poll(&mut buffer) {
            if event.kind == event::PEER_LEFT {
                return;
            }
            if event.kind == event::MESSAGE {
                match event.id {
                    1 => send(&endpoint, &interface, 1, data(event)),
                    2 => count += 1,
                    3 => send(&endpoint, &interface, 3, &count.to_ne_bytes()),
                    _ => return,
                }
            }
        }
    }
}

fn config() -> Vec<(&'static str, &'static str)> {
    let text = std::env::var("PINGPONG_CONFIG").unwrap_or_default();
    let text: &'static str = Box::leak(text.into_boxed_str());
    text.split(',').filter_map(|pair| pair.split_once('=')).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.len() > 2 && args[1] == "echo" {
        return echo(&args[2]);
    }
    sys::pin(0);
    let provider = Provider::open(&config()).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["echo", &hex(&interface.address())])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut buffer = events::<64>();
    let (mut address, mut key) = (Vec::new(), Vec::new());
    while key.is_empty() {
        for event in interface.poll(&mut buffer) {
            match event.kind {
                event::PEER_ARRIVED => address = data(event).to_vec(),
                event::MESSAGE => key = data(event).to_vec(),
                _ => {}
            }
        }
    }
    let endpoint = interface.connect(&address, b"", 1).unwrap();
    for size in [8usize, 48, 256, 4096] {
        latency(&endpoint, &interface, size);
    }
    for size in [8usize, 48, 256, 1024, 4096, 8192, 16384, 65536] {
        rate(&endpoint, &interface, size);
    }
    let imported = loop {
        match endpoint.import(&key) {
            Ok(key) => break key,
            Err(error) => assert_eq!(error.status, Status::Again, "{}", error.text),
        }
        let _ = interface.poll(&mut buffer);
    };
    let n = 5_000_000;
    let start = Instant::now();
    for i in 0..n {
        let _ = endpoint.atomic(&imported, (0, 8), 0, i, 0).unwrap();
    }
    println!("fetch-add: {:.1} M/s", n as f64 / start.elapsed().as_secs_f64() / 1e6);
    endpoint.drop_key(imported);
    let start = Instant::now();
    for _ in 0..5_000_000 {
        let _ = interface.poll(&mut buffer);
    }
    println!("empty poll: {:.1} ns", start.elapsed().as_secs_f64() / 5e6 * 1e9);
    send(&endpoint, &interface, STOP, b"");
    assert!(peer.wait().unwrap().success());
    std::io::stdout().flush().unwrap();
    let _ = std::io::empty().read(&mut [0u8; 1]);
}

fn latency(endpoint: &Endpoint<'_>, interface: &Interface<'_>, size: usize) {
    let payload = vec![7u8; size];
    for _ in 0..20_000 {
        send(endpoint, interface, 1, &payload);
        let _ = receive(interface, 1);
    }
    let (batch, rounds) = (50, 6_000);
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..batch {
                send(endpoint, interface, 1, &payload);
                let _ = receive(interface, 1);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(batch) / 2.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |p: f64| times[(p * times.len() as f64) as usize];
    println!(
        "latency {size:6} B: best {:7.1}  p50 {:7.1}  p99 {:7.1} ns",
        times[0],
        at(0.5),
        at(0.99)
    );
}

fn rate(endpoint: &Endpoint<'_>, interface: &Interface<'_>, size: usize) {
    let payload = vec![7u8; size];
    let n = if size <= 64 { 10_000_000 } else { 400_000 };
    let mut best = f64::MAX;
    for _ in 0..4 {
        let start = Instant::now();
        for _ in 0..n {
            send(endpoint, interface, 2, &payload);
        }
        send(endpoint, interface, 3, b"");
        let _ = receive(interface, 1);
        best = best.min(start.elapsed().as_secs_f64());
    }
    let rate = f64::from(n) / best;
    println!("stream {size:6} B: {:7.2} M/s  {:6.2} GB/s", rate / 1e6, rate * size as f64 / 1e9);
}
