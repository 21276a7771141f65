//! The settings that providers request from the host.

use tieline_explain::upper_char;
use tieline_plugin_api::abi::{Declared, Set};

/// Checks whether a variable's name is `TIELINE_<PROVIDER>_...`.
pub fn is_named_after(provider: &str, name: &str) -> bool {
    let Some(rest) = name.strip_prefix("TIELINE_") else { return false };
    let mut rest = rest.chars();
    provider.chars().all(|c| rest.next() == Some(upper_char(c))) && rest.next() == Some('_')
}

/// The source of the configuration for providers and for the search itself.
pub trait Settings: Send + Sync {
    /// Returns the value of a variable and its source, if it is set or has a default in the core.
    fn get(&self, name: &str) -> Option<Set>;

    /// Returns all values that [`Settings::get`] can return, for a child process without access to this object.
    fn all(&self) -> Vec<(String, Set)>;

    /// Returns the core's declaration of one of its own variables, which overrides a provider's.
    fn core_declaration(&self, _name: &str) -> Option<Declared> {
        None
    }

    /// Receives the names of the candidate files and of the built-in providers, before any of them starts.
    fn found(&self, _names: &[&str]) {}

    /// Checks whether the user mentions this provider: in a list, or by setting one of its variables. Such a provider is loaded even
    /// if its note states that it has no device here, because it checks the values and has more to report.
    fn mentions(&self, _provider: &str) -> bool {
        false
    }

    /// Checks by its name whether a variable outside the core may belong to this provider.
    fn may_declare(&self, provider: &str, name: &str) -> bool {
        is_named_after(provider, name)
    }

    /// Records a variable that a provider has declared; the provider starts, or would start except for a refused value.
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
