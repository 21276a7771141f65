//! The providers that are linked into the library, and what they can be told.

use tieline_config::Declared;

/// The text of `docs/configuration.md`: every variable of the core and of the providers that are linked into it. What this
/// process has set plays no part.
#[must_use]
pub fn configuration_markdown() -> String {
    tieline_config::markdown(variables())
}

/// What the built-in providers declare, in the order of their names.
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
    fn the_committed_documentation_is_the_one_that_the_tables_make() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == configuration_markdown(),
            "docs/configuration.md is stale: run `tieline config --markdown > docs/configuration.md`"
        );
    }
}
