//! Provider ofi: messages, puts and gets over fabrics that libfabric drives (Slingshot, EFA, Omni-Path and others).
//!
//! Each device in use of a libfabric provider is one domain, for example `ofi:cxi:cxi0`, with one module:
//!
//! * `rdm` connects *to an interface*. Messages land in receive buffers, which hold many messages each except over `ofi_rxm` and IP
//!   addresses. This provider's own credits bound the messages (`engine`). libfabric does the puts and gets if its provider
//!   completes a put at the target.
//!
//! Guarantees:
//!
//! * libfabric is loaded only if the settings ask for it, or if there is hardware that only libfabric drives. Otherwise no file of
//!   libfabric is opened. The provider undoes what libfabric's constructors do to signals. Unless the result is remembered, a child
//!   process first tests whether a process survives the loading.
//! * If a peer may hold a region's key, the region ends only when all connected peers have confirmed that no operation targets it
//!   any more (`memory`). The owner does not wait longer than `TIELINE_FAILURE_TIMEOUT` for a peer that does not answer. The
//!   reason: software providers check a key once, and may write after the registration has ended.
//! * When an operation has completed or its endpoint is closed, the application owns its memory again, even if a peer is stalled.
//!   The exception is a library that refuses to close its endpoint: it may still use the memory.
//! * Unless `TIELINE_OFI_WATCH=off` is set, the death of a peer's process is reported, even to a process that only waits for that
//!   peer. Kernels detect the death of an idle peer, which libfabric does not (`watch`).
//! * Atomics are executed by libfabric's provider and are not mixed with atomics of another executor (`atomics`).
//!
//! Not supported: gathered messages, and providers without `FI_MULTI_RECV`. Atomics that software executes while polling are used
//! only if `TIELINE_OFI_TRUST` names `atomics` (the core's own are as good). `docs/libfabric.md` lists what was run on real
//! libraries, what is tested with a simulated library, and what is untested.
//!
//! # The binding
//!
//! Records and constants are written by hand (`tieline-libfabric-abi`), and a test compares them with the headers, if they are installed. Nothing
//! is linked. The crate `libfabric-sys` does not build. `ofi-libfabric-sys` requires headers of 2.x and links the library, so on a
//! machine without libfabric the provider could not even be loaded to report its absence. `tests/yardstick` compares records and
//! constants with `ofi-libfabric-sys`.

mod address;
mod atomics;
#[cfg(test)]
mod atomics_tests;
#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod careless_tests;
#[cfg(test)]
mod closing_tests;
mod config;
mod contexts;
mod domain;
#[cfg(test)]
mod double;
mod endpoint;
mod engine;
mod hardware;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod instructions_tests;
mod interface;
mod keys;
mod load;
mod memory;
mod notices {
    pub(crate) mod sys;
}
#[cfg(test)]
mod offered_tests;
mod offers;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod played_tests;
mod queue {
    pub(crate) mod sys;
}
#[cfg(test)]
mod real_tests;
#[cfg(test)]
mod registering_tests;
mod registered {
    pub(crate) mod sys;
}
mod selftest;
mod sleep;
mod sys;
// Tests simulate the library, which needs no trial before it is loaded.
#[cfg_attr(test, allow(dead_code))]
mod trial;
mod watch;
mod wire;

pub use domain::{OfiDomain, RDM};
pub use endpoint::OfiEndpoint;
pub use engine::RemoteKey;
pub use interface::OfiInterface;
pub use memory::Region;

use config::Settings;
use offers::{Offer, Offers};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_libfabric_abi as abi;
use tieline_plugin_api::{
    ConfigDoc, DomainInfo, Failure, HostHandle, Provider, Status, memory_caps,
};

/// The paths of which the provider needs one, unless a setting asks for libfabric: the kernel's lists of its devices.
pub const NEEDS: &str = "/sys/class/cxi:/sys/class/infiniband";
/// The reason that the provider has no device without a setting.
pub const MISSING: &str = "libfabric is not loaded: no setting asks for it (name ofi in TIELINE_PROVIDERS, or set \
                           TIELINE_OFI_PROVIDERS), and there is no device that only libfabric drives";

