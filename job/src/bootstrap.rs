//! The bootstrap over TCP: rank 0 listens at an address that all ranks know beforehand, and the others connect in any order.
//!
//! ```sh
//! export TIELINE_BOOTSTRAP=nodea:29400 TIELINE_SIZE=2 TIELINE_SECRET_FILE=~/.job-secret
//! TIELINE_RANK=0 ./program        # on nodea
//! TIELINE_RANK=1 ./program        # anywhere
//! ```
//!
//! If the job has a secret, both ends prove that they know the secret. Without a secret only a loopback address is accepted, and
//! the local socket of a Slurm step on one node. The ranks then meet at a local socket with that address in its name, whose ends
//! ask the kernel for each other's user; for a TCP port the kernel does not report the user.
//!
//! Rank 0 serves from a thread named `tieline-bootstrap`, which lives as long as its [`Job`](super::Job): the other ranks must not
//! wait until rank 0 has finished a computation. The thread sleeps while no rank sends anything. When the Job is dropped, the
//! thread sends its final frames, for at most five seconds, and ends.

use super::handshake::{self, NotYet};
use super::link::{Link, late};
use super::process_info::{Secret, refuse};
use super::server::Server;
use super::stream::Stream;
use super::wire::Hello;
use super::{Deadline, Exchange, local};
use crate::{Error, Status};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tieline_plugin_api::process::Mark;

/// The first pause between two attempts to connect; the pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time limit for one attempt to connect.
const ONE_TRY: Duration = Duration::from_secs(3);

/// The time limit for writing the thread's final frames.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The time after which the kernel ends a dead connection.
const SILENCE: Duration = Duration::from_secs(60);

/// The address of the bootstrap, and its credentials.
pub(super) struct Bootstrap {
    /// One or more addresses `host:port`, the same on all ranks.
    addresses: String,
    secret: Vec<u8>,
    /// The name of the variable that contains the addresses.
    variable: &'static str,
    /// The name of the local socket, if Slurm states that all ranks are on one host.
    local: Option<String>,
}

/// Returns a random pause of 20 to 60 ms. Ranks that were turned away together retry at different times.
fn pause_without_room() -> Duration {
    let mut random = [128; 1];
    let _ = tieline_net::random(&mut random);
    Duration::from_millis(20) + Duration::from_millis(40) * u32::from(random[0]) / 255
}

