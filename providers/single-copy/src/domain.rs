//! The domain and the interface of a mechanism.

use std::sync::Arc;

use tieline_plugin_api::abi::{KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Domain, DomainInfo, Endpoint, Events, Failure, Interface, MemoryReport, Revoked,
    Status, caps, connects, memory_caps, role,
};

use crate::MAX_IOV;
use crate::keys::Keys;

/// The means by which a provider copies between processes, as one context uses it.
pub trait Mechanism: Sized + Send + Sync + 'static {
    /// The name of the only module.
    const MODULE: &'static str;
    /// The form of packed keys. Its field `provider` is also the name of the only domain.
    const KEYS: Keys;
    /// The length of an interface address, in bytes.
    const ADDRESS_LEN: usize;
    /// Further memory capabilities of the domain.
    const MEMORY_CAPS: u64 = 0;

    /// A registered region.
    type Region: Send + Sync + 'static;
    /// A checked peer.
    type Peer;
    /// The endpoint to a peer.
    type Endpoint: Endpoint;
    /// The own state of an interface.
    type Local: 'static;

    /// Adds priority, costs and further capabilities to the module's attributes.
    fn describe(&self, attr: &mut ModuleAttr);

    /// Registers `len` bytes at `start`.
    ///
    /// # Errors
    /// The reason why the memory could not be registered.
    fn register(&self, start: u64, len: u64, rights: u64) -> Result<Self::Region, Failure>;

    /// Invalidates all keys of a region. Returns whether an access that passed the check before is still in progress.
    fn revoke(&self, region: &Self::Region) -> Revoked;

    /// Writes the key of a region. The buffer has the length of a key.
    ///
    /// # Errors
    /// The reason why there is no key.
    fn pack(&self, region: &Self::Region, out: &mut [u8]) -> Result<(), Failure>;

    /// Returns the state of a new interface.
    fn open(&self) -> Self::Local;

    /// Returns the address of the domain's interfaces.
    fn address(&self) -> Vec<u8>;

    /// Checks whether this mechanism reaches the peer with this address. The error text names the cause.
    ///
    /// # Errors
    /// The reason why the peer cannot be reached.
    fn reach(&self, address: &[u8]) -> Result<Self::Peer, Failure>;

    /// Makes the endpoint to a peer.
    fn connect(&self, local: &Self::Local, peer: Self::Peer) -> Self::Endpoint;

    /// Returns the memory report of an interface. `base` is the size of the interface itself.
    fn memory(&self, local: &Self::Local, base: usize) -> MemoryReport;
}

/// Returns the provider's list of domains: the one of this mechanism. `register_ns` is the cost of registering memory, in ns.
#[must_use]
pub fn domains<M: Mechanism>(register_ns: f64) -> Vec<DomainInfo> {
    vec![DomainInfo {
        name: M::KEYS.provider.to_string(),
        caps: memory_caps::REGISTER | M::MEMORY_CAPS,
        max_key_len: M::KEYS.len as u32,
        register_ns,
        register_ns_per_byte: 0.0,
    }]
}

/// Checks the name of a domain.
///
/// # Errors
/// The provider has no such domain.
pub fn check_domain<M: Mechanism>(name: &str) -> Result<(), Failure> {
    let provider = M::KEYS.provider;
    if name == provider {
        return Ok(());
    }
    Err(Failure::new(Status::NoDevice, format!("{provider} has no domain `{name}`")))
}

/// The memory of this process, as one context exposes it to its peers.
pub struct SingleCopyDomain<M: Mechanism> {
    mechanism: Arc<M>,
}

impl<M: Mechanism> SingleCopyDomain<M> {
    /// Opens the domain of the mechanism that is made with `how`.
    ///
    /// # Errors
    /// The mechanism cannot be made.
    pub fn new<H>(how: H) -> Result<SingleCopyDomain<M>, Failure>
    where
        M: TryFrom<H, Error = Failure>,
    {
        Ok(SingleCopyDomain { mechanism: Arc::new(M::try_from(how)?) })
    }
}

impl<M: Mechanism> Domain for SingleCopyDomain<M> {
    type Interface = SingleCopyInterface<M>;
    type Connector = Absent;
    type Region = M::Region;

    fn modules(&self) -> Vec<ModuleAttr> {
        let mut attr = ModuleAttr {
            name: fixed(M::MODULE),
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps: caps::PUT
                | caps::GET
                | caps::REMOTE_COMPLETION
                | caps::PASSIVE_TARGET
                | caps::SYNCHRONOUS
                | caps::LOCAL_ONLY
                | caps::CHECKS_KEYS
                | caps::ANY_THREAD,
            max_iov: MAX_IOV,
            max_address_len: M::ADDRESS_LEN as u32,
            ..ModuleAttr::empty()
        };
        self.mechanism.describe(&mut attr);
        vec![attr]
    }

    fn open_interface(
        &self,
        module: &str,
        _worker_id: [u8; 16],
    ) -> Result<SingleCopyInterface<M>, Failure> {
        if module != M::MODULE {
            let (provider, own) = (M::KEYS.provider, M::MODULE);
            let text = format!("{provider} has no module `{module}`, only `{own}`");
            return Err(Failure::new(Status::NoDevice, text));
        }
        let local = self.mechanism.open();
        Ok(SingleCopyInterface { mechanism: self.mechanism.clone(), local })
    }

    fn register(&self, memory: &RegisterParams) -> Result<M::Region, Failure> {
        let (base, len, rights) = memory.host_memory()?;
        let start = base.expose_provenance() as u64;
        if start == 0 || start.checked_add(len as u64).is_none() {
            return Err(Failure::new(
                Status::Invalid,
                format!("{len} bytes at address {start:#x} are no memory of this process"),
            ));
        }
        self.mechanism.register(start, len as u64, rights)
    }

    fn revoke(&self, region: &M::Region) -> Revoked {
        self.mechanism.revoke(region)
    }

    fn pack_key(
        &self,
        region: &M::Region,
        key: &KeyParams,
        out: &mut [u8],
    ) -> Result<usize, Failure> {
        key.whole()?;
        self.mechanism.pack(region, M::KEYS.room(out)?)?;
        Ok(M::KEYS.len)
    }
}

/// The module, opened for one worker: an address, and the check whether a peer can be reached. It has no events.
pub struct SingleCopyInterface<M: Mechanism> {
    mechanism: Arc<M>,
    local: M::Local,
}

impl<M: Mechanism> Interface for SingleCopyInterface<M> {
    type Endpoint = M::Endpoint;

    fn address(&self) -> Vec<u8> {
        self.mechanism.address()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        self.mechanism.reach(address).map(drop)
    }

    fn connect(
        &self,
        address: &[u8],
        _identity: &[u8],
        _cookie: u64,
    ) -> Result<M::Endpoint, Failure> {
        Ok(self.mechanism.connect(&self.local, self.mechanism.reach(address)?))
    }

    fn poll(&self, _events: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        self.mechanism.memory(&self.local, size_of::<Self>())
    }
}
