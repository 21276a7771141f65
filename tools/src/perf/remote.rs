//! `perf --listen` and `--connect`: the requests and replies of the pipe to a peer process, over a TCP connection whose two ends
//! have proved to each other that they know the secret.

use super::control::Peer;
use crate::{misuse, say, sys, system_error};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use tieline::{Error, Status};
use tieline_net::{Dialler, Hello, Hub, Key, Listen, Mailbox, Ports, Refusal, Settings};

pub(super) const PORT: u16 = 21_811;

const PURPOSE: u8 = 17;
/// The listener's cookie, which is fixed, because the listener's address is known beforehand.
const COOKIE: [u8; 16] = *b"tieline perf 1  ";

const PATIENCE: Duration = Duration::from_secs(5);

/// The time without data from the other host after which the connection counts as broken.
const SILENCE: Duration = Duration::from_secs(20);

/// The listener of `--listen`, and clients that have proved that they know the secret. A thread performs the handshakes, so that
/// neither a silent foreign client nor a client that is measuring delays the next client.
pub(super) struct Clients {
    mailbox: Mailbox,
    pub(super) at: SocketAddr,
}

impl Clients {
    /// Listens at `PORT`, `ADDRESS` or `ADDRESS:PORT`; an empty text selects every address.
    pub(super) fn listen(text: &str, secret: &str) -> Result<Clients, Error> {
        let failed = |why: String| {
            let fix = "choose another port: --listen ADDRESS:PORT, with port 0 any free one";
            Error::new(Status::Io, format!("cannot listen on {}", shown(text)), why, fix)
        };
        let mut ways = Vec::new();
        match text.parse::<u16>() {
            Err(_) if !text.is_empty() => {
                ways.extend(resolve(text)?.into_iter().map(|at| (Listen::At(at), at)));
            }
            port => {
                let port = match port.unwrap_or(PORT) {
                    0 => free_port().map_err(|e| failed(e.to_string()))?,
                    port => port,
                };
                let ports = Ports::parse(&port.to_string()).map_err(failed)?;
                ways.push((Listen::Ports(ports), ([0; 16], port).into()));
            }
        }
        let mut last = String::new();
        for (listen, mut at) in ways {
            let settings = Settings {
                secret: secret.into(),
                listen,
                cookie: Some(COOKIE),
                handshake_timeout: PATIENCE,
                ..Settings::default()
            };
            let mailbox = match Hub::open(&settings).and_then(|hub| hub.register([0; 16])) {
                Ok(mailbox) => mailbox,
                Err(why) => {
                    last = why;
                    continue;
                }
            };
            if let (0, Some(address)) = (at.port(), mailbox.contact().addresses.first()) {
                at.set_port(address.port);
            }
            let hub = mailbox.hub().clone();
            let shake = move || {
                while sys::wait_readable(&[hub.fd().as_raw_fd()], -1).is_ok() {
                    hub.poll();
                }
            };
            let thread = std::thread::Builder::new().name("tieline-door".into()).spawn(shake);
            let _ = thread.map_err(|e| failed(e.to_string()))?;
            return Ok(Clients { mailbox, at });
        }
        Err(failed(last))
    }

    pub(super) fn next(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let failed = |e| system_error("cannot accept connections", &e, "run it again");
        loop {
            while let Some(incoming) = self.mailbox.take() {
                let stream = incoming.stream;
                let good =
                    incoming.hello.purpose == PURPOSE && stream.set_nonblocking(false).is_ok();
                if good && prepare(&stream).and_then(|()| finish(&stream)).is_ok() {
                    return Ok((stream, incoming.from));
                }
            }
            if let Some(count) = self.mailbox.hub().unproven_to_report() {
                say::error(format!(
                    "{count} connections without the secret were turned away so far"
                ));
            }
            let _ = sys::wait_readable(&[self.mailbox.fd().as_raw_fd()], -1).map_err(failed)?;
        }
    }
}

