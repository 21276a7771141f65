//! The handling of the ends of peers' processes, which `watch` detects.

use super::Engine;
use crate::watch::{Ended, Watch};
use std::time::{Duration, Instant};
use tieline_net::Contact;
use tieline_plugin_api::{Failure, Status};

/// The intervals of checks on the processes of peers: while a connection or an end is in progress, and otherwise.
const SOON: Duration = Duration::from_millis(1);
const NOW_AND_THEN: Duration = Duration::from_millis(10);
/// The time without arrivals after which the channels of an ended process fail. Messages that the process had sent may still be in
/// the library, or in the kernel's buffers that the library's threads read.
const QUIET: Duration = Duration::from_millis(200);

/// The state of the watch on peers' processes.
pub(super) struct Vigil {
    pub(super) watch: Watch,
    looked: Instant,
    /// Whether a connection or an end was in progress at the last check. If so, every poll checks again.
    busy: bool,
    /// The processes that have ended, and the time at which each was last heard from.
    dying: Vec<(Ended, Instant)>,
}

impl Vigil {
    pub(super) fn new(watch: Watch) -> Vigil {
        Vigil { watch, looked: Instant::now(), busy: false, dying: Vec::new() }
    }

    fn is_busy(&self) -> bool {
        !self.dying.is_empty() || self.watch.is_dialling()
    }
}

impl Engine {
    /// Records that a channel to or from that interface begins.
    pub(super) fn meet(&mut self, epoch: u64, contact: Option<&Contact>) {
        if let Some(vigil) = &mut self.vigil {
            vigil.watch.join(epoch, contact);
            vigil.busy = true;
        }
    }

    /// Records that a channel to or from that interface has ended.
    pub(super) fn part(&mut self, epoch: u64) {
        if let Some(vigil) = &mut self.vigil {
            vigil.watch.leave(epoch);
        }
    }

    /// Records that a message has arrived on a channel of that interface.
    #[inline]
    pub(super) fn heard(&mut self, epoch: u64) {
        let Some(vigil) = &mut self.vigil else { return };
        for (_, last) in vigil.dying.iter_mut().filter(|dying| dying.0.epoch == epoch) {
            *last = Instant::now();
        }
    }

    /// Checks whether each poll has to call `watch_over`.
    #[inline]
    pub(super) fn watches_closely(&self) -> bool {
        let is_busy = self.vigil.as_ref().map_or(!self.ghosts.is_empty(), |vigil| vigil.busy);
        is_busy || !self.unanswered.is_empty()
    }

    /// Checks the processes of peers if a check is due. `empty` states whether the last read of the library's queue found nothing.
    #[inline]
    pub(super) fn watch_over(&mut self, empty: bool, is_due: bool) {
        if empty && !self.unanswered.is_empty() {
            self.expire();
        }
        if !self.ghosts.is_empty() && self.vigil.is_none() {
            // Nothing reports whether these peers live. After the failure timeout, no operation of theirs is expected to land.
            let patience = self.settings.failure_timeout;
            self.lay(|ghost| ghost.since.elapsed() >= patience);
        }
        if self.vigil.as_ref().is_some_and(|vigil| is_due || vigil.busy) {
            self.watch_now(empty, false);
        }
    }

    /// Checks the processes of peers like `watch_over`. With `at_once`, checks even if no check is due.
    pub(super) fn watch_now(&mut self, empty: bool, at_once: bool) {
        let Some(vigil) = &mut self.vigil else { return };
        let now = Instant::now();
        vigil.busy = vigil.is_busy();
        let pause = if vigil.busy { SOON } else { NOW_AND_THEN };
        if !at_once && now - vigil.looked < pause {
            return;
        }
        vigil.looked = now;
        for ended in vigil.watch.turn(now) {
            vigil.dying.push((ended, now));
            vigil.busy = true;
        }
        if !empty {
            return;
        }
        let (over, dying): (Vec<_>, Vec<_>) =
            core::mem::take(&mut vigil.dying).into_iter().partition(|dying| now - dying.1 >= QUIET);
        vigil.dying = dying;
        for (ended, _) in over {
            self.fail_process(ended.epoch, &Failure::new(ended.status, ended.words));
        }
    }

    /// Returns the time until a sleeper must wake for the next check.
    pub(super) fn next_look(&self) -> Option<Duration> {
        let dying = |vigil: &Vigil| !vigil.dying.is_empty();
        if self.vigil.as_ref().is_some_and(dying) {
            return Some(super::TICK);
        }
        let hello = self.next_hello();
        let dial = self.vigil.as_ref().and_then(|vigil| vigil.watch.next_turn());
        let left = |at: Instant| at.saturating_duration_since(Instant::now()).max(super::TICK);
        hello.into_iter().chain(dial).min().map(left)
    }

    /// Fails all channels to and from an interface that has ended.
    fn fail_process(&mut self, epoch: u64, why: &Failure) {
        let there = |channel: &Option<super::Outbound>| {
            channel.as_ref().filter(|channel| channel.epoch == epoch).map(|channel| channel.peer)
        };
        let from = |inbound: &Option<super::Inbound>| {
            inbound.as_ref().filter(|inbound| inbound.epoch == epoch).map(|inbound| inbound.peer)
        };
        // An orderly close is no failure.
        let status = if why.status == Status::Closed { 0 } else { why.status as i32 };
        let mut peers: Vec<usize> = self.outbound.iter().filter_map(there).collect();
        peers.extend(self.inbound.iter().filter_map(from));
        for at in 0..self.outbound.len() {
            if there(&self.outbound[at]).is_some() {
                self.fail_channel(at, why);
            }
        }
        for at in 0..self.inbound.len() {
            if from(&self.inbound[at]).is_some() {
                self.inbound_left(at, status, &why.text, true);
            }
        }
        self.lay(|ghost| ghost.epoch == epoch);
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            // Another process may have taken that address, and have channels.
            let is_open = self
                .outbound
                .iter()
                .flatten()
                .any(|channel| channel.peer == peer && channel.failed.is_none())
                || self
                    .inbound
                    .iter()
                    .flatten()
                    .any(|inbound| inbound.peer == peer && !inbound.left);
            if !is_open {
                self.drop_waiting(peer);
            }
        }
    }
}
