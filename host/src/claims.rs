//! Checks of the attributes of a provider's domains and modules. A claim that is impossible, or that the provider's tables cannot
//! keep, makes the module or domain unusable. docs/abi.md states the limits.

use super::load::LoadedProvider;
use std::ops::RangeInclusive;
use tieline_explain::Verdict;
use tieline_plugin_api::abi::{DomainAttr, ModuleAttr};
use tieline_plugin_api::{caps, connects, memory_caps, role};
use tieline_trial::Unfit;

/// The minimum for the maximum payload of a packed message: every fixed message of the core fits, and a transfer in pieces makes
/// progress after its header.
pub const LEAST_PACKED: usize = 64;
/// The minimum for the maximum length of the identity that an endpoint carries to its peer at first contact.
const LEAST_IDENTITY: usize = 4096;
/// The maximum length of an address or key.
const MOST_BYTES: usize = 4096;
/// The minimum for the maximum payload of a connector's datagram.
const LEAST_DATAGRAM: usize = 1024;

/// The capabilities that access memory by a key.
const BY_KEY: u64 = caps::PUT | caps::GET | caps::ATOMICS;
/// The capabilities whose effect a peer detects and must attribute to a sender.
const TELLS: u64 = caps::AM_SHORT | caps::AM_PACKED | caps::AM_ZCOPY | caps::PUT_NOTIFY;

impl LoadedProvider {
    /// Checks that a module of the domain is consistent and that the tables keep its promises.
    pub fn check_module(&self, module: &ModuleAttr, domain: &DomainAttr) -> Result<(), Verdict> {
        sense(module, domain).map_err(|unfit| self.verdict(unfit))?;
        self.kept(self.tables.broken_promise(module))
    }

    /// Checks that a domain is consistent and that the tables keep its promises.
    pub fn check_domain(&self, domain: &DomainAttr) -> Result<(), Verdict> {
        name(&domain.name, "domain").map_err(|unfit| self.verdict(unfit))?;
        self.kept(self.tables.broken_domain_promise(domain))
    }

    fn kept(&self, broken: Option<(&'static str, &'static str)>) -> Result<(), Verdict> {
        let Some((promise, slot)) = broken else { return Ok(()) };
        let expected = format!("the slot {slot}, which {promise} promises");
        Err(self.verdict(Unfit { expected, found: "that slot is missing".into() }))
    }

    /// Makes the refusal, with the file that causes it.
    fn verdict(&self, Unfit { expected, found }: Unfit) -> Verdict {
        let found = format!("{found} ({})", self.origin);
        Verdict::Refused { phase: "tables".into(), expected, found }
    }
}

fn refused(expected: &str, found: String) -> Result<(), Unfit> {
    Err(Unfit { expected: expected.into(), found })
}

fn sense(module: &ModuleAttr, domain: &DomainAttr) -> Result<(), Unfit> {
    name(&module.name, "module")?;
    if module.role != role::DATA && module.role != role::CONNECTION_ONLY {
        return refused("role DATA or CONNECTION_ONLY", format!("role {}", module.role));
    }
    let ways = connects::TO_INTERFACE | connects::TO_ENDPOINT;
    if module.role == role::DATA && (module.connects & ways).count_ones() != 1 {
        return refused("CONNECTS_TO_INTERFACE or _TO_ENDPOINT", module.connects.to_string());
    }
    let sane = |number: f64| number.is_finite() && number >= 0.0;
    if !module
        .cost
        .iter()
        .all(|cost| sane(cost.overhead_ns) && sane(cost.latency_ns) && sane(cost.bytes_per_second))
    {
        return refused("costs that are finite and not negative", "one that is not".into());
    }
    let masks =
        module.atomic_post32 | module.atomic_post64 | module.atomic_fetch32 | module.atomic_fetch64;
    if module.caps & caps::ATOMICS != 0 && masks == 0 {
        return refused("at least one operation with CAP_ATOMICS", "four empty masks".into());
    }
    limits(module, domain)?;
    let reaches = memory_caps::ALLOC | memory_caps::REGISTER;
    if data(module) & BY_KEY != 0 && domain.caps & reaches == 0 {
        let expected =
            "MEMORY_CAP_ALLOC or MEMORY_CAP_REGISTER of the domain, with puts, gets or atomics";
        return refused(expected, "neither".into());
    }
    Ok(())
}

/// Checks a name: non-empty text without control characters, with a terminating zero. If the zero is missing, the name was too long
/// for its field.
fn name(bytes: &[u8], whose: &str) -> Result<(), Unfit> {
    let Some(end) = bytes.iter().position(|&byte| byte == 0) else {
        let expected =
            format!("a name of at most {} bytes, with a terminating zero", bytes.len() - 1);
        let found = format!("a {whose} named `{}...` without one", bytes.escape_ascii());
        return refused(&expected, found);
    };
    let text = std::str::from_utf8(&bytes[..end]);
    match text.is_ok_and(|text| !text.is_empty() && !text.contains(char::is_control)) {
        true => Ok(()),
        false => {
            let found = format!("none, or one that is not text: `{}`", bytes[..end].escape_ascii());
            refused(&format!("a {whose} with a name"), found)
        }
    }
}

