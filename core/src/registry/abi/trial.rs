//! The calls that open a context, made once in the child process that tries a provider's file.

use super::Tables;
use super::grown::listed;
use tieline_plugin_api::abi::{DomainAttr, DomainParams, ModuleAttr, ProviderOps, fixed_str};

/// The maximum number of domains that a trial opens: all domains run the same code.
const MOST_DOMAINS: usize = 4;

/// Lists the domains, opens them, lists their modules and closes them. The results are ignored, because the parent makes the same
/// calls again.
///
/// # Safety
/// The entry function has written `ops`, and no other code calls the provider.
pub(in crate::registry) unsafe fn open_domains(ops: &ProviderOps) {
    // SAFETY: the caller guarantees the conditions above.
    let Ok(tables) = (unsafe { Tables::complete(ops) }) else { return };
    let domains = listed(DomainAttr::empty(), |out, capacity, count| {
        // SAFETY: this is the provider's function with its own state; `out` has space for `capacity` records.
        unsafe { (tables.provider.query_domains)(ops.state, out, capacity, count) }
    });
    // As in the parent, no other context has this id.
    let Ok(context_id) = crate::sys::random_id() else { return };
    for domain in domains.unwrap_or_default().iter().take(MOST_DOMAINS) {
        let Some(name) = fixed_str(&domain.name) else { continue };
        let params = DomainParams {
            name: name.as_ptr(),
            name_len: name.len(),
            context_id,
            ..DomainParams::empty()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: this is the provider's function with its own state; the record and the variable live for the call.
        let code = unsafe { (tables.provider.open_domain)(ops.state, &params, &mut handle) };
        if code < 0 {
            continue;
        }
        let _ = listed(ModuleAttr::empty(), |out, capacity, count| {
            // SAFETY: this is the provider's function with its own handle; `out` has space for `capacity` records.
            unsafe { (tables.domain.query_modules)(handle, out, capacity, count) }
        });
        // SAFETY: the handle was opened above and is closed here.
        unsafe { (tables.domain.close)(handle) };
    }
}
