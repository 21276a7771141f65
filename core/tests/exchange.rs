//! Tests of the server of an exchange, with many and with faulty clients that are plain sockets. Tests that need their own limits
//! restart the test program with these limits.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tieline::job::server::Server;
use tieline::job::wire::{Decoder, Frame, Hello, gathered_limit};

/// A server in its own thread, until this value is dropped.
struct Serving {
    name: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    fn start(size: usize) -> Serving {
        let mut server = Server::new(size, "j").unwrap();
        let name = server.listen_unix().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                server.turn(&[], Some(Duration::from_millis(20))).unwrap();
            }
        });
        Serving { name, stop, thread: Some(thread) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// One rank without a context: a socket and a decoder.
struct Client {
    stream: UnixStream,
    decoder: Decoder,
}

impl Client {
    fn connect(name: &str, size: usize) -> Client {
        let name = name.strip_prefix("unix:@").unwrap();
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream, decoder: Decoder::new(gathered_limit(size)) }
    }

    fn joined(name: &str, rank: usize, size: usize) -> Client {
        let mut client = Client::connect(name, size);
        client.say(&hello(rank, size));
        client
    }

    fn say(&mut self, frame: &Frame) {
        self.stream.write_all(&frame.encode()).unwrap();
    }

    /// Returns the next frame; `None`: the connection was closed, or nothing arrived for a minute.
    fn hear(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return Some(frame);
            }
            let mut buffer = [0; 64 << 10];
            match self.stream.read(&mut buffer) {
                Ok(n) if n > 0 => self.decoder.push(&buffer[..n]),
                _ => return None,
            }
        }
    }

    /// Returns the bytes of the next frame, which may be as long as all contributions together.
    fn hear_bytes(&mut self) -> Vec<u8> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_le_bytes(head) as usize];
        self.stream.read_exact(&mut body).unwrap();
        body
    }
}

fn hello(rank: usize, size: usize) -> Frame {
    let (host, job) = ("here".to_owned(), "j".to_owned());
    Frame::Hello(Hello { rank: rank as u32, size: size as u32, pid: 1, host, job })
}

fn contribution(rank: usize, len: usize) -> Frame {
    Frame::Contribute { round: 0, bytes: vec![rank as u8; len] }
}

/// Checks whether this process is the restarted test.
fn is_inner() -> bool {
    std::env::var_os("TIELINE_TEST_INNER").is_some()
}

