//! Interfaces of others, by their names in the fabric: the library's number for each, and packets that wait for it.
//!
//! None is ever taken out of the library's table while the endpoint lives. The two sides of a pair keep numbers of what they
//! have exchanged, and who forgets them alone is not understood any more: EFA's aborts the other process (read in efa_rdm_msg.c,
//! efa_base_ep.c), and `ofi_rxm` closes a connection in which something may lie unread.

use crate::sys::Av;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;
use tieline_plugin_api::{Failure, Status};

/// Names at most.
const MOST: usize = 1 << 16;

pub(super) struct Peer {
    /// The library's number.
    pub(super) number: u64,
    /// Packets that the library has, and puts and gets.
    pub(super) sends: usize,
    /// Those of the packets that are the application's messages.
    pub(super) messages: usize,
    pub(super) transfers: usize,
    /// Packets that it has not taken: slots, their lengths, and the channel's token where it is a hello.
    pub(super) waiting: VecDeque<(u32, usize, Option<u64>)>,
    /// Since when it takes none though it has none, and when it was last asked.
    pub(super) refused: Option<(Instant, Instant)>,
    /// Something has gone there or come from there: there is a connection.
    pub(super) formed: bool,
}

impl Peer {
    /// Whether the library has nothing for it.
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
    /// The peer of that name.
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
