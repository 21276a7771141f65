//! The plan of a key: the protocol of each put and get, by its length.
//!
//! The facts of a lane ([`ImportedKey`]) and the context's settings lead to one protocol for each range of lengths. The fast path of a
//! key ([`FastPath`]) is the part of the plan that needs one call of a module: every choice is made when the key's lanes change. A post
//! that does not take the fast path starts the protocol of its row for the best lane. If that lane declines the transfer or has ended,
//! the plan of the next lane applies.
//!
//! | protocol | starts in | waits in the queue as | goes on | gives up |
//! |---|---|---|---|---|
//! | [`Message`](Protocol::Message) | `small.rs`, `emulated.rs` | a transfer with an answer | `queue.rs` | fails with its endpoint |
//! | [`AtOnce`](Protocol::AtOnce) | `rma.rs`, `at_once.rs`, `post.rs` | a transfer | `native.rs` | next lane, then messages |
//! | [`Together`](Protocol::Together) | `shared_copy.rs` | a transfer | `shared_copy.rs` | next lane, then messages |
//! | [`Taken`](Protocol::Taken) | `short_put.rs` | a transfer | `native.rs` | next lane, then messages |
//! | [`Posted`](Protocol::Posted) | `direct.rs` | a transfer | `native.rs` | next lane, then messages |
//! | [`Divided`](Protocol::Divided) | `post.rs` (`rails.rs`) | a transfer for each rail | `native.rs` | next lane, then messages |

use super::fast_path::FastPath;
use super::key::{ImportedKey, KeyInner, RemoteKey};
use super::rails::SHARED_FROM;
use std::fmt::Write;
use tieline_order::way;
use tieline_plugin_api::caps;

/// The way in which a transfer is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Messages to the peer's worker, or to its service worker, which executes the transfer.
    Message,
    /// A module that completes within the call, in one call or several.
    AtOnce,
    /// The same, with the peer's help.
    Together,
    /// A module that completes later and consumes the bytes of a put within the call.
    Taken,
    /// A module that completes later, in one operation or several.
    Posted,
    /// Such modules of several domains, each for a part.
    Divided,
}

impl Protocol {
    fn text(self) -> &'static str {
        match self {
            Protocol::Message => "by message",
            Protocol::AtOnce => "at once",
            Protocol::Together => "with the peer's help",
            Protocol::Taken => "taken within the call",
            Protocol::Posted => "posted",
            Protocol::Divided => "divided between rails",
        }
    }
}

impl ImportedKey {
    /// Returns the protocol of a transfer over this lane. `assist_size`: the length from which a peer helps with a copy.
    #[inline]
    pub(super) fn protocol(&self, put: bool, len: usize, assist_size: usize) -> Protocol {
        match self.synchronous {
            true if len >= assist_size && self.copies_between_processes() => Protocol::Together,
            true => Protocol::AtOnce,
            false if len >= SHARED_FROM => Protocol::Divided,
            false if put && len.wrapping_sub(1) < self.longest_taken() => Protocol::Taken,
            false => Protocol::Posted,
        }
    }

    /// Returns the length of the longest put whose bytes the module consumes within the call; 0: none.
    fn longest_taken(&self) -> usize {
        match self.synchronous {
            true => 0,
            false => self.max_short_put.min(self.longest_posted(true)),
        }
    }

    /// Returns the length of the longest transfer that is one operation of a module that completes later; 0: none.
    fn longest_posted(&self, put: bool) -> usize {
        if self.synchronous { 0 } else { self.most(put).min(SHARED_FROM - 1) }
    }

    /// Returns the length below which one call of a module completes a transfer; 0: none does.
    fn at_once_below(&self, put: bool, assist_size: usize) -> usize {
        let one_call = self.most(put).saturating_add(1);
        match self.synchronous {
            false => 0,
            true if self.copies_between_processes() => one_call.min(assist_size),
            true => one_call,
        }
    }
}

