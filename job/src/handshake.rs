//! The handshake of an exchange over TCP, which is that of `tieline-net` and requires the job's secret. The dialler's side blocks;
//! the server's side is a state machine.

use super::{Deadline, retries};
use crate::{Error, Status};
use std::io;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tieline_net::{Acceptor, Dialler, HandshakeError, Hello, Key, Refusal, VERSION};

/// The value of the purpose field in a connection to the exchange.
const PURPOSE: u8 = 16;

/// The fixed cookie of the exchange, whose address is known before the exchange exists.
const COOKIE: [u8; 16] = *b"tieline exchange";

/// The time limit of the dialler for its first handshake. A listener may be slow because hundreds of ranks connect to one
/// processor, so a limit that was used up is doubled for the next handshake.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// The server's side of a handshake.
pub(super) struct Handshake {
    acceptor: Acceptor,
}

impl Handshake {
    /// Makes a handshake that requires this secret; returns `None` if the system has no random numbers.
    pub(super) fn accept(secret: &[u8]) -> Option<Handshake> {
        let key = Key::derive(secret, &COOKIE);
        Some(Handshake { acceptor: Acceptor::new(key, nonce().ok()?) })
    }

    /// Returns the bytes that must be sent to the other side.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        let bytes = self.acceptor.output().to_vec();
        self.acceptor.sent(bytes.len());
        bytes
    }

    /// Processes received bytes. Once the handshake is complete, returns the bytes that followed the handshake.
    ///
    /// # Errors
    /// Returns the reason why the peer does not belong to the job.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.acceptor.expects().min(bytes.len()));
            bytes = later;
            let hello = self.acceptor.receive(now).map_err(|error| {
                match error {
                    HandshakeError::BadProof => "a process with another secret".into(),
                    HandshakeError::OtherVersion(theirs) => format!(
                        "a process that speaks version {theirs} of the handshake, where this side speaks version {VERSION}"
                    ),
                    HandshakeError::NotOurs | HandshakeError::BadHello => "a stranger".into(),
                }
            })?;
            match hello {
                Some(hello) if hello.purpose == PURPOSE => {
                    self.acceptor.answer(Ok(()));
                    return Ok(Some(bytes.to_vec()));
                }
                Some(_) => {
                    self.acceptor.answer(Err(Refusal::UnknownTarget));
                    return Err("a connection that is not for the exchange".into());
                }
                None if now.is_empty() => return Err("a stranger".into()),
                None => {}
            }
        }
        Ok(None)
    }
}

/// The reason why there is no connection, and whether to retry.
pub(super) enum NotYet {
    /// A failure after which a retry may succeed.
    Later(String),
    /// The listener had no room for the connection. Other connections make room soon, so a retry comes soon.
    TurnedAway(String),
    /// A failure after which a retry cannot succeed.
    Never(Error),
}

impl NotYet {
    /// Returns the failure of a connection with this error. A listener without room may reset a connection.
    pub(super) fn failed(error: &io::Error) -> NotYet {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                NotYet::TurnedAway(error.to_string())
            }
            _ => NotYet::Later(error.to_string()),
        }
    }
}

/// Proves to the listener that this process knows the secret, and checks that the listener knows the secret. `silence`: the time
/// limit for the whole handshake.
pub(super) fn enter(
    mut stream: &TcpStream,
    secret: &[u8],
    deadline: &Deadline,
    silence: Duration,
) -> Result<(), NotYet> {
    let later = |text: &str| NotYet::Later(text.to_owned());
    let turned_away = |text: &str| NotYet::TurnedAway(text.to_owned());
    let hello = Hello::new(PURPOSE, [0; 16], &[]).map_err(NotYet::Later)?;
    let nonce = nonce().map_err(NotYet::Later)?;
    let mut dialler = Dialler::new(Key::derive(secret, &COOKIE), &hello, nonce);
    let mut buffer = [0; 256];
    let patience = Deadline::new(deadline.left().unwrap_or_default().min(silence));
    loop {
        let left = patience.left().ok_or_else(|| later("what listens there says nothing"))?;
        let timeouts = stream.set_write_timeout(Some(left));
        timeouts
            .and_then(|()| stream.set_read_timeout(Some(left)))
            .and_then(|()| stream.write_all(dialler.output()))
            .map_err(|e| NotYet::failed(&e))?;
        dialler.sent(dialler.output().len());
        let room = dialler.expects().min(buffer.len());
        let n = match stream.read(&mut buffer[..room]) {
            Ok(0) => return Err(turned_away("the connection was closed in the handshake")),
            Ok(n) => n,
            Err(e) if retries(&e) => continue,
            Err(e) => return Err(NotYet::failed(&e)),
        };
        match dialler.receive(&buffer[..n]) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(Refusal::Busy) => return Err(turned_away("it has no room now")),
            Err(refusal) => return Err(NotYet::Never(refused(refusal))),
        }
    }
}

fn refused(refusal: Refusal) -> Error {
    let (status, why, fix) = match refusal {
        Refusal::WrongSecret => (
            Status::Permission,
            "it has another secret".to_owned(),
            "give every rank the same TIELINE_SECRET, or the same TIELINE_SECRET_FILE",
        ),
        Refusal::OtherVersion(_) => (
            Status::BadData,
            refusal.to_string(),
            "use one version of the library in the whole job",
        ),
        _ => (
            Status::BadData,
            "something else listens there".to_owned(),
            "choose another port in TIELINE_BOOTSTRAP, or end what listens on this one",
        ),
    };
    Error::new(status, "cannot join the bootstrap", why, fix)
}

fn nonce() -> Result<[u8; 32], String> {
    let mut nonce = [0; 32];
    tieline_net::random(&mut nonce).map_err(|e| format!("random numbers from the kernel: {e}"))?;
    Ok(nonce)
}
