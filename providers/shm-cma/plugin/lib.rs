//! `libtieline_shm_cma.so`: the provider shm-cma as a file that the core finds at run time.

use tieline_plugin_api::export_provider;

export_provider!(
    tieline_provider_shm_cma::ShmCma,
    name = "shm-cma",
    version = env!("CARGO_PKG_VERSION")
);
