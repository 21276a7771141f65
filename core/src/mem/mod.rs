//! Memory of a context: its domains, the regions registered with them, and their remote keys.
//!
//! Workers and all layers above them use this module. This module uses providers through `tieline-host`, and depends on neither workers
//! nor endpoints. A region keeps the memory state alive, and nothing else of its context.

mod abi;
mod access;
pub(crate) mod key;
pub(crate) mod local;
pub(crate) mod pieces;
pub mod region;
mod room;

use crate::sys::{self, Exposed, ForkGuard, OwnedBuffer, Span};
use crate::{Error, Status};
use region::{Access, Backing, Parked, Region, RegionState, Registration, Table};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_explain::Log;
use tieline_host::LoadedProvider;
use tieline_host::abi::objects::OpenDomain;
use tieline_plugin_api::abi::DomainAttr;
use tieline_plugin_api::memory_caps;

/// An open domain of a provider in use.
pub(crate) struct DomainSlot {
    pub(crate) provider: Arc<LoadedProvider>,
    pub(crate) name: String,
    pub(crate) attr: DomainAttr,
    pub(crate) domain: OpenDomain,
}

/// The memory domains of a context, and the memory registered with them. Usable from any thread.
pub(crate) struct Memory {
    /// The context's id, which is part of each key.
    pub(crate) context: [u8; 16],
    pub(crate) regions: Table,
    parked: Parked,
    /// The domain whose device executes atomics on memory of this context; `None`: processors do.
    device_atomics: Option<usize>,
    gauge: room::Gauge,
    /// Whether all keys contain the address of their region.
    shows_addresses: AtomicBool,
    /// Whether peers may request keys by numbers.
    publishes_keys: AtomicBool,
    guard: Arc<ForkGuard>,
    notes: Arc<Log<String>>,
    /// The domains, declared last: all fields above that point into a domain are dropped first.
    pub(crate) domains: Vec<DomainSlot>,
}

impl Memory {
    pub(crate) fn new(
        context: [u8; 16],
        domains: Vec<DomainSlot>,
        device_atomics: Option<usize>,
        guard: Arc<ForkGuard>,
        notes: Arc<Log<String>>,
    ) -> Memory {
        Memory {
            context,
            regions: Table::default(),
            parked: Parked::default(),
            device_atomics,
            gauge: room::Gauge::default(),
            shows_addresses: AtomicBool::new(false),
            publishes_keys: AtomicBool::new(false),
            guard,
            notes,
            domains,
        }
    }

    /// Sets what the application has permitted for the keys of this context, before the first key is made.
    pub(crate) fn permit(&self, addresses: bool, numbers: bool) {
        self.shows_addresses.store(addresses, Ordering::Relaxed);
        self.publishes_keys.store(numbers, Ordering::Relaxed);
    }

    fn shows_addresses(&self) -> bool {
        self.shows_addresses.load(Ordering::Relaxed)
    }

    fn publishes_keys(&self) -> bool {
        self.publishes_keys.load(Ordering::Relaxed)
    }

    /// Allocates memory from the first domain that can allocate. An empty region and a region above the limit of file sizes are
    /// from the heap, and so is any region if no domain can allocate.
    pub(crate) fn alloc(self: &Arc<Self>, len: usize, access: Access) -> Result<Region, Error> {
        self.guard.check("a context")?;
        if len > 0 {
            self.gauge.check(len)?;
            let gives = |(_, slot): &(usize, &DomainSlot)| slot.attr.caps & memory_caps::ALLOC != 0;
            // A signal ends a process that extends a file beyond this limit.
            let file = sys::limits().file_bytes;
            if file.is_some_and(|most| len as u64 > most) {
                self.notes.add_once(format!(
                    "Context::alloc takes ordinary memory for {len} bytes: a memory file, which peers could map, would \
                     be larger than this process may write (ulimit -f)"
                ));
                return self.alloc_ordinary(len, access);
            }
            for (domain, slot) in self.domains.iter().enumerate().filter(gives) {
                match slot.domain.alloc(len, access.bits()) {
                    Ok(memory) => {
                        return self.register_given(domain, memory, access);
                    }
                    // The system does not support such memory, for example because a system call is forbidden.
                    Err(error) if error.status() == Status::Unsupported => self.notes.add_once(format!(
                        "{} cannot allocate memory that peers map, so ordinary memory is used: {error}",
                        slot.name
                    )),
                    Err(error) => return Err(error),
                }
            }
        }
        self.alloc_ordinary(len, access)
    }

    fn alloc_ordinary(self: &Arc<Self>, len: usize, access: Access) -> Result<Region, Error> {
        let buffer = OwnedBuffer::zeroed(len).map_err(|status| {
            let why = "the process gets no more memory from the system";
            Error::new(status, format!("memory of {len} bytes"), why, "ask for less")
        })?;
        self.register_owned(buffer, access)
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        span: Span,
        access: Access,
        backing: Backing,
    ) -> Result<Region, Error> {
        self.complete(span, access, None, backing, |_| true)
    }

