//! The handshake: a challenge in both directions with HMAC-SHA-256, as a pure state machine. It converts bytes to bytes, without a
//! clock or a socket.
//!
//! ```text
//! dialler                                          acceptor
//! START      "TLN" version nonce_d          ->
//!                                          <-      CHALLENGE  "TLN" version nonce_a
//! HELLO      purpose target length payload
//!            hmac("dialler", nonces, hello) ->
//!                                          <-      ANSWER  verdict hmac("acceptor", nonces, hello, verdict)
//! ```
//!
//! The acceptor sends no proof to a dialler that has not sent a valid one; zeros replace it. A hello is valid only with the
//! dialler's proof, and an answer is an acceptance only with the acceptor's proof. The connection is authenticated, not encrypted.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The version of the handshake that this side implements.
pub const VERSION: u8 = 1;
/// The longest payload of a hello, in bytes.
pub const MAX_HELLO_PAYLOAD: usize = 1024;

const MAGIC: [u8; 3] = *b"TLN";
const NONCE: usize = 32;
const TAG: usize = 32;
const GREETING: usize = 3 + 1 + NONCE;
const HELLO_HEAD: usize = 1 + 16 + 2;
const ANSWER: usize = 1 + TAG;

/// The key of both sides, made from the job's secret and the listener's cookie.
#[derive(Clone)]
pub struct Key {
    mac: Hmac<Sha256>,
}

impl Key {
    /// Derives the key of connections to the listener that drew `cookie`. Without a secret (empty), the listener's address suffices
    /// for a connection. With a secret, a peer needs both.
    #[must_use]
    pub fn derive(secret: &[u8], cookie: &[u8; 16]) -> Key {
        let mut mac = keyed(secret);
        mac.update(b"tieline 1");
        mac.update(cookie);
        Key { mac: keyed(&mac.finalize().into_bytes()) }
    }

    fn tag(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        for part in parts {
            mac.update(&(part.len() as u32).to_le_bytes()); // no two lists of parts have the same encoding
            mac.update(part);
        }
        mac
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key") // a key must not appear in a log
    }
}

/// Returns the target of a user that every process has. The target is derived from the listener's cookie and does not reveal it. A
/// process that listens later with another cookie does not have this target, so a replaced process can be distinguished from a
/// wrong secret.
///
/// ```
/// use tieline_net::target_of;
/// assert_eq!(target_of("names", &[1; 16]), target_of("names", &[1; 16]));
/// assert_ne!(target_of("names", &[1; 16]), target_of("names", &[2; 16]));
/// ```
#[must_use]
pub fn target_of(user: &str, cookie: &[u8; 16]) -> [u8; 16] {
    let mut mac = keyed(cookie);
    mac.update(b"tieline target ");
    mac.update(user.as_bytes());
    let mut target = [0; 16];
    target.copy_from_slice(&mac.finalize().into_bytes()[..16]);
    target
}

#[allow(clippy::expect_used)]
fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of every length")
}

/// The dialler's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The kind of connection. The users of a listener define the numbers.
    pub purpose: u8,
    /// The addressed user of the listener.
    pub target: [u8; 16],
    payload: Vec<u8>,
}

impl Hello {
    /// Makes a hello with its payload.
    ///
    /// # Errors
    /// The payload has more than [`MAX_HELLO_PAYLOAD`] bytes.
    pub fn new(purpose: u8, target: [u8; 16], payload: &[u8]) -> Result<Hello, String> {
        if payload.len() > MAX_HELLO_PAYLOAD {
            return Err(format!(
                "a hello carries at most {MAX_HELLO_PAYLOAD} bytes, not {}",
                payload.len()
            ));
        }
        Ok(Hello { purpose, target, payload: payload.to_vec() })
    }

