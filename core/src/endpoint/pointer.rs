//! A peer's memory where it is mapped in this process.

use super::key::{ImportedKey, KeyInner};
use super::{Inner, RemoteKey};
use crate::region::Access;
use crate::sys::Span;
use crate::{Error, PostError, Status};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use tieline_plugin_api::caps;

/// Where a peer's region is mapped in this process: a load or a store there is one of the peer's memory, without a call.
///
/// It keeps the mapping, and with it key and endpoint, also when these are dropped, when the endpoint fails or its worker is closed.
/// The address is good for every thread of this process, and for no forked child.
///
/// The peer, and others, load and store there at the same time: so it hands out no reference to plain bytes, but atomic words and
/// the raw address, whose user sees to it that no byte is read that somebody writes meanwhile. Loads and stores take part in
/// no order of the endpoint's: neither a fence nor a flush looks at them.
///
/// The owner may end its region at any time, and waits for no pointer. What is mapped is then nobody's memory any more: a load
/// brings what stood there, a store reaches nobody, and nothing crashes. Whether that has happened a pointer cannot tell; a put
/// with the key is refused from then on. One exception an operator has to ask for: memory that `shm-xpmem` attaches with
/// `TIELINE_SHM_XPMEM_ACCESS=direct` is the owner's own, and a load or store there ends this process, by SIGBUS, when the owner has
/// ended its region or is dead.
pub struct RemotePointer {
    key: Rc<KeyInner>,
    span: Span,
}

impl RemoteKey {
    /// Where the region is mapped in this process, for loads and stores.
    ///
    /// # Errors
    /// [`PostError::Retry`]: a provider still fetches it, so make progress and ask again. [`PostError::Correct`]: no module maps
    /// this memory here (`Unsupported`, which is so for all but memory of [`Context::alloc`](crate::Context::alloc) of a process of this
    /// host, unless `shm-xpmem` has direct access), or the key does not grant both reading and writing (`KeyRejected`), which loads and stores need, since nobody checks them.
    /// [`PostError::Reconnect`]: the endpoint has ended.
    pub fn pointer(&self) -> Result<RemotePointer, PostError> {
        let (key, ep) = (&self.inner, &*self.inner.endpoint);
        ep.check_alive()?;
        if !key.record.access.allows(Access::READ | Access::WRITE) {
            return Err(Error::new(
                Status::KeyRejected,
                "a pointer to memory that may not be both read and written",
                "nobody checks loads and stores one by one",
                "use get or put, or ask the owner for a key that grants both",
            )
            .into());
        }
        key.resolve();
        let maps = |native: &ImportedKey| native.caps & caps::KEY_POINTER != 0;
        let best =
            key.imported.borrow().iter().copied().filter(maps).min_by_key(|native| native.rank);
        let Some(native) = best else {
            return Err(match key.may_find(caps::KEY_POINTER) {
                true => Status::Again.into(),
                false => not_mapped(self).into(),
            });
        };
        let len = usize::try_from(self.len()).map_err(|_| Status::OutOfRange)?;
        let span = native.map(len).map_err(|code| ep.no_pointer(&native, code))?;
        key.pointers.set(key.pointers.get() + 1);
        Ok(RemotePointer { key: key.clone(), span })
    }
}

#[cold]
fn not_mapped(key: &RemoteKey) -> Error {
    Error::new(
        Status::Unsupported,
        "a pointer to a peer's memory",
        format!("{} reaches it, and maps nothing here", key.path()),
        "use put and get; memory that the context allocates is mapped by processes of its host",
    )
}

impl Inner {
    #[cold]
    fn no_pointer(&self, native: &ImportedKey, code: i32) -> Error {
        let (slot, status) = (&self.shared.interfaces[native.interface], Status::from_code(code));
        if status == Status::ProviderFailed {
            self.worker.provider_failed(native.interface);
        }
        let what = format!("{} gives no pointer to this memory", slot.path);
        Error::new(status, what, format!("{}: {}", status.text(), slot.provider.last_error()), "")
    }
}

impl KeyInner {
    /// Lets go of a key of a provider's: with the last pointer to what it has mapped, where there is one.
    pub(super) fn let_go(&self, native: &ImportedKey) {
        if self.pointers.get() > 0 && native.caps & caps::KEY_POINTER != 0 {
            self.kept.borrow_mut().push(*native);
        } else {
            self.give_back(*native);
        }
    }

    /// Whether a lane with this capability may still be found.
    fn may_find(&self, cap: u64) -> bool {
        let ep = &*self.endpoint;
        let attr = |rank: &usize| &ep.shared.interfaces[ep.route.memory[*rank].interface].attr;
        self.unresolved.borrow().iter().any(|rank| attr(rank).caps & cap != 0)
    }

    /// Whether pointers may lead to what this interface has mapped.
    pub(super) fn points_into(&self, interface: usize) -> bool {
        let maps = |n: &ImportedKey| n.interface == interface && n.caps & caps::KEY_POINTER != 0;
        let kept = || self.kept.borrow().iter().any(maps);
        self.pointers.get() > 0 && (kept() || self.imported.borrow().iter().any(maps))
    }
}

impl RemotePointer {
    /// The first byte; valid for loads and stores of [`len`](RemotePointer::len) bytes while this is there.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.span.base()
    }

    /// Length in bytes: all of the region.
    #[must_use]
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The 64-bit word at an offset that is a multiple of 8. Atomics of processors are atomic towards it, and those of a
    /// device are not (`TIELINE_ATOMICS=device` of the owner).
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`; `Invalid` in a forked child, where nothing is mapped.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.key.endpoint.shared.core.check_process("a pointer to a peer's memory")?;
        Ok(self.span.word64(offset)?)
    }

    /// The 32-bit word at an offset that is a multiple of 4.
    ///
    /// # Errors
    /// As [`RemotePointer::atomic_u64`].
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, Error> {
        self.key.endpoint.shared.core.check_process("a pointer to a peer's memory")?;
        Ok(self.span.word32(offset)?)
    }
}

impl fmt::Debug for RemotePointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemotePointer({:p}, {} bytes)", self.as_ptr(), self.len())
    }
}

impl Drop for RemotePointer {
    fn drop(&mut self) {
        let left = self.key.pointers.get() - 1;
        self.key.pointers.set(left);
        if left > 0 || !self.key.endpoint.shared.same_process() {
            return;
        }
        let kept = self.key.kept.take();
        kept.into_iter().for_each(|native| self.key.give_back(native));
        // A circuit that has ended stayed for this.
        self.key.endpoint.worker.drop_dead_circuits_of(&self.key.endpoint);
    }
}
