//! The networks between the hosts: a switch of Unix datagram sockets, so that no packet of the lab reaches a network of this
//! machine.
//!
//! A datagram is a frame. The sixth byte of a host's address is the number of its port on the switch.

use crate::sh::{Outcome, on};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of networks; each host has a link on each network.
pub(super) const NETWORKS: usize = 2;

pub(super) fn mac(network: usize, host: usize) -> String {
    format!("52:54:00:77:{network:02x}:{host:02x}")
}

pub(super) fn host_end(folder: &Path, network: usize, host: usize) -> PathBuf {
    folder.join(format!("n{network}h{host}"))
}

pub(super) fn switch_end(folder: &Path, network: usize, host: usize) -> PathBuf {
    folder.join(format!("n{network}s{host}"))
}

/// Starts the switches, with a thread per link. The threads end with the process.
pub(super) fn start(folder: &Path, hosts: usize) -> Outcome {
    for network in 0..NETWORKS {
        for host in 0..hosts {
            let path = switch_end(folder, network, host);
            let socket = on(&path, UnixDatagram::bind(&path))?;
            on(&path, socket.set_write_timeout(Some(PATIENCE)))?;
            let others: Vec<_> = (0..hosts).map(|other| host_end(folder, network, other)).collect();
            let _ = std::thread::spawn(move || forward(&socket, host, &others));
        }
    }
    Ok(())
}

/// The time for which a frame waits for a host that accepts no frames. A busy host accepts its frames later, which slows down the
/// sender. A host whose link is down never accepts a frame, and its broadcasts must not block the links of other hosts.
const PATIENCE: Duration = Duration::from_millis(20);

/// Forwards the frames that one host sends. Frames for a host that is not running are dropped, as on a real switch.
fn forward(socket: &UnixDatagram, from: usize, others: &[PathBuf]) {
    let mut frame = vec![0; 1 << 17];
    while let Ok(len) = socket.recv(&mut frame) {
        let frame = &frame[..len];
        let Some(&first) = frame.first() else { return };
        if first & 1 == 1 {
            for (_, other) in others.iter().enumerate().filter(|(host, _)| *host != from) {
                let _ = socket.send_to(frame, other);
            }
        } else if let Some(other) = frame.get(5).and_then(|port| others.get(usize::from(*port))) {
            let _ = socket.send_to(frame, other);
        }
    }
}
