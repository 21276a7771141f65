//! Contexts: providers found, ranked and composed; the home of workers and registered memory.

use crate::address::{Party, Place};
use crate::compose::{self, Composition, Wishes};
use crate::config::{Config, ConfigBuilder, ProviderVar, vars};
use crate::explain::{Record, Verdict};
use crate::rank::{ModuleFacts, ModuleRef, Role, compare};
use crate::region::{Access, Backing, Inner as RegionInner, Region, Registration, Table};
use crate::registry::abi::objects::OpenDomain;
use crate::registry::{Builtin, Discovery, LoadedProvider, Settings, discover};
use crate::report::Report;
use crate::selftest;
use crate::service::Service;
use crate::sys::{ForkGuard, OwnedBuffer, Span};
use crate::worker::{Roles, Worker, carrier};
use crate::{Error, Status};
use once_cell::sync::OnceCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tieline_plugin_api::abi::{DomainAttr, ModuleAttr, fixed_str};
use tieline_plugin_api::{memory_caps, role};

/// An open domain of a provider in use.
pub(crate) struct DomainSlot {
    pub(crate) provider: Arc<LoadedProvider>,
    pub(crate) name: String,
    pub(crate) attr: DomainAttr,
    pub(crate) domain: OpenDomain,
}

/// A module that every worker opens.
pub(crate) struct ModuleUse {
    pub(crate) domain: usize,
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) roles: Roles,
    pub(crate) attr: ModuleAttr,
}

/// Everything of a context that its workers and regions share. Immutable but for what is counted.
pub(crate) struct Core {
    pub(crate) id: [u8; 16],
    pub(crate) place: Place,
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) composition: Composition,
    /// What else was decided while opening.
    pub(crate) records: Vec<Record>,
    pub(crate) modules: Vec<ModuleUse>,
    /// Connection-only modules that some path needs; every worker opens them.
    pub(crate) connectors: Vec<ModuleUse>,
    /// Whether datagrams of wire-up may go through the application.
    pub(crate) out_of_band: bool,
    /// The domain whose device executes atomics on memory of this context; none: processors do.
    device_atomics: Option<usize>,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue_bytes: usize,
    pub(crate) assist_size: usize,
    pub(crate) regions: Table,
    guard: ForkGuard,
    notes: Mutex<Vec<String>>,
    service: OnceLock<Party>,
    /// Last: everything above that points into a domain goes first.
    pub(crate) domains: Vec<DomainSlot>,
}

/// Keeps the progress thread alive: every handle of the application holds one, the thread itself does not.
pub(crate) struct Lease {
    #[allow(dead_code)] // held for its drop, which ends the thread
    service: Option<Service>,
}

/// What a program opens first. Clones are the same context; usable from every thread.
#[derive(Clone)]
pub struct Context {
    core: Arc<Core>,
    lease: Arc<Lease>,
}

/// How to open a context: values that the program sets beat the environment and the files.
#[must_use]
pub struct ContextBuilder {
    config: ConfigBuilder,
    out_of_band: bool,
}

const NOTES: usize = 256;

impl Context {
    /// Opens a context as environment and configuration files say.
    ///
    /// # Errors
    /// A malformed variable, a `required:` provider that is missing, or no module at all that carries messages.
    pub fn open() -> Result<Context, Error> {
        Context::builder().open()
    }

    /// A builder, for programs that set something themselves.
    pub fn builder() -> ContextBuilder {
        ContextBuilder { config: Config::builder().process_environment(), out_of_band: false }
    }

    /// Opens a worker, which belongs to the calling thread.
    ///
    /// # Errors
    /// When a module cannot be opened: descriptors or memory ran out.
    pub fn worker(&self) -> Result<Worker, Error> {
        Worker::open(self.core.clone(), Some(self.lease.clone()))
    }