    /// Returns the payload: the bytes that the dialler added for its target.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HELLO_HEAD + self.payload.len());
        out.push(self.purpose);
        out.extend_from_slice(&self.target);
        out.extend_from_slice(&(self.payload.len() as u16).to_le_bytes()); // bounded by `new`
        out.extend_from_slice(&self.payload);
        out
    }

    /// Parses the head of a hello. The length of the payload is checked against the limit.
    fn head(bytes: &[u8]) -> Option<(u8, [u8; 16], usize)> {
        let (purpose, rest) = bytes.split_first()?;
        let (target, rest) = rest.split_first_chunk::<16>()?;
        let len = usize::from(u16::from_le_bytes(*rest.first_chunk::<2>()?));
        (len <= MAX_HELLO_PAYLOAD).then_some((*purpose, *target, len))
    }
}

/// The reason why a listener which was reached does not accept the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The proof is wrong.
    WrongSecret,
    /// No user of this listener has that id.
    UnknownTarget,
    /// The target has no room at present.
    Busy,
    /// The listener implements another version.
    OtherVersion(u8),
    /// The other side is not a Tieline listener, or does not know the expected key.
    NotOurs,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::WrongSecret => {
                f.write_str("wrong secret: TIELINE_SECRET must be the same on both sides")
            }
            Refusal::UnknownTarget => f.write_str(
                "nobody there has that address any more: the peer closed, or its process has been replaced",
            ),
            Refusal::Busy => f.write_str("the listener has no room now"),
            Refusal::OtherVersion(version) => write!(
                f,
                "the listener speaks version {version} of the handshake, this side version {VERSION}"
            ),
            Refusal::NotOurs => f.write_str("something else than a peer of this job listens there"),
        }
    }
}

/// The error of a handshake at the acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The bytes do not begin like a Tieline connection.
    NotOurs,
    /// The dialler implements another version.
    OtherVersion(u8),
    /// The hello is malformed.
    BadHello,
    /// The dialler's proof is wrong.
    BadProof,
}

/// The encoded verdict of an acceptance.
const ACCEPTED: u8 = 0;

fn verdict_code(verdict: Result<(), Refusal>) -> u8 {
    match verdict {
        Ok(()) => ACCEPTED,
        Err(Refusal::WrongSecret) => 1,
        Err(Refusal::UnknownTarget) => 2,
        Err(Refusal::Busy) => 3,
        Err(Refusal::OtherVersion(_) | Refusal::NotOurs) => 4,
    }
}

fn refusal_of(code: u8) -> Refusal {
    match code {
        1 => Refusal::WrongSecret,
        2 => Refusal::UnknownTarget,
        3 => Refusal::Busy,
        _ => Refusal::NotOurs,
    }
}

fn greeting(nonce: &[u8; NONCE]) -> Vec<u8> {
    [&MAGIC[..], &[VERSION], nonce].concat()
}

/// Checks magic and version, as far as they have arrived. The check does not wait for further bytes if the version differs, because
/// that greeting may be shorter, or if the peer is a stranger. `Err(None)` means that this is no Tieline connection.
fn check_greeting(begun: &[u8]) -> Result<(), Option<u8>> {
    let (magic, rest) = begun.split_at(begun.len().min(MAGIC.len()));
    if magic != &MAGIC[..magic.len()] {
        return Err(None);
    }
    match rest.first() {
        Some(version) if *version != VERSION => Err(Some(*version)),
        _ => Ok(()),
    }
}

/// Parses a whole greeting. The errors are those of [`check_greeting`].
fn read_greeting(bytes: &[u8]) -> Result<[u8; NONCE], Option<u8>> {
    check_greeting(bytes)?;
    bytes.get(MAGIC.len() + 1..).and_then(|nonce| nonce.try_into().ok()).ok_or(None)
}

/// Returns the dialler's refusal for a greeting that it cannot continue from.
fn refusal_of_greeting(version: Option<u8>) -> Refusal {
    version.map_or(Refusal::NotOurs, Refusal::OtherVersion)
}

/// The incoming and outgoing bytes of one side. A read never exceeds the next message: the bytes after the handshake belong to the
/// connection's user.
#[derive(Debug, Default)]
struct Pipe {
    inbox: Vec<u8>,
    expects: usize,
    outbox: Vec<u8>,
}

