//! Keys by numbers that the application chooses: a peer that knows the number gets the key, without a message of the application.
//!
//! The numbers are no secrets, unlike [handles](super::KeyHandle). **Every process that can connect to a worker of the context may
//! request them**, and can try all of them. A context therefore answers only if its application has switched that on
//! ([`ContextBuilder::publish_keys`](crate::ContextBuilder::publish_keys)).

use super::Region;
use crate::{Error, Status};

impl Region {
    /// Publishes the region's [remote key](Region::remote_key) under a number of the application's choice. From now on, a peer with an
    /// endpoint to a worker of this context gets the key by
    /// [`Endpoint::key_by_number`](crate::Endpoint::key_by_number), until [`Region::unpublish`] is called or the region is closed or
    /// dropped. The context's workers answer in their progress, and the progress thread answers while the application computes.
    ///
    /// A number stands for one region of the context at a time, and may be used again for another one later. A region may have several
    /// numbers. Every process that can connect to a worker of this context may request all numbers, so numbers protect nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # use tieline::KeyLookup;
    /// let context = tieline::Context::builder().publish_keys(true).open()?;
    /// let window = context.alloc(4096)?;
    /// window.publish(17)?;
    /// # let worker = context.worker()?;
    /// # let there = worker.connect(&worker.address()?)?;
    /// let key = loop {
    ///     match there.key_by_number(17)? { // in the peer's process
    ///         KeyLookup::Known(key) => break key,
    ///         KeyLookup::Asked(asked) => _ = worker.finish(asked)?,
    ///     }
    /// };
    /// # assert_eq!(key.len(), 4096);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Unsupported` if the context does not publish keys. `Busy` if another region of the context has the number. Otherwise the errors
    /// of [`Region::remote_key`].
    pub fn publish(&self, number: u64) -> Result<(), Error> {
        let (inner, key) = (&self.inner, self.packed_key()?);
        inner.memory.guard.check("a region")?;
        if !inner.memory.publishes_keys() {
            return Err(Error::new(
                Status::Unsupported,
                format!("a region under the number {number}"),
                "its context publishes no keys, because every process that can connect may then request them",
                "open the context with ContextBuilder::publish_keys (TIELINE_CONTEXT_PUBLISH_KEYS)",
            ));
        }
        let regions = &inner.memory.regions;
        regions.publish(inner.id, inner.generation, number, key).map_err(|status| match status {
            Status::Busy => Error::new(
                status,
                format!("a region under the number {number}"),
                "another region of the context is published under it",
                "choose another number, or unpublish that region first",
            ),
            _ => super::no_more_keys(),
        })
    }

    /// Ends the publication of the region under this number. Keys that peers have received stay valid until the region is closed.
    ///
    /// # Errors
    /// `Invalid` if the region is not published under the number, and in a forked child.
    pub fn unpublish(&self, number: u64) -> Result<(), Error> {
        self.inner.memory.guard.check("a region")?;
        if self.inner.memory.regions.unpublish(self.inner.id, self.inner.generation, number) {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            format!("the publication of a region under the number {number}"),
            "the region is not published under it",
            "pass a number that Region::publish has accepted for this region",
        ))
    }
}
