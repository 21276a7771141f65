//! The loads of files in progress.

use tieline_plugin_api::process::{Call, Calls};

/// In a child that is forked during a load, the loader has the file, possibly not relocated.
static LOADS: Calls = Calls::new();

/// Begins to use the loader; `None` in a child that was forked during a load.
pub(crate) fn begin() -> Option<Call<'static>> {
    LOADS.begin()
}

/// Checks whether a load is in progress, or was in progress when this process was forked.
pub(crate) fn in_progress() -> bool {
    LOADS.in_progress()
}
