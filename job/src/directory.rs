//! The published bytes of all processes. The module is a state machine without I/O or a clock.
//!
//! Bytes are sent only in answer to a lookup. A lookup of a missing key waits until the key is published, its owner leaves, or the
//! requester leaves or forgets the lookup.

use super::wire::{MAX_KEYS, MAX_LOOKUPS, MAX_PUBLISHED};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The owner and the key of published bytes.
type Name = (usize, u32);

/// An answer to a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The rank that made the lookup.
    pub(super) to: usize,
    /// The number that the requester gave to the lookup.
    pub(super) id: u64,
    /// The published bytes, or the reason why there are none.
    pub(super) found: Result<Arc<[u8]>, String>,
}

#[derive(Default)]
pub(super) struct Directory {
    values: HashMap<Name, Arc<[u8]>>,
    /// The processes that have published or requested something.
    members: HashMap<usize, Member>,
    /// The pending lookups of each name: the requester and its number of the lookup.
    waiting: HashMap<Name, HashSet<(usize, u64)>>,
    /// The processes that will publish nothing more, and the reason for each.
    gone: HashMap<usize, String>,
}

#[derive(Default)]
struct Member {
    keys: usize,
    bytes: usize,
    asked: HashMap<u64, Name>,
}

impl Directory {
    /// Returns the number of pending lookups.
    #[cfg(test)]
    pub(super) fn waits(&self) -> usize {
        self.waiting.values().map(HashSet::len).sum()
    }

    /// Publishes bytes of a process. Returns `Err` with the reason if the request is invalid.
    pub(super) fn publish(
        &mut self,
        rank: usize,
        key: u32,
        bytes: Vec<u8>,
    ) -> Result<Vec<Answer>, String> {
        let member = self.members.entry(rank).or_default();
        let all = member.bytes.saturating_add(bytes.len());
        if self.values.contains_key(&(rank, key)) {
            return Err(format!("it has published {key} before"));
        }
        if member.keys >= MAX_KEYS || all > MAX_PUBLISHED {
            return Err(format!("it publishes more than {MAX_PUBLISHED} bytes or {MAX_KEYS} keys"));
        }
        (member.keys, member.bytes) = (member.keys + 1, all);
        let bytes: Arc<[u8]> = bytes.into();
        let _ = self.values.insert((rank, key), bytes.clone());
        Ok(self.answer_all((rank, key), &Ok(bytes)))
    }

    /// Handles a lookup by a process. Returns `Err` with the reason if the request is invalid, and `None` if the lookup is pending.
    pub(super) fn lookup(
        &mut self,
        asker: usize,
        id: u64,
        of: Name,
    ) -> Result<Option<Answer>, String> {
        let told = |found| Ok(Some(Answer { to: asker, id, found }));
        if let Some(bytes) = self.values.get(&of) {
            return told(Ok(bytes.clone()));
        }
        if let Some(why) = self.gone.get(&of.0) {
            return told(Err(why.clone()));
        }
        let asked = &mut self.members.entry(asker).or_default().asked;
        if asked.len() >= MAX_LOOKUPS || asked.contains_key(&id) {
            return Err(format!(
                "more than {MAX_LOOKUPS} of its lookups wait, or one is asked twice"
            ));
        }
        let _ = asked.insert(id, of);
        let _ = self.waiting.entry(of).or_default().insert((asker, id));
        Ok(None)
    }

    /// Ends a pending lookup. Returns the rank whose bytes it requested; `None` if the lookup was answered before.
    pub(super) fn forget(&mut self, asker: usize, id: u64) -> Option<usize> {
        let of = self.members.get_mut(&asker)?.asked.remove(&id)?;
        self.unlist(of, (asker, id));
        Some(of.0)
    }

    /// Records that a process has ended: pending lookups of its unpublished keys fail. A forked child that shares the connection
    /// may still send requests.
    pub(super) fn ended(&mut self, rank: usize, why: &str) -> Vec<Answer> {
        let _ = self.gone.insert(rank, why.to_owned());
        let names: Vec<Name> = self.waiting.keys().filter(|of| of.0 == rank).copied().collect();
        names.into_iter().flat_map(|of| self.answer_all(of, &Err(why.to_owned()))).collect()
    }

    /// Records that a process will publish and request nothing more. The process's published bytes remain available.
    pub(super) fn gone(&mut self, rank: usize, why: &str) -> Vec<Answer> {
        let asked = self.members.get_mut(&rank).map(|member| std::mem::take(&mut member.asked));
        for (id, of) in asked.into_iter().flatten() {
            self.unlist(of, (rank, id));
        }
        self.ended(rank, why)
    }

