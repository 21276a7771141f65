//! The settings that providers ask the host for.

use crate::config::upper;
use tieline_plugin_api::abi::{Declared, Set};

/// Whether a variable is `TIELINE_<PROVIDER>_...`.
pub(crate) fn is_named_after(provider: &str, name: &str) -> bool {
    let rest = name.strip_prefix("TIELINE_").and_then(|it| it.strip_prefix(&upper(provider)));
    rest.is_some_and(|rest| rest.starts_with('_'))
}

/// Where a provider's configuration comes from, and the search's own.
pub(crate) trait Settings: Send + Sync {
    /// The value of a variable and who set it, when somebody has or the core has a default for it.
    fn get(&self, name: &str) -> Option<Set>;

    /// Everything that [`Settings::get`] answers, for a child process that can ask nobody.
    fn all(&self) -> Vec<(String, Set)>;

    /// What the core says of a variable of its own, whatever a provider declares.
    fn of_the_core(&self, _name: &str) -> Option<Declared> {
        None
    }

    /// The names of all providers that were found, before any of them starts.
    fn found(&self, _names: &[&str]) {}

    /// Whether a variable that is not the core's may be this provider's: its name says so.
    fn may_declare(&self, provider: &str, name: &str) -> bool {
        is_named_after(provider, name)
    }

    /// A provider that starts, or would but for a value, has declared a variable.
    fn declared(&self, provider: &str, variable: &Declared);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_a_providers_by_its_whole_name() {
        for (provider, name, is) in [
            ("shm", "TIELINE_SHM_SIZE", true),
            ("shm-cma", "TIELINE_SHM_CMA_CHUNK", true),
            ("shm", "TIELINE_SHM_CMA_CHUNK", true),
            ("shm", "TIELINE_SHM", false),
            ("shm", "TIELINE_SHMEM_SIZE", false),
            ("shm", "SHM_SIZE", false),
            ("shm", "TIELINE_TCP_SHM_SIZE", false),
        ] {
            assert_eq!(is_named_after(provider, name), is, "{provider} {name}");
        }
    }
}
