//! The description of a check.

use crate::case::{Case, short_name};
use crate::report::{Checked, Verdict};
use tieline_plugin_api::caps;

/// One requirement of a provider.
pub struct Check {
    /// The requirement as a name.
    pub name: &'static str,
    /// The property of the core or the application that the check protects, as a sentence.
    pub protects: &'static str,
    /// The capabilities `TIELINE_CAP_*` without which the check is skipped.
    pub needs: u64,
    /// The bits `1 << TIELINE_ROLE_*` of the modules to which the check applies.
    pub roles: u32,
    pub(super) run: fn(&Case) -> Checked,
}

impl Check {
    /// Returns the capabilities that the check needs, in words: `put, get`.
    pub(crate) fn needed(&self) -> String {
        let needs = caps::ALL.iter().filter(|c| c.value & self.needs != 0);
        needs.map(short_name).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn is_for(&self, role: u32) -> bool {
        1u32.checked_shl(role).is_some_and(|bit| self.roles & bit != 0)
    }

    pub(crate) fn run(&self, case: &Case) -> Verdict {
        case.needs(self.needs).and_then(|()| (self.run)(case)).into()
    }
}
