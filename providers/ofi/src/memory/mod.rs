//! Registered memory of this process: regions, their keys and their deregistration, and the descriptors of local pieces.
//!
//! After a registration is closed, operations that a peer has posted may continue in the library: software providers check a key
//! only when a transfer begins. Therefore a region whose key may be held by a peer ends in two steps. `revoke` asks every connected
//! peer to confirm that no operation targets the region, and returns busy until all have answered. Then the registration is closed.
//! A peer that does not answer within `TIELINE_FAILURE_TIMEOUT` is waited for no longer, and the owner is notified of that.

pub(crate) mod sys;

use crate::abi::*;
use crate::keys::{LibraryKey, MOST_INTERFACES, MOST_RAW, PackedKey, Seal, longest};
use crate::registered::sys::Mr;
use crate::sys::{Domain, Ep, Local};
use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tieline_net::Waker;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Failure, Revoked, Status, access};
use tieline_registration::key::Grant;
use tieline_registration::{Device, Lender};

/// A registered region.
pub struct Region(Arc<DomainState>);

struct DomainState {
    base: u64,
    len: u64,
    access: u64,
    generation: u64,
    /// Whether a peer may hold the region's key.
    packed: AtomicBool,
    /// The registrations, keyed by the number of the interface to which each belongs; 0 means all interfaces.
    registrations: Mutex<HashMap<u64, Mr>>,
    /// The error with which libfabric has refused to end a registration.
    refused: Mutex<Option<c_int>>,
    ending: Mutex<Option<(Instant, Arc<Revocation>)>>,
}

impl DomainState {
    /// Ends the registration for one interface, or all registrations.
    fn end(&self, interface: Option<u64>) {
        let mut registrations = held(&self.registrations);
        let over: Vec<Mr> = match interface {
            Some(number) => registrations.remove(&number).into_iter().collect(),
            None => registrations.drain().map(|(_, mr)| mr).collect(),
        };
        let refused = over.into_iter().filter_map(|mr| mr.end().err()).last();
        if refused.is_some() {
            *held(&self.refused) = refused;
        }
    }
}

/// The revocation of a region, which each interface of its domain handles.
pub(crate) struct Revocation {
    pub(crate) generation: u64,
    /// The number of interfaces whose peers have not all answered.
    open: AtomicUsize,
}