impl Bootstrap {
    /// Makes a bootstrap from the value of `variable` and the job's secret.
    pub(super) fn new(
        addresses: String,
        variable: &'static str,
        secret: Secret<'_>,
    ) -> Result<Bootstrap, Error> {
        for address in addresses.split(',') {
            let good = address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0)
            });
            if !good {
                return Err(Error::new(
                    Status::Invalid,
                    "cannot join the job",
                    format!("{variable} is `{addresses}`"),
                    format!("write host:port, such as {variable}=nodea:29400"),
                ));
            }
        }
        Ok(Bootstrap { addresses, secret: secret()?, variable, local: None })
    }

    /// Makes a bootstrap over a local socket, for a job on one host; `variable` and `addresses` are for error texts.
    pub(super) fn on_this_host(addresses: String, variable: &'static str, name: &str) -> Bootstrap {
        Bootstrap {
            addresses,
            secret: Vec::new(),
            variable,
            local: Some(local::name("slurm", name)),
        }
    }

    /// Joins the bootstrap, and retries while rank 0 does not listen yet.
    pub(super) fn join(&self, hello: Hello, deadline: &Deadline) -> Result<Link, Error> {
        let server = match self.variable {
            "TIELINE_EXCHANGE" => "the launcher",
            _ => "rank 0, which serves the bootstrap,",
        };
        let mut next_pause = FIRST_PAUSE;
        let mut silence = handshake::SILENCE;
        loop {
            let (why, pause) = match self.try_for(&mut silence, deadline) {
                Ok(stream) => return Link::open(stream, hello, server, deadline),
                Err(NotYet::Never(error)) => return Err(error),
                Err(NotYet::TurnedAway(why)) => (why, pause_without_room()),
                Err(NotYet::Later(why)) => {
                    let pause = next_pause;
                    next_pause = (pause * 2).min(LONGEST_PAUSE);
                    (why, pause)
                }
            };
            match deadline.left() {
                Some(left) => std::thread::sleep(pause.min(left)),
                None => {
                    return Err(late(&format!(
                        "{server} at {} ({}) could not be reached within {:?}: {why}",
                        self.addresses, self.variable, deadline.length
                    )));
                }
            }
        }
    }

    /// Tries once, and doubles the time limit of a handshake if the attempt used it up.
    fn try_for(&self, silence: &mut Duration, deadline: &Deadline) -> Result<Stream, NotYet> {
        let begun = Instant::now();
        let tried = self.try_once(deadline, *silence);
        if begun.elapsed() >= *silence {
            *silence *= 2;
        }
        tried
    }

    fn try_once(&self, deadline: &Deadline, silence: Duration) -> Result<Stream, NotYet> {
        let mut why = String::new();
        let mut turned_away = false;
        let timeout = || deadline.left().unwrap_or(Duration::from_millis(1)).min(ONE_TRY);
        if let Some(name) = &self.local {
            return self.try_local(name, timeout());
        }
        for address in self.resolve().map_err(NotYet::Later)? {
            self.check_reach(address.ip())?;
            let timeout = timeout();
            if self.secret.is_empty() {
                match self.try_local(&at(address), timeout) {
                    Err(NotYet::Later(text)) => why = text,
                    outcome => return outcome,
                }
                continue;
            }
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) if is_own_echo(&stream) => why = "nobody listens there yet".into(),
                Ok(stream) => {
                    tieline_net::tune(&stream, SILENCE);
                    match handshake::enter(&stream, &self.secret, deadline, silence) {
                        Ok(()) => return Ok(Stream::Tcp(stream)),
                        Err(NotYet::Later(text)) => why = text,
                        Err(NotYet::TurnedAway(text)) => (why, turned_away) = (text, true),
                        // If there are several addresses, one of them may lead to another host from here.
                        Err(NotYet::Never(error)) if self.addresses.contains(',') => {
                            why = format!("{address}: {}", error.why());
                        }
                        Err(never) => return Err(never),
                    }
                }
                Err(e) => match NotYet::failed(&e) {
                    NotYet::TurnedAway(text) => (why, turned_away) = (text, true),
                    _ => why = e.to_string(),
                },
            }
        }
        Err(if turned_away { NotYet::TurnedAway(why) } else { NotYet::Later(why) })
    }

    fn try_local(&self, name: &str, timeout: Duration) -> Result<Stream, NotYet> {
        match local::connect_any(name, timeout) {
            Ok(stream) => Ok(Stream::Unix(stream)),
            Err(local::Refused::System(e)) => Err(NotYet::Later(format!(
                "{e} (local socket @{name}; a rank 0 that has a secret is only reached with it)"
            ))),
            Err(local::Refused::User(user)) => Err(NotYet::Never(Error::new(
                Status::Permission,
                "cannot join the bootstrap",
                format!("{user} listens on the local socket @{name}"),
                "choose another port in TIELINE_BOOTSTRAP (under Slurm: TIELINE_BOOTSTRAP_PORT), or give every rank \
                 the same TIELINE_SECRET",
            ))),
        }
    }

    fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        let mut all = Vec::new();
        let mut why = String::new();
        for address in self.addresses.split(',') {
            match address.to_socket_addrs() {
                Ok(found) => all.extend(found),
                Err(e) => why = format!("{address}: {e}"),
            }
        }
        if all.is_empty() { Err(why) } else { Ok(all) }
    }

    /// Checks that an address is a loopback address if there is no secret.
    fn check_reach(&self, ip: IpAddr) -> Result<(), NotYet> {
        if !self.secret.is_empty() || ip.is_loopback() {
            return Ok(());
        }
        Err(NotYet::Never(self.needs_secret(ip)))
    }

    fn needs_secret(&self, ip: IpAddr) -> Error {
        Error::new(
            Status::Invalid,
            "cannot join the job",
            format!(
                "{} is {}, where other hosts reach it ({ip}), and there is no secret",
                self.variable, self.addresses
            ),
            "give every rank the same TIELINE_SECRET, or a TIELINE_SECRET_FILE with the same content \
             (under Slurm: set it before srun, or use `srun --mpi=pmix`)",
        )
    }

    /// Starts the server of the exchange, and joins it as rank 0.
    pub(super) fn serve(&self, hello: Hello, deadline: &Deadline) -> Result<Hosted, Error> {
        let failed = |e: std::io::Error| {
            Error::new(Status::Io, "cannot serve the bootstrap", e.to_string(), "")
        };
        let mut server = Server::new(hello.size as usize, &hello.job)?;
        self.listen(&mut server)?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        server.adopt(theirs).map_err(failed)?;
        let link = Link::open(Stream::Unix(ours), hello, "the bootstrap thread", deadline)?;
        let thread = std::thread::Builder::new()
            .name("tieline-bootstrap".into())
            .spawn(move || run(server))
            .map_err(failed)?;
        Ok(Hosted { link: Some(link), thread: Some(thread), process: Mark::new() })
    }

    fn listen(&self, server: &mut Server) -> Result<(), Error> {
        if let Some(name) = &self.local {
            return self.listen_local(server, [name.clone()]);
        }
        let found = self.resolve().map_err(|why| {
            cannot(why, "see that the name in TIELINE_BOOTSTRAP is known on rank 0's host")
        })?;
        if self.secret.is_empty() {
            return match found.iter().find(|a| !a.ip().is_loopback()) {
                Some(address) => Err(self.needs_secret(address.ip())),
                None => self.listen_local(server, found.into_iter().map(at)),
            };
        }
        let (host, port) = self.addresses.rsplit_once(':').unwrap_or_default();
        let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let mut wanted = found;
        // A name may resolve to another address on this host than on other hosts (127.0.1.1 in /etc/hosts): listen on all
        // addresses.
        if !literal && host != "localhost" {
            let port = port.parse().unwrap_or(0);
            wanted = vec![
                SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), // accepts IPv4, too
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            ];
        }
        let mut last = None;
        for address in wanted {
            match TcpListener::bind(address) {
                Ok(listener) => return server.listen_tcp(listener, &self.secret),
                Err(e) => last = Some((address, e)),
            }
        }
        let Some((address, e)) = last else {
            return Err(cannot(format!("{} names no address", self.addresses), ""));
        };
        let fix = match e.kind() {
            std::io::ErrorKind::AddrInUse => IN_USE,
            std::io::ErrorKind::AddrNotAvailable => {
                "TIELINE_BOOTSTRAP must name the host on which rank 0 runs"
            }
            _ => "choose another port in TIELINE_BOOTSTRAP",
        };
        Err(cannot(format!("{address}: {e}"), fix))
    }

    /// Listens on one local socket for every address of the name: `localhost` has two.
    fn listen_local(
        &self,
        server: &mut Server,
        names: impl IntoIterator<Item = String>,
    ) -> Result<(), Error> {
        for name in names {
            server
                .listen_named(&name)
                .map_err(|e| cannot(format!("local socket @{name}: {e}"), IN_USE))?;
        }
        Ok(())
    }
}

