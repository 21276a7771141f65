//! The settings that providers ask the host for.

/// Where a provider's configuration comes from, and the search's own.
pub(crate) trait Settings: Send + Sync {
    /// The value of a variable, when somebody has set it.
    fn get(&self, name: &str) -> Option<String>;

    /// Everything that [`Settings::get`] answers, for a child process that can ask nobody.
    fn all(&self) -> Vec<(String, String)>;
}