impl Revocation {
    /// Records that one interface has finished with the revocation.
    pub(crate) fn answered(&self) {
        let _ = self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The requests of other threads to an interface.
pub(crate) struct Inbox {
    pub(crate) number: u64,
    ep: Weak<Ep>,
    waiting: AtomicBool,
    revocations: Mutex<Vec<Arc<Revocation>>>,
    pub(crate) bell: Waker,
}

impl Inbox {
    /// Takes the requests since the last call.
    #[inline]
    pub(crate) fn take(&self) -> Vec<Arc<Revocation>> {
        if !self.waiting.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut revocations = held(&self.revocations);
        self.waiting.store(false, Ordering::Release);
        self.bell.clear();
        core::mem::take(&mut *revocations)
    }

    fn put(&self, revocation: &Arc<Revocation>) {
        let mut revocations = held(&self.revocations);
        revocations.push(revocation.clone());
        self.waiting.store(true, Ordering::Release);
        self.bell.wake(); // woken under the lock, because the taker also clears this bell
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.waiting.load(Ordering::Acquire)
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the memory of a domain. Any thread may use it.
pub(crate) struct Registry {
    pub(crate) domain: Arc<Domain>,
    /// Whether each interface opens the device anew, and memory is registered for each interface.
    apart: bool,
    pub(crate) seal: Seal,
    mode: c_int,
    key_bits: u32,
    patience: Duration,
    next_key: AtomicU64,
    next_generation: AtomicU64,
    next_interface: AtomicU64,
    regions: Mutex<Vec<Weak<DomainState>>>,
    interfaces: Mutex<Vec<Arc<Inbox>>>,
}

impl Registry {
    pub(crate) fn new(
        domain: Arc<Domain>,
        apart: bool,
        patience: Duration,
    ) -> Result<Registry, Failure> {
        let (mut seal, mut start) = ([0; 16], [0; 8]);
        crate::sys::random(&mut seal)?;
        crate::sys::random(&mut start)?;
        let attr = domain.info.domain();
        Ok(Registry {
            apart,
            seal,
            // `FI_MR_SCALABLE` means offsets, and keys that this provider chooses; an `mr_mode` without bits means the same.
            mode: attr.mr_mode & !FI_MR_SCALABLE,
            key_bits: 8 * attr.mr_key_size.clamp(1, 8) as u32,
            patience,
            next_key: AtomicU64::new(u64::from_le_bytes(start)),
            next_generation: AtomicU64::new(1),
            next_interface: AtomicU64::new(1),
            regions: Mutex::default(),
            interfaces: Mutex::default(),
            domain,
        })
    }

    fn per_interface(&self) -> bool {
        self.apart || self.mode & FI_MR_ENDPOINT != 0
    }

    /// Returns the domain on which to open an interface.
    pub(crate) fn place(&self) -> Result<Arc<Domain>, Failure> {
        if self.apart { Domain::open(&self.domain.info) } else { Ok(self.domain.clone()) }
    }

    /// Checks whether local pieces need a descriptor.
    pub(crate) fn needs_descriptors(&self) -> bool {
        self.mode & FI_MR_LOCAL != 0
    }

    /// Returns a new key that this provider chooses. Keys of 64 bits are random, because libfabric's providers check nothing else.
    fn next_key(&self) -> Result<u64, c_int> {
        let mut random = [0; 8];
        crate::sys::random(&mut random).map_err(|_| libc::EIO)?;
        let random = u64::from_le_bytes(random);
        match self.key_bits {
            64 => Ok(random),
            // With this number of bits, a random key would soon repeat.
            bits => Ok(self.next_key.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> (64 - bits))),
        }
    }

    /// Registers memory, with a key chosen by this provider if the library accepts one.
    fn make(
        &self,
        base: *mut u8,
        len: usize,
        rights: u64,
        ep: Option<&Arc<Ep>>,
    ) -> Result<Mr, c_int> {
        let mut refused = FI_ENOKEY;
        // The library refuses a key that is in use: try the next one.
        for _ in 0..16 {
            let key = if self.mode & FI_MR_PROV_KEY == 0 { self.next_key()? } else { 0 };
            match self.domain.register(base, len, rights, key, ep) {
                Err(FI_ENOKEY) => refused = FI_ENOKEY,
                other => return other,
            }
            if self.mode & FI_MR_PROV_KEY != 0 {
                break;
            }
        }
        Err(refused)
    }

    pub(crate) fn register(
        &self,
        base: *mut u8,
        len: usize,
        access: u64,
    ) -> Result<Region, Failure> {
        let start = base.expose_provenance() as u64;
        if start == 0 || start.checked_add(len as u64).is_none() {
            let text = format!("{len} bytes at address {start:#x} are no memory of this process");
            return Err(Failure::new(Status::Invalid, text));
        }
        let (generation, len) = (self.next_generation.fetch_add(1, Ordering::Relaxed), len as u64);
        let region = Arc::new(DomainState {
            base: start,
            len,
            access,
            generation,
            packed: AtomicBool::new(false),
            registrations: Mutex::default(),
            refused: Mutex::default(),
            ending: Mutex::default(),
        });
        if self.mode & FI_MR_ALLOCATED != 0 && !sys::populate(base, region.len.max(1) as usize) {
            let text = format!(
                "{len} bytes at address {start:#x} cannot be read, and must be before they are registered"
            );
            return Err(Failure::new(Status::Invalid, text));
        }
        // The lock is held, so that a region and an interface that are created concurrently see each other.
        let mut regions = held(&self.regions);
        regions.retain(|region| region.strong_count() > 0);
        match self.per_interface() {
            false => self.bind(&region, 0, None)?,
            true => {
                for inbox in held(&self.interfaces).iter() {
                    if let Some(ep) = inbox.ep.upgrade() {
                        self.bind(&region, inbox.number, Some(&ep))?;
                    }
                }
            }
        }
        regions.push(Arc::downgrade(&region));
        Ok(Region(region))
    }

    fn bind(
        &self,
        region: &DomainState,
        interface: u64,
        ep: Option<&Arc<Ep>>,
    ) -> Result<(), Failure> {
        let base = core::ptr::with_exposed_provenance_mut(region.base as usize);
        // Some providers refuse empty registrations. The additional byte is never part of a key.
        let len = region.len.max(1) as usize;
        let access = if region.len == 0 { 0 } else { region.access };
        let registration =
            self.make(base, len, rights(access), ep).map_err(|errno| refusal(len, errno))?;
        let _ = held(&region.registrations).insert(interface, registration);
        Ok(())
    }

    /// Adds a new interface, and registers the existing regions for it if registrations belong to interfaces.
    pub(crate) fn join(
        &self,
        ep: &Arc<Ep>,
        number: u64,
        bell: Waker,
    ) -> Result<Arc<Inbox>, Failure> {
        let inbox = Arc::new(Inbox {
            number,
            ep: Arc::downgrade(ep),
            waiting: AtomicBool::new(false),
            revocations: Mutex::default(),
            bell,
        });
        let regions = held(&self.regions);
        if self.per_interface() {
            let regions: Vec<Arc<DomainState>> = regions.iter().filter_map(Weak::upgrade).collect();
            let bound = regions.iter().try_for_each(|region| self.bind(region, number, Some(ep)));
            if let Err(failure) = bound {
                regions.iter().for_each(|region| region.end(Some(number)));
                return Err(failure);
            }
        }
        // Existing keys are valid at this interface, too, so the interface asks the peers that connect to it.
        held(&self.interfaces).push(inbox.clone());
        for region in regions.iter().filter_map(Weak::upgrade) {
            let ending = held(&region.ending);
            let Some((_, revocation)) = &*ending else { continue };
            let asked = |asked: &Arc<Revocation>| Arc::ptr_eq(asked, revocation);
            if !held(&inbox.revocations).iter().any(asked) {
                let _ = revocation.open.fetch_add(1, Ordering::AcqRel);
                inbox.put(revocation);
            }
        }
        Ok(inbox)
    }

    pub(crate) fn new_interface(&self) -> u64 {
        self.next_interface.fetch_add(1, Ordering::Relaxed)
    }

    /// Removes an interface, and ends its registrations before its endpoint is closed.
    pub(crate) fn leave(&self, inbox: &Arc<Inbox>) {
        held(&self.interfaces).retain(|other| !Arc::ptr_eq(other, inbox));
        inbox.take().iter().for_each(|revocation| revocation.answered());
        if self.per_interface() {
            for region in held(&self.regions).iter().filter_map(Weak::upgrade) {
                region.end(Some(inbox.number));
            }
        }
    }

    /// At the first call, asks every connected peer to confirm that no operation targets the region, if a peer may hold its key.
    pub(crate) fn revoke(&self, region: &Region) -> Revoked {
        if !region.0.packed.load(Ordering::Acquire) {
            return Revoked::Quiet;
        }
        let mut ending = held(&region.0.ending);
        let (since, revocation) = ending.get_or_insert_with(|| {
            let interfaces = held(&self.interfaces);
            let open = AtomicUsize::new(interfaces.len());
            let revocation = Arc::new(Revocation { generation: region.0.generation, open });
            for inbox in interfaces.iter() {
                inbox.put(&revocation);
            }
            (Instant::now(), revocation)
        });
        match revocation.open.load(Ordering::Acquire) {
            0 => Revoked::Quiet,
            _ if since.elapsed() >= self.patience => Revoked::Quiet,
            _ => Revoked::Busy,
        }
    }

    pub(crate) fn deregister(&self, region: Region) -> Result<(), Failure> {
        let open = held(&region.0.ending)
            .as_ref()
            .map_or(0, |ending| ending.1.open.load(Ordering::Acquire));
        region.0.end(None);
        if let Some(errno) = *held(&region.0.refused) {
            let error = std::io::Error::from_raw_os_error(errno);
            let text = format!(
                "libfabric has not ended the registration of {} bytes at {:#x}, and holders of a key may reach them: {error}",
                region.0.len, region.0.base
            );
            return Err(Failure::new(Status::Io, text));
        }
        if open == 0 {
            return Ok(());
        }
        let text = format!(
            "peers that have a key to {} bytes at {:#x} have not said within {:?} that nothing leads there any more",
            region.0.len, region.0.base, self.patience
        );
        Err(Failure::new(Status::TimedOut, text))
    }

    pub(crate) fn pack_key(&self, region: &Region, out: &mut [u8]) -> Result<usize, Failure> {
        let region = &region.0;
        let keys: Result<Vec<LibraryKey>, Failure> = {
            let registrations = held(&region.registrations);
            registrations.iter().map(|(interface, mr)| self.key_of(*interface, mr)).collect()
        };
        let mut keys = keys?;
        // A key that is older than all interfaces is valid at none of them; see `Engine::target`.
        if keys.len() > MOST_INTERFACES {
            let text = format!(
                "{} interfaces of this domain are open, and a key has room for {MOST_INTERFACES}",
                keys.len()
            );
            return Err(Failure::new(Status::Unsupported, text));
        }
        keys.sort_unstable_by_key(|key| key.interface);
        let base = if self.mode & FI_MR_VIRT_ADDR != 0 { region.base } else { 0 };
        let grant = Grant { base, len: region.len, access: region.access };
        let (generation, skew) = (region.generation, region.base % 8);
        let packed = PackedKey { grant, generation, skew, keys }.pack(&self.seal);
        let Some(room) = out.get_mut(..packed.len()) else {
            let most = longest(self.mode, MOST_RAW);
            let text = format!("a key of ofi takes up to {most} bytes and the buffer is shorter");
            return Err(Failure::new(Status::TooLarge, text));
        };
        room.copy_from_slice(&packed);
        region.packed.store(true, Ordering::Release);
        Ok(packed.len())
    }

    fn key_of(&self, interface: u64, mr: &Mr) -> Result<LibraryKey, Failure> {
        if self.mode & FI_MR_RAW == 0 {
            return Ok(LibraryKey { interface, number: mr.key(), raw: None });
        }
        let (number, raw) = mr.raw_key().map_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            let text = format!("libfabric has no key of at most {MOST_RAW} bytes: {error}");
            Failure::new(Status::Unsupported, text)
        })?;
        Ok(LibraryKey { interface, number, raw: Some(raw) })
    }

    /// Returns the descriptor of a piece, if the piece is inside the region that it names.
    fn descriptor(&self, piece: &Iov, interface: u64) -> Option<*mut c_void> {
        let region = &sys::region(piece)?.0;
        let start = (piece.base.addr() as u64).checked_sub(region.base)?;
        if start > region.len || piece.len as u64 > region.len - start {
            return None;
        }
        let number = if self.per_interface() { interface } else { 0 };
        held(&region.registrations).get(&number).map(Mr::desc)
    }
}

fn rights(access: u64) -> u64 {
    let mut rights = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    for (right, bits) in [
        (access::REMOTE_READ, FI_REMOTE_READ),
        (access::REMOTE_WRITE, FI_REMOTE_WRITE),
        (access::REMOTE_ATOMIC, FI_REMOTE_READ | FI_REMOTE_WRITE),
    ] {
        if access & right != 0 {
            rights |= bits;
        }
    }
    rights
}

/// Advice if a registration fails for lack of memory.
pub(crate) const NO_MEMORY: &str =
    "a device's memory is locked: what this process may lock (ulimit -l) may be used up";

fn refusal(len: usize, errno: c_int) -> Failure {
    let error = std::io::Error::from_raw_os_error(errno);
    let why = Failure::from_io(&format!("registering {len} bytes with libfabric"), &error);
    match errno {
        libc::ENOMEM | libc::EAGAIN => {
            Failure::new(why.status, format!("{}: {NO_MEMORY}", why.text))
        }
        _ => why,
    }
}

/// Registers an interface's own buffers, and the pieces of its operations that are in no region.
pub(crate) struct LocalMemory {
    registry: Arc<Registry>,
    ep: Arc<Ep>,
    /// The registrations that belong to the endpoint and must end before it.
    bound: Mutex<Vec<Weak<Mutex<Option<Mr>>>>>,
}

/// A registration, or nothing if none is needed.
pub(crate) struct Registration {
    _mr: Arc<Mutex<Option<Mr>>>,
    desc: usize,
}

/// A transient registration, for one operation.
pub(crate) type Loan = tieline_registration::Loan<LocalMemory>;

impl LocalMemory {
    pub(crate) fn new(registry: Arc<Registry>, ep: Arc<Ep>) -> LocalMemory {
        LocalMemory { registry, ep, bound: Mutex::default() }
    }