impl FastPath {
    /// Opens the fast path over a lane that no better one can replace, or closes it. `small`: some puts and gets use messages instead.
    /// Then no put or get completes on the fast path within the call; those that complete later check each length.
    pub(super) fn set(&self, native: Option<ImportedKey>, small: bool, assist_size: usize) {
        let native = native.filter(|native| native.settled);
        if let Some(native) = native {
            self.raw.set(native.raw);
            self.key.set(native.key);
            self.interface.set(native.interface);
            self.way.set(way::lane(native.rank));
            self.caps.set(native.caps);
            self.lists.set(native.caps & caps::RMA_LIST != 0);
            self.max_iov.set(native.max_iov);
        }
        let large = native.filter(|_| !small);
        let below = |put| large.map_or(0, |native| native.at_once_below(put, assist_size));
        self.put_below.set(below(true));
        self.get_below.set(below(false));
        self.short_puts.set(large.map_or(0, |native| native.longest_taken()));
        for (longest, put) in self.direct.iter().zip([true, false]) {
            longest.set(native.map_or(0, |native| native.longest_posted(put)));
        }
        let at_once = native.filter(|native| native.synchronous);
        self.words.set(at_once.map_or(0, |native| native.words));
        self.post.set(at_once.map_or([0; 2], |native| native.post));
        self.fetch.set(at_once.map_or([0; 2], |native| native.fetch));
    }
}

impl KeyInner {
    fn protocol(&self, put: bool, len: usize) -> Protocol {
        match self.best.get() {
            Some(native) if len.wrapping_sub(1) >= self.small.get() => {
                native.protocol(put, len, self.endpoint.shared.core.assist_size)
            }
            _ => Protocol::Message,
        }
    }

    /// Returns the rows of the plan for puts or gets: the shortest length of each, and its protocol.
    fn rows(&self, put: bool) -> Vec<(usize, Protocol)> {
        let taken = self.best.get().map_or(0, |native| native.longest_taken());
        let assist_size = self.endpoint.shared.core.assist_size;
        let mut from = [1, self.small.get() + 1, taken + 1, SHARED_FROM, assist_size];
        from.sort_unstable();
        let mut rows: Vec<(usize, Protocol)> =
            from.into_iter().map(|len| (len, self.protocol(put, len))).collect();
        rows.dedup_by_key(|(_, protocol)| *protocol);
        rows
    }
}

