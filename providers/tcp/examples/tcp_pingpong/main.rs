//! Latency and bandwidth of the provider alone, between two processes over loopback.
//!
//! `cargo run --release -p tieline-provider-tcp --example tcp_pingpong` starts its own peer on another CPU. Compare with
//! `ucx_perftest -x tcp -d lo -t am_lat -s 8 -D short` and one stream of `iperf3`.

mod sys;

use std::ffi::OsString;
use std::io::BufRead;
use std::mem::MaybeUninit;
use std::process::{Command, Stdio};
use std::time::Instant;

use tieline_plugin_api::abi::{Event, Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Interface, Provider, RmaOp, Status, event};
use tieline_provider_tcp::Tcp;

type Dom = <Tcp as Provider>::Domain;
type Face = <Dom as Domain>::Interface;
type End = <Face as Interface>::Endpoint;

const PING: u32 = 1;
const COUNT: u32 = 2;
const TOTAL: u32 = 3;
const STOP: u32 = 4;
const KEY: u32 = 5;
const REGION: usize = 4 << 20;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .filter_map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok())
        .collect()
}

fn slots() -> [MaybeUninit<Event>; 64] {
    [MaybeUninit::uninit(); 64]
}

struct Desk {
    domain: Dom,
    interface: Face,
    endpoint: End,
}

impl Desk {
    fn open() -> Desk {
        let provider = Tcp::open(sys::host()).expect("the provider");
        let domain = provider.open_domain("tcp", [1; 16]).expect("the domain");
        let interface = domain.open_interface("stream", [2; 16]).expect("the interface");
        let endpoint = interface.connect(&[], &[], 1).expect("an endpoint");
        Desk { domain, interface, endpoint }
    }

    #[inline(always)]
    fn send(&self, id: u32, payload: &[u8]) {
        loop {
            match self.endpoint.am_short(id, 7, payload) {
                Ok(_) => return,
                Err(Status::Again) => {
                    let mut slots = slots();
                    sys::poll(&self.interface, &mut slots).iter().for_each(must_live);
                }
                Err(status) => panic!("am_short: {status}"),
            }
        }
    }

    /// Waits for an event of this kind; returns its id, and the payload unless it is a ping.
    #[inline(always)]
    fn wait(&self, kind: u32) -> (u32, Vec<u8>) {
        let mut slots = slots();
        loop {
            for event in sys::poll(&self.interface, &mut slots) {
                must_live(event);
                if event.kind == kind {
                    assert_eq!(event.status, 0);
                    let data =
                        if event.id == PING { Vec::new() } else { sys::payload(event).to_vec() };
                    return (event.id, data);
                }
            }
        }
    }
}

fn must_live(event: &Event) {
    if event.kind == event::ENDPOINT_FAILED {
        let words = String::from_utf8_lossy(sys::payload(event)).into_owned();
        panic!("{}: {words}", Status::from_code(event.status));
    }
}

