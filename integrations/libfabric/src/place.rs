//! Addresses by host and port.
//!
//! An application that opens an endpoint at a port (`fi_getinfo` with `FI_SOURCE` and a service) lets the endpoint give its address
//! to everybody who connects to that port over TCP. A peer that has inserted the host and the port fetches the address there before
//! its first operation. Applications that exchange addresses themselves use neither.

use crate::abi::socket;
use crate::abi::wait::{Bell, sleep_on};
use crate::address::{ADDRESS_LEN, decode};
use crate::status::Failed;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tieline::WorkerName;
use tieline_libfabric_abi::{FI_EHOSTUNREACH, FI_ETIMEDOUT};

/// The first byte of an address by host and port, where other addresses have the length of a name.
const MARK: u8 = 0xfe;
/// The beginning of an answer.
const GREETING: [u8; 8] = *b"tieline1";
const ANSWER: usize = GREETING.len() + ADDRESS_LEN;
/// The time until which a peer has to listen, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Writes a host and a port as an address.
pub(crate) fn encode_place(place: &SocketAddr) -> [u8; ADDRESS_LEN] {
    let mut address = [0; ADDRESS_LEN];
    address[0] = MARK;
    address[2..4].copy_from_slice(&place.port().to_be_bytes());
    match place {
        SocketAddr::V4(v4) => {
            address[1] = 4;
            address[8..12].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            address[1] = 6;
            address[4..8].copy_from_slice(&v6.scope_id().to_be_bytes());
            address[8..24].copy_from_slice(&v6.ip().octets());
        }
    }
    address
}

/// Reads an address by host and port; `None` if it is another one.
pub(crate) fn decode_place(address: &[u8]) -> Option<SocketAddr> {
    let address: &[u8; ADDRESS_LEN] = address.try_into().ok()?;
    let port = u16::from_be_bytes([address[2], address[3]]);
    let v4 = [address[8], address[9], address[10], address[11]];
    match (address[0], address[1]) {
        (MARK, 4) => Some(SocketAddr::from((v4, port))),
        (MARK, 6) => {
            let ip: [u8; 16] = address[8..24].try_into().ok()?;
            let scope = u32::from_be_bytes([address[4], address[5], address[6], address[7]]);
            Some(std::net::SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
        }
        _ => None,
    }
}

/// Finds the address of a host and a service; both may be open. `None` if the system does not know them.
pub(crate) fn find(
    node: Option<&str>,
    service: Option<&str>,
    is_number: bool,
) -> Option<SocketAddr> {
    let port = match service {
        Some(service) => service.parse().ok()?,
        None => 0,
    };
    let Some(node) = node else { return Some(SocketAddr::from(([0, 0, 0, 0], port))) };
    if let Ok(ip) = node.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port));
    }
    if is_number {
        return None;
    }
    let found: Vec<SocketAddr> =
        std::net::ToSocketAddrs::to_socket_addrs(&(node, port)).ok()?.collect();
    found.iter().find(|it| it.is_ipv4()).or(found.first()).copied()
}

/// A thread that gives an address to everybody who connects.
pub(crate) struct Listener {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(crate) fn start(
        place: &SocketAddr,
        address: &[u8; ADDRESS_LEN],
    ) -> std::io::Result<Listener> {
        let listener = TcpListener::bind(place)?;
        listener.set_nonblocking(true)?;
        let bell = Arc::new(Bell::new()?);
        let mut answer = [0; ANSWER];
        answer[..GREETING.len()].copy_from_slice(&GREETING);
        answer[GREETING.len()..].copy_from_slice(address);
        let ring = bell.clone();
        let thread = std::thread::Builder::new()
            .name("tieline-fi-name".into())
            .spawn(move || answer_all(&listener, &ring, &answer))?;
        Ok(Listener { bell, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // The thread has nothing that could panic and matter.
            let _ = thread.join();
        }
    }
}

fn answer_all(listener: &TcpListener, bell: &Bell, answer: &[u8]) {
    while !bell.has_rung() {
        match listener.accept() {
            // The buffer of a new connection has room for the answer. A peer that has left needs none.
            Ok((mut stream, _)) => drop(stream.write_all(answer)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                sleep_on(&[listener.as_raw_fd(), bell.descriptor()], Duration::from_secs(60));
            }
            Err(_) => sleep_on(&[bell.descriptor()], PAUSE),
        }
    }
}

/// A request for the address of the endpoint at a port.
pub(crate) struct Call {
    to: SocketAddr,
    stream: Option<TcpStream>,
    got: Vec<u8>,
    next: Instant,
    until: Instant,
}

impl Call {
    pub(crate) fn new(to: SocketAddr) -> Call {
        let now = Instant::now();
        Call { to, stream: None, got: Vec::new(), next: now, until: now + PATIENCE }
    }