/// Returns the data capabilities of a module; none if the module only forms connections.
fn data(module: &ModuleAttr) -> u64 {
    if module.role == role::DATA { module.caps } else { 0 }
}

/// Checks that every limit lies between its minimum and its maximum; the error describes the first one that does not.
fn limits(module: &ModuleAttr, domain: &DomainAttr) -> Result<(), Unfit> {
    let connector = module.role == role::CONNECTION_ONLY;
    let to_interface = !connector && module.connects & connects::TO_INTERFACE != 0;
    let does = |capability: u64| data(module) & capability != 0;
    let (any, most) = (usize::MAX, MOST_BYTES);
    // The columns: condition, capability, limit, allowed range, actual value.
    let limits: [(bool, &str, &str, RangeInclusive<usize>, usize); 11] = [
        (does(caps::AM_SHORT), "CAP_AM_SHORT", "max_short", 8..=any, module.max_short),
        (
            does(caps::AM_PACKED),
            "CAP_AM_PACKED",
            "max_packed",
            LEAST_PACKED..=any,
            module.max_packed,
        ),
        (does(caps::AM_ZCOPY), "CAP_AM_ZCOPY", "max_zcopy", 1..=any, module.max_zcopy),
        (
            does(caps::AM_ZCOPY | caps::PUT | caps::GET),
            "CAP_AM_ZCOPY, PUT or GET",
            "max_iov",
            1..=any,
            module.max_iov as usize,
        ),
        (
            does(caps::PUT_NOTIFY),
            "CAP_PUT_NOTIFY",
            "notify_bits",
            1..=32,
            module.notify_bits as usize,
        ),
        (
            to_interface && does(TELLS),
            "messages and CONNECTS_TO_INTERFACE",
            "max_identity_len",
            LEAST_IDENTITY..=any,
            module.max_identity_len as usize,
        ),
        (
            to_interface,
            "CONNECTS_TO_INTERFACE",
            "max_address_len",
            1..=most,
            module.max_address_len as usize,
        ),
        (
            !connector && !to_interface,
            "CONNECTS_TO_ENDPOINT",
            "max_endpoint_address_len",
            1..=most,
            module.max_endpoint_address_len as usize,
        ),
        (
            connector,
            "the role CONNECTION_ONLY",
            "max_address_len",
            1..=most,
            module.max_address_len as usize,
        ),
        (
            connector,
            "the role CONNECTION_ONLY",
            "max_datagram",
            LEAST_DATAGRAM..=any,
            module.max_datagram as usize,
        ),
        (
            does(BY_KEY),
            "puts, gets or atomics",
            "max_key_len of its domain",
            1..=most,
            domain.max_key_len as usize,
        ),
    ];
    for (asked, by, limit, allowed, found) in limits {
        if asked && !allowed.contains(&found) {
            let (least, most) = (allowed.start(), allowed.end());
            let range = match *most == any {
                true => format!("of at least {least}"),
                false => format!("from {least} to {most}"),
            };
            return refused(&format!("{limit} {range} with {by}"), found.to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::abi::fixed;

    fn words(sense: Result<(), Unfit>) -> String {
        sense.map_or_else(|it| format!("{}; {}", it.expected, it.found), |()| String::new())
    }

    #[test]
    fn each_limit_is_refused_one_below_its_least_and_one_above_its_most() {
        let all = TELLS | BY_KEY;
        let good = ModuleAttr {
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps: all,
            max_iov: 1,
            max_short: 8,
            max_packed: 64,
            max_zcopy: 1,
            notify_bits: 1,
            max_address_len: 1,
            max_endpoint_address_len: 1,
            max_identity_len: 4096,
            max_datagram: 1024,
            ..ModuleAttr::empty()
        };
        let domain = DomainAttr { max_key_len: 1, ..DomainAttr::empty() };
        let to_endpoint = ModuleAttr { connects: connects::TO_ENDPOINT, ..good };
        let connector = ModuleAttr { role: role::CONNECTION_ONLY, ..good };
        for module in [good, to_endpoint, connector] {
            assert_eq!(words(limits(&module, &domain)), "");
        }
        let of = |module: ModuleAttr, expected: &str| {
            let said = words(limits(&module, &domain));
            assert!(said.starts_with(expected), "{said}");
        };
        of(ModuleAttr { max_short: 7, ..good }, "max_short of at least 8 with CAP_AM_SHORT; 7");
        of(
            ModuleAttr { max_packed: 63, ..good },
            "max_packed of at least 64 with CAP_AM_PACKED; 63",
        );
        of(ModuleAttr { max_zcopy: 0, ..good }, "max_zcopy of at least 1 with CAP_AM_ZCOPY; 0");
        of(ModuleAttr { max_iov: 0, ..good }, "max_iov of at least 1 with CAP_AM_ZCOPY, PUT");
        of(
            ModuleAttr { notify_bits: 33, ..good },
            "notify_bits from 1 to 32 with CAP_PUT_NOTIFY; 33",
        );
        of(
            ModuleAttr { notify_bits: 0, ..good },
            "notify_bits from 1 to 32 with CAP_PUT_NOTIFY; 0",
        );
        of(ModuleAttr { max_identity_len: 4095, ..good }, "max_identity_len of at least 4096");
        of(
            ModuleAttr { max_address_len: 0, ..good },
            "max_address_len from 1 to 4096 with CONNECTS",
        );
        of(ModuleAttr { max_address_len: 4097, ..good }, "max_address_len from 1 to 4096 with CO");
        let short = ModuleAttr { max_endpoint_address_len: 0, ..to_endpoint };
        of(short, "max_endpoint_address_len from 1 to 4096 with CONNECTS_TO_ENDPOINT; 0");
        let short = ModuleAttr { max_datagram: 1023, ..connector };
        of(short, "max_datagram of at least 1024 with the role CONNECTION_ONLY; 1023");
        let short = ModuleAttr { max_address_len: 0, ..connector };
        of(short, "max_address_len from 1 to 4096 with the role CONNECTION_ONLY; 0");
        for len in [0, 4097] {
            let domain = DomainAttr { max_key_len: len, ..domain };
            let said = words(limits(&good, &domain));
            assert!(
                said.starts_with("max_key_len of its domain from 1 to 4096 with puts"),
                "{said}"
            );
        }
        // A module without capabilities has no required limits.
        let silent = ModuleAttr { caps: 0, ..ModuleAttr { max_short: 0, max_packed: 0, ..good } };
        assert_eq!(words(limits(&silent, &DomainAttr::empty())), "");
    }

    #[test]
    fn a_name_is_text_that_ends_inside_its_place() {
        assert_eq!(words(name(&fixed::<32>("rc"), "module")), "");
        assert_eq!(words(name(&fixed::<32>(&"r".repeat(31)), "module")), "");
        let said = words(name(&[b'r'; 32], "module"));
        assert!(said.starts_with(
            "a name of at most 31 bytes, with a terminating zero; a module named `rrr"
        ));
        for bytes in [&b"\0\0"[..], b"\xff\0", b"two\nlines\0"] {
            let said = words(name(bytes, "domain"));
            assert!(
                said.starts_with("a domain with a name; none, or one that is not text"),
                "{said}"
            );
        }
    }

    #[test]
    fn inconsistent_claims_are_refused_and_minimal_claims_accepted() {
        use tieline_plugin_api::abi::Cost;
        let good = ModuleAttr {
            name: fixed("m"),
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps: caps::AM_SHORT,
            max_short: 8,
            max_iov: 1,
            max_address_len: 1,
            max_identity_len: 4096,
            ..ModuleAttr::empty()
        };
        let domain = |caps| DomainAttr { caps, max_key_len: 1, ..DomainAttr::empty() };
        let of = |module: ModuleAttr, caps: u64| words(sense(&module, &domain(caps)));
        assert_eq!(of(good, 0), "");
        assert_eq!(
            of(ModuleAttr { name: fixed(""), ..good }, 0).split(';').next(),
            Some("a module with a name")
        );
        assert_eq!(of(ModuleAttr { role: 3, ..good }, 0), "role DATA or CONNECTION_ONLY; role 3");
        for connects in [0, connects::TO_INTERFACE | connects::TO_ENDPOINT] {
            let said = format!("CONNECTS_TO_INTERFACE or _TO_ENDPOINT; {connects}");
            assert_eq!(of(ModuleAttr { connects, ..good }, 0), said);
        }
        let connector =
            ModuleAttr { role: role::CONNECTION_ONLY, connects: 0, max_datagram: 1024, ..good };
        assert_eq!(of(connector, 0), "");
        for (overhead_ns, latency_ns, bytes_per_second) in
            [(-1.0, 0.0, 0.0), (0.0, f64::INFINITY, 0.0), (0.0, 0.0, f64::NAN)]
        {
            let mut odd = good;
            odd.cost[2] = Cost { overhead_ns, latency_ns, bytes_per_second };
            assert_eq!(of(odd, 0), "costs that are finite and not negative; one that is not");
        }
        let reach = "MEMORY_CAP_ALLOC or MEMORY_CAP_REGISTER of the domain, with puts, gets or atomics; neither";
        for by_key in [caps::PUT, caps::GET] {
            let moves = ModuleAttr { caps: by_key, ..good };
            assert_eq!(of(moves, 0), reach);
            assert_eq!(
                [memory_caps::ALLOC, memory_caps::REGISTER].map(|caps| of(moves, caps)),
                ["", ""]
            );
        }
        let atomics = ModuleAttr { caps: caps::ATOMICS, ..good };
        let empty = "at least one operation with CAP_ATOMICS; four empty masks";
        assert_eq!(of(atomics, memory_caps::ALLOC), empty);
        for one in [
            ModuleAttr { atomic_post32: 1, ..atomics },
            ModuleAttr { atomic_post64: 1, ..atomics },
            ModuleAttr { atomic_fetch32: 1, ..atomics },
            ModuleAttr { atomic_fetch64: 1, ..atomics },
        ] {
            assert_eq!(of(one, memory_caps::ALLOC), "");
            assert_eq!(of(one, 0), reach);
        }
    }
}
