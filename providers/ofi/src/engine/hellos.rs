//! Sending channels until their receiver has answered the hello.
//!
//! A hello may be lost with a connection that the library replaces without notice, as any message may. The receiver detects the
//! loss of a message when the next one arrives. After a hello nothing is sent until the answer, so the hello is repeated. A
//! receiver that has already seen the hello answers again.

use super::channels::Outbound;
use super::packets::place;
use super::{Engine, MAX_IDENTITY, token};
use crate::address::Address;
use crate::wire::{Greeting, Head, Kind, hello};
use core::time::Duration;
use std::time::Instant;
use tieline_plugin_api::{Failure, Status};

/// The time between the departure of a hello and its repetition.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// A hello that has not been answered.
pub(super) struct Unanswered {
    since: Instant,
    said: Instant,
    /// The channel that the hello opens, and the channel's token.
    at: usize,
    token: u64,
    head: Head,
    rest: Vec<u8>,
}

impl Engine {
    /// Opens a channel and returns its number.
    pub(crate) fn connect(
        &mut self,
        peer: &Address,
        identity: &[u8],
        cookie: u64,
    ) -> Result<usize, Failure> {
        if let Some(failure) = &self.broken {
            return Err(failure.clone());
        }
        if identity.len() > MAX_IDENTITY {
            let text = format!("an identity of {} bytes is beyond {MAX_IDENTITY}", identity.len());
            return Err(Failure::new(Status::TooLarge, text));
        }
        let (own, index) = (token()?, self.peers.join(&self.ep.av, &peer.name)?);
        let channel = Outbound::new(cookie, index, own, peer);
        let at = place(&mut self.outbound, channel);
        let mut head = Head::new(Kind::Hello, 0, peer.epoch);
        head.id = at as u32;
        let (epoch, name) = (self.address.epoch, self.address.name.as_slice());
        let rest = hello(&Greeting { token: own, epoch, name, identity });
        self.meet(peer.epoch, peer.watch.as_ref());
        self.say(index, &head, &rest);
        let now = Instant::now();
        self.unanswered.push_back(Unanswered { since: now, said: now, at, token: own, head, rest });
        Ok(at)
    }

    /// Checks whether the channel still waits for the answer to this hello.
    fn is_awaited(&self, hello: &Unanswered) -> bool {
        self.outbound[hello.at].as_ref().is_some_and(|channel| {
            channel.token == hello.token
                && channel.open
                && channel.remote.is_none()
                && channel.failed.is_none()
        })
    }

    /// Fails channels whose hello has been unanswered for too long. Repeats hellos that the library has delivered or lost.
    pub(super) fn expire(&mut self) {
        let (patience, pause, now) = (self.settings.connect_timeout, self.pause, Instant::now());
        for mut hello in core::mem::take(&mut self.unanswered) {
            if !self.is_awaited(&hello) {
                continue;
            }
            if now - hello.since >= patience {
                let text = format!(
                    "the peer has not answered within {patience:?} (TIELINE_CONNECT_TIMEOUT)"
                );
                self.fail_channel(hello.at, &Failure::new(Status::TimedOut, text));
                continue;
            }
            let index = self.outbound[hello.at].as_ref().map_or(usize::MAX, |channel| channel.peer);
            // The hello has left if no operation to the peer is under way and no packet waits for the peer.
            let has_left = self.peers.get(index).is_some_and(|peer| {
                peer.is_idle() && peer.waiting.is_empty() && peer.refused.is_none()
            });
            if !has_left {
                hello.said = now;
            } else if now - hello.said >= pause {
                hello.said = now;
                self.say(index, &hello.head, &hello.rest);
            }
            self.unanswered.push_back(hello);
        }
    }

    /// Returns the time at which the next hello must be repeated or expires.
    pub(super) fn next_hello(&self) -> Option<Instant> {
        let (patience, pause) = (self.settings.connect_timeout, self.pause);
        self.unanswered.iter().map(|hello| (hello.since + patience).min(hello.said + pause)).min()
    }
}