fn free_port() -> std::io::Result<u16> {
    let any: [SocketAddr; 2] = [([0; 16], 0).into(), ([0; 4], 0).into()];
    Ok(TcpListener::bind(&any[..])?.local_addr()?.port())
}

pub(super) fn connect(text: &str, secret: &str) -> Result<Peer, Error> {
    let mut last = None;
    for address in resolve(text)? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                prove(&stream, secret)?;
                return Peer::remote(stream)
                    .map_err(|e| system_error("cannot use the connection", &e, "run it again"));
            }
            Err(e) => last = Some((address, e)),
        }
    }
    Err(match last {
        Some((address, e)) => system_error(
            format!("cannot connect to {address}"),
            &e,
            "start `tieline perf --listen` there",
        ),
        None => misuse(format!("`{text}` has no address"), "", "name a host that is known here"),
    })
}

fn resolve(text: &str) -> Result<Vec<SocketAddr>, Error> {
    // The text may contain a port or not: `nodea`, `10.0.0.1`, `::1`.
    let with_port = text.to_socket_addrs();
    let bare = text.trim_matches(['[', ']']);
    let found = with_port.or_else(|_| (bare, PORT).to_socket_addrs());
    found.map(Iterator::collect).map_err(|e| {
        system_error(format!("cannot find the host of `{text}`"), &e, "write HOST or HOST:PORT")
    })
}

fn shown(text: &str) -> String {
    if text.is_empty() { format!("port {PORT}") } else { text.to_owned() }
}

fn prove(stream: &TcpStream, secret: &str) -> Result<(), Error> {
    let failed = |why: String| {
        let fix = "see that `tieline perf --listen` of this version listens there";
        Error::new(Status::PeerFailed, "the other side did not answer as it should", why, fix)
    };
    prepare(stream).map_err(|e| failed(e.to_string()))?;
    let hello = Hello::new(PURPOSE, [0; 16], &[]).map_err(failed)?;
    let nonce = nonce().map_err(|e| failed(e.to_string()))?;
    let mut dialler = Dialler::new(Key::derive(secret.as_bytes(), &COOKIE), &hello, nonce);
    let end = Instant::now() + PATIENCE;
    loop {
        write(stream, dialler.output()).map_err(|e| failed(e.to_string()))?;
        dialler.sent(dialler.output().len());
        let bytes = read(stream, dialler.expects(), end).map_err(|e| failed(e.to_string()))?;
        match dialler.receive(&bytes) {
            Ok(true) => return finish(stream).map_err(|e| failed(e.to_string())),
            Ok(false) => {}
            Err(Refusal::WrongSecret) => {
                return Err(Error::new(
                    Status::Permission,
                    "the other side has another secret",
                    "",
                    "set TIELINE_SECRET to what `tieline perf --listen` printed, or to the same on both sides",
                ));
            }
            Err(refusal) => return Err(failed(refusal.to_string())),
        }
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    tieline_net::tune(stream, SILENCE);
    stream.set_write_timeout(Some(PATIENCE))
}

/// Ends the handshake: after it, reads have no time limit, because they wait for a measurement.
fn finish(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)
}

fn write(mut stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)
}

/// Reads at most `room` bytes before the time `end`.
fn read(mut stream: &TcpStream, room: usize, end: Instant) -> std::io::Result<Vec<u8>> {
    let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    let mut buffer = vec![0; room.max(1)];
    match stream.read(&mut buffer)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        n => {
            buffer.truncate(n);
            Ok(buffer)
        }
    }
}

fn nonce() -> std::io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    tieline_net::random(&mut nonce)?;
    Ok(nonce)
}

/// Makes a secret of 128 random bits, for a run without a configured secret.
pub(super) fn new_secret() -> Result<String, Error> {
    let bytes =
        nonce().map_err(|e| system_error("cannot make a secret", &e, "set TIELINE_SECRET"))?;
    Ok(bytes[..16].iter().map(|b| format!("{b:02x}")).collect())
}
