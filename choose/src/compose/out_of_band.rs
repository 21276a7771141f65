//! The application's own channel among the modules that form connections.

use super::FoundModule;
use crate::rank::{ModuleFacts, ModuleRef};
use tieline_plugin_api::OUT_OF_BAND;
use tieline_plugin_api::{abi::Cost, cost_class};

const MODULE: &str = "callbacks";

/// Returns the name of the application's callbacks as a module: `oob/callbacks`. The context never opens this module; the worker
/// calls the application's callbacks.
pub fn out_of_band() -> ModuleRef {
    ModuleRef::new(OUT_OF_BAND, OUT_OF_BAND, MODULE)
}

/// Describes the application as a connection module.
pub fn out_of_band_candidate() -> FoundModule {
    FoundModule {
        at: out_of_band(),
        facts: ModuleFacts {
            connection_only: true,
            connects_to_endpoint: false,
            caps: 0,
            fetching_atomics: false,
            priority: 0, // its rank is the position of `oob` in TIELINE_CONNECT
            cost: [Cost::default(); cost_class::COUNT],
        },
        provider_preference: 0,
        provider_asked_for: false,
        priority: None,
        connect: None,
    }
}
