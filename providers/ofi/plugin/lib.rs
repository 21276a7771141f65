//! `libtieline_ofi.so`: the provider ofi as a file that the core loads at run time.

use tieline_plugin_api::{dlopen_note, export_provider};

export_provider!(
    tieline_provider_ofi::Ofi,
    name = "ofi",
    version = env!("CARGO_PKG_VERSION"),
    needs = tieline_provider_ofi::NEEDS,
    reason = tieline_provider_ofi::MISSING
);

dlopen_note!(
    br#"[{"feature":"libfabric","description":"What libfabric drives","priority":"recommended","soname":["libfabric.so.1"]}]"#
);