/// Restarts the test with this limit of open files, and expects success.
fn again(test: &str, files: u64) {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or("");
    let hard = line.split_whitespace().nth(4).unwrap_or("unlimited").parse::<u64>();
    if hard.is_ok_and(|hard| hard < files) {
        return println!("skipped: {files} open files are needed, and the hard limit is below");
    }
    let script = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("TIELINE_TEST_INNER", "1")
        .output()
        .unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

const MANY: usize = 1000;

#[test]
fn a_thousand_ranks_that_connect_before_any_of_them_speaks_all_join() {
    if !is_inner() {
        let name = "a_thousand_ranks_that_connect_before_any_of_them_speaks_all_join";
        return again(name, 2 * MANY as u64 + 100);
    }
    let serving = Serving::start(MANY);
    let mut clients: Vec<Client> =
        (0..MANY).map(|_| Client::connect(&serving.name, MANY)).collect();
    for (rank, client) in clients.iter_mut().enumerate() {
        client.say(&hello(rank, MANY));
        client.say(&contribution(rank, 1));
    }
    for client in &mut clients {
        let Some(Frame::Gathered { parts, .. }) = client.hear() else { panic!("no exchange") };
        assert!(parts.iter().enumerate().all(|(rank, part)| *part == [rank as u8]));
    }
}

#[test]
fn a_thousand_ranks_exchange_a_kibibyte_each_in_memory_linear_in_the_data() {
    if !is_inner() {
        let name = "a_thousand_ranks_exchange_a_kibibyte_each_in_memory_linear_in_the_data";
        return again(name, 2 * MANY as u64 + 100);
    }
    let serving = Serving::start(MANY);
    let mut clients: Vec<Client> =
        (0..MANY).map(|rank| Client::joined(&serving.name, rank, MANY)).collect();
    let before = memory("VmRSS:");
    for (rank, client) in clients.iter_mut().enumerate() {
        client.say(&contribution(rank, 1024));
    }
    // Only the last client has read, so the server holds all other answers.
    let first = clients[MANY - 1].hear_bytes();
    assert!(first.len() > MANY * 1024);
    for client in &mut clients[..MANY - 1] {
        assert!(client.hear_bytes() == first, "an answer differs");
    }
    let grown = memory("VmHWM:").saturating_sub(before);
    // A copy of the answer for each client would take a gibibyte. One copy, with the state of a thousand connections, takes some
    // mebibytes.
    assert!(grown < 128 << 20, "{grown} bytes for {} of data", MANY * 1024);
}

/// Returns a line of this process's status, in bytes.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

#[test]
fn a_rank_that_is_refused_after_it_joined_is_told_to_all_others_at_once() {
    let serving = Serving::start(3);
    let mut clients: Vec<Client> =
        (0..2).map(|rank| Client::joined(&serving.name, rank, 3)).collect();
    clients[0].say(&contribution(0, 1));
    // The contribution is out of turn; the client keeps its side of the connection open.
    clients[1].say(&Frame::Contribute { round: 7, bytes: vec![] });
    let Some(Frame::Refused { text }) = clients[1].hear() else { panic!("it is not told") };
    assert!(text.contains("out of turn"), "{text}");
    let Some(Frame::Lost { text }) = clients[0].hear() else { panic!("the others are not told") };
    assert!(text.contains("rank 1 (pid 1 on here)") && text.contains("out of turn"), "{text}");
    // A client that joins later is refused too.
    let mut late = Client::joined(&serving.name, 2, 3);
    late.say(&contribution(2, 1));
    assert!(matches!(late.hear(), Some(Frame::Lost { .. })));
}

#[test]
fn server_without_free_descriptors_continues_later() {
    if !is_inner() {
        let name = "server_without_free_descriptors_continues_later";
        return again(name, 64);
    }
    let mut server = Server::new(1, "j").unwrap();
    let name = server.listen_unix().unwrap();
    let mut client = Client::joined(&name, 0, 1);
    client.say(&contribution(0, 5));
    let mut all = Vec::new();
    let full = loop {
        match std::fs::File::open("/dev/null") {
            Ok(file) => all.push(file),
            Err(e) => break e,
        }
    };
    assert_eq!(full.raw_os_error(), Some(24), "EMFILE"); // no other error is accepted
    let end = Instant::now() + Duration::from_millis(500);
    let mut turns = 0;
    while Instant::now() < end {
        server.turn(&[], Some(Duration::from_secs(1))).unwrap();
        turns += 1;
    }
    assert!(turns < 100, "{turns} turns in half a second: it spins");
    drop(all);
    client.stream.set_nonblocking(true).unwrap();
    let answer = loop {
        server.turn(&[], Some(Duration::from_millis(20))).unwrap();
        let mut head = [0; 4];
        match client.stream.read_exact(&mut head) {
            Ok(()) => break head,
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
    };
    assert!(u32::from_le_bytes(answer) > 5);
}

#[test]
fn a_hello_of_another_version_is_refused_with_both_numbers() {
    let serving = Serving::start(1);
    for version in [2, 99] {
        let mut client = Client::connect(&serving.name, 1);
        let mut bytes = hello(0, 1).encode();
        bytes[5] = version;
        client.stream.write_all(&bytes).unwrap();
        let Some(Frame::Refused { text }) = client.hear() else { panic!("it is not told") };
        assert!(text.contains(&format!("version {version} ")) && text.contains('4'), "{text}");
    }
}

#[test]
fn extra_bytes_in_hello_are_ignored() {
    let serving = Serving::start(1);
    let mut client = Client::connect(&serving.name, 1);
    let mut bytes = hello(0, 1).encode();
    bytes.extend(*b"more");
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    client.stream.write_all(&bytes).unwrap();
    client.say(&contribution(0, 1));
    assert!(matches!(client.hear(), Some(Frame::Gathered { .. })));
}

#[test]
fn host_name_is_short_and_without_control_characters() {
    let serving = Serving::start(2);
    let mut first = Client::joined(&serving.name, 0, 2);
    let mut second = Client::connect(&serving.name, 2);
    let host = format!("\x1b]0;owned\x07\n{}", "x".repeat(2000));
    let hello = Hello { rank: 1, size: 2, pid: 1, host, job: "j".into() };
    second.say(&Frame::Hello(hello));
    first.say(&contribution(0, 1));
    second.say(&contribution(1, 1));
    assert!(matches!(first.hear(), Some(Frame::Gathered { .. })));
    drop(second);
    let Some(Frame::Lost { text }) = first.hear() else { panic!("its end is not told") };
    assert!(text.contains("owned") && text.len() < 300, "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[test]
fn rank_that_reads_no_answers_does_not_fill_server_memory() {
    const PART: usize = 256 << 10;
    const ROUNDS: u64 = 256;
    let mut server = Server::new(1, "j").unwrap();
    let name = server.listen_unix().unwrap();
    let mut client = Client::joined(&name, 0, 1);
    client.stream.set_nonblocking(true).unwrap();
    let (mut taken, mut idle) = (0, 0);
    let frame = |round| Frame::Contribute { round, bytes: vec![7; PART] }.encode();
    let mut bytes = frame(0);
    let (mut round, mut sent) = (0, 0);
    // The loop ends when no client accepts any more bytes, or everything has been received.
    while idle < 200 && round < ROUNDS {
        server.turn(&[], Some(Duration::from_millis(1))).unwrap();
        match client.stream.write(&bytes[sent..]) {
            Ok(n) => (taken, sent, idle) = (taken + n, sent + n, 0),
            Err(_) => idle += 1,
        }
        if sent == bytes.len() {
            round += 1;
            (bytes, sent) = (frame(round), 0);
        }
    }
    assert!(taken < 32 * PART, "{taken} bytes are kept as answers that nobody reads");
}