impl Pipe {
    /// Takes bytes. Returns `true` if the message is complete.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let room = self.expects.saturating_sub(self.inbox.len());
        self.inbox.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.inbox.len() == self.expects
    }

    fn next(&mut self, expects: usize) -> Vec<u8> {
        self.expects = expects;
        std::mem::take(&mut self.inbox)
    }

    fn missing(&self) -> usize {
        self.expects - self.inbox.len()
    }

    fn sent(&mut self, count: usize) {
        drop(self.outbox.drain(..count.min(self.outbox.len())));
    }
}

/// The dialler's side of a handshake.
#[derive(Debug)]
pub struct Dialler {
    key: Key,
    hello: Vec<u8>,
    own: [u8; NONCE],
    other: Option<[u8; NONCE]>,
    pipe: Pipe,
}

impl Dialler {
    /// Begins a handshake. `nonce` is 32 fresh random bytes.
    #[must_use]
    pub fn new(key: Key, hello: &Hello, nonce: [u8; NONCE]) -> Dialler {
        let pipe = Pipe { expects: GREETING, outbox: greeting(&nonce), ..Pipe::default() };
        Dialler { key, hello: hello.pack(), own: nonce, other: None, pipe }
    }

    /// Returns the bytes to send.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.pipe.outbox
    }

    /// Records that `count` of the bytes of [`Dialler::output`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.pipe.sent(count);
    }

    /// Returns the maximum number of bytes that may be read and passed to [`Dialler::receive`] next.
    #[must_use]
    pub fn expects(&self) -> usize {
        self.pipe.missing()
    }

    /// Takes bytes of the acceptor. Returns `true` if the acceptor has accepted and proven itself.
    ///
    /// # Errors
    /// The reason for the refusal. The connection must be closed.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<bool, Refusal> {
        if !self.pipe.take(bytes) {
            if self.other.is_none() {
                check_greeting(&self.pipe.inbox).map_err(refusal_of_greeting)?;
            }
            return Ok(false);
        }
        match self.other {
            None => {
                let challenge = self.pipe.next(ANSWER);
                let other = read_greeting(&challenge).map_err(refusal_of_greeting)?;
                let tag = self.key.tag(&[b"dialler", &self.own, &other, &self.hello]);
                self.pipe.outbox.extend_from_slice(&self.hello);
                self.pipe.outbox.extend_from_slice(&tag.finalize().into_bytes());
                self.other = Some(other);
                Ok(false)
            }
            Some(other) => {
                let answer = self.pipe.next(0);
                let (code, tag) = answer.split_first().ok_or(Refusal::NotOurs)?;
                // A refusal needs no proof: a forged one gains nothing that the forger could not achieve anyway.
                if *code != ACCEPTED {
                    return Err(refusal_of(*code));
                }
                self.key
                    .tag(&[b"acceptor", &self.own, &other, &self.hello, &[*code]])
                    .verify_slice(tag)
                    .map_err(|_| Refusal::NotOurs)?;
                Ok(true)
            }
        }
    }
}

/// The acceptor's side of a handshake.
#[derive(Debug)]
pub struct Acceptor {
    key: Key,
    own: [u8; NONCE],
    step: Step,
    pipe: Pipe,
}

#[derive(Debug)]
enum Step {
    Start,
    Head { other: [u8; NONCE] },
    Rest { other: [u8; NONCE], head: Vec<u8> },
    Proven { other: [u8; NONCE], hello: Vec<u8> },
}

impl Acceptor {
    /// Begins a handshake. `nonce` is 32 fresh random bytes.
    #[must_use]
    pub fn new(key: Key, nonce: [u8; NONCE]) -> Acceptor {
        let pipe = Pipe { expects: GREETING, ..Pipe::default() };
        Acceptor { key, own: nonce, step: Step::Start, pipe }
    }