    /// Allocates zeroed memory that is shared from birth where a provider offers that: local peers reach it
    /// by load and store. All access.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn alloc(&self, len: usize) -> Result<Region, Error> {
        self.core.alloc(len, Access::ALL)
    }

    /// [`Context::alloc`] with a choice of what peers may do.
    ///
    /// # Errors
    /// As [`Context::alloc`].
    pub fn alloc_with(&self, len: usize, access: Access) -> Result<Region, Error> {
        self.core.alloc(len, access)
    }

    /// Registers a buffer, which the region owns from here on. All access.
    ///
    /// # Errors
    /// When a provider refuses it.
    pub fn register(&self, buffer: impl Into<Box<[u8]>>) -> Result<Region, Error> {
        let buffer = OwnedBuffer::new(buffer.into());
        self.core.register(buffer.span(), Access::ALL, Backing::Owned(buffer))
    }

    /// [`Context::register`] with a choice of what peers may do.
    ///
    /// # Errors
    /// As [`Context::register`].
    pub fn register_with(
        &self,
        buffer: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<Region, Error> {
        let buffer = OwnedBuffer::new(buffer.into());
        self.core.register(buffer.span(), access, Backing::Owned(buffer))
    }

    /// Registers memory that the application owns.
    ///
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes until the region is dropped, and no Rust
    /// reference to the bytes is used while a peer may write them.
    ///
    /// # Errors
    /// As [`Context::register`].
    #[allow(unsafe_code)] // the promise is the caller's; nothing unsafe is done here
    pub unsafe fn register_raw(
        &self,
        base: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Region, Error> {
        // SAFETY: the caller's promise.
        let span = unsafe { Span::new(base, len) };
        self.core.register(span, access, Backing::Borrowed)
    }

    /// What was found, what is used, and why everything else is not.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::of(&self.core)
    }
}

impl ContextBuilder {
    /// Sets a variable: `.set("TIELINE_PROVIDERS", "^shm-cma")`.
    pub fn set(mut self, name: &str, value: &str) -> ContextBuilder {
        self.config = self.config.set(name, value);
        self
    }

    /// Whether a thread of the library serves what peers ask of this context's memory while the
    /// application computes. It sleeps when idle.
    pub fn progress_thread(self, on: bool) -> ContextBuilder {
        self.set(vars::PROGRESS_THREAD, if on { "on" } else { "off" })
    }

    /// Whether the application carries the few datagrams that form a connection, as
    /// [`Worker::set_out_of_band`] describes; the connection module `oob` then takes its place in
    /// `TIELINE_CONNECT`.
    pub fn out_of_band(mut self, on: bool) -> ContextBuilder {
        self.out_of_band = on;
        self
    }

    /// What a context opened like this finds and chooses, and the error with which it cannot be used, if
    /// so: for tools that explain.
    ///
    /// # Errors
    /// A malformed variable or file.
    pub fn report(self) -> Result<(Report, Option<Error>), Error> {
        let core = Core::assemble(self.config.build()?, self.out_of_band)?;
        let unusable = core.check_usable().err();
        Ok((Report::of(&core), unusable))
    }

    /// Opens the context.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub fn open(self) -> Result<Context, Error> {
        let core = Core::open(self.config.build()?, self.out_of_band)?;
        let service = if core.config.bool(vars::PROGRESS_THREAD)? {
            Some(Service::start(core.clone())?)
        } else {
            None
        };
        Ok(Context { core, lease: Arc::new(Lease { service }) })
    }
}

/// Lets the registry read the configuration, also on behalf of providers.
struct ConfigSettings(Arc<Config>);

impl Settings for ConfigSettings {
    fn get(&self, name: &str) -> Option<String> {
        self.0.get(name)
    }
}

fn builtin() -> Vec<Builtin> {
    #[cfg(feature = "builtin")]
    {
        use tieline_plugin_api::abi::shims::entry;
        vec![
            Builtin {
                name: "shm",
                version: env!("CARGO_PKG_VERSION"),
                entry: entry::<tieline_provider_shm::Shm>,
            },
            Builtin {
                name: "shm-cma",
                version: env!("CARGO_PKG_VERSION"),
                entry: entry::<tieline_provider_shm_cma::ShmCma>,
            },
        ]
    }
    #[cfg(not(feature = "builtin"))]
    Vec::new()
}

