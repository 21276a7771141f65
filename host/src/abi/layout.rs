//! Compares the digest of the layouts in a provider's table with the digests of its minor.

use tieline_plugin_api::abi::golden::DIGESTS;
use tieline_plugin_api::abi::{ABI_MAJOR, ProviderOps};

/// The layouts that a provider's minor has, and those that its table states.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Drift {
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// Compares the digest of a provider's table with those of its minor. `None`: it is one of them, the table has no digest, or the
/// core does not know the minor.
pub(crate) fn drift(theirs: &ProviderOps) -> Option<Drift> {
    let end = std::mem::offset_of!(ProviderOps, layout_digest) + size_of::<u64>();
    let has_digest = theirs.size >= end && theirs.layout_digest != 0;
    let minor = |known: &&(u16, u64)| u32::from(known.0) == theirs.abi_minor;
    let known: Vec<u64> = DIGESTS.iter().filter(minor).map(|known| known.1).collect();
    if !has_digest || known.is_empty() || known.contains(&theirs.layout_digest) {
        return None;
    }
    let digests: Vec<String> = known.iter().map(|digest| format!("{digest:016x}")).collect();
    let layouts = format!("the layouts of ABI {ABI_MAJOR}.{}, with the digest", theirs.abi_minor);
    Some(Drift {
        expected: format!("{layouts} {}", digests.join(" or ")),
        found: format!("the digest {:016x}", theirs.layout_digest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::abi::ABI_MINOR;

    fn table(minor: u16, layout_digest: u64) -> ProviderOps {
        ProviderOps { abi_minor: minor.into(), layout_digest, ..ProviderOps::empty() }
    }

    #[test]
    fn digest_of_a_known_minor_agrees_or_is_refused_with_both() {
        for (minor, digest) in DIGESTS {
            assert_eq!(drift(&table(*minor, *digest)), None);
            let other = drift(&table(*minor, !digest)).expect("drift");
            assert!(other.expected.contains(&format!("ABI 1.{minor}")), "{other:?}");
            assert!(other.expected.contains(&format!("{digest:016x}")), "{other:?}");
            assert_eq!(other.found, format!("the digest {:016x}", !digest));
        }
    }

    #[test]
    fn table_without_a_digest_or_of_an_unknown_minor_is_not_compared() {
        assert_eq!(drift(&table(ABI_MINOR, 0)), None);
        assert_eq!(drift(&table(0, 1)), None);
        assert_eq!(drift(&table(ABI_MINOR + 1, 1)), None);
        // The table of an older file ends before the digest.
        let shorter = std::mem::offset_of!(ProviderOps, layout_digest);
        assert_eq!(drift(&ProviderOps { size: shorter, ..table(ABI_MINOR, 1) }), None);
    }
}
