//! The receives of an interface: in one queue that all endpoints share or, if the device has no shared receive queues, in a
//! queue per connection.
//!
//! A buffer is queued for posting, posted, held by the application, or free. With a shared queue, the connection of a posted buffer
//! is unknown until its completion. With a queue per connection, the queue pair of each posted buffer is recorded (its *owner*).
//! After that queue pair is reset or destroyed, all of its buffers are reclaimed, whatever the device reported. The stamp of a
//! posting then identifies later completions as stale.

use super::connection::{Connection, receive_id};
use crate::abi::ibv_sge;
use crate::buffers::Pool;
use crate::queue_pair::{NotReceived, Receive, Srq};
use crate::shared::DomainState;
use std::collections::HashMap;
use tieline_plugin_api::{Failure, Status};

/// The number of receives for control messages, which cost no credit: in a connection's own queue, or counted for the connection in
/// the shared queue.
pub(super) const CONTROL: usize = 4;
/// The slot number for buffers without a connection.
pub(super) const NOBODY: u32 = u32::MAX;

/// The receives that a device rejected: the slots of their connections, or `None` for the shared queue.
pub(super) struct Refused {
    pub(super) slots: Option<Vec<u32>>,
    pub(super) failure: Failure,
}

/// The queues of an interface's receives.
pub(super) enum Queues {
    /// No queue exists yet, because no endpoint has connected.
    Unmade,
    Shared(Srq),
    Own(Owners),
}

/// The buffers in the queues of the connections.
#[derive(Default)]
pub(super) struct Owners {
    /// The queue pair with the posted buffer and the stamp of the posting, for each buffer.
    of: Vec<Option<(u32, u32)>>,
    /// The number of buffers posted per queue pair.
    posted: HashMap<u32, usize>,
    /// The buffers to post, each with the slot of its connection.
    to_post: Vec<(u32, u32)>,
    stamp: u32,
}

/// The receive queues and their buffers. The queues are dropped first.
pub(super) struct Receives {
    queues: Queues,
    pool: Pool,
    to_post: Vec<Receive>,
}

impl Receives {
    /// Makes the state without buffers and without a queue; [`Receives::open`] sets the queue. Buffers are allocated `chunk` at a
    /// time.
    pub(super) fn new(domain: &DomainState, size: usize, chunk: usize) -> Receives {
        let most = domain.settings.rx_buffers;
        let pool = Pool::new(&domain.buffers, size, chunk, most);
        Receives { queues: Queues::Unmade, pool, to_post: Vec::new() }
    }

    /// Makes the shared queue. If the device has no shared queues, makes the record of the connections' own queues.
    pub(super) fn queue(domain: &DomainState, chunk: usize) -> Result<Queues, Failure> {
        let most = domain.settings.rx_buffers;
        match Srq::new(&domain.pd, most.next_multiple_of(chunk)) {
            Ok(srq) => Ok(Queues::Shared(srq)),
            Err(_) if !domain.shares_receives => Ok(Queues::Own(Owners::default())),
            // The device supports shared queues but cannot make this one: the limit on queues is reached, or memory is exhausted.
            Err(failure) => Err(failure),
        }
    }

    /// Sets the queues for receives.
    pub(super) fn open(&mut self, queues: Queues) {
        if matches!(queues, Queues::Own(_)) {
            self.pool.unbounded();
        }
        self.queues = queues;
    }

    /// Returns the shared queue, if there is one.
    pub(super) fn shared(&self) -> Option<&Srq> {
        match &self.queues {
            Queues::Shared(srq) => Some(srq),
            Queues::Own(_) | Queues::Unmade => None,
        }
    }

    /// Checks whether `queue` in an event is the shared queue.
    pub(super) fn is(&self, queue: Option<usize>) -> bool {
        self.shared().is_some_and(|srq| srq.is(queue))
    }

    #[inline]
    pub(super) fn bytes(&self, buffer: u32, len: usize) -> &[u8] {
        self.pool.bytes(buffer, len)
    }

    pub(super) fn committed(&self) -> usize {
        self.pool.committed()
    }

    pub(super) fn total(&self) -> usize {
        self.pool.total()
    }

    /// Queues buffers for posting. With a shared queue, allocates up to `want` buffers and queues all free ones. With own queues,
    /// queues `more` buffers for this connection.
    pub(super) fn provide(&mut self, want: usize, more: usize, slot: u32) -> Result<(), Failure> {
        if let Queues::Own(owners) = &mut self.queues {
            for made in 0..more {
                match self.pool.take() {
                    Ok(buffer) => owners.to_post.push((slot, buffer)),
                    // The connection works with fewer buffers, only slower.
                    Err(_) if made >= CONTROL => break,
                    Err(status) => return Err(status.into()),
                }
            }
            return Ok(());
        }
        while self.pool.total() < want {
            match self.pool.grow() {
                Err(failure) if failure.status == Status::Again => break,
                // The interface works with fewer buffers, only slower.
                Err(_) if self.pool.total() > 0 => break,
                other => other?,
            }
        }
        while let Some(buffer) = self.pool.take_made() {
            self.again(buffer, NOBODY);
        }
        Ok(())
    }