    fn answer_all(&mut self, of: Name, found: &Result<Arc<[u8]>, String>) -> Vec<Answer> {
        let waited = self.waiting.remove(&of).unwrap_or_default();
        let mut answers = Vec::with_capacity(waited.len());
        for (to, id) in waited {
            let _ = self.members.get_mut(&to).and_then(|member| member.asked.remove(&id));
            answers.push(Answer { to, id, found: found.clone() });
        }
        answers
    }

    fn unlist(&mut self, of: Name, asked: (usize, u64)) {
        if let Some(waiting) = self.waiting.get_mut(&of) {
            let _ = waiting.remove(&asked);
            if waiting.is_empty() {
                let _ = self.waiting.remove(&of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(to: usize, id: u64, bytes: &[u8]) -> Answer {
        Answer { to, id, found: Ok(bytes.into()) }
    }

    #[test]
    fn published_bytes_answer_earlier_and_later_lookups_only() {
        let mut all = Directory::default();
        assert_eq!(all.lookup(1, 10, (0, 7)), Ok(None));
        assert_eq!(all.lookup(2, 10, (0, 7)), Ok(None));
        assert_eq!(all.lookup(2, 11, (0, 8)), Ok(None));
        let mut told = all.publish(0, 7, b"me".to_vec()).unwrap();
        told.sort_by_key(|answer| answer.to);
        assert_eq!(told, [found(1, 10, b"me"), found(2, 10, b"me")]);
        assert_eq!(all.lookup(3, 1, (0, 7)), Ok(Some(found(3, 1, b"me"))));
        assert_eq!(all.publish(0, 8, vec![]), Ok(vec![found(2, 11, b"")]));
        assert!(all.waiting.is_empty() && all.members.values().all(|m| m.asked.is_empty()));
    }

    #[test]
    fn key_is_published_once_and_bytes_per_process_are_bounded() {
        let mut all = Directory::default();
        assert_eq!(all.publish(0, 7, vec![1]), Ok(vec![]));
        assert!(all.publish(0, 7, vec![2]).unwrap_err().contains("7 before"));
        assert!(all.publish(0, 8, vec![0; MAX_PUBLISHED]).is_err());
        assert_eq!(all.publish(0, 8, vec![0; MAX_PUBLISHED - 1]), Ok(vec![]));
        assert!(all.publish(0, 9, vec![0]).is_err());
        for key in 0..MAX_KEYS as u32 {
            assert_eq!(all.publish(1, key, vec![]), Ok(vec![]));
        }
        assert!(all.publish(1, u32::MAX, vec![]).is_err());
    }

    #[test]
    fn one_process_asks_no_more_at_a_time_than_its_share_and_no_number_twice() {
        let mut all = Directory::default();
        for id in 0..MAX_LOOKUPS as u64 {
            assert_eq!(all.lookup(1, id, (0, 7)), Ok(None));
        }
        assert!(all.lookup(1, u64::MAX, (0, 7)).is_err());
        assert_eq!(all.forget(1, 3), Some(0));
        assert!(all.lookup(1, 4, (0, 7)).is_err(), "that number waits");
        assert_eq!(all.lookup(1, u64::MAX, (0, 7)), Ok(None));
        let told = all.publish(0, 7, vec![]).unwrap();
        assert_eq!(told.len(), MAX_LOOKUPS);
        assert!(told.iter().all(|answer| answer.id != 3), "it is forgotten");
        assert_eq!(all.forget(1, 4), None, "it was answered");
    }

    #[test]
    fn leaving_rank_ends_pending_lookups_and_its_bytes_stay() {
        let mut all = Directory::default();
        assert_eq!(all.publish(0, 7, b"here".to_vec()), Ok(vec![]));
        assert_eq!(all.lookup(1, 1, (0, 8)), Ok(None));
        assert_eq!(all.lookup(0, 2, (1, 7)), Ok(None));
        let left = || Err("rank 0 has left".to_owned());
        assert_eq!(all.gone(0, "rank 0 has left"), [Answer { to: 1, id: 1, found: left() }]);
        assert_eq!(all.lookup(1, 2, (0, 8)), Ok(Some(Answer { to: 1, id: 2, found: left() })));
        assert_eq!(all.lookup(1, 3, (0, 7)), Ok(Some(found(1, 3, b"here"))));
        assert_eq!(all.publish(1, 7, vec![]), Ok(vec![]), "rank 0 is told nothing");
        assert!(all.waiting.is_empty());
    }
}