/// The provider.
pub struct Ofi {
    settings: Settings,
    host: HostHandle,
    told: AtomicBool,
}

impl Ofi {
    /// Queries libfabric's offers each time, because devices come and go.
    fn offers(&self) -> Result<Offers, Failure> {
        if !self.settings.asked_for && hardware::found(Path::new("/sys/class")).is_none() {
            return Err(Failure::new(Status::NoDevice, MISSING));
        }
        let library = load::library(&self.settings.library)?;
        let offers = offers::offers(library, &self.settings)?;
        if !self.told.swap(true, Ordering::Relaxed) {
            self.tell(library, &offers);
        }
        Ok(offers)
    }

    /// Reports the cost of loading, libfabric's own settings, and each device that is left out.
    fn tell(&self, library: &load::Library, offers: &Offers) {
        let signals = match library.signals.len() {
            0 => String::new(),
            count => format!(
                "; it took {count} signals, which have their dispositions from before again"
            ),
        };
        let (version, took) = (config::shown(library.version), library.took.as_millis());
        let name = &self.settings.library;
        self.host
            .message(0, &format!("libfabric {version} ({name}) was loaded in {took} ms{signals}"));
        if let Some(set) = config::librarys_own(std::env::vars_os()) {
            self.host.message(0, &format!("libfabric's own settings: {set}"));
        }
        for line in offers.left_out() {
            self.host.message(0, &format!("left out: {line}"));
        }
    }
}

impl Provider for Ofi {
    type Domain = OfiDomain;

    fn open(host: HostHandle) -> Result<Ofi, Failure> {
        Ok(Ofi { settings: Settings::from_host(&host)?, host, told: AtomicBool::new(false) })
    }

    fn config() -> &'static [ConfigDoc] {
        config::VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        let offers = self.offers()?;
        if offers.used.is_empty() {
            let left_out = match offers.left_out().as_slice() {
                [] => "it has no reliable datagrams with messages and puts here".to_owned(),
                lines => lines.join("; "),
            };
            let own = config::librarys_own(std::env::vars_os());
            let own = own.map_or(String::new(), |set| format!("; its own settings are {set}"));
            let text = format!("libfabric offers nothing that is used: {left_out}{own}");
            return Err(Failure::new(Status::NoDevice, text));
        }
        let info = |offer: &Offer| DomainInfo {
            name: offer.domain.clone(),
            caps: if offer.delivery { memory_caps::REGISTER } else { 0 },
            max_key_len: keys::longest(offer.info.domain().mr_mode, offer.info.domain().mr_key_size)
                as u32,
            register_ns: 2000.0,
            register_ns_per_byte: 0.05,
        };
        Ok(offers.used.iter().map(info).collect())
    }

    fn open_domain(&self, name: &str, _context_id: [u8; 16]) -> Result<OfiDomain, Failure> {
        let missing = || Failure::new(Status::NoDevice, format!("there is no domain \"{name}\""));
        if !name.starts_with("ofi:") {
            return Err(missing()); // a query of libfabric costs a millisecond
        }
        let offer = self.offers()?.used.into_iter().find(|offer| offer.domain == name);
        let offer = offer.ok_or_else(missing)?;
        let provider = offer.provider.clone();
        let domain = OfiDomain::open(offer, self.settings.clone())?;
        if let Some(words) = &domain.broken_promise {
            let text = format!("{name} has messages only: {words} (TIELINE_OFI_TRUST)");
            self.host.message(0, &text);
        }
        if let Some(words) = config::dangers(&provider, std::env::var_os("FI_OFI_RXM_USE_SRX")) {
            self.host.message(0, &format!("{name}: {words}"));
        }
        if let Some(words) = &domain.broken_atomics {
            self.host.message(0, &format!("atomics of {name}: {words} (TIELINE_OFI_TRUST)"));
        }
        Ok(domain)
    }
}
