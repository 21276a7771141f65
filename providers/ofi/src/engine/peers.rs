//! The interfaces of peers, by their names in the fabric: the library's number for each, and the packets that wait for it.
//!
//! An entry stays in the library's table while the endpoint lives. Both sides of a pair number their packets, and removing an entry
//! would reset the numbers of one side only. EFA then aborts the other process (source: efa_rdm_msg.c, efa_base_ep.c). `ofi_rxm`
//! closes a connection that may hold unread messages.

use crate::sys::Av;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;
use tieline_plugin_api::{Failure, Status};

/// The maximum number of names.
const MOST: usize = 1 << 16;

pub(super) struct Peer {
    /// The library's number for the peer.
    pub(super) number: u64,
    /// The number of packets to the peer that the library holds; puts and gets are in `transfers`.
    pub(super) sends: usize,
    /// The number of these packets that are messages of the application.
    pub(super) messages: usize,
    pub(super) transfers: usize,
    /// The packets that the library has not accepted: slots, lengths, and the channel's token if the packet is a hello.
    pub(super) waiting: VecDeque<(u32, usize, Option<u64>)>,
    /// The time since which the library refuses packets although it holds none for this peer, and the time of the last attempt.
    pub(super) refused: Option<(Instant, Instant)>,
    /// Whether the library has completed a packet to the peer: there is a connection.
    pub(super) formed: bool,
}

impl Peer {
    /// Checks whether the library holds nothing for this peer.
    pub(super) fn is_idle(&self) -> bool {
        self.sends + self.transfers == 0
    }
}

#[derive(Default)]
pub(super) struct Peers {
    all: Vec<Peer>,
    by_name: HashMap<Vec<u8>, usize>,
}

impl Peers {
    /// Returns the peer of that name, and adds it if it is new.
    pub(super) fn join(&mut self, av: &Av, name: &[u8]) -> Result<usize, Failure> {
        if let Some(&index) = self.by_name.get(name) {
            return Ok(index);
        }
        if self.all.len() >= MOST {
            let text = format!("this interface has had {MOST} peers, and forgets none");
            return Err(Failure::new(Status::NoMemory, text));
        }
        let peer = Peer {
            number: av.insert(name)?,
            sends: 0,
            messages: 0,
            transfers: 0,
            waiting: VecDeque::new(),
            refused: None,
            formed: false,
        };
        self.all.push(peer);
        let _ = self.by_name.insert(name.to_vec(), self.all.len() - 1);
        Ok(self.all.len() - 1)
    }

    pub(super) fn knows(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    #[inline]
    pub(super) fn get(&mut self, index: usize) -> Option<&mut Peer> {
        self.all.get_mut(index)
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.all.iter().enumerate()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
