//! `libtieline_shm_xpmem.so`: provider shm-xpmem as a shared object that the core loads at run time.

use tieline_plugin_api::export_provider;

export_provider!(
    tieline_provider_shm_xpmem::ShmXpmem,
    name = "shm-xpmem",
    version = env!("CARGO_PKG_VERSION"),
    needs = tieline_provider_shm_xpmem::NEEDS,
    reason = tieline_provider_shm_xpmem::MISSING
);
