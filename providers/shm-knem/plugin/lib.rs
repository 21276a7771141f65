//! `libtieline_shm_knem.so`: provider shm-knem as a shared object that the core loads at run time.

use tieline_plugin_api::export_provider;

export_provider!(
    tieline_provider_shm_knem::ShmKnem,
    name = "shm-knem",
    version = env!("CARGO_PKG_VERSION"),
    needs = tieline_provider_shm_knem::NEEDS,
    reason = tieline_provider_shm_knem::MISSING
);
