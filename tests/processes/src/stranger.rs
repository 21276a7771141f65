//! The role `stranger`: a host on the network that does not implement the protocol. Its answers have the form of a node's answers.

use crate::interpreter::hex;
use crate::parent::Parent;
use crate::sys;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A time limit that is longer than a retransmission takes after a link came up, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The wait for a peer that is not expected to answer.
const MOMENT: Duration = Duration::from_millis(500);

/// Runs the role `stranger`.
pub fn stranger(parent: Parent) {
    let mut held = Vec::new();
    let mut listeners = Vec::new();
    while let Some(order) = parent.hear() {
        let words: Vec<&str> = order.split(' ').collect();
        let address = |word: &str| -> SocketAddr { word.parse().expect("ADDRESS:PORT") };
        let answer = match words[..] {
            // `call` tests whether that address answers.
            ["call", to] => {
                TcpStream::connect_timeout(&address(to), PATIENCE).map(|_| "reached".to_string())
            }
            // `try` tests an address that should not answer.
            ["try", to] => {
                TcpStream::connect_timeout(&address(to), MOMENT).map(|_| "reached".to_string())
            }
            // `listen` occupies a port, and accepts no connection.
            ["listen", at] => TcpListener::bind(address(at)).and_then(|listener| {
                let bound = listener.local_addr()?.to_string();
                listeners.push(listener);
                Ok(bound)
            }),
            // `speak` runs a listener of another version of the handshake: it answers each greeting with a greeting of its own
            // version.
            ["speak", at, version] => {
                let version = version.parse().expect("a version");
                TcpListener::bind(address(at)).map(|listener| {
                    drop(std::thread::spawn(move || speak(&listener, version)));
                    String::new()
                })
            }
            // `greet` connects with another version of the handshake, and returns the answer.
            ["greet", to, version] => greet(address(to), version.parse().expect("a version")),
            // `garbage` sends meaningless bytes until the other side closes; returns the number of bytes that were accepted.
            ["garbage", to, len] => garbage(address(to), len.parse().expect("bytes")),
            // `slow` makes up to `count` connections that send one byte and stay open. Returns the number of connections.
            ["slow", to, count] => {
                let count: usize = count.parse().expect("how many");
                let call = |_| {
                    let mut stream = TcpStream::connect_timeout(&address(to), PATIENCE).ok()?;
                    stream.write_all(b"T").ok().map(|()| stream)
                };
                held.extend((0..count).map_while(call));
                Ok(held.len().to_string())
            }
            // `drip` sends one more byte on each connection, and returns the number of connections that are still open.
            ["drip"] => {
                held.retain_mut(|stream| is_open(stream) && stream.write_all(b"L").is_ok());
                Ok(held.len().to_string())
            }
            // `await-closed` waits until the other side has closed all connections.
            ["await-closed"] => {
                for stream in &mut held {
                    let _ = stream.set_read_timeout(None);
                    while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
                }
                held.clear();
                Ok(String::new())
            }
            _ => panic!("{words:?} is no order"),
        };
        let now = sys::now_ns();
        match answer {
            Ok(text) => parent.say(&format!("ok {now} {text}")),
            Err(e) => parent.say(&format!("error {now} {:?} System {e}", e.kind())),
        }
    }
}

fn greeting(version: u8) -> Vec<u8> {
    [&b"TLN"[..], &[version], &[7; 32]].concat()
}

fn speak(listener: &TcpListener, version: u8) {
    for mut stream in listener.incoming().flatten() {
        let _ = stream.write_all(&greeting(version));
        while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
    }
}

fn greet(to: SocketAddr, version: u8) -> Result<String, std::io::Error> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.write_all(&greeting(version))?;
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said)?;
    Ok(hex(&said))
}

fn garbage(to: SocketAddr, len: usize) -> Result<String, std::io::Error> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_write_timeout(Some(MOMENT))?;
    let bytes: Vec<u8> =
        (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut sent = 0;
    while sent < len {
        match stream.write(&bytes[..bytes.len().min(len - sent)]) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    Ok(sent.to_string())
}

fn is_open(stream: &mut TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let open = match stream.read(&mut [0; 4096]) {
        Ok(n) => n > 0,
        Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
    };
    let _ = stream.set_nonblocking(false);
    open
}