const IN_USE: &str = "choose another port in TIELINE_BOOTSTRAP, or end what listens on this one";

fn cannot(why: String, fix: &str) -> Error {
    Error::new(Status::Io, "rank 0 cannot open the bootstrap", why, fix)
}

/// Returns the name of the local socket for an address of this host.
fn at(address: SocketAddr) -> String {
    // Processes of earlier versions use this name.
    local::name("rendezvous", &address.to_string())
}

/// Checks whether a connection is connected to itself, which can happen for a free port of this host.
fn is_own_echo(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(a), Ok(b)) if a == b)
}

/// The thread of the exchange.
fn run(mut server: Server) {
    serve(&mut server);
    // The address is free for another job, although a forked child may hold a copy of the listener. That of a local socket keeps
    // its name, so that the next job uses another one (`local::names`).
    server.stop_listening();
}

/// Serves until rank 0 has left, and then until all ranks were notified, for at most [`LAST_WORDS`].
fn serve(server: &mut Server) {
    let mut joined = false;
    while !joined || server.has(0) {
        if server.turn(&[], None).is_err() {
            return; // the connections close, which the other ranks detect
        }
        joined |= server.has(0);
    }
    let last = Deadline::new(LAST_WORDS);
    while !server.is_flushed() {
        let Some(left) = last.left() else { return };
        if server.turn(&[], Some(left)).is_err() {
            return;
        }
    }
}

