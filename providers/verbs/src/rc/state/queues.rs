//! The queues that all connections of an interface share: made at the first connection, grown, and divided among connections.

use super::*;

/// The number of endpoints at full send depth for which a completion queue that cannot grow should have entries. With more
/// endpoints, each gets a smaller share. A share is never below [`FEWEST_SENDS`] nor below the sends that a get with the maximum
/// number of pieces needs ([`fewest_sends`]).
const FIXED_FOR: usize = 64;
/// The size up to which a resizable queue has entries for all sends (8 MiB). Beyond this size, the queue gets entries for
/// `SHARED_SENDS` sends of each endpoint.
const WIDE: usize = 1 << 17;
const SHARED_SENDS: usize = 16;
const FEWEST_SENDS: usize = 4;

/// Returns the smallest useful share of a completion queue. A get with more pieces than one read accepts takes several sends.
fn fewest_sends(domain: &DomainState) -> usize {
    FEWEST_SENDS.max(domain.max_iov.div_ceil(domain.max_read_pieces.max(1)))
}

/// Makes a completion queue with this number of entries. Returns whether the queue can be resized. If not, the queue is made as
/// large as may be needed later, or smaller if the device refuses that.
fn completion_queue(domain: &DomainState, entries: usize) -> Result<(Cq, bool), Failure> {
    let make = |entries: usize| Cq::new(&domain.device, entries.min(domain.max_cqe));
    let cq = make(entries)?;
    if cq.resize(cq.capacity()).is_ok() {
        return Ok((cq, true));
    }
    drop(cq);
    let settings = &domain.settings;
    // The entries suffice for `FIXED_FOR` endpoints at full depth, or for the maximum number of endpoints at the smallest share.
    let all = FIXED_FOR * (settings.tx_depth + RESERVE);
    let own = if domain.shares_receives { 0 } else { settings.window + CONTROL };
    let few = settings.connections.saturating_mul(fewest_sends(domain) + RESERVE + own);
    let large = settings.rx_buffers.saturating_add(all.max(few));
    let cq = make(large).or_else(|_| make(settings.rx_buffers + all)).or_else(|_| make(entries))?;
    Ok((cq, false))
}

impl State {
    /// Makes the device's queues, unless they exist. A worker may open more devices than it uses, and an unused device costs no
    /// polls and hardly any memory.
    ///
    /// # Errors
    /// The device cannot make the queues. Nothing remains of the attempt, and the next connection tries again.
    pub(super) fn open_queues(&mut self) -> Result<(), Failure> {
        if self.cq.is_some() {
            return Ok(());
        }
        let open = |state: &mut State| {
            let settings = &state.domain.settings;
            let entries = settings.rx_buffers + 4 * (settings.tx_depth + RESERVE);
            let (cq, grows) = completion_queue(&state.domain, entries)?;
            // A thread that is already asleep has not armed this queue.
            cq.arm()?;
            let queue = Receives::queue(&state.domain, CHUNK)?;
            state.sleep.watch(&cq)?;
            state.receives.open(queue);
            let cq = Rc::new(cq);
            state.quiet.open(cq.clone());
            (state.cq, state.grows) = (Some(cq), grows);
            Ok(())
        };
        open(self).map_err(|failure: Failure| {
            let port = self.domain.name.words();
            let text = format!(
                "{port} cannot be used now, the next connection tries again: {}",
                failure.text
            );
            Failure::new(failure.status, text)
        })
    }

    /// Returns the capacity of the completion queue.
    pub(super) fn places(&self) -> usize {
        self.cq.as_ref().map_or(0, |cq| cq.capacity())
    }

    /// Resizes the completion queue.
    fn resize(&self, entries: usize) -> Result<(), Failure> {
        self.cq.as_ref().map_or(Ok(()), |cq| cq.resize(entries))
    }