impl Core {
    fn open(config: Config, out_of_band: bool) -> Result<Arc<Core>, Error> {
        let core = Core::assemble(config, out_of_band)?;
        core.check_usable()?;
        Ok(core)
    }

    /// Whether what is required is there, and something that carries messages.
    fn check_usable(&self) -> Result<(), Error> {
        let discovery = &self.discovery;
        let names = discovery.providers.iter().map(|p| p.name.as_str());
        let loaded: Vec<&str> = names.filter(|name| self.why_not_used(name).is_none()).collect();
        let reason = |name: &str| {
            let about = discovery.records.iter().chain(&self.records).find(|r| r.provider == name);
            self.why_not_used(name)
                .map(|because| format!("not used: {because}"))
                .or_else(|| about.map(|record| record.verdict.to_string()))
        };
        self.config.selection(vars::PROVIDERS)?.check_required(&loaded, reason)?;
        self.composition.check_required(&Wishes::from_config(&self.config)?)?;
        if self.modules.iter().any(|m| m.roles.message) {
            Ok(())
        } else {
            Err(self.no_message_module())
        }
    }

    /// Why a provider that is fit for use has nothing to do on this machine.
    pub(crate) fn why_not_used(&self, provider: &str) -> Option<&str> {
        // One device of several that is not ready does not count for the whole.
        let open = self.domains.iter().any(|slot| slot.provider.name == provider);
        self.records.iter().find_map(|record| match &record.verdict {
            Verdict::NotUsed { because }
                if record.provider == provider && (record.domain.is_none() || !open) =>
            {
                Some(because.as_str())
            }
            _ => None,
        })
    }

    /// Finds, ranks and composes; what came out may be of no use.
    fn assemble(config: Config, out_of_band: bool) -> Result<Arc<Core>, Error> {
        let config = Arc::new(config);
        let _ = config.secret()?;
        let id = crate::sys::random_id()?;
        let providers = config.selection(vars::PROVIDERS)?;
        let wishes = Wishes::from_config(&config)?;
        let settings = Arc::new(ConfigSettings(config.clone()));
        let discovery = discover(settings, &builtin(), &|name, version| {
            providers.admits(name, Some(version)).map(|_| ())
        });
        let mut records = Vec::new();
        let seen: Vec<&str> = discovery.records.iter().map(|r| r.provider.as_str()).collect();
        records.extend(providers.unmatched(&seen, &discovery.looked));
        for provider in &discovery.providers {
            let variables = provider.config_vars().into_iter().map(|v| ProviderVar {
                name: v.name,
                default: v.default,
                kind: v.kind,
                doc: v.doc,
            });
            config.declare(&provider.name, variables.collect());
        }

        let mut domains = Vec::new();
        let mut found = Vec::new();
        for provider in &discovery.providers {
            if let Err(record) = open_domains(provider, id, &mut domains, &mut found, &mut records)
            {
                records.push(*record);
            }
        }
        if config.bool(vars::SELFTEST)? {
            found.retain(|module| self_tested(module, &domains, &mut records));
        }
        let mut candidates = Vec::new();
        for (at, attr, _) in &found {
            let version = discovery.providers.iter().find(|p| p.name == at.provider);
            let version = version.map(|p| &p.version);
            candidates.push(compose::Candidate {
                at: at.clone(),
                facts: ModuleFacts::from(attr),
                provider_preference: providers.admits(&at.provider, version).unwrap_or(0),
                provider_asked_for: providers.asks_for(&at.provider),
                priority: config.priority(&at.provider, &at.module)?,
                connect: config.connect_of(&at.provider, &at.domain)?,
            });
        }
        if out_of_band {
            candidates.push(carrier::out_of_band_candidate());
        }
        // What forms connections is counted on only once it has been opened: another one takes its place otherwise.
        let mut closed: Vec<String> = Vec::new();
        let composition = loop {
            let mut composition = compose::compose(&candidates, &wishes);
            let Some(record) = closed_connector(&composition, &found, &domains, id) else {
                // A name that means one of them was found, whatever became of it.
                composition.records.retain(|r| {
                    !matches!(r.verdict, Verdict::NotFound { .. }) || !closed.contains(&r.subject())
                });
                break composition;
            };
            candidates.retain(|candidate| candidate.at.to_string() != record.subject());
            closed.extend(record.module.clone());
            closed.push(record.provider.clone());
            closed.push(record.subject());
            records.push(record);
        };
        check_names(&wishes, &found, &discovery, &mut records);
        let idle: Vec<&str> = discovery
            .records
            .iter()
            .map(|r| r.provider.as_str())
            .filter(|name| !discovery.providers.iter().any(|p| p.name == *name))
            .collect();
        let _ = config.check(&idle)?;
        let modules = modules_in_use(&composition, &found, false);
        let connectors = modules_in_use(&composition, &found, true);
        let out_of_band = composition.usable().any(|path| {
            path.module(Role::Connection).is_some_and(|at| at.provider == carrier::OUT_OF_BAND)
        });
        let device_atomics = composition
            .device_for_atomics()
            .and_then(|at| domains.iter().position(|slot| slot.name == at.domain));
        let connect_timeout = config.duration(vars::CONNECT_TIMEOUT)?;
        let _ = config.duration(vars::FAILURE_TIMEOUT)?;
        let queue_bytes = config.size(vars::QUEUE_BYTES)?;
        let assist_size = config.size(vars::ASSIST_SIZE)?;
        let core = Arc::new(Core {
            id,
            place: Place::here(),
            config,
            discovery,
            composition,
            records,
            modules,
            connectors,
            out_of_band,
            device_atomics,
            connect_timeout,
            queue_bytes,
            assist_size,
            regions: Table::default(),
            guard: ForkGuard::new()?,
            notes: Mutex::default(),
            service: OnceLock::new(),
            domains,
        });
        Ok(core)
    }

