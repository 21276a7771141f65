//! The providers that are linked into the library or the program, the variables of the library's own, and the texts about the
//! configuration.

use tieline_config::{Declared, ValueView};
use tieline_host::Builtin;
use tieline_plugin_api::abi::EntryFn;
use tieline_plugin_api::process::Kept;

static LINKED: Kept<Builtin> = Kept::new();

/// Adds a linked provider, unless one of that name was added before, to every context that this process opens after this call.
/// Linked providers are listed after those from files. Instruction-counting programs use it for simulated devices.
#[doc(hidden)]
pub fn link_provider(name: &'static str, version: &'static str, entry: EntryFn) {
    if !LINKED.iter().any(|known| known.name == name) {
        let _ = LINKED.add(Builtin { name, version, entry });
    }
}

/// Returns all linked providers: the library's first, the program's last.
pub(crate) fn linked() -> Vec<Builtin> {
    let mut all = library_providers();
    let library_providers = all.len();
    all.extend(LINKED.iter());
    all[library_providers..].reverse();
    all
}

fn library_providers() -> Vec<Builtin> {
    #[cfg(feature = "builtin")]
    {
        use tieline_plugin_api::abi::shims::entry;
        vec![
            Builtin {
                name: "shm",
                version: env!("CARGO_PKG_VERSION"),
                entry: entry::<tieline_provider_shm::Shm>,
            },
            Builtin {
                name: "shm-cma",
                version: env!("CARGO_PKG_VERSION"),
                entry: entry::<tieline_provider_shm_cma::ShmCma>,
            },
        ]
    }
    #[cfg(not(feature = "builtin"))]
    Vec::new()
}

/// Returns the text of `docs/configuration.md`: every variable of the core and of the built-in providers. The variables of other
/// providers follow if they are among `loaded` (`Report::config` has them). The settings of this process have no influence.
#[must_use]
pub fn configuration_markdown(loaded: &[ValueView]) -> String {
    tieline_config::markdown(variables(), loaded)
}

/// Returns the text of `/etc/tieline/tieline.toml` as packages install it: the same variables, each set to its default and
/// commented out.
#[must_use]
pub fn configuration_file(loaded: &[ValueView]) -> String {
    tieline_config::settings_file(variables(), loaded)
}

/// Returns the declarations of the built-in providers, ordered by name.
pub(crate) fn variables() -> Vec<(&'static str, Vec<Declared>)> {
    #[cfg(feature = "builtin")]
    {
        use tieline_plugin_api::Provider;
        let owned = |docs: &[tieline_plugin_api::ConfigDoc]| docs.iter().map(Into::into).collect();
        vec![
            ("shm", owned(tieline_provider_shm::Shm::config())),
            ("shm-cma", owned(tieline_provider_shm_cma::ShmCma::config())),
        ]
    }
    #[cfg(not(feature = "builtin"))]
    Vec::new()
}

#[cfg(all(test, feature = "builtin"))]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_committed_documentation_begins_with_what_the_tables_make() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed.starts_with(&configuration_markdown(&[])),
            "docs/configuration.md is stale: `cargo xtask test configuration` says how to write it"
        );
    }
}
