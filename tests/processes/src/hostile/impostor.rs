//! A peer that presents its own memory as that of another worker.

use super::wire::{Target, record};
use crate::forge;
use crate::sys::{self, Memory};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};

const PAGE: usize = 4096;
/// The number of entries in the table of keys. An entry has four words (number, length, rights, zero).
const ENTRIES: usize = 16 << 10;
const ENTRY: usize = 32;
const ORDERS: i32 = 0;

/// An impostor: a copy of the owner's address that names the impostor's socket, and the memory and key table that it presents as
/// the owner's.
pub(super) struct Impostor {
    /// A copy of the owner's address with another socket and another worker's number.
    pub(super) address: Vec<u8>,
    listener: UnixListener,
    socket: Vec<u8>,
    connections: Vec<UnixStream>,
    /// The memory that the impostor presents as the owner's.
    pub(super) memory: Memory,
    table: Memory,
}

impl Impostor {
    /// Impersonates the worker with this address, for the worker's memory with this key.
    ///
    /// # Errors Returns the system's error.
    ///
    /// # Panics
    /// Panics if the key has no part of shm, or if the worker's socket has no directory.
    pub(super) fn of(address: &[u8], key: &[u8]) -> io::Result<Impostor> {
        let target = Target::of(address);
        assert!(!target.is_abstract(), "its name would be taken");
        let mut forged = address.to_vec();
        let mut socket = target.socket.clone();
        // In the name tieline-0123456789abcdef.sock, one digit of the number is changed.
        let digit = socket.len() - b".sock".len() - 1;
        socket[digit] = if socket[digit] == b'0' { b'1' } else { b'0' };
        forged[forge::candidate(address, b"shm").end - b".sock".len() - 1] = socket[digit];
        let forged = forge::flipped(&forged, forge::worker(address).start, 1);

        // The fields of the key: domain, number, place in the table, length, rights.
        let domain = key.windows(16).position(|id| id == target.domain).expect("a key of shm's");
        let word = |at: usize| u64::from_le_bytes(key[at..at + 8].try_into().expect("8 bytes"));
        let (number, len, rights) = (word(domain + 16), word(domain + 28), word(domain + 36));
        let place = word(domain + 24) as u32 as usize;
        let table = Memory::sealed(ENTRIES * ENTRY)?;
        for (at, value) in [number, len, rights].into_iter().enumerate() {
            table.store(place * ENTRY + at * 8, value);
        }
        let memory = Memory::sealed((len as usize).next_multiple_of(PAGE))?;
        let listener = sys::listen_unix(&socket)?;
        Ok(Impostor { address: forged, listener, socket, connections: Vec::new(), memory, table })
    }

    /// Accepts connections and answers requests for memory, until `enough` returns true. Returns the number of requests.
    pub(super) fn serve(&mut self, enough: impl Fn() -> bool) -> usize {
        let mut asked = 0;
        while !enough() {
            let sockets = self.connections.iter().map(AsRawFd::as_raw_fd);
            let others = [ORDERS, self.listener.as_raw_fd()];
            let _ = sys::readable(&others.into_iter().chain(sockets).collect::<Vec<_>>(), None);
            if let Ok((socket, _)) = self.listener.accept() {
                self.connections.extend(socket.set_nonblocking(true).map(|()| socket));
            }
            let (memory, table) = (&self.memory, &self.table);
            self.connections.retain(|mut socket| {
                let mut said = [0; 8192];
                match socket.read(&mut said) {
                    Ok(0) => false,
                    Ok(_) if said[0] == record::KEY_REQUEST => {
                        asked += 1;
                        answer(socket, &said[1..9], memory, table).is_ok()
                    }
                    _ => true,
                }
            });
        }
        asked
    }
}

fn answer(socket: &UnixStream, number: &[u8], memory: &Memory, table: &Memory) -> io::Result<()> {
    let mut reply = vec![record::KEY_REPLY];
    reply.extend(number);
    reply.extend((memory.len() as u64).to_le_bytes());
    reply.extend((table.len() as u64).to_le_bytes());
    reply.push(1); // writable
    let socket = OwnedFd::from(socket.try_clone()?);
    sys::send_record(&socket, &reply, &[memory.file(), table.file()])
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(std::ffi::OsStr::from_bytes(&self.socket));
    }
}
