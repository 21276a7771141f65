//! The digest of the layouts of the ABI's types, for the comparison at load.
//!
//! It covers names, offsets, sizes and types of all fields, and the signatures of all slots. The tests compute it with abi_stable.
//! A provider in Rust carries the constant, and nothing else of abi_stable.

/// The digest of each minor that this crate knows. Minor 0 has none. A minor that is not released yet may have several: one for
/// each state of its records for which files were built.
pub const DIGESTS: &[(u16, u64)] = &[(1, 0xe5e2_71a3_54eb_21fc)];

/// The digest of the records in this crate.
pub(crate) const DIGEST: u64 = DIGESTS[DIGESTS.len() - 1].1;

#[cfg(test)]
#[path = "layout_tests.rs"]
pub(super) mod tests;
