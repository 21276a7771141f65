//! Connections being established.

use std::rc::Rc;
use std::time::Instant;

use tieline_net::{Contact, Dial, Hello, Progress, routes};
use tieline_plugin_api::Status;

use super::{PURPOSE, Peers};
use crate::connector::key_of;

/// A connection being established.
pub(super) struct Dialling {
    pub(super) dial: Dial,
    peer: Rc<[u8]>,
}

impl Peers {
    pub(super) fn dial(&mut self, key: &Rc<[u8]>) {
        let begun = Contact::parse(key).map_err(|why| why.to_string()).and_then(|contact| {
            let ways = routes(self.hub().local(), &contact)?;
            let hello = Hello::new(PURPOSE, contact.target, &self.own)?;
            // The attempt ends before the caller's deadline, so that the caller learns the reason of a failure.
            let deadline = Instant::now() + self.connect_timeout / 8 * 7;
            Ok(Dial::start(ways, key_of(&self.secret, &contact), hello, deadline))
        });
        match begun {
            Ok(dial) => {
                let token = self.token();
                let peer = Rc::clone(key);
                if let Some(entry) = self.peers.get_mut(key) {
                    entry.dial = Some(token);
                }
                let _ = self.dials.insert(token, Dialling { dial, peer });
                self.advance(token, Instant::now());
            }
            Err(why) => self.give_up(key, Status::Unreachable, &why),
        }
    }

    /// Advances a connection attempt.
    pub(super) fn advance(&mut self, token: u64, now: Instant) {
        let Some(dialling) = self.dials.get_mut(&token) else { return };
        // The dial may close its socket for the next one. That ends the watching only if no forked child holds a copy.
        dialling.dial.fd().iter().for_each(|fd| self.poller.forget(*fd));
        let progress = match dialling.dial.advance(now) {
            Progress::Waiting => {
                let dial = &dialling.dial;
                match self.poller.watch(dial.fd().unwrap_or(-1), dial.wants(), token) {
                    Ok(()) => return,
                    Err(error) => Progress::Failed(format!("waiting for a socket: {error}")),
                }
            }
            over => over,
        };
        let Some(Dialling { peer: key, dial, .. }) = self.dials.remove(&token) else { return };
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.dial = None;
        }
        match progress {
            Progress::Done(stream) => {
                if !dial.failures().is_empty() {
                    let there =
                        stream.peer_addr().map_or_else(|_| "another".into(), |at| at.to_string());
                    let failures = dial.failures().join("; ");
                    self.detours.push(format!("{failures}; {there} is used instead"));
                }
                self.adopt(stream, key, false);
            }
            Progress::Failed(why) => {
                let status = if dial.is_refused() {
                    Status::PeerFailed
                } else if dial.is_wrong_secret() {
                    Status::Permission
                } else if dial.is_other_version() {
                    Status::Unsupported
                } else if dial.is_starved() {
                    Status::NoMemory
                } else {
                    Status::Unreachable
                };
                self.give_up(&key, status, &why);
            }
            Progress::Waiting => {}
        }
    }

    /// Reports that no route leads to a peer, unless the peer has connected to this side meanwhile.
    fn give_up(&mut self, key: &Rc<[u8]>, status: Status, why: &str) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.sending.is_some() {
            return;
        }
        peer.queue.clear();
        peer.queued = 0;
        let words = format!("no address of the peer can be reached: {why}");
        self.left(key, status, words);
        self.serve(key);
    }
}