    /// Records a completion, and returns two facts: whether the completion belongs to the buffer's current posting, which then
    /// ends; and the queue pair, if it has no posted buffer any more.
    #[inline]
    pub(super) fn came(&mut self, buffer: u32, stamp: u32) -> (bool, Option<u32>) {
        match &mut self.queues {
            Queues::Shared(_) => (true, None),
            Queues::Unmade => (false, None),
            Queues::Own(owners) => owners.came(buffer, stamp),
        }
    }

    /// Queues a buffer for posting again, for the connection of this slot.
    #[inline]
    pub(super) fn again(&mut self, buffer: u32, slot: u32) {
        match &mut self.queues {
            Queues::Shared(_) => {
                let sge = self.pool.whole(buffer);
                self.to_post.push(Receive { id: receive_id(buffer, 0), sge });
            }
            Queues::Own(owners) => owners.to_post.push((slot, buffer)),
            Queues::Unmade => self.pool.give(buffer),
        }
    }

    #[inline]
    pub(super) fn has_none_to_post(&self) -> bool {
        match &self.queues {
            Queues::Shared(_) => self.to_post.is_empty(),
            Queues::Own(owners) => owners.to_post.is_empty(),
            Queues::Unmade => true,
        }
    }

    /// Posts the queued receives. Buffers for ended connections become free.
    ///
    /// # Errors
    /// The device rejected some receives. Those of a shared queue stay queued; the buffers of an own queue become free.
    pub(super) fn post(&mut self, connections: &[Option<Box<Connection>>]) -> Result<(), Refused> {
        let owners = match &mut self.queues {
            Queues::Unmade => return Ok(()),
            Queues::Own(owners) => owners,
            Queues::Shared(srq) => {
                let Err(NotReceived { taken, failure }) = srq.post(&self.to_post) else {
                    self.to_post.clear();
                    return Ok(());
                };
                drop(self.to_post.drain(..taken));
                return Err(Refused { slots: None, failure });
            }
        };
        let mut refused = Ok(());
        owners.to_post.sort_unstable_by_key(|&(slot, _)| slot);
        let list = core::mem::take(&mut owners.to_post);
        for of_one in list.chunk_by(|(a, _), (b, _)| a == b) {
            let connection = connections.get(of_one[0].0 as usize).and_then(Option::as_deref);
            let Some(qp) = connection.and_then(|connection| connection.qp.as_ref()) else {
                of_one.iter().for_each(|&(_, buffer)| self.pool.give(buffer));
                continue;
            };
            let (qpn, pool) = (qp.number(), &self.pool);
            let receives: Vec<Receive> = of_one
                .iter()
                .map(|&(_, buffer)| owners.posted(buffer, qpn, pool.whole(buffer)))
                .collect();
            let Err(NotReceived { taken, failure }) = qp.post_receives(&receives) else { continue };
            for &(_, buffer) in &of_one[taken..] {
                let _ = owners.is_posted_no_more(buffer);
                self.pool.give(buffer);
            }
            let mut all = match refused {
                Ok(()) => Vec::new(),
                Err(Refused { slots, .. }) => slots.unwrap_or_default(),
            };
            all.push(of_one[0].0);
            refused = Err(Refused { slots: Some(all), failure });
        }
        refused
    }

    /// Returns the number of buffers posted to a queue pair; `None` without own queues, because a shared queue does not record this
    /// number.
    pub(super) fn posted_to(&self, qpn: u32) -> Option<usize> {
        match &self.queues {
            Queues::Shared(_) | Queues::Unmade => None,
            Queues::Own(owners) => Some(owners.posted.get(&qpn).copied().unwrap_or(0)),
        }
    }

    /// Reclaims all buffers of a queue pair that has released them without completions. The buffers are queued for the connection
    /// of `slot`, if there is one.
    pub(super) fn let_go(&mut self, qpn: u32, slot: Option<u32>) {
        let Queues::Own(owners) = &mut self.queues else { return };
        if owners.posted.remove(&qpn).is_none() {
            return;
        }
        for (buffer, owner) in owners.of.iter_mut().enumerate() {
            if owner.is_some_and(|(of, _)| of == qpn) {
                *owner = None;
                owners.to_post.push((slot.unwrap_or(NOBODY), buffer as u32));
            }
        }
    }
}

impl Owners {
    fn posted(&mut self, buffer: u32, qpn: u32, sge: ibv_sge) -> Receive {
        self.stamp = self.stamp.wrapping_add(1) & 0x7fff_ffff;
        let needed = self.of.len().max(buffer as usize + 1);
        self.of.resize(needed, None);
        self.of[buffer as usize] = Some((qpn, self.stamp));
        *self.posted.entry(qpn).or_default() += 1;
        Receive { id: receive_id(buffer, self.stamp), sge }
    }

    fn came(&mut self, buffer: u32, stamp: u32) -> (bool, Option<u32>) {
        let owner = self.of.get(buffer as usize).copied().flatten();
        match owner.is_some_and(|(_, of)| of == stamp) {
            true => (true, self.is_posted_no_more(buffer)),
            false => (false, None),
        }
    }

    /// Records the end of a posting. Returns the queue pair if it has no posted buffer any more.
    fn is_posted_no_more(&mut self, buffer: u32) -> Option<u32> {
        let (qpn, _) = self.of.get_mut(buffer as usize)?.take()?;
        let left = self.posted.get_mut(&qpn).map_or(0, |posted| {
            *posted -= 1;
            *posted
        });
        if left == 0 {
            let _ = self.posted.remove(&qpn);
        }
        (left == 0).then_some(qpn)
    }
}
