//! `libtieline_shm.so`: the provider shm as a file that the core loads at run time.

use tieline_plugin_api::export_provider;

export_provider!(tieline_provider_shm::Shm, name = "shm", version = env!("CARGO_PKG_VERSION"));