    /// The error for a context that could send nothing.
    fn no_message_module(&self) -> Error {
        let all =
            self.discovery.records.iter().chain(&self.records).chain(&self.composition.records);
        let mut why: Vec<String> = Vec::new();
        for r in all {
            let line = format!("{}: {}", r.subject(), r.verdict);
            let told = matches!(r.verdict, Verdict::Found { .. } | Verdict::ChosenFor { .. });
            // A provider that is built in and there as a file is refused twice, for one reason.
            if !told && !why.contains(&line) {
                why.push(line);
            }
        }
        Error::new(
            Status::NoDevice,
            "no module that carries messages is usable",
            if why.is_empty() { "no provider was found".to_string() } else { why.join("; ") },
            "install a provider or loosen TIELINE_PROVIDERS, TIELINE_DOMAINS and TIELINE_MODULES",
        )
    }

    /// Whether this process is the one that opened the context, and not a forked child of it.
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// An error in a forked child, where nothing of the context's may be used: shared memory is not
    /// mapped there, and descriptors are the parent's.
    pub(crate) fn check_process(&self, what: &str) -> Result<(), Error> {
        if self.same_process() {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            format!("{what} was used in a forked child"),
            "connections and shared memory belong to the process that made them",
            "open a new Context in the child",
        ))
    }

    /// Keeps a line for the report: a library does not print.
    pub(crate) fn note(&self, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES && !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// The lines kept so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The service worker, for every worker but itself.
    pub(crate) fn service_party(&self, worker: &[u8; 16]) -> Option<Party> {
        self.service.get().filter(|party| party.worker != *worker).cloned()
    }

    /// Publishes the service worker.
    pub(crate) fn set_service(&self, party: Party) {
        let _ = self.service.set(party);
    }

    /// Memory from the first domain that provides some, else from the heap.
    pub(crate) fn alloc(self: &Arc<Self>, len: usize, access: Access) -> Result<Region, Error> {
        self.check_process("a context")?;
        let giver = self.domains.iter().position(|d| d.attr.caps & memory_caps::ALLOC != 0);
        let Some(index) = giver else {
            let buffer = OwnedBuffer::new(vec![0; len].into());
            return self.register(buffer.span(), access, Backing::Owned(buffer));
        };
        let got = self.domains[index].domain.alloc(len, access.bits())?;
        let first = Registration { domain: index, handle: got.handle as usize };
        let span = Span::of_region(got.base, len);
        self.complete(span, access, vec![first], Backing::Domain)
    }

    fn register(
        self: &Arc<Self>,
        span: Span,
        access: Access,
        backing: Backing,
    ) -> Result<Region, Error> {
        self.complete(span, access, Vec::new(), backing)
    }

    /// Registers a span with every domain that can, besides those that know it already.
    fn complete(
        self: &Arc<Self>,
        span: Span,
        access: Access,
        registrations: Vec<Registration>,
        backing: Backing,
    ) -> Result<Region, Error> {
        self.check_process("a context")?;
        let core = self.clone();
        let (id, generation) = self.regions.insert(span, access);
        let packed = OnceCell::new();
        let mut inner = RegionInner {
            core,
            id,
            generation,
            span,
            access,
            registrations,
            device_atomics: None,
            packed,
            backing,
        };
        for (index, slot) in self.domains.iter().enumerate() {
            let known = inner.registrations.iter().any(|r| r.domain == index);
            if known || slot.attr.caps & memory_caps::REGISTER == 0 || span.len() == 0 {
                continue;
            }
            let region = match slot.domain.register(span.base(), span.len(), access.bits()) {
                Ok(region) => region,
                // Peers reach it through the other domains, or by messages.
                Err(error) => {
                    self.note(format!("{} does not know some memory: {error}", slot.name));
                    continue;
                }
            };
            let handle = region.handle as usize;
            inner.registrations.push(Registration { domain: index, handle });
        }
        if let Some(home) = self.device_atomics {
            if inner.registrations.iter().any(|r| r.domain == home) {
                inner.device_atomics = Some(home);
                self.regions.leave_atomics_to_device(id);
            }
        }
        Ok(Region { inner: Arc::new(inner) })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.same_process() {
            // A provider that closed its domains in a forked child would say good-bye in its parent's name.
            std::mem::forget(std::mem::take(&mut self.domains));
        }
    }
}

