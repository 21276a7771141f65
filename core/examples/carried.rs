//! Connections whose wire-up datagrams the application carries, in this example over its own UDP sockets. Rank 0 greets the other
//! ranks.
//!
//! `TIELINE_PROVIDERS=tcp TIELINE_CONNECT=oob tieline run -n 2 -- target/release/examples/carried`

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use tieline::{Context, Error, Job, Outcome, Status, Worker};

const GREETING: u16 = 1;
/// The size of the receive buffer: larger than the longest datagram of wire-up.
const ROOM: usize = 16 << 10;

fn failed(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(Status::Invalid, what, error.to_string(), "")
}

/// Binds a socket, and returns it with the address at which the other processes of the job find it.
fn socket() -> std::io::Result<(UdpSocket, SocketAddr)> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_nonblocking(true)?;
    // The route to the bootstrap address selects the interface; nothing is sent.
    let names = ["TIELINE_BOOTSTRAP", "TIELINE_RENDEZVOUS"]; // the second is the earlier name
    let towards = names.into_iter().find_map(|name| std::env::var(name).ok());
    let towards = towards.unwrap_or_else(|| "127.0.0.1:9".into());
    let probe = UdpSocket::bind("0.0.0.0:0")?;
    probe.connect(towards)?;
    let at = SocketAddr::new(probe.local_addr()?.ip(), socket.local_addr()?.port());
    Ok((socket, at))
}

/// Lets the worker send datagrams through the socket. Losses are allowed: the library retransmits.
fn carry(worker: &Worker, socket: &Rc<UdpSocket>, here: SocketAddr) -> Result<(), Error> {
    let out = socket.clone();
    worker.set_out_of_band(here.to_string().as_bytes(), move |to, datagram| {
        let to = std::str::from_utf8(to).ok().and_then(|to| to.parse::<SocketAddr>().ok());
        to.is_some_and(|to| out.send_to(datagram, to).is_ok())
    })
}

/// Delivers the datagrams of the socket, and makes progress.
fn turn(worker: &Worker, socket: &UdpSocket) {
    let mut datagram = [0; ROOM];
    while let Ok((length, _)) = socket.recv_from(&mut datagram) {
        // Any process may send to a socket: a datagram that is not the library's is rejected.
        let _ = worker.deliver_out_of_band(&datagram[..length]);
    }
    let _ = worker.progress();
}

fn main() -> Result<(), Error> {
    let job = Job::from_env()?;
    let context = Context::builder().out_of_band(true).open()?;
    let worker = context.worker()?;
    let (socket, here) = socket().map_err(|e| failed("there is no socket", e))?;
    let socket = Rc::new(socket);
    match carry(&worker, &socket, here) {
        // For example over shared memory only, or with tcp-connect first in TIELINE_CONNECT.
        Err(error) if error.status() == Status::Unsupported => {
            println!("rank {}: nothing here needs to be carried", job.rank());
        }
        result => result?,
    }
    let greeted = Rc::new(Cell::new(false));
    let seen = greeted.clone();
    worker.on_message(GREETING, move |_| seen.set(true))?;

    let addresses = job.exchange(&worker.address()?)?;
    if job.rank() == 0 {
        for (rank, address) in addresses.iter().enumerate().skip(1) {
            let peer = worker.connect(address)?;
            println!("rank 0 reaches rank {rank} by {}", peer.path());
            let mut sent = peer.send(GREETING, 0, b"carried")?;
            while let Outcome::Pending(request) = sent {
                turn(&worker, &socket);
                match worker.test(&request) {
                    Some(done) => sent = Outcome::Done(done?),
                    None => sent = Outcome::Pending(request),
                }
            }
        }
    } else {
        while !greeted.get() {
            turn(&worker, &socket);
        }
        println!("rank {} was greeted", job.rank());
    }
    job.barrier_while(|| {
        turn(&worker, &socket);
        Ok(())
    })
}