    /// Returns the bytes to send. After an error, the caller sends what the socket takes without waiting, and then closes the
    /// connection.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.pipe.outbox
    }

    /// Records that `count` of the bytes of [`Acceptor::output`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.pipe.sent(count);
    }

    /// Returns the maximum number of bytes that may be read and passed to [`Acceptor::receive`] next.
    #[must_use]
    pub fn expects(&self) -> usize {
        self.pipe.missing()
    }

    /// Takes bytes of the dialler. Returns the hello once the dialler has proven itself: [`Acceptor::answer`] is then due.
    ///
    /// # Errors
    /// The reason to close the connection.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Hello>, HandshakeError> {
        if !self.pipe.take(bytes) {
            if matches!(self.step, Step::Start) {
                check_greeting(&self.pipe.inbox).map_err(|version| self.refuse(version))?;
            }
            return Ok(None);
        }
        match std::mem::replace(&mut self.step, Step::Start) {
            Step::Start => {
                let start = self.pipe.next(HELLO_HEAD);
                let other = read_greeting(&start).map_err(|version| self.refuse(version))?;
                self.pipe.outbox = greeting(&self.own);
                self.step = Step::Head { other };
                Ok(None)
            }
            Step::Head { other } => {
                let head = self.pipe.next(0);
                let (_, _, len) = Hello::head(&head).ok_or(HandshakeError::BadHello)?;
                self.pipe.expects = len + TAG;
                self.step = Step::Rest { other, head };
                Ok(None)
            }
            Step::Rest { other, mut head } => {
                let rest = self.pipe.next(0);
                let (payload, tag) =
                    rest.split_at_checked(rest.len() - TAG).ok_or(HandshakeError::BadHello)?;
                let (purpose, target, _) = Hello::head(&head).ok_or(HandshakeError::BadHello)?;
                head.extend_from_slice(payload);
                let proof = self.key.tag(&[b"dialler", &other, &self.own, &head]);
                if proof.verify_slice(tag).is_err() {
                    self.step = Step::Proven { other, hello: head };
                    self.answer(Err(Refusal::WrongSecret));
                    return Err(HandshakeError::BadProof);
                }
                self.step = Step::Proven { other, hello: head };
                Ok(Some(Hello { purpose, target, payload: payload.to_vec() }))
            }
            Step::Proven { .. } => Ok(None),
        }
    }

    /// Refuses a greeting that this side cannot continue from.
    fn refuse(&mut self, version: Option<u8>) -> HandshakeError {
        let Some(version) = version else { return HandshakeError::NotOurs };
        // The dialler can then report the version.
        self.pipe.outbox = greeting(&self.own);
        HandshakeError::OtherVersion(version)
    }

    /// Returns, after a wrong proof, the target that the dialler asked for. The target is not proven, so it may only determine the
    /// text of the refusal.
    #[must_use]
    pub fn asked_for(&self) -> Option<[u8; 16]> {
        match &self.step {
            Step::Proven { hello, .. } => Hello::head(hello.get(..HELLO_HEAD)?).map(|head| head.1),
            _ => None,
        }
    }

    /// Changes the pending answer to a wrong proof: no user has that id. A peer with the address of a replaced process then does
    /// not look for a wrong secret.
    pub fn answer_unknown(&mut self) {
        if let Some(at) = self.pipe.outbox.len().checked_sub(ANSWER) {
            self.pipe.outbox[at] = verdict_code(Err(Refusal::UnknownTarget));
        }
    }

    /// Answers the hello; without a hello, the call does nothing.
    pub fn answer(&mut self, verdict: Result<(), Refusal>) {
        let Step::Proven { other, hello } = &self.step else { return };
        let code = verdict_code(verdict);
        self.pipe.outbox.push(code);
        if verdict == Err(Refusal::WrongSecret) {
            self.pipe.outbox.extend_from_slice(&[0; TAG]); // a peer without a proof gets none
            return;
        }
        let tag = self.key.tag(&[b"acceptor", other, &self.own, hello, &[code]]);
        self.pipe.outbox.extend_from_slice(&tag.finalize().into_bytes());
    }
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