type FoundModule = (ModuleRef, ModuleAttr, usize);

/// Opens a provider's domains and lists their modules.
fn open_domains(
    provider: &Arc<LoadedProvider>,
    id: [u8; 16],
    domains: &mut Vec<DomainSlot>,
    found: &mut Vec<FoundModule>,
    records: &mut Vec<Record>,
) -> Result<(), Box<Record>> {
    let refused = |expected: &str, error: &Error| {
        let verdict = Verdict::Refused {
            phase: "open".into(),
            expected: expected.into(),
            found: error.to_string(),
        };
        Record::provider(&provider.name, verdict)
    };
    let attrs = match provider.domains() {
        Ok(attrs) => attrs,
        // Nothing is wrong: this machine lacks what the provider is for.
        Err(error) if error.status() == Status::NoDevice => {
            let verdict = Verdict::NotUsed { because: error.why().to_owned() };
            return Err(Box::new(Record::provider(&provider.name, verdict)));
        }
        Err(error) => return Err(Box::new(refused("a list of domains", &error))),
    };
    for attr in attrs {
        let name = fixed_str(&attr.name).unwrap_or("?").to_string();
        let with_domain = |mut record: Record| {
            record.domain = Some(name.clone());
            record
        };
        let opened = provider.open_domain(&name, id).and_then(|d| Ok((d.modules()?, d)));
        let (modules, domain) = match opened {
            Ok(opened) => opened,
            // Its device is not ready, or not ours: the operator can help that.
            Err(error) if matches!(error.status(), Status::NoDevice | Status::Permission) => {
                let verdict = Verdict::NotUsed { because: error.why().to_owned() };
                records.push(with_domain(Record::provider(&provider.name, verdict)));
                continue;
            }
            Err(error) => {
                records.push(with_domain(refused("a domain that opens", &error)));
                continue;
            }
        };
        let index = domains.len();
        for module in modules {
            let module_name = fixed_str(&module.name).unwrap_or("?").to_string();
            let at = ModuleRef::new(&provider.name, &name, &module_name);
            match provider.check_module(&module) {
                Ok(()) => found.push((at, module, index)),
                Err(verdict) => {
                    records.push(Record::module(&provider.name, &name, &module_name, verdict));
                }
            }
        }
        domains.push(DomainSlot { provider: provider.clone(), name, attr, domain });
    }
    Ok(())
}