/// Rank 0's link, and the thread that serves the exchange.
pub(super) struct Hosted {
    link: Option<Link>,
    thread: Option<JoinHandle<()>>,
    /// A forked child does not have the thread.
    process: Mark,
}

impl Hosted {
    fn link(&self) -> Result<&Link, Error> {
        self.link.as_ref().ok_or_else(|| Error::from_status(Status::Closed))
    }
}

impl Exchange for Hosted {
    fn allgather(&self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        self.link()?.allgather(mine, deadline)
    }

    fn publish(&self, key: u32, bytes: &[u8], deadline: &Deadline) -> Result<(), Error> {
        self.link()?.publish(key, bytes, deadline)
    }

    fn lookup(&self, rank: usize, key: u32, deadline: &Deadline) -> Result<Vec<u8>, Error> {
        self.link()?.lookup(rank, key, deadline)
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        // The thread ends when its only connection to this process closes.
        drop(self.link.take());
        match self.thread.take() {
            Some(thread) if self.process.is_here() => drop(thread.join()),
            thread => std::mem::forget(thread),
        }
    }
}

/// Makes the error of [`refuse`] for a job with an unknown kind of exchange.
pub(super) fn unknown_exchange(spoken: &str) -> Error {
    refuse(format!(
        "TIELINE_EXCHANGE is `{spoken}` and TIELINE_BOOTSTRAP is not set: there is no route to the other ranks"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(addresses: &str, secret: &str) -> Result<Bootstrap, Error> {
        let secret = secret.as_bytes().to_vec();
        Bootstrap::new(addresses.into(), "TIELINE_BOOTSTRAP", &|| Ok(secret.clone()))
    }

    #[test]
    fn each_address_has_a_host_and_a_port() {
        for good in ["nodea:1", "a:65535", "[::1]:9", "a:1,b:2"] {
            assert!(made(good, "").is_ok(), "{good}");
        }
        for bad in ["", "nodea", ":1", "a:0", "a:65536", "a:x", "a:1,", "a:1,b"] {
            let error = made(bad, "").err().map(|error| error.to_string());
            let words = format!(
                "cannot join the job: TIELINE_BOOTSTRAP is `{bad}`; write host:port, such as TIELINE_BOOTSTRAP=nodea:29400"
            );
            assert_eq!(error, Some(words));
        }
    }

    #[test]
    fn without_a_secret_nothing_leaves_this_host() {
        let reaches = |ip: &str, secret: &str| {
            let made = made("a:1", secret).unwrap();
            match made.check_reach(ip.parse().unwrap()) {
                Ok(()) => String::new(),
                Err(NotYet::Never(error)) => error.why().to_owned(),
                Err(NotYet::Later(why) | NotYet::TurnedAway(why)) => panic!("{why}"),
            }
        };
        assert_eq!(
            [reaches("127.0.0.1", ""), reaches("::1", ""), reaches("10.0.0.1", "s")],
            ["", "", ""]
        );
        let words = "TIELINE_BOOTSTRAP is a:1, where other hosts reach it (10.0.0.1), and there is no secret";
        assert_eq!(reaches("10.0.0.1", ""), words);
    }

    #[test]
    fn silent_listener_gets_longer_limits_and_an_absent_one_does_not() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let bootstrap = made(&listener.local_addr().unwrap().to_string(), "s").unwrap();
        let deadline = Deadline::new(Duration::from_secs(100));
        let mut silence = Duration::from_millis(10);
        for _ in 0..3 {
            let tried = bootstrap.try_for(&mut silence, &deadline);
            assert!(matches!(tried, Err(NotYet::Later(why)) if why.contains("says nothing")));
        }
        assert_eq!(silence, Duration::from_millis(80));
        drop(listener);
        silence = Duration::from_secs(50);
        assert!(bootstrap.try_for(&mut silence, &deadline).is_err());
        assert_eq!(silence, Duration::from_secs(50));
    }
}