    /// Registers the application's own memory, which must be mapped with the rights that peers get, unless it is
    /// [`Access::COMMITTED_LATER`].
    pub(crate) fn register_borrowed(
        self: &Arc<Self>,
        span: Span,
        access: Access,
    ) -> Result<Region, Error> {
        if access.is_checked() {
            let reads = access.allows(Access::READ) || access.allows(Access::ATOMIC);
            let writes = access.allows(Access::WRITE) || access.allows(Access::ATOMIC);
            let base = span.base().addr() as u64;
            if let Some(at) = sys::first_without(base, span.len() as u64, reads, writes) {
                return Err(lacks_rights(at - base, span.len(), writes));
            }
        }
        self.register(span, access, Backing::Borrowed)
    }

    /// Registers a span with only some of the domains.
    pub(crate) fn register_in(
        self: &Arc<Self>,
        span: Span,
        access: Access,
        backing: Backing,
        wanted: impl Fn(&DomainSlot) -> bool,
    ) -> Result<Region, Error> {
        self.complete(span, access, None, backing, wanted)
    }

    /// Registers a span with every domain that `wanted` selects and that can, except the domain that has registered it already. A part
    /// of memory that a domain has allocated can be registered with that domain for reading.
    fn complete(
        self: &Arc<Self>,
        span: Span,
        access: Access,
        given: Option<Registration>,
        backing: Backing,
        wanted: impl Fn(&DomainSlot) -> bool,
    ) -> Result<Region, Error> {
        self.guard.check("a context")?;
        self.sweep();
        let exposed = Exposed::new(span, backing.is_borrowed());
        let number = self.regions.insert(exposed, access);
        let mut inner = RegionState::new(self.clone(), number, span, access, backing);
        inner.registrations = Vec::with_capacity(self.domains.len());
        inner.registrations.extend(given);
        for (index, slot) in self.domains.iter().enumerate() {
            let known = inner.registrations.iter().any(|r| r.domain == index);
            let can = slot.attr.caps & memory_caps::REGISTER != 0
                || slot.attr.caps & memory_caps::REGISTER_PARTS != 0
                    && Access::READ.allows(access)
                    && inner.backing.is_part_given_by(index);
            if known || !can || !wanted(slot) || span.len() == 0 {
                continue;
            }
            match slot.domain.register(span, access.bits(), access.register_flags()) {
                Ok(memory) => {
                    let gives = false;
                    inner.registrations.push(Registration { domain: index, memory, gives });
                }
                // Peers access the memory through the other domains, or by messages.
                Err(error) => self
                    .notes
                    .add_once(format!("{} could not register some memory: {error}", slot.name)),
            }
        }
        // Without atomic access there are no atomics to separate, and a missing registration with the device is harmless.
        if let Some(home) = self.device_atomics.filter(|_| access.allows(Access::ATOMIC)) {
            if inner.registrations.iter().any(|r| r.domain == home) {
                inner.device_atomics = Some(home);
                self.regions.leave_atomics_to_device(number.0);
            }
        }
        Ok(inner.into_region())
    }
}

#[cold]
fn lacks_rights(at: u64, len: usize, writes: bool) -> Error {
    let rights = if writes { "PROT_READ and PROT_WRITE" } else { "PROT_READ" };
    Error::new(
        Status::Permission,
        format!("a registration of {len} bytes for peers"),
        format!(
            "the mapping at offset {at} lacks the rights that peers are to get, or nothing is mapped there"
        ),
        format!(
            "map all of it with {rights} before, register it with fewer rights, or add COMMITTED_LATER if it is committed later"
        ),
    )
}

impl Memory {
    /// Records that a peer's access to a local region hit missing memory; the report mentions the first case per region.
    #[cold]
    pub(crate) fn note_fault(&self, (region, generation): (u64, u64), at: u64) {
        let first = self.regions.reach(region, generation, (0, 0), Access::LOCAL, |bytes, _| {
            let first = bytes.first_fault().then(|| (bytes.span().base(), bytes.span().len()));
            Ok::<_, Status>(first)
        });
        if let Ok(Some((base, len))) = first {
            self.notes.add_once(format!(
                "a peer's access to registered memory was refused: of the {len} bytes at {base:?}, byte {at} is unmapped, protected or \
                 beyond the end of its file. Keep memory as it was registered until its region is closed"
            ));
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.guard.same_process() {
            // If a provider closed its domains in a forked child, it would say goodbye in its parent's name. It might also wait for
            // a lock of a thread that does not exist in the child.
            std::mem::forget(std::mem::take(&mut self.domains));
            std::mem::forget(std::mem::take(&mut self.parked));
            return;
        }
        self.abandon_parked();
    }
}
