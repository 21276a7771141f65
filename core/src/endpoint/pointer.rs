//! Mapping of a peer's memory in this process.

use super::key::{ImportedKey, KeyInner};
use super::{EndpointState, RemoteKey};
use crate::region::Access;
use crate::sys::Span;
use crate::{Error, PostError, Status};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use tieline_plugin_api::caps;

/// A mapping of a peer's region in this process. A load or store at its address accesses the peer's memory, without a call.
///
/// The pointer holds the mapping, the key and the endpoint, even if the other handles are dropped, the endpoint fails or its worker
/// is closed. The address is valid on every thread of this process, and not in a forked child.
///
/// The peer and others access the memory at the same time. The pointer therefore provides no reference to plain bytes, only atomic
/// words and the raw address. The user of the raw address must not read bytes while another process writes them. Loads and stores
/// have no order relative to the endpoint's operations: fences and flushes ignore them.
///
/// The owner may close its region at any time and does not wait for pointers. The mapping then stays valid but is disconnected from
/// the owner: a load returns the old content, a store does not reach the owner, and nothing crashes. A pointer cannot detect this;
/// puts with the key are refused from then on.
///
/// There is one exception, which an operator has to enable: memory that `shm-xpmem` attaches with `TIELINE_SHM_XPMEM_ACCESS=direct`
/// is the owner's own memory. A load or store there ends this process by SIGBUS after the owner has closed its region or died.
pub struct RemotePointer {
    key: Rc<KeyInner>,
    span: Span,
}

impl RemoteKey {
    /// Returns a pointer to the region's mapping in this process, for loads and stores.
    ///
    /// # Errors
    /// [`PostError::Retry`]: a provider is still fetching it; make progress and call again. [`PostError::Correct`] with
    /// `Unsupported`: no module maps this memory in this process. Without direct access by `shm-xpmem`, only memory of
    /// [`Context::alloc`](crate::Context::alloc) in a process of this host can be mapped. [`PostError::Correct`] with
    /// `KeyRejected`: the key does not grant both reading and writing. Loads and stores need both, because they are not checked.
    /// [`PostError::Reconnect`]: the endpoint has ended.
    pub fn pointer(&self) -> Result<RemotePointer, PostError> {
        let (key, ep) = (&self.inner, &*self.inner.endpoint);
        ep.check_alive()?;
        if !key.record.access.allows(Access::READ | Access::WRITE) {
            return Err(Error::new(
                Status::KeyRejected,
                "a pointer to memory that may not be both read and written",
                "individual loads and stores are not checked",
                "use get or put, or ask the owner for a key that grants both",
            )
            .into());
        }
        key.resolve();
        let best = key.best_of(|native| native.caps & caps::KEY_POINTER != 0);
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
        format!("{} reaches it, but does not map it here", key.path()),
        "use put and get; memory that the context allocates is mapped by processes of its host",
    )
}

impl EndpointState {
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
    /// Releases a provider's key. If pointers lead to memory mapped by the key, the last pointer releases the key.
    pub(super) fn let_go(&self, native: &ImportedKey) {
        if self.pointers.get() > 0 && native.caps & caps::KEY_POINTER != 0 {
            self.kept.borrow_mut().push(*native);
        } else {
            self.give_back(*native);
        }
    }

    /// Checks whether a lane with this capability may still be found.
    fn may_find(&self, cap: u64) -> bool {
        let ep = &*self.endpoint;
        let attr = |rank: &usize| &ep.shared.interfaces[ep.route.memory[*rank].interface].attr;
        self.unresolved.borrow().iter().any(|rank| attr(rank).caps & cap != 0)
    }

    /// Checks whether pointers may lead to memory mapped by this interface.
    pub(super) fn points_into(&self, interface: usize) -> bool {
        let maps = |n: &ImportedKey| n.interface == interface && n.caps & caps::KEY_POINTER != 0;
        let kept = || self.kept.borrow().iter().any(maps);
        self.pointers.get() > 0 && (kept() || self.imported.borrow().iter().any(maps))
    }
}

impl RemotePointer {
    /// Returns the address of the first byte. The address is valid for loads and stores of [`len`](RemotePointer::len) bytes while
    /// this pointer exists.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.span.base()
    }

    /// Returns the length of the whole region in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// Checks whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the 64-bit word at `offset`, which must be a multiple of 8. Atomics of processors are atomic with respect to this
    /// word. Atomics of a device are not (`TIELINE_ATOMICS=device` of the owner).
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`; `Invalid` in a forked child, where nothing is mapped.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.key.endpoint.shared.core.check_process("a pointer to a peer's memory")?;
        Ok(self.span.word64(offset)?)
    }

    /// Returns the 32-bit word at `offset`, which must be a multiple of 4.
    ///
    /// # Errors
    /// The errors of [`RemotePointer::atomic_u64`].
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
        // A circuit that has ended may have been kept for this pointer.
        self.key.endpoint.worker.drop_dead_circuits_of(&self.key.endpoint);
    }
}