/// Whether a module does what it claims; if not, the record says at what it failed.
fn self_tested(
    (at, attr, domain): &FoundModule,
    domains: &[DomainSlot],
    records: &mut Vec<Record>,
) -> bool {
    if attr.role != role::DATA {
        return true;
    }
    let slot = &domains[*domain];
    match selftest::check(&slot.domain, slot.attr.caps, &at.module, attr) {
        Ok(()) => true,
        Err(found) => {
            let verdict = Verdict::Refused {
                phase: "selftest".into(),
                expected: "what it claims to do".into(),
                found,
            };
            records.push(Record::module(&at.provider, &at.domain, &at.module, verdict));
            false
        }
    }
}

/// The first connection-only module in use that cannot be opened, and why.
fn closed_connector(
    composition: &Composition,
    found: &[FoundModule],
    domains: &[DomainSlot],
    id: [u8; 16],
) -> Option<Record> {
    modules_in_use(composition, found, true).into_iter().find_map(|module| {
        let slot = &domains[module.domain];
        let error = slot.domain.open_connector(&module.name, id).err()?;
        let verdict = Verdict::NotUsed { because: error.why().to_owned() };
        Some(Record::module(&slot.provider.name, &slot.name, &module.name, verdict))
    })
}

/// Records names in the list of domains that fit nothing.
fn check_names(
    wishes: &Wishes,
    found: &[FoundModule],
    discovery: &Discovery,
    records: &mut Vec<Record>,
) {
    let domains: Vec<&str> = found.iter().map(|(at, _, _)| at.domain.as_str()).collect();
    records.extend(wishes.domains.unmatched(&domains, &discovery.looked));
}

/// The modules that the usable paths consist of, best first: those that can carry data, or the
/// connection-only ones.
fn modules_in_use(
    composition: &Composition,
    found: &[FoundModule],
    connection_only: bool,
) -> Vec<ModuleUse> {
    let all = [Role::Message, Role::Rma, Role::Atomic, Role::Connection];
    let mut ranked: Vec<_> = composition
        .usable()
        .flat_map(|path| all.into_iter().filter_map(|role| path.module(role)))
        .filter_map(|at| composition.ranked(at))
        .filter(|ranked| ranked.facts.connection_only == connection_only)
        .collect();
    ranked.sort_by(|a, b| compare(a, b, Role::Rma).0.then_with(|| a.at.cmp(&b.at)));
    ranked.dedup_by(|a, b| a.at == b.at);
    let mut modules: Vec<ModuleUse> = Vec::new();
    for ranked in ranked {
        let Some((at, attr, domain)) = found.iter().find(|(at, _, _)| *at == ranked.at) else {
            continue;
        };
        let plays = |role: Role| composition.usable().any(|path| path.module(role) == Some(at));
        let roles = Roles {
            message: plays(Role::Message),
            memory: plays(Role::Rma) || plays(Role::Atomic),
        };
        let mut attr = *attr;
        attr.priority = ranked.priority;
        modules.push(ModuleUse {
            domain: *domain,
            name: at.module.clone(),
            path: at.to_string(),
            roles,
            attr,
        });
    }
    modules
}