fn echo(address: &str) {
    sys::pin(1);
    let desk = Desk::open();
    println!("{}", hex(&desk.endpoint.address()));
    desk.endpoint.connect(&unhex(address)).expect("an address");
    let mut memory = vec![1u8; REGION];
    let region = desk
        .domain
        .register(&RegisterParams::new(memory.as_mut_ptr(), REGION, 7))
        .expect("a region");
    let mut key = vec![0u8; 256];
    let len = desk.domain.pack_key(&region, &KeyParams::empty(), &mut key).expect("a key");
    desk.send(KEY, &key[..len]);
    let mut count = 0u64;
    loop {
        let mut slots = slots();
        for event in sys::poll(&desk.interface, &mut slots) {
            match (event.kind, event.id) {
                (event::MESSAGE, PING) => desk.send(PING, sys::payload(event)),
                (event::MESSAGE, COUNT) => count += 1,
                (event::MESSAGE, TOTAL) => desk.send(TOTAL, &count.to_le_bytes()),
                _ => return,
            }
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, role, address] = &args[..] {
        if role == "echo" {
            return echo(address);
        }
    }
    sys::pin(0);
    let desk = Desk::open();
    // The command in PINGPONG_RUN, such as `ip netns exec there`, runs the peer.
    let before = std::env::var("PINGPONG_RUN").unwrap_or_default();
    let program = std::env::current_exe().expect("this program");
    let mut words: Vec<OsString> = before.split_whitespace().map(OsString::from).collect();
    words.extend([program.into(), "echo".into(), hex(&desk.endpoint.address()).into()]);
    let mut peer =
        Command::new(&words[0]).args(&words[1..]).stdout(Stdio::piped()).spawn().expect("the peer");
    let mut line = String::new();
    let output = peer.stdout.take().expect("its output");
    let _ = std::io::BufReader::new(output).read_line(&mut line).expect("its address");
    desk.endpoint.connect(&unhex(line.trim())).expect("an address");
    let (_, key) = desk.wait(event::MESSAGE);
    let key = desk.endpoint.import_key(&key).expect("its key");
    let wanted = |name: &str| args.len() < 2 || args.iter().skip(1).any(|arg| arg == name);
    if wanted("latency") {
        for size in [8usize, 64, 1024, 8192, 65536] {
            latency(&desk, size);
        }
    }
    if wanted("rate") {
        for size in [8usize, 64, 1024, 8192, 65536] {
            rate(&desk, size);
        }
    }
    if wanted("rma") {
        for (put, name) in [(true, "put"), (false, "get")] {
            for size in [8usize, 4096, 64 << 10, 1 << 20, 4 << 20] {
                rma(&desk, &key, put, name, size);
            }
        }
    }
    desk.send(STOP, b"");
    let _ = peer.wait();
}

fn latency(desk: &Desk, size: usize) {
    let payload = vec![7u8; size];
    let (batch, rounds) = (50, if size > 8192 { 40 } else { 400 });
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..batch {
                desk.send(PING, &payload);
                let _ = desk.wait(event::MESSAGE);
            }
            start.elapsed().as_secs_f64() * 1e6 / f64::from(batch) / 2.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "am latency {size:6} B: best {:6.2}  p50 {:6.2}  p90 {:6.2} us",
        times[0],
        times[times.len() / 2],
        times[times.len() * 9 / 10]
    );
}

fn rate(desk: &Desk, size: usize) {
    let payload = vec![7u8; size];
    let count = ((2usize << 30) / size).min(2_000_000);
    let start = Instant::now();
    for _ in 0..count {
        desk.send(COUNT, &payload);
    }
    desk.send(TOTAL, b"");
    let _ = desk.wait(event::MESSAGE);
    let per_second = count as f64 / start.elapsed().as_secs_f64();
    println!(
        "am stream  {size:6} B: {:7.3} M/s  {:6.2} GB/s",
        per_second / 1e6,
        per_second * size as f64 / 1e9
    );
}

fn rma(desk: &Desk, key: &<End as Endpoint>::Key, put: bool, name: &str, size: usize) {
    let mut local = vec![3u8; size];
    let iov = [Iov::new(local.as_mut_ptr(), size)];
    let window = 16;
    let count = ((2usize << 30) / size).min(50_000);
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < window {
            let op = RmaOp { iov: &iov, len: size, offset: 0, cookie: posted as u64, flags: 0 };
            let call = if put { desk.endpoint.put(key, &op) } else { desk.endpoint.get(key, &op) };
            match call {
                Ok(_) => posted += 1,
                Err(Status::Again) => break,
                Err(status) => panic!("{name}: {status}"),
            }
        }
        let mut slots = slots();
        for event in sys::poll(&desk.interface, &mut slots) {
            must_live(event);
            assert_eq!((event.kind, event.status), (event::COMPLETION, 0));
            done += 1;
        }
    }
    let per_second = count as f64 / start.elapsed().as_secs_f64();
    println!(
        "{name} {size:8} B: {:8.1} K/s  {:6.2} GB/s",
        per_second / 1e3,
        per_second * size as f64 / 1e9
    );
}
