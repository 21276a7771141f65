//! The exchange of a job of one process that uses no server.

use super::link::late_lookup;
use super::{Deadline, Exchange};
use crate::Error;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
pub(super) struct Alone {
    published: Mutex<HashMap<u32, Vec<u8>>>,
    came: Condvar,
}

impl Exchange for Alone {
    fn allgather(&self, mine: &[u8], _deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![mine.to_vec()])
    }

    fn publish(&self, key: u32, bytes: &[u8], _deadline: &Deadline) -> Result<(), Error> {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = published.insert(key, bytes.to_vec());
        self.came.notify_all();
        Ok(())
    }

    fn lookup(&self, rank: usize, key: u32, deadline: &Deadline) -> Result<Vec<u8>, Error> {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(bytes) = published.get(&key) {
                return Ok(bytes.clone());
            }
            let Some(left) = deadline.left() else {
                let rank = u32::try_from(rank).unwrap_or(u32::MAX);
                return Err(late_lookup(rank, key, "this process has not published it"));
            };
            let waited = self.came.wait_timeout(published, left);
            published = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
