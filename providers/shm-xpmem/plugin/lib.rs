//! `libtieline_shm_xpmem.so`: the provider shm-xpmem as a file that the core finds at run time.

use tieline_plugin_api::export_provider;

export_provider!(
    tieline_provider_shm_xpmem::ShmXpmem,
    name = "shm-xpmem",
    version = env!("CARGO_PKG_VERSION")
);
