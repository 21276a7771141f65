//! Admission of operations on remote memory: the facts that [`Order::admit`](tieline_order::Order::admit) needs, and the error texts.

use super::EndpointState;
use super::key::{KeyInner, RemoteKey};
use crate::region::{Access, Region};
use crate::{Error, Status};
use std::sync::Arc;
use tieline_order::admission::{Asked, Refused};

impl EndpointState {
    /// Decides whether an operation may be posted; see [`Order::admit`](tieline_order::Order::admit). `open`: whether this endpoint
    /// takes it, in the calling process. `access`: right, offset and length.
    #[inline(always)]
    pub(super) fn admit(
        &self,
        open: bool,
        key: &KeyInner,
        local: Option<&Region>,
        (needed, offset, len): (Access, u64, usize),
        way: Option<u64>,
    ) -> Result<(), Refused> {
        let asked = Asked {
            own_memory: local.is_none_or(|local| self.owns(local)),
            open,
            own_key: std::ptr::eq(&raw const *key.endpoint, self),
            grant: key.record.grant(),
            right: needed.bits(),
            offset,
            len: len as u64,
        };
        self.order.admit(&asked, way)
    }

    /// Makes the checks of [`Self::admit`], except that of the order, for an operation that did not take the fast path. Then asks
    /// providers at intervals for better lanes.
    pub(super) fn prepare(
        &self,
        key: &RemoteKey,
        local: Option<&Region>,
        access: (Access, u64, usize),
    ) -> Result<(), Error> {
        let open = self.is_open() && self.shared.same_process();
        let admitted = self.admit(open, &key.inner, local, access, None);
        admitted.map_err(|refused| self.not_admitted(refused, key.len(), access))?;
        key.inner.resolve_now_and_then();
        Ok(())
    }

    /// Makes the error for an operation that is not admitted. `region`: the length of the remote region.
    #[cold]
    pub(super) fn not_admitted(
        &self,
        refused: Refused,
        region: u64,
        (needed, offset, len): (Access, u64, usize),
    ) -> Error {
        let (what, why, fix): (String, String, _) = match refused {
            Refused::Endpoint | Refused::Fence => {
                let ended = self.check_open().err();
                return ended.unwrap_or_else(|| Error::from_status(refused.status()));
            }
            Refused::Memory => (
                "local memory of another context".into(),
                "a region is registered for the workers of its own context".into(),
                "register the memory in the context of this endpoint's worker too",
            ),
            Refused::Key => (
                "a key that was imported on another endpoint".into(),
                "an imported key belongs to its endpoint".into(),
                "import the key's bytes on this endpoint too",
            ),
            Refused::Right => (
                format!("{} a remote region", needed.operation()),
                "its key does not carry that right".into(),
                "the region's owner gives the right when it allocates or registers the memory",
            ),
            Refused::Range => (
                format!("bytes {offset}..{} of a remote region", offset.saturating_add(len as u64)),
                format!("it has {region} bytes"),
                "use a range inside the region",
            ),
        };
        Error::new(refused.status(), what, why, fix)
    }

    /// Checks that the peer's version of the library's messages has a feature: `with`, since minor version `first`. `what` names the
    /// refused call to the peer with this label.
    pub(super) fn check_speaks(
        &self,
        first: u8,
        what: impl FnOnce(&str) -> String,
        with: &str,
        fix: &'static str,
    ) -> Result<(), Error> {
        let (major, minor) = self.address.messages;
        if minor >= first {
            return Ok(());
        }
        let why = format!(
            "it speaks {major}.{minor} of the library's messages, and {major}.{first} is the first with {with}"
        );
        Err(Error::new(Status::Unsupported, what(&self.address.label()), why, fix))
    }

    /// Checks that local memory belongs to this worker's context. The fast path of a lane that completes within the call omits this
    /// check. It needs only the bytes of the region, which the caller's handle keeps. On other paths a provider, or a helping peer,
    /// would mistake the other context's registrations for those of this context.
    #[inline]
    fn owns(&self, local: &Region) -> bool {
        Arc::ptr_eq(&local.inner.memory, &self.shared.core.memory)
    }

    /// Checks that local memory belongs to this worker's context, and makes the error text if it does not.
    pub(crate) fn check_local(&self, local: &Region) -> Result<(), Error> {
        match self.owns(local) {
            true => Ok(()),
            false => Err(self.not_admitted(Refused::Memory, 0, (Access::LOCAL, 0, 0))),
        }
    }
}