    /// Ends the registrations that belong to the endpoint, and then closes the endpoint. Returns whether the endpoint has closed:
    /// if so, the library accesses no memory of the endpoint any more.
    pub(crate) fn shut(&self) -> bool {
        for registration in held(&self.bound).drain(..).filter_map(|weak| weak.upgrade()) {
            drop(held(&registration).take());
        }
        self.ep.shut()
    }
}

impl Device for LocalMemory {
    type Registration = Registration;

    fn register(&self, base: *mut u8, len: usize, _written: bool) -> Result<Registration, Failure> {
        if !self.registry.needs_descriptors() {
            return Ok(Registration { _mr: Arc::default(), desc: 0 });
        }
        let ep = self.registry.per_interface().then_some(&self.ep);
        let mr =
            self.registry.make(base, len, rights(0), ep).map_err(|errno| refusal(len, errno))?;
        let desc = mr.desc().expose_provenance();
        let mr = Arc::new(Mutex::new(Some(mr)));
        if ep.is_some() {
            let mut bound = held(&self.bound);
            bound.retain(|weak| weak.strong_count() > 0);
            bound.push(Arc::downgrade(&mr));
        }
        Ok(Registration { _mr: mr, desc })
    }
}

/// Returns the descriptor for pieces of a registration.
pub(crate) fn desc(registration: &Registration) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(registration.desc)
}

/// Converts pieces for the library. Memory that is in no region gets a transient registration if one is needed, which `loans` holds
/// until the operation completes. Empty pieces are left out.
pub(crate) fn pieces(
    lender: &Arc<Lender<LocalMemory>>,
    iov: &[Iov],
    interface: u64,
    written: bool,
    loans: &mut Vec<Loan>,
) -> Result<Vec<Local>, Status> {
    let registry = &lender.device().registry;
    let mut out = Vec::with_capacity(iov.len());
    for piece in iov.iter().filter(|piece| piece.len > 0) {
        let (base, len) = (piece.base, piece.len);
        let desc = match registry.needs_descriptors() {
            false => core::ptr::null_mut(),
            true => match registry.descriptor(piece, interface) {
                Some(desc) => desc,
                None => {
                    let lent = lender.lend(base, len, written, |made| made.desc);
                    let (loan, desc) = lent.map_err(|failure| failure.status)?;
                    loans.push(loan);
                    core::ptr::with_exposed_provenance_mut(desc)
                }
            },
        };
        out.push(Local { base, len, desc });
    }
    Ok(out)
}