    /// Provides completion queue entries for everything that can be outstanding with one more connection. Returns the send limit of
    /// that connection.
    pub(super) fn provide_completions(&mut self) -> Result<usize, Failure> {
        let settings = &self.domain.settings;
        let depth = settings.tx_depth;
        let connections = self.live + 1;
        let receives = self.receives_at_most(1);
        let need = receives + self.cleanup.stale() + connections * (depth + RESERVE);
        if need <= self.places() {
            return Ok(depth);
        }
        if !self.grows {
            self.shares = true;
            return self.share_completions(1);
        }
        if need <= WIDE.min(self.domain.max_cqe) {
            let entries = need.next_power_of_two().min(self.domain.max_cqe);
            return self.resize(entries).map(|()| depth);
        }
        // Among this number of endpoints few send at the same time, so the endpoints share the entries.
        let each = RESERVE + depth.min(SHARED_SENDS);
        let entries = (receives + connections * each).next_power_of_two().max(WIDE);
        let entries = entries.min(self.domain.max_cqe);
        if entries > self.places() {
            self.resize(entries)?;
        }
        self.shares = true;
        loop {
            let shared = self.share_completions(1);
            // The existing connections may still have more sends outstanding than their new share.
            let (had, most) = (self.places(), self.domain.max_cqe);
            if shared.is_ok() || had >= most || self.resize((had * 2).min(most)).is_err() {
                return shared;
            }
            if self.places() <= had {
                return shared;
            }
        }
    }

    /// Returns the number of receives that can be outstanding, with `more` future connections.
    fn receives_at_most(&self, more: usize) -> usize {
        let settings = &self.domain.settings;
        let there = settings.rx_buffers.next_multiple_of(CHUNK).max(self.receives.total());
        match self.receives.shared() {
            Some(_) => there,
            // The buffers of a connection are allocated in whole chunks.
            None => there + more * (settings.window + CONTROL + CHUNK),
        }
    }

    /// Divides the entries of the completion queue among all connections, as their send limits. Returns the share of one of `more`
    /// future connections.
    pub(super) fn share_completions(&mut self, more: usize) -> Result<usize, Failure> {
        // Sends whose completion has been read need no entry.
        let _ = self.catch_up(None);
        let receives = self.receives_at_most(more);
        let room = self.places().saturating_sub(receives + self.cleanup.stale());
        let connections = self.live + more;
        let share = (room / connections.max(1)).saturating_sub(RESERVE);
        let fewest = fewest_sends(&self.domain);
        let mut taken = 0;
        let mut silent = Vec::new();
        for connection in self.connections.iter_mut().flatten() {
            if connection.queue.limit(share.max(fewest)) {
                silent.push(connection.own.slot);
            }
            taken += connection.queue.completions();
        }
        for slot in silent {
            // The queue of this connection is full of unsignalled sends. A keepalive is signalled, so the device reports the end of
            // these sends.
            let _ = self.keepalive(slot);
        }
        let left = room.saturating_sub(taken).saturating_sub(RESERVE);
        match share.min(left) {
            depth if depth >= fewest => Ok(depth.min(self.domain.settings.tx_depth)),
            _ if more == 0 => Ok(0),
            _ => {
                // The other connections get back the share that they gave up for the failed connection.
                self.share_later = true;
                // In a queue of the maximum length, fewer receive buffers leave more entries for sends. With own receive queues,
                // the setting does not bound the number of buffers.
                let shared = self.receives.shared().is_some();
                let lower = match shared && self.places() >= self.domain.max_cqe {
                    true => "TIELINE_VERBS_RX_BUFFERS, or TIELINE_VERBS_CONNECTIONS",
                    false => "TIELINE_VERBS_CONNECTIONS",
                };
                let text = format!(
                    "the completion queue of {} has {} entries and cannot have more, which is not enough for {connections} \
                     endpoints: lower {lower}, so that others serve the rest",
                    self.domain.name.device,
                    self.places()
                );
                Err(Failure::new(Status::NoMemory, text))
            }
        }
    }
}
