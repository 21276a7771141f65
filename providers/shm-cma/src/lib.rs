//! Provider shm-cma: put and get between processes of one machine by `process_vm_writev` and
//! `process_vm_readv`, one copy and no help from the target.
//!
//! One domain, `shm-cma`, with one module, `copy`. The module carries no messages: the core adds it as an RMA lane beside a module
//! with messages. Guarantees:
//!
//! * Put and get have completed at both ends when the call returns, without involving the target's threads.
//! * Every operation is checked against the target's own key table, in the target's memory. The result for a forged, foreign or
//!   revoked key is [`tieline_plugin_api::Status::KeyRejected`].
//! * Every copy is first announced to the owner ([`tieline_memory_file::Announcements`]). A region ends, and its memory is free,
//!   once no access that passed the check is in progress. Until then `deregister` returns `AGAIN`.
//! * A peer counts as reachable only after a real copy of its cookie. If the kernel refuses, the error names the likely cause:
//!   Yama, another user, a namespace, or a seccomp filter.
//!
//! ```
//! use tieline_plugin_api::{Domain, caps};
//! use tieline_provider_shm_cma::CmaDomain;
//!
//! let domain = CmaDomain::new(false)?;
//! let module = &domain.modules()[0];
//! assert_ne!(module.caps & caps::PASSIVE_TARGET, 0);
//! # Ok::<(), tieline_plugin_api::Failure>(())
//! ```
//!
//! If Yama's `ptrace_scope` is 1, a process's memory can be copied only by its ancestors, by processes that it has named, and by
//! those with CAP_SYS_PTRACE. Opening an interface then names every process of the same user (`prctl(PR_SET_PTRACER,
//! PR_SET_PTRACER_ANY)`), which also lets these processes attach a debugger. `TIELINE_SHM_CMA_PTRACER=off` forbids this; the pair
//! then falls back to another lane.

mod domain;
mod endpoint;
#[cfg(feature = "test-hooks")]
mod hooks;
mod keys;
mod probe;
mod sys;

pub use domain::{Cma, CmaDomain, CmaInterface};
pub use endpoint::CmaEndpoint;
pub use keys::{Registration, RemoteKey};

use tieline_plugin_api::config::Value;
use tieline_plugin_api::{ConfigDoc, DomainInfo, Failure, HostHandle, Provider};
use tieline_single_copy::{check_domain, domains};

/// The name of the only domain.
pub const DOMAIN: &str = "shm-cma";
/// The name of the only module.
pub const MODULE: &str = "copy";

const PTRACER: ConfigDoc = ConfigDoc::text(
    "TIELINE_SHM_CMA_PTRACER",
    "auto",
    "auto: if Yama's ptrace_scope is 1, let every process of the same user attach to this one \
     once a shm-cma lane is opened; off: never, and such a pair uses another lane",
)
.one_of("auto|off");

fn may_set_ptracer(value: &Value) -> bool {
    value.text != "off"
}

/// The provider shm-cma.
pub struct ShmCma {
    may_set_ptracer: bool,
}

impl Provider for ShmCma {
    type Domain = CmaDomain;

    fn open(host: HostHandle) -> Result<ShmCma, Failure> {
        let may_set_ptracer = may_set_ptracer(&host.config(PTRACER.name));
        probe::kernel_has_it()?;
        Ok(ShmCma { may_set_ptracer })
    }

    fn config() -> &'static [ConfigDoc] {
        &[PTRACER]
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        Ok(domains::<Cma>(60.0))
    }

    fn open_domain(&self, name: &str, _context_id: [u8; 16]) -> Result<CmaDomain, Failure> {
        check_domain::<Cma>(name)?;
        CmaDomain::new(self.may_set_ptracer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_ranks_below_shm_and_above_network_modules() {
        use tieline_plugin_api::Domain;
        let modules = CmaDomain::new(false).unwrap().modules();
        let priorities: Vec<i32> = modules.iter().map(|module| module.priority).collect();
        // shm has 80, and verbs/rc, the highest network module, 60.
        assert_eq!(priorities, [70]);
    }

    #[test]
    fn ptracer_is_not_set_when_off_in_any_letter_case() {
        let may = |text| may_set_ptracer(&PTRACER.read(text).unwrap());
        assert_eq!(["auto", "off", "OFF", " Off "].map(may), [true, false, false, false]);
    }
}
