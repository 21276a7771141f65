//! The watch words of an interface.

#![allow(unsafe_code)]

use crate::interface::Interface;
use crate::report::{Checked, Stop, fail, holds};
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_plugin_api::abi::WatchList;

/// The maximum number of words in a list.
const MOST: u64 = 8;

/// The list of an interface's watch words, which holds the interface open.
pub(crate) struct WatchWords {
    list: *const WatchList,
    _interface: Interface,
}

impl WatchWords {
    /// Makes the value from the result of the slot `watch`. `None`: the module has no list.
    pub(crate) fn new(interface: &Interface, list: *const WatchList) -> Option<WatchWords> {
        (!list.is_null()).then(|| WatchWords { list, _interface: interface.clone() })
    }

    fn list(&self) -> Result<&WatchList, Stop> {
        holds(
            self.list.is_aligned(),
            "the list of watch words",
            "aligned",
            "a misaligned address",
        )?;
        // SAFETY: by the ABI the list stays at its address until the interface is closed, and no call of the provider is in progress.
        let list = unsafe { &*self.list };
        let least = size_of::<WatchList>();
        holds(list.size >= least, "the size of the list", format!("at least {least}"), list.size)?;
        Ok(list)
    }

    /// Checks whether the core would have to poll regardless of the words.
    pub(crate) fn are_empty(&self) -> Result<bool, Stop> {
        Ok(!(1..=MOST).contains(&self.list()?.count))
    }

    /// Checks that each word can be compared.
    pub(crate) fn check(&self) -> Checked {
        let list = self.list()?;
        if self.are_empty()? {
            return Ok(());
        }
        for (n, word) in list.words.iter().take(list.count as usize).enumerate() {
            let valid = !word.at.is_null() && word.at.is_aligned();
            let address = format!("{:p}", word.at);
            holds(valid, format!("watch word {n}"), "an address aligned to 8 bytes", address)?;
        }
        Ok(())
    }

    /// Checks whether the core would poll: the list is empty, or a word has another value than the list states.
    pub(crate) fn demand_a_poll(&self) -> Result<bool, Stop> {
        self.check()?;
        if self.are_empty()? {
            return Ok(true);
        }
        let list = self.list()?;
        let words = list.words.iter().take(list.count as usize);
        // SAFETY: the word is aligned; by the ABI a listed word is readable, and no call of the provider is in progress.
        let value = |at: *const u64| unsafe { &*at.cast::<AtomicU64>() }.load(Ordering::Relaxed);
        Ok(words.into_iter().any(|word| value(word.at) != word.seen))
    }

    /// The failure of an event that no word has announced.
    pub(crate) fn unannounced(events: u32) -> Stop {
        fail(
            format!("the watch words before {events} of the polls with an event"),
            "a changed word, or an empty list",
            "unchanged words",
        )
    }
}