    /// Advances the request without waiting. Returns the result once.
    pub(crate) fn advance(&mut self) -> Option<Result<WorkerName, Failed>> {
        let now = Instant::now();
        if now >= self.until {
            return Some(Err(Failed::new(FI_ETIMEDOUT)));
        }
        let Some(stream) = &mut self.stream else {
            if now >= self.next {
                self.next = now + PAUSE;
                self.got.clear();
                match socket::connect(&self.to) {
                    Ok(stream) => self.stream = Some(stream),
                    // The system refuses such an address at once.
                    Err(error) if error.kind() == ErrorKind::InvalidInput => {
                        return Some(Err(Failed::new(FI_EHOSTUNREACH)));
                    }
                    Err(_) => {}
                }
            }
            return None;
        };
        let mut bytes = [0; ANSWER];
        let room = ANSWER - self.got.len();
        match stream.read(&mut bytes[..room]) {
            Ok(count) if count > 0 => self.got.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            // Nobody listens yet, or the listener has ended.
            Ok(_) | Err(_) => self.stream = None,
        }
        if self.got.len() < ANSWER {
            return None;
        }
        let name = self.got.strip_prefix(&GREETING).and_then(decode);
        Some(name.ok_or(Failed::new(FI_EHOSTUNREACH)))
    }
}

#[cfg(test)]
mod tests {
    use super::{ADDRESS_LEN, Call, Listener, decode_place, encode_place, find};
    use crate::address::{decode, encode};
    use std::net::SocketAddr;
    use tieline::WorkerName;

    #[test]
    fn place_is_read_as_it_was_written_and_is_no_name() {
        for text in ["127.0.0.1:9228", "[fe80::1%3]:1", "[::]:0", "0.0.0.0:65535"] {
            let place: SocketAddr = text.parse().unwrap();
            let address = encode_place(&place);
            assert_eq!(decode_place(&address), Some(place));
            assert!(decode(&address).is_none());
        }
        assert_eq!(decode_place(&[0; ADDRESS_LEN]), None);
        assert_eq!(decode_place(&[0xfe, 4]), None);
    }

    #[test]
    fn host_and_service_are_found_by_number() {
        assert_eq!(find(None, Some("5"), false), Some("0.0.0.0:5".parse().unwrap()));
        assert_eq!(find(Some("::1"), None, true), Some("[::1]:0".parse().unwrap()));
        assert_eq!(find(Some("no number"), Some("5"), true), None);
        assert_eq!(find(Some("127.0.0.1"), Some("no number"), false), None);
    }

    #[test]
    fn address_is_fetched_from_its_port() {
        // A test cannot have a real name without a worker, so it parses one of the shortest form, if there is any.
        let context = tieline::Context::open().unwrap();
        let worker = context.worker().unwrap();
        let name: WorkerName = worker.name().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = free.local_addr().unwrap();
        drop(free);
        // The request starts before the listener does.
        let mut call = Call::new(place);
        assert!(call.advance().is_none());
        let listener = Listener::start(&place, &encode(&name)).unwrap();
        assert!(Listener::start(&place, &encode(&name)).is_err());
        let found = loop {
            if let Some(found) = call.advance() {
                break found.unwrap();
            }
            std::thread::yield_now();
        };
        assert_eq!(found.as_bytes(), name.as_bytes());
        drop(listener);
    }
}
