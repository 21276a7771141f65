//! The queues that all connections of an interface share: made when the first of them comes, grown, shared out.

use super::*;

/// Places in a completion queue that cannot grow are enough for so many endpoints that use all of their sends; of more, each
/// has fewer, and no fewer than these, nor than it takes to get into as many pieces as there may be ([`fewest_sends`]).
const FIXED_FOR: usize = 64;
/// One that can grow has places for all sends up to this many, 8 MiB of them; beyond it for so many of each endpoint.
const WIDE: usize = 1 << 17;
const SHARED_SENDS: usize = 16;
const FEWEST_SENDS: usize = 4;

/// A get into more pieces than the device reads into at once is as many sends.
fn fewest_sends(domain: &DomainState) -> usize {
    FEWEST_SENDS.max(domain.max_iov.div_ceil(domain.max_read_pieces.max(1)))
}

/// A completion queue with so many places, and whether it can grow: if not, it has as many as it will ever need.
fn completion_queue(domain: &DomainState, entries: usize) -> Result<(Cq, bool), Failure> {
    let make = |entries: usize| Cq::new(&domain.device, entries.min(domain.max_cqe));
    let cq = make(entries)?;
    if cq.resize(cq.capacity()).is_ok() {
        return Ok((cq, true));
    }
    drop(cq);
    let settings = &domain.settings;
    // For as many as use all of their sends, or for as many as there may be that use few.
    let all = FIXED_FOR * (settings.tx_depth + RESERVE);
    let own = if domain.shares_receives { 0 } else { settings.window + CONTROL };
    let few = settings.connections.saturating_mul(fewest_sends(domain) + RESERVE + own);
    let large = settings.rx_buffers.saturating_add(all.max(few));
    let cq = make(large).or_else(|_| make(settings.rx_buffers + all)).or_else(|_| make(entries))?;
    Ok((cq, false))
}

impl State {
    /// Makes the queues of the device, unless they are there. A worker opens every device and uses few, and what is never used
    /// costs neither memory nor a look.
    ///
    /// # Errors
    /// Why the device does not make them: nothing is left of the try, and who comes next tries again.
    pub(super) fn open_queues(&mut self) -> Result<(), Failure> {
        if self.cq.is_some() {
            return Ok(());
        }
        let open = |state: &mut State| {
            let settings = &state.domain.settings;
            let entries = settings.rx_buffers + 4 * (settings.tx_depth + RESERVE);
            let (cq, grows) = completion_queue(&state.domain, entries)?;
            // Who sleeps already has asked for no wake-up from here.
            cq.arm()?;
            let queue = Receives::queue(&state.domain, CHUNK)?;
            state.sleep.watch(&cq)?;
            state.receives.open(queue);
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

    /// Places of the completion queue.
    pub(super) fn places(&self) -> usize {
        self.cq.as_ref().map_or(0, Cq::capacity)
    }

    /// Has the completion queue made for more.
    fn resize(&self, entries: usize) -> Result<(), Failure> {
        self.cq.as_ref().map_or(Ok(()), |cq| cq.resize(entries))
    }

    /// Room in the completion queue for everything that can complete at once, with one connection more. How many sends that one
    /// may have.
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
        // Of so many few send much at once: what there is they share.
        let each = RESERVE + depth.min(SHARED_SENDS);
        let entries = (receives + connections * each).next_power_of_two().max(WIDE);
        let entries = entries.min(self.domain.max_cqe);
        if entries > self.places() {
            self.resize(entries)?;
        }
        self.shares = true;
        loop {
            let shared = self.share_completions(1);
            // Those that are there have not ended what they have on the way.
            let (had, most) = (self.places(), self.domain.max_cqe);
            if shared.is_ok() || had >= most || self.resize((had * 2).min(most)).is_err() {
                return shared;
            }
            if self.places() <= had {
                return shared;
            }
        }
    }

    /// Receives that can complete at once, with `more` connections to come.
    fn receives_at_most(&self, more: usize) -> usize {
        let settings = &self.domain.settings;
        let there = settings.rx_buffers.next_multiple_of(CHUNK).max(self.receives.total());
        match self.receives.shared() {
            Some(_) => there,
            // Buffers are made for it, whole chunks of them.
            None => there + more * (settings.window + CONTROL + CHUNK),
        }
    }

    /// Where the completion queue cannot grow, its places are shared by all connections: what each may have on the way. How
    /// much that is for one of `more` that are to come.
    pub(super) fn share_completions(&mut self, more: usize) -> Result<usize, Failure> {
        // What has ended takes no place.
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
            // It waits for one of them: so the device is asked to tell.
            let _ = self.keepalive(slot);
        }
        let left = room.saturating_sub(taken).saturating_sub(RESERVE);
        match share.min(left) {
            depth if depth >= fewest => Ok(depth.min(self.domain.settings.tx_depth)),
            _ if more == 0 => Ok(0),
            _ => {
                // What the others have let go of for it they get back.
                self.share_later = true;
                // Where there could be a longer one it is as long as the buffers ask for, and where each has its own there are more
                // of them than the setting says.
                let shared = self.receives.shared().is_some();
                let lower = match shared && self.places() >= self.domain.max_cqe {
                    true => "TIELINE_VERBS_RX_BUFFERS, or TIELINE_VERBS_CONNECTIONS",
                    false => "TIELINE_VERBS_CONNECTIONS",
                };
                let text = format!(
                    "the completion queue of {} has {} places and cannot have more, which is not enough for {connections} \
                     endpoints: lower {lower}, so that others serve the rest",
                    self.domain.name.device,
                    self.places()
                );
                Err(Failure::new(Status::NoMemory, text))
            }
        }
    }
}
