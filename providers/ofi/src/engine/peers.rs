//! Interfaces of others, by their names in the fabric: the library's number for each, and packets that wait for it.

use crate::sys::Av;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;
use tieline_plugin_api::Failure;

/// Names that nobody uses are kept, since who removes one ends its connection, so many of them.
const KEPT: usize = 64;

pub(super) struct Peer {
    name: Vec<u8>,
    /// The library's number.
    pub(super) number: u64,
    /// Channels that lead there, or come from there.
    pub(super) channels: usize,
    /// Packets that the library has.
    pub(super) posted: usize,
    /// Packets that it has not taken: slots, their lengths, and the channel's token where it is a hello.
    pub(super) waiting: VecDeque<(u32, usize, Option<u64>)>,
    /// Since when it takes none though it has none, and when it was last asked.
    pub(super) refused: Option<(Instant, Instant)>,
}

#[derive(Default)]
pub(super) struct Peers {
    all: Vec<Option<Peer>>,
    by_name: HashMap<Vec<u8>, usize>,
    /// Those without channels, oldest first.
    idle: VecDeque<usize>,
}

impl Peers {
    /// The peer of that name, which has one more channel.
    pub(super) fn join(&mut self, av: &Av, name: &[u8]) -> Result<usize, Failure> {
        let index = match self.by_name.get(name) {
            Some(&index) => index,
            None => {
                let peer = Peer {
                    name: name.to_vec(),
                    number: av.insert(name)?,
                    channels: 0,
                    posted: 0,
                    waiting: VecDeque::new(),
                    refused: None,
                };
                let free = self.all.iter().position(Option::is_none);
                let index = free.unwrap_or(self.all.len());
                match self.all.get_mut(index) {
                    Some(place) => *place = Some(peer),
                    None => self.all.push(Some(peer)),
                }
                let _ = self.by_name.insert(name.to_vec(), index);
                index
            }
        };
        self.idle.retain(|idle| *idle != index);
        if let Some(peer) = self.get(index) {
            peer.channels += 1;
        }
        Ok(index)
    }

    /// A channel of the peer has ended.
    pub(super) fn leave(&mut self, av: &Av, index: usize) {
        let Some(peer) = self.get(index) else { return };
        peer.channels -= 1;
        if peer.channels > 0 {
            return;
        }
        self.idle.push_back(index);
        if self.idle.len() <= KEPT {
            return;
        }
        let quiet = |index: &usize| {
            self.all[*index]
                .as_ref()
                .is_some_and(|peer| peer.posted == 0 && peer.waiting.is_empty())
        };
        let Some(at) = self.idle.iter().position(quiet) else { return };
        let Some(index) = self.idle.remove(at) else { return };
        if let Some(peer) = self.all[index].take() {
            av.remove(peer.number);
            let _ = self.by_name.remove(&peer.name);
        }
    }

    #[inline]
    pub(super) fn get(&mut self, index: usize) -> Option<&mut Peer> {
        self.all.get_mut(index)?.as_mut()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.all.iter().enumerate().filter_map(|(index, peer)| Some((index, peer.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }
}
