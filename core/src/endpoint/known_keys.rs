//! The cache of keys by handle or number, with its bound and its eviction. `by_handle.rs` uses the cache.

use crate::mem::key::{KeyName, KeyRecord};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The maximum number of keys in the cache of an endpoint.
const MOST: usize = 1024;

/// The cache of an endpoint; empty before the first key arrives. `K`: an imported key.
pub(super) struct KnownKeys<K> {
    /// Whether an operation was refused for its key since the cache was last cleared.
    pub(super) refused: Cell<bool>,
    pub(super) keys: RefCell<Option<Box<Keys<K>>>>,
}

pub(super) struct Keys<K> {
    known: HashMap<KeyName, Known<K>>,
    /// The total number of uses of the cache.
    uses: u64,
}

/// A key, and its last use.
pub(super) struct Known<K> {
    key: Key<K>,
    /// The number of the last use.
    used: u64,
}

/// The cached value of a name.
pub(super) enum Key<K> {
    /// The key as received from the owner, not imported yet.
    Told(KeyRecord),
    Imported(K),
}

impl<K> Default for KnownKeys<K> {
    fn default() -> KnownKeys<K> {
        KnownKeys { refused: Cell::new(false), keys: RefCell::new(None) }
    }
}

impl<K> Default for Keys<K> {
    fn default() -> Keys<K> {
        Keys { known: HashMap::new(), uses: 0 }
    }
}

impl<K> Keys<K> {
    /// Returns the cached value of a name. The call counts as a use.
    pub(super) fn used(&mut self, name: KeyName) -> Option<&mut Key<K>> {
        let known = self.known.get_mut(&name)?;
        self.uses += 1;
        known.used = self.uses;
        Some(&mut known.key)
    }

    /// Adds an answer of the owner. Returns the evicted entry.
    pub(super) fn keep(&mut self, name: KeyName, record: KeyRecord) -> Option<Known<K>> {
        self.uses += 1;
        let full = self.known.len() >= MOST;
        match self.known.entry(name) {
            // The key was requested twice, and the first answer is in the cache.
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => {
                let _ = place.insert(Known { key: Key::Told(record), used: self.uses });
            }
        }
        if !full {
            return None;
        }
        let oldest = *self.known.iter().min_by_key(|(_, known)| known.used)?.0;
        self.known.remove(&oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Access;

    fn record(region: u64) -> KeyRecord {
        let access = Access::READ;
        KeyRecord {
            context: [1; 16],
            region,
            generation: 1,
            len: 1,
            access,
            parts: Vec::new(),
            device_atomics: None,
            address: None,
        }
    }

    #[test]
    fn least_recently_used_key_is_evicted() {
        let mut keys = Keys::<()>::default();
        let name = KeyName::Handle;
        for handle in 0..MOST as u64 {
            assert!(keys.keep(name(handle), record(handle)).is_none());
        }
        assert!(keys.keep(name(7), record(7)).is_none(), "asked for twice");
        assert!(keys.used(name(0)).is_some() && keys.used(KeyName::Number(0)).is_none());
        for (new, gone) in [(name(5000), 1), (KeyName::Number(3), 2)] {
            assert!(keys.keep(new, record(9)).is_some());
            assert!(keys.used(name(gone)).is_none());
            assert_eq!(keys.known.len(), MOST);
        }
        assert!([0, 5000, 3].map(name).into_iter().all(|name| keys.used(name).is_some()));
        assert!(keys.used(KeyName::Number(3)).is_some());
    }
}
