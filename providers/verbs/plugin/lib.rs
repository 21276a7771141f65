//! `libtieline_verbs.so`: the provider verbs as a file that the core finds at run time.

use tieline_plugin_api::export_provider;

export_provider!(
    tieline_provider_verbs::Verbs,
    name = "verbs",
    version = env!("CARGO_PKG_VERSION")
);
