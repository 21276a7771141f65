//! `libtieline_tcp.so`: the provider tcp as a file that the core loads at run time.

use tieline_plugin_api::export_provider;

export_provider!(tieline_provider_tcp::Tcp, name = "tcp", version = env!("CARGO_PKG_VERSION"));