impl RemoteKey {
    /// Returns the plan of this key in words: for puts and for gets, the ranges of lengths in bytes and how each is carried out. For
    /// example `puts: at once, from 524288 with the peer's help; gets: at once, from 524288 with the peer's help`.
    ///
    /// * *by message*: the peer's worker, or its service worker, executes the transfer.
    /// * *at once*: a module completes it within the call. *With the peer's help*: both processes copy.
    /// * *taken within the call*: the module consumes the bytes within the call and completes later. *Posted*: the module uses the
    ///   memory until it completes. *Divided between rails*: several domains carry parts of it.
    ///
    /// [`path`](RemoteKey::path) names the modules. The plan changes when the path does. A module may decline a transfer or have no
    /// room for it. The transfer then waits in the endpoint's queue, or takes the next path.
    #[must_use]
    pub fn plan(&self) -> String {
        self.inner.resolve();
        let mut text = String::new();
        for put in [true, false] {
            text.push_str(if put { "puts: " } else { "; gets: " });
            for (at, (from, protocol)) in self.inner.rows(put).into_iter().enumerate() {
                // Writing to a string does not fail.
                let _ = match at {
                    0 => write!(text, "{}", protocol.text()),
                    _ => write!(text, ", from {from} {}", protocol.text()),
                };
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Error};

    const ASSIST: usize = 512 << 10;

    /// Returns a lane that completes later, and posts 100 bytes at most.
    fn later() -> ImportedKey {
        ImportedKey { max: [100, 1000], max_short_put: 64, ..ImportedKey::for_tests() }
    }

    fn at_once(caps: u64) -> ImportedKey {
        ImportedKey { synchronous: true, caps, ..ImportedKey::for_tests() }
    }

    #[test]
    fn lengths_lead_to_protocols_of_lane() {
        let of = |lane: ImportedKey, put, lens: &[usize]| -> Vec<Protocol> {
            lens.iter().map(|len| lane.protocol(put, *len, ASSIST)).collect()
        };
        use Protocol::*;
        let lens = [0, 1, 64, 65, 100, 101, SHARED_FROM - 1, SHARED_FROM];
        let puts = [Posted, Taken, Taken, Posted, Posted, Posted, Posted, Divided];
        assert_eq!(of(later(), true, &lens), puts);
        assert_eq!(of(later(), false, &[0, 1, 64, SHARED_FROM]), [Posted, Posted, Posted, Divided]);
        let lens = [0, 1, ASSIST - 1, ASSIST];
        assert_eq!(of(at_once(caps::LOCAL_ONLY), true, &lens), [AtOnce, AtOnce, AtOnce, Together]);
        let mapped = caps::LOCAL_ONLY | caps::OWN_MEMORY_ONLY;
        for alone in [mapped, 0] {
            assert_eq!(of(at_once(alone), false, &lens), [AtOnce; 4]);
        }
    }

    /// Each length that the fast path carries in one call has the protocol of that call.
    #[test]
    fn fast_path_is_the_part_of_the_plan_that_takes_one_call() {
        let copies = ImportedKey { max: [0, 70], ..at_once(caps::LOCAL_ONLY) };
        for lane in [later(), copies, at_once(0)] {
            let lane = ImportedKey { settled: true, ..lane };
            let fast = FastPath::closed();
            for small in [false, true] {
                fast.set(Some(lane), small, ASSIST);
                for (at, put) in [true, false].into_iter().enumerate() {
                    let below = if put { fast.put_below.get() } else { fast.get_below.get() };
                    for len in [0, 1, 64, 65, 70, 71, 100, 101, 1000, 1001, SHARED_FROM, ASSIST] {
                        let one_call = len <= lane.most(put);
                        let protocol = lane.protocol(put, len, ASSIST);
                        let is_at_once = protocol == Protocol::AtOnce && one_call && !small;
                        assert_eq!(len < below, is_at_once, "{len}");
                        let is_taken = protocol == Protocol::Taken && !small;
                        assert_eq!(put && fast.is_short(len), is_taken, "{len}");
                        let later = matches!(protocol, Protocol::Taken | Protocol::Posted);
                        let is_direct = len.wrapping_sub(1) < fast.direct[at].get();
                        assert_eq!(is_direct, later && one_call && len > 0, "{len}");
                    }
                }
            }
            fast.set(None, false, ASSIST);
            let open = [fast.put_below.get(), fast.get_below.get(), fast.short_puts.get()];
            assert_eq!(
                (open, fast.direct.each_ref().map(|longest| longest.get())),
                ([0; 3], [0; 2])
            );
        }
    }

    #[test]
    fn plan_in_words_names_ranges_and_protocols() -> Result<(), Error> {
        let context = Context::open()?;
        let (worker, region) = (context.worker()?, context.alloc(64)?);
        let endpoint = worker.connect(&worker.address()?)?;
        let key = endpoint.import_key(&region.remote_key()?)?;
        let inner = &key.inner;
        let set = |best: Option<ImportedKey>, small| {
            inner.best.set(best);
            inner.small.set(small);
            key.plan()
        };
        let (before, small) = (inner.best.get(), inner.small.get());
        assert_eq!(set(None, 0), "puts: by message; gets: by message");
        let posts = "puts: by message, from 33 taken within the call, from 65 posted, \
                     from 262144 divided between rails; \
                     gets: by message, from 33 posted, from 262144 divided between rails";
        assert_eq!(set(Some(later()), 32), posts);
        inner.best.set(before);
        inner.small.set(small);
        Ok(())
    }
}
