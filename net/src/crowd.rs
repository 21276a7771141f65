//! Crowds of strangers, for tests: connections that stay silent or send a greeting slowly, and that reconnect if configured. Tests
//! of other packages include this file by its path.

#[path = "crowd/sys.rs"]
mod sys;

pub(crate) use sys::raise_descriptors;

use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The behaviour of the strangers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// The number of connections.
    pub(crate) count: usize,
    /// Whether each connection sends a byte every 0.8 s, those of a valid greeting first. Otherwise no connection sends anything.
    pub(crate) drips: bool,
    /// Whether a closed connection is opened again.
    pub(crate) comes_back: bool,
    /// The number of loopback addresses that the connections come from.
    pub(crate) addresses: u32,
}

/// A crowd that runs in a thread of its own until it is dropped.
pub(crate) struct Crowd {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

const PAUSE: Duration = Duration::from_millis(5);
const DRIP: Duration = Duration::from_millis(800);

struct Stranger {
    stream: Option<TcpStream>,
    said: usize,
    speaks_at: Instant,
}

impl Crowd {
    /// Starts a crowd, and returns when each connection has been begun.
    pub(crate) fn start(to: SocketAddr, how: How) -> Crowd {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stop_it, made_it) = (stop.clone(), made.clone());
        let threads = vec![std::thread::spawn(move || run(to, how, &stop_it, &made_it))];
        let crowd = Crowd { stop, made, threads };
        while crowd.made() < how.count {
            std::thread::park_timeout(PAUSE);
        }
        crowd
    }

    /// Returns the number of connections begun so far.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn run(to: SocketAddr, how: How, stop: &AtomicBool, made: &AtomicUsize) {
    let greeting: Vec<u8> = b"TLN\x01".iter().copied().chain([7; 32]).collect();
    let mut strangers: Vec<Stranger> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        for n in 0..how.count {
            if strangers.len() == n {
                strangers.push(Stranger { stream: None, said: 0, speaks_at: now });
            } else if strangers[n].stream.as_mut().is_some_and(is_open) {
                if how.drips && now >= strangers[n].speaks_at {
                    let Stranger { stream, said, speaks_at } = &mut strangers[n];
                    let byte = [greeting.get(*said).copied().unwrap_or(b'x')];
                    let took = stream.as_mut().is_some_and(|stream| stream.write(&byte).is_ok());
                    *said += usize::from(took);
                    *speaks_at = now + DRIP;
                }
                continue;
            } else if !how.comes_back {
                strangers[n].stream = None;
                continue;
            }
            // A closed stream is dropped first, because its descriptor is needed.
            strangers[n].stream = None;
            let stream = connect(to, from(n as u32 % how.addresses));
            strangers[n] = Stranger { stream, said: 0, speaks_at: now };
            let _ = made.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// Returns source address `n`: 127.1.0.1, and so on.
fn from(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x7f01_0001 + (n / 250) * 256 + n % 250)
}

fn connect(to: SocketAddr, from: Ipv4Addr) -> Option<TcpStream> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::IPV4, kind, Some(Protocol::TCP)).ok()?;
    socket.bind(&SocketAddr::from((from, 0)).into()).ok()?;
    // The stream closes with a reset, so no port remains in TIME_WAIT.
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = socket.connect(&to.into());
    Some(socket.into())
}

/// Checks whether a stream is open. A connection in progress counts as open.
fn is_open(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected),
    }
}

/// Returns the 95th percentile of the times of honest connections.
pub(crate) fn percentile_95(took: &mut [Duration]) -> Duration {
    took.sort_unstable();
    took[(took.len() * 95).div_ceil(100) - 1]
}

/// Returns the three behaviours with this number of connections, and the bound for each (see SECURITY.md).
pub(crate) fn ways(count: usize) -> [(&'static str, How, Duration); 3] {
    let (one, many) = (1, 4096);
    let way = |drips, comes_back, addresses| How { count, drips, comes_back, addresses };
    [
        ("they stand", way(true, false, one), Duration::from_secs(1)),
        ("they come back from one address", way(true, true, one), Duration::from_secs(3)),
        ("they come back from many addresses", way(false, true, many), Duration::from_secs(10)),
    ]
}

/// Returns the number of connections in a test, and of measured honest ones.
pub(crate) fn size() -> (usize, usize) {
    // `cargo xtask test --all` sets this variable.
    if std::env::var_os("TESTS_WHOLE").is_some() { (16_000, 40) } else { (1300, 3) }
}
