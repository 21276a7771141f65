//! The settings that providers ask the host for.

use tieline_plugin_api::abi::{Declared, Set};

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

    /// A provider has declared a variable.
    fn declared(&self, provider: &str, variable: &Declared);
}
