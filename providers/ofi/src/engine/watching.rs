//! The ends of peers' processes, as those are watched.

use super::Engine;
use crate::watch::{Ended, Watch};
use std::time::{Duration, Instant};
use tieline_net::Contact;
use tieline_plugin_api::{Failure, Status};

/// How often the processes of peers are looked after: while something is going on there, and otherwise.
const SOON: Duration = Duration::from_millis(1);
const NOW_AND_THEN: Duration = Duration::from_millis(10);
/// Polls that bring nothing between looks at the clock.
const POLLS: u32 = 16;
/// For so long nothing must have come of a process that has ended: what it had sent may be in the library, or in the kernel's
/// buffers, of which the library's threads read.
const QUIET: Duration = Duration::from_millis(200);

/// What an interface knows of processes.
pub(super) struct Vigil {
    pub(super) watch: Watch,
    polls: u32,
    looked: Instant,
    /// Something is going on, as far as was known at the last look: every poll asks.
    busy: bool,
    /// Processes that have ended, and when something of each was last heard.
    dying: Vec<(Ended, Instant)>,
}

impl Vigil {
    pub(super) fn new(watch: Watch) -> Vigil {
        Vigil { watch, polls: 0, looked: Instant::now(), busy: false, dying: Vec::new() }
    }

    fn is_busy(&self) -> bool {
        !self.dying.is_empty() || self.watch.is_dialling()
    }
}

impl Engine {
    /// A channel to that interface begins, or one from it.
    pub(super) fn meet(&mut self, epoch: u64, contact: Option<&Contact>) {
        if let Some(vigil) = &mut self.vigil {
            vigil.watch.join(epoch, contact);
            vigil.busy = true;
        }
    }

    /// It has ended.
    pub(super) fn part(&mut self, epoch: u64) {
        if let Some(vigil) = &mut self.vigil {
            vigil.watch.leave(epoch);
        }
    }

    /// Something has come over a channel of that interface.
    #[inline]
    pub(super) fn heard(&mut self, epoch: u64) {
        let Some(vigil) = &mut self.vigil else { return };
        for (_, last) in vigil.dying.iter_mut().filter(|dying| dying.0.epoch == epoch) {
            *last = Instant::now();
        }
    }

    /// Looks after the processes of peers, if that is due. `empty`: the library has had nothing for us just now.
    #[inline]
    pub(super) fn watch_over(&mut self, empty: bool) {
        if empty && !self.unanswered.is_empty() {
            self.expire();
        }
        if !self.ghosts.is_empty() && self.vigil.is_none() {
            // Nobody tells whether they live: one that has not heard of it by now hears no more.
            let patience = self.settings.failure_timeout;
            self.lay(|ghost| ghost.since.elapsed() >= patience);
        }
        let Some(vigil) = &mut self.vigil else { return };
        vigil.polls = vigil.polls.wrapping_add(1);
        if vigil.polls % POLLS == 0 || vigil.busy {
            self.watch_now(empty, false);
        }
    }

    /// The same, also where it is not due.
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

    /// When a sleeper has to look again.
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

    /// An interface is gone, and with it all channels that lead there or come from there.
    fn fail_process(&mut self, epoch: u64, why: &Failure) {
        let there = |channel: &Option<super::Outbound>| {
            channel.as_ref().filter(|channel| channel.epoch == epoch).map(|channel| channel.peer)
        };
        let from = |inbound: &Option<super::Inbound>| {
            inbound.as_ref().filter(|inbound| inbound.epoch == epoch).map(|inbound| inbound.peer)
        };
        // Who has closed in good order is no failure.
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
            // Another process may have that address now, and channels with it.
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
