//! Key handles: a remote key in eight bytes, for applications that send one with every rendezvous.
//!
//! Guarantees of the owner:
//!
//! * A region has at most one handle, from the first call of [`Region::handle`](super::Region::handle) until it is closed or
//!   dropped. The handle's number is never reused while the process exists, in any context.
//! * A handle is a secret like a key: **a peer that has the handle and is connected to a worker of the context gets the key.** No
//!   other proof is required, so handles are unguessable. A handle is a counter under a permutation of all 64-bit numbers with a
//!   secret of this process. Handles that a peer has are of no practical use to guess another one, and each guess costs a message.
//! * A table answers the request without the application, in a progress call of the worker that received it. That is the
//!   application's worker or the progress thread's. The handle of a closed region and a handle that never existed are refused with
//!   the same text.
//!
//! [`Endpoint::key_by_handle`](crate::Endpoint::key_by_handle) implements the requester's side.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_plugin_api::process::PerProcess;

/// The number of rounds of the permutation: from 5 on, the known attacks need more handles than a process makes.
const ROUNDS: u8 = 6;

/// An 8-byte handle of a region's remote key. [`Region::handle`](crate::Region::handle) makes it, and
/// [`Endpoint::key_by_handle`](crate::Endpoint::key_by_handle) resolves it. A handle permits access to the region like the key, so
/// keep it equally secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHandle(u64);

impl KeyHandle {
    /// Returns the bytes to send to a peer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Makes a handle from these bytes. Only the process that made the handle can check whether it is valid.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 8]) -> KeyHandle {
        KeyHandle(u64::from_le_bytes(bytes))
    }

    /// Makes an unused handle.
    pub(super) fn next() -> KeyHandle {
        KeyHandle(next())
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for KeyHandle {
    /// Omits the number, which permits access to memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHandle(..)")
    }
}

static SECRET: PerProcess<Secret> = PerProcess::new();

/// Returns the next number of this process. The numbers of a forked child cannot be derived from its parent's state.
fn next() -> u64 {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    permuted(&SECRET, GIVEN.fetch_add(1, Ordering::Relaxed))
}

/// The secret of the permutation.
struct Secret {
    hasher: RandomState,
    /// The bytes that distinguish a forked child's secret: its hasher equals the one that the parent creates next.
    own: [u8; 16],
}

impl Default for Secret {
    fn default() -> Secret {
        let mut own = [0; 16];
        // If the kernel supplies no random bytes here, it supplied none to the hasher either.
        let _ = tieline_net::random(&mut own);
        Secret { hasher: RandomState::new(), own }
    }
}

impl Secret {
    fn of(&self, round: u8, half: u32) -> u32 {
        self.hasher.hash_one((self.own, round, half)) as u32
    }
}

/// Permutes numbers by a Feistel network over a keyed hash, which maps different numbers to different ones for any hash.
fn permuted(secret: &Secret, number: u64) -> u64 {
    let (mut left, mut right) = ((number >> 32) as u32, number as u32);
    for round in 0..ROUNDS {
        (left, right) = (right, left ^ secret.of(round, right));
    }
    u64::from(left) << 32 | u64::from(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ends_in_forked_child;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn no_handle_comes_twice_and_none_is_near_the_one_before() {
        let given: Vec<u64> = (0..100_000).map(|_| next()).collect();
        assert_eq!(given.iter().collect::<HashSet<_>>().len(), given.len());
        let differing: u32 = given.windows(2).map(|two| (two[0] ^ two[1]).count_ones()).sum();
        let each = f64::from(differing) / (given.len() - 1) as f64;
        assert!((31.0..33.0).contains(&each), "{each} of 64 bits differ from one to the next");
    }

    #[test]
    fn a_forked_child_has_a_secret_of_its_own() {
        let parents = SECRET.get();
        assert!(ends_in_forked_child(|| {
            let own = SECRET.get();
            assert!(own.own != parents.own && permuted(own, 7) != permuted(parents, 7));
        }));
    }

    #[test]
    fn a_handle_does_not_show_its_number() {
        let handle = KeyHandle::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(format!("{handle:?}"), "KeyHandle(..)");
        assert_eq!(handle.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    proptest! {
        #[test]
        fn every_number_is_led_back_to_where_it_came_from(number in any::<u64>()) {
            let secret = Secret::default();
            let handle = permuted(&secret, number);
            let (mut left, mut right) = ((handle >> 32) as u32, handle as u32);
            for round in (0..ROUNDS).rev() {
                (left, right) = (right ^ secret.of(round, left), left);
            }
            prop_assert_eq!(u64::from(left) << 32 | u64::from(right), number);
        }
    }
}
