//! `libtieline_verbs.so`: provider verbs as a shared object that the core loads at run time.

use tieline_plugin_api::{dlopen_note, export_provider};

export_provider!(
    tieline_provider_verbs::Verbs,
    name = "verbs",
    version = env!("CARGO_PKG_VERSION"),
    needs = tieline_provider_verbs::NEEDS,
    reason = tieline_provider_verbs::MISSING
);

dlopen_note!(
    br#"[{"feature":"rdma","description":"RDMA devices","priority":"recommended","soname":["libibverbs.so.1"]},{"feature":"rdmacm","description":"Connections formed by IP address","priority":"recommended","soname":["librdmacm.so.1"]}]"#
);
