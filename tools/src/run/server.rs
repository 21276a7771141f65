//! The launcher's socket: a thin shell of I/O around [`Gather`].
//!
//! The name is abstract and random, so that nothing lies in a file system; a process of another user, or one
//! that does not know the job's identity, gets a closed socket.

use super::gather::{Gather, Tell};
use crate::{sys, system_error};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};
use tieline::Error;
use tieline::job::wire::{CONTRIBUTION_LIMIT, Decoder, Frame};

/// How long a process may take to read what it waits for before it is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long after a hang-up the process's end may follow, which is the better reason to tell.
const HANG_UP_GRACE: Duration = Duration::from_millis(200);

pub(super) struct Server {
    listener: UnixListener,
    name: String,
    job: String,
    gather: Gather,
    connections: Vec<Connection>,
    hung_up: Option<(usize, Instant)>,
}

struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    rank: Option<usize>,
    open: bool,
}

impl Server {
    pub(super) fn listen(size: usize) -> Result<Server, Error> {
        let failed = |e: &std::io::Error| {
            system_error(
                "cannot open the exchange of the job",
                e,
                "check the limit of open files (ulimit -n)",
            )
        };
        let job = random_hex().map_err(|e| failed(&e))?;
        let name = format!("tieline-{}", random_hex().map_err(|e| failed(&e))?);
        let listen = || {
            let address = SocketAddr::from_abstract_name(name.as_bytes())?;
            let listener = UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|e| failed(&e))?;
        Ok(Server {
            listener,
            name,
            job,
            gather: Gather::new(size),
            connections: Vec::new(),
            hung_up: None,
        })
    }

    /// The job's identity: `TIELINE_JOB`.
    pub(super) fn job(&self) -> &str {
        &self.job
    }

    /// Where processes find us: `TIELINE_EXCHANGE`.
    pub(super) fn exchange(&self) -> String {
        format!("unix:@{}", self.name)
    }

    /// The descriptors to wait on.
    pub(super) fn fds(&self) -> Vec<RawFd> {
        let connections = self.connections.iter().map(|c| c.stream.as_raw_fd());
        std::iter::once(self.listener.as_raw_fd()).chain(connections).collect()
    }

    /// Accepts, reads and answers; `ready` is in the order of [`Server::fds`].
    pub(super) fn serve(&mut self, ready: &[bool]) {
        for (index, _) in ready.iter().enumerate().skip(1).filter(|(_, ready)| **ready) {
            self.read(index - 1);
        }
        self.connections.retain(|c| c.open);
        if ready.first() == Some(&true) {
            self.accept();
        }
    }

    /// A process ended: whoever waits for it is told how.
    pub(super) fn ended(&mut self, text: &str) {
        let told = self.gather.gone(text);
        self.tell(told);
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let ours = sys::user_of(&stream).is_ok_and(|user| user == sys::user());
            if ours && stream.set_write_timeout(Some(WRITE_TIMEOUT)).is_ok() {
                let decoder = Decoder::new(CONTRIBUTION_LIMIT);
                self.connections.push(Connection { stream, decoder, rank: None, open: true });
            }
        }
    }

    fn read(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let mut buffer = vec![0; 64 << 10];
        // The descriptor is readable, so this blocks not; what does not fit is there at the next turn.
        match connection.stream.read(&mut buffer) {
            Ok(n) if n > 0 => connection.decoder.push(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => return,
            _ => return self.hung_up(index),
        }
        loop {
            match self.connections[index].decoder.next() {
                Ok(Some(frame)) => {
                    if let Err(why) = self.heard(index, frame) {
                        return self.refuse(index, why);
                    }
                }
                Ok(None) => return,
                Err(why) => return self.refuse(index, why),
            }
        }
    }

    fn heard(&mut self, index: usize, frame: Frame) -> Result<(), String> {
        match (frame, self.connections[index].rank) {
            (Frame::Hello { rank, job }, None) => {
                let rank = rank as usize;
                if job != self.job {
                    return Err("TIELINE_JOB is not this job's".into());
                }
                if self.connections.iter().any(|c| c.open && c.rank == Some(rank)) {
                    return Err(format!(
                        "rank {rank} has joined already: keep one Job per process"
                    ));
                }
                if !self.gather.has(rank) {
                    return Err(format!("there is no rank {rank} in this job"));
                }
                self.connections[index].rank = Some(rank);
                Ok(())
            }
            (Frame::Contribute { round, bytes }, Some(rank)) => {
                let told = self.gather.contribute(rank, round, bytes)?;
                self.tell(told);
                Ok(())
            }
            _ => Err("a frame out of turn".into()),
        }
    }

    fn hung_up(&mut self, index: usize) {
        self.connections[index].open = false;
        if let (Some(rank), None) = (self.connections[index].rank, self.hung_up) {
            self.hung_up = Some((rank, Instant::now() + HANG_UP_GRACE));
        }
    }

    /// When [`Server::expire`] wants to be called.
    pub(super) fn expires_at(&self) -> Option<Instant> {
        self.hung_up.map(|(_, at)| at)
    }

    /// Tells of a process that hung up and yet runs on.
    pub(super) fn expire(&mut self) {
        if let Some((rank, at)) = self.hung_up {
            if Instant::now() >= at {
                self.hung_up = None;
                self.ended(&format!("rank {rank} has left the exchange"));
            }
        }
    }

    fn refuse(&mut self, index: usize, text: String) {
        let connection = &mut self.connections[index];
        connection.open = false;
        let _ = connection.stream.write_all(&Frame::Lost { text }.encode());
    }

    fn tell(&mut self, told: Vec<Tell>) {
        for (rank, frame) in told {
            let to = self.connections.iter_mut().find(|c| c.open && c.rank == Some(rank));
            if let Some(connection) = to {
                // One that is dying cannot be told; its end is reported on its own.
                let _ = connection.stream.write_all(&frame.encode());
            }
        }
    }
}

/// 128 random bits.
fn random_hex() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
