//! `libtieline_shm_cma.so`: provider shm-cma as a shared object that the core loads at run time.

use tieline_plugin_api::export_provider;

export_provider!(
    tieline_provider_shm_cma::ShmCma,
    name = "shm-cma",
    version = env!("CARGO_PKG_VERSION")
);
