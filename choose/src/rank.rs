//! The comparison of two modules for a role, with the name of the deciding rule.
//!
//! The rules in order: the preference in the user's lists; priority (set by the user, otherwise the module's own); cost for the
//! role's class of operation; name. Every comparison returns the deciding rule, because the report shows it to the operator.

use crate::{Error, Status};
use std::cmp::Ordering;
use std::fmt;
use tieline_plugin_api::abi::{Cost, ModuleAttr};
use tieline_plugin_api::{caps, connects, cost_class, role};

/// A module by its full name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleRef {
    /// The provider: `verbs`.
    pub provider: String,
    /// The domain: `verbs:mlx5_0`.
    pub domain: String,
    /// The module: `rc`.
    pub module: String,
}

impl ModuleRef {
    /// Makes the name of the module `domain/module` of a provider.
    pub fn new(
        provider: impl Into<String>,
        domain: impl Into<String>,
        module: impl Into<String>,
    ) -> ModuleRef {
        ModuleRef { provider: provider.into(), domain: domain.into(), module: module.into() }
    }
}

impl fmt::Display for ModuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.module)
    }
}

/// A module's attributes on which the choice depends.
#[derive(Clone, Debug)]
pub struct ModuleFacts {
    /// Whether the module is opened through the connector table: it forms connections and carries no data.
    pub connection_only: bool,
    /// Whether the module needs an exchange of endpoint addresses, which another module carries.
    pub connects_to_endpoint: bool,
    /// The capabilities, as bits of [`caps`].
    pub caps: u64,
    /// Whether at least one atomic returns the previous value.
    pub fetching_atomics: bool,
    /// The priority that the module states.
    pub priority: i32,
    /// The costs, by [`cost_class`].
    pub cost: [Cost; cost_class::COUNT],
}

impl From<&ModuleAttr> for ModuleFacts {
    fn from(attr: &ModuleAttr) -> ModuleFacts {
        ModuleFacts {
            connection_only: attr.role == role::CONNECTION_ONLY,
            connects_to_endpoint: attr.connects & connects::TO_ENDPOINT != 0
                && attr.connects & connects::TO_INTERFACE == 0,
            caps: attr.caps,
            fetching_atomics: attr.atomic_fetch32 | attr.atomic_fetch64 != 0,
            priority: attr.priority,
            cost: attr.cost,
        }
    }
}

impl ModuleFacts {
    /// Checks whether the module carries messages that are copied before the call returns, as an exchange of addresses requires.
    pub fn carries_small_messages(&self) -> bool {
        self.caps & (caps::AM_SHORT | caps::AM_PACKED) != 0
    }
}

/// The role for which a module is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Messages.
    Message,
    /// Put and get.
    Rma,
    /// Atomics.
    Atomic,
    /// The forming of connections for modules that cannot do it themselves.
    Connection,
}

/// The missing capability of a module whose completions do not imply arrival at the target.
pub const NO_ARRIVAL: &str = "completion at the target (REMOTE_COMPLETION)";

impl Role {
    /// The roles that move data.
    pub const DATA: [Role; 3] = [Role::Message, Role::Rma, Role::Atomic];

    /// Returns the role's name in records.
    pub fn name(self) -> &'static str {
        match self {
            Role::Message => "message",
            Role::Rma => "RMA",
            Role::Atomic => "atomic",
            Role::Connection => "connection",
        }
    }

    /// Returns the capability that a module lacks for the role; `None` if it is fit.
    pub fn lacks(self, facts: &ModuleFacts) -> Option<&'static str> {
        let has = |bits: u64| facts.caps & bits != 0;
        match self {
            Role::Message if !facts.carries_small_messages() => Some("messages"),
            Role::Rma if !has(caps::PUT) && !has(caps::GET) => Some("put and get"),
            Role::Rma if !has(caps::PUT) => Some("put"),
            Role::Rma if !has(caps::GET) => Some("get"),
            Role::Atomic if !has(caps::ATOMICS) && has(caps::DEVICE_ATOMICS) => {
                Some("atomics that mix with the processors' (TIELINE_ATOMICS=cpu)")
            }
            Role::Atomic if !has(caps::ATOMICS) => Some("atomics"),
            Role::Atomic if !facts.fetching_atomics => Some("atomics that return a value"),
            // The core does not query the module later whether a completed operation has arrived.
            Role::Rma | Role::Atomic if !has(caps::REMOTE_COMPLETION) => Some(NO_ARRIVAL),
            Role::Connection if facts.connects_to_endpoint => Some("connecting to an interface"),
            Role::Connection if !facts.connection_only && !facts.carries_small_messages() => {
                Some("messages")
            }
            _ => None,
        }
    }

    /// Returns the classes of operation by which costs are compared in this role, the more relevant one first.
    fn classes(self) -> &'static [(usize, usize, &'static str)] {
        match self {
            Role::Message => &[
                (cost_class::SMALL_MESSAGE, 8, "a message of 8 bytes"),
                (cost_class::BULK_MESSAGE, 8 << 10, "a message of 8 KiB"),
            ],
            Role::Connection => &[(cost_class::SMALL_MESSAGE, 8, "a message of 8 bytes")],
            Role::Rma => &[
                (cost_class::BULK_RMA, 256 << 10, "a put of 256 KiB"),
                (cost_class::SMALL_RMA, 8, "a put of 8 bytes"),
            ],
            Role::Atomic => &[(cost_class::ATOMIC, 8, "an atomic")],
        }
    }
}

/// Returns the time for an operation of `size` bytes, in ns. Without a stated bandwidth, bytes take no time. An invalid cost counts
/// as infinitely slow.
pub fn cost_ns(cost: &Cost, size: usize) -> f64 {
    let on_the_wire =
        if cost.bytes_per_second > 0.0 { size as f64 / cost.bytes_per_second * 1e9 } else { 0.0 };
    let total = cost.overhead_ns + cost.latency_ns + on_the_wire;
    if total.is_finite() && total >= 0.0 { total } else { f64::INFINITY }
}

/// A module with all ranking criteria.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The module's name.
    pub at: ModuleRef,
    /// The module's attributes.
    pub facts: ModuleFacts,
    /// The effective priority.
    pub priority: i32,
    /// The variable that set the priority; `None`: the module stated it.
    pub priority_by: Option<String>,
    /// The module's positions in the user's lists, each with the name of the list; lower is better.
    pub preference: [(usize, &'static str); 3],
}

impl Ranked {
    /// Formats the priority: `priority 40`, with the variable if one set it.
    pub fn priority_text(&self) -> String {
        match &self.priority_by {
            Some(by) => format!("priority {} by {by}", self.priority),
            None => format!("priority {}", self.priority),
        }
    }
}

/// Compares two modules for a role; `Less` is better. The second value is the reason, as text.
pub fn compare(a: &Ranked, b: &Ranked, role: Role) -> (Ordering, String) {
    for (mine, theirs) in a.preference.iter().zip(&b.preference) {
        let order = mine.0.cmp(&theirs.0);
        if order != Ordering::Equal {
            return (order, format!("named earlier in {}", mine.1));
        }
    }
    let order = b.priority.cmp(&a.priority);
    if order != Ordering::Equal {
        let (better, worse) = if order == Ordering::Less { (a, b) } else { (b, a) };
        return (order, format!("{} over {}", better.priority_text(), worse.priority));
    }
    for &(class, size, words) in role.classes() {
        let (mine, theirs) =
            (cost_ns(&a.facts.cost[class], size), cost_ns(&b.facts.cost[class], size));
        let order = mine.total_cmp(&theirs);
        if order != Ordering::Equal {
            let (less, more) = (mine.min(theirs), mine.max(theirs));
            return (order, format!("{words} in {} against {}", time(less), time(more)));
        }
    }
    (a.at.cmp(&b.at), "equal in all but name".into())
}

/// Formats a time: `310 ns`, `12.4 us`.
pub fn time(ns: f64) -> String {
    match ns {
        n if n.is_infinite() => "no stated time".into(),
        n if n < 10_000.0 => format!("{n:.0} ns"),
        n if n < 10_000_000.0 => format!("{:.1} us", n / 1e3),
        n => format!("{:.1} ms", n / 1e6),
    }
}

/// Returns the scheme that two sides use for a pair of modules. The choice is among the schemes that both sides have, each with the
/// higher one of its two priorities. The scheme with the highest priority is chosen; among equals, the first by name. Two sides
/// with each other's lists compute the same result without a message.
///
/// # Errors
/// [`Status::Unreachable`], with the schemes of each side.
pub fn agree<S: AsRef<str>, T: AsRef<str>>(
    local: &[(S, i32)],
    remote: &[(T, i32)],
) -> Result<String, Error> {
    let common = local.iter().flat_map(|(name, mine)| {
        let same = remote.iter().filter(|(other, _)| other.as_ref() == name.as_ref());
        same.map(|(_, theirs)| ((*mine).max(*theirs), name.as_ref()))
    });
    let best = common.min_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    match best {
        Some((_, name)) => Ok(name.to_owned()),
        None => Err(Error::new(
            Status::Unreachable,
            "the two sides have no connection scheme in common",
            format!("here: {}; there: {}", names(local), names(remote)),
            "give both one in common: TIELINE_CONNECT, TIELINE_CONNECT_POLICY and TIELINE_MODULES on either side decide",
        )),
    }
}

fn names<S: AsRef<str>>(list: &[(S, i32)]) -> String {
    if list.is_empty() {
        return "none".into();
    }
    let mut names: Vec<&str> = list.iter().map(|(name, _)| name.as_ref()).collect();
    names.sort_unstable();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranked(name: &str, priority: i32, latency_ns: f64) -> Ranked {
        let cost = Cost { overhead_ns: 10.0, latency_ns, bytes_per_second: 1e10 };
        Ranked {
            at: ModuleRef::new("p", "d", name),
            facts: ModuleFacts {
                connection_only: false,
                connects_to_endpoint: false,
                caps: caps::AM_SHORT,
                fetching_atomics: false,
                priority,
                cost: [cost; cost_class::COUNT],
            },
            priority,
            priority_by: None,
            preference: [(0, "M"), (0, "D"), (0, "P")],
        }
    }

    #[test]
    fn lists_beat_priority_beats_cost_beats_name() {
        let (slow, fast) = (ranked("a", 50, 900.0), ranked("b", 50, 300.0));
        let (order, rule) = compare(&slow, &fast, Role::Message);
        assert_eq!(
            (order, rule.as_str()),
            (Ordering::Greater, "a message of 8 bytes in 311 ns against 911 ns")
        );
        let strong = ranked("a", 60, 900.0);
        assert_eq!(
            compare(&fast, &strong, Role::Message),
            (Ordering::Greater, "priority 60 over 50".into())
        );
        let mut named = ranked("b", 1, 300.0);
        let mut late = strong.clone();
        late.preference[0] = (1, "TIELINE_MODULES");
        named.preference[0] = (0, "TIELINE_MODULES");
        assert_eq!(
            compare(&named, &late, Role::Message),
            (Ordering::Less, "named earlier in TIELINE_MODULES".into())
        );
        let twin = ranked("c", 50, 300.0);
        assert_eq!(compare(&fast, &twin, Role::Rma).0, Ordering::Less);
        assert_eq!(compare(&fast, &twin, Role::Rma).1, "equal in all but name");
    }

    #[test]
    fn a_time_is_said_in_the_unit_that_people_read() {
        for (ns, words) in [
            (0.0, "0 ns"),
            (9_999.0, "9999 ns"),
            (10_000.0, "10.0 us"),
            (9_999_000.0, "9999.0 us"),
            (10_000_000.0, "10.0 ms"),
            (f64::INFINITY, "no stated time"),
        ] {
            assert_eq!(time(ns), words);
        }
    }

    #[test]
    fn a_cost_has_what_is_paid_once_and_what_each_byte_takes() {
        let cost = |overhead_ns, latency_ns, bytes_per_second, size| {
            cost_ns(&Cost { overhead_ns, latency_ns, bytes_per_second }, size)
        };
        assert_eq!(cost(10.0, 300.0, 1e9, 1000), 1310.0);
        assert_eq!(cost(10.0, 300.0, 0.0, 1000), 310.0, "it says nothing of bytes");
        assert_eq!(cost(0.0, 0.0, 0.0, 8), 0.0);
        assert_eq!(cost(-1.0, 0.0, 0.0, 8), f64::INFINITY);
    }

    /// Tests the requirements of each role, bit by bit.
    #[test]
    fn missing_capability_for_role_is_named() {
        let lacks = |role: Role, caps: u64| {
            let mut facts = ranked("a", 0, 0.0).facts;
            (facts.caps, facts.fetching_atomics) = (caps, true);
            role.lacks(&facts)
        };
        assert_eq!(lacks(Role::Message, caps::PUT | caps::AM_ZCOPY), Some("messages"));
        assert_eq!(lacks(Role::Message, caps::AM_SHORT), None);
        assert_eq!(lacks(Role::Message, caps::AM_PACKED), None);
        let arrives = caps::REMOTE_COMPLETION;
        assert_eq!(lacks(Role::Rma, arrives), Some("put and get"));
        assert_eq!(lacks(Role::Rma, arrives | caps::GET), Some("put"));
        assert_eq!(lacks(Role::Rma, arrives | caps::PUT), Some("get"));
        assert_eq!(lacks(Role::Rma, caps::PUT | caps::GET), Some(NO_ARRIVAL));
        assert_eq!(lacks(Role::Rma, arrives | caps::PUT | caps::GET), None);
        assert_eq!(lacks(Role::Atomic, arrives), Some("atomics"));
        let device = Some("atomics that mix with the processors' (TIELINE_ATOMICS=cpu)");
        assert_eq!(lacks(Role::Atomic, arrives | caps::DEVICE_ATOMICS), device);
        assert_eq!(lacks(Role::Atomic, arrives | caps::DEVICE_ATOMICS | caps::ATOMICS), None);
        assert_eq!(lacks(Role::Atomic, caps::ATOMICS), Some(NO_ARRIVAL));
        let mut facts = ranked("a", 0, 0.0).facts;
        facts.caps = arrives | caps::ATOMICS;
        assert_eq!(Role::Atomic.lacks(&facts), Some("atomics that return a value"));
        assert_eq!(Role::Connection.lacks(&facts), Some("messages"));
        facts.connection_only = true;
        assert_eq!(Role::Connection.lacks(&facts), None);
        facts.connects_to_endpoint = true;
        assert_eq!(Role::Connection.lacks(&facts), Some("connecting to an interface"));
    }

    #[test]
    fn a_module_connects_to_an_endpoint_where_it_cannot_to_an_interface() {
        let of = |connects: u32, fetch32: u32, fetch64: u32| {
            let attr = ModuleAttr {
                connects,
                atomic_fetch32: fetch32,
                atomic_fetch64: fetch64,
                ..ModuleAttr::empty()
            };
            let facts = ModuleFacts::from(&attr);
            (facts.connects_to_endpoint, facts.fetching_atomics)
        };
        let (endpoint, interface) = (connects::TO_ENDPOINT, connects::TO_INTERFACE);
        assert_eq!(of(endpoint, 0, 0), (true, false));
        assert_eq!(of(interface, 1, 0), (false, true));
        assert_eq!(of(endpoint | interface, 0, 1), (false, true));
        assert_eq!(of(0, 1, 1), (false, true));
    }

    #[test]
    fn a_priority_is_said_with_who_set_it() {
        let (mut set, own) = (ranked("a", 60, 0.0), ranked("b", 50, 0.0));
        set.priority_by = Some("TIELINE_PRIORITY_P=60 (environment)".into());
        let words = "priority 60 by TIELINE_PRIORITY_P=60 (environment) over 50";
        assert_eq!(compare(&set, &own, Role::Rma), (Ordering::Less, words.into()));
        assert_eq!(compare(&own, &set, Role::Rma), (Ordering::Greater, words.into()));
    }

    #[test]
    fn a_cost_that_makes_no_sense_is_no_advantage() {
        for latency in [f64::NAN, f64::NEG_INFINITY, -1e9] {
            let order = compare(&ranked("a", 0, latency), &ranked("b", 0, 300.0), Role::Message).0;
            assert_eq!(order, Ordering::Greater, "{latency}");
        }
    }

    #[test]
    fn the_bulk_class_decides_about_put_and_get() {
        let (mut quick, mut wide) = (ranked("quick", 0, 0.0), ranked("wide", 0, 0.0));
        quick.facts.cost[cost_class::SMALL_RMA].latency_ns = 1.0;
        wide.facts.cost[cost_class::SMALL_RMA].latency_ns = 1000.0;
        wide.facts.cost[cost_class::BULK_RMA].bytes_per_second = 1e11;
        assert_eq!(compare(&wide, &quick, Role::Rma).0, Ordering::Less);
    }

    #[test]
    fn the_higher_priority_of_either_side_decides_about_the_scheme() {
        let local = [("ud", 10), ("tcp-connect", 40)];
        assert_eq!(agree(&local, &[("ud", 50), ("tcp-connect", 20)]).unwrap(), "ud");
        assert_eq!(agree(&local, &[("tcp-connect", 0)]).unwrap(), "tcp-connect");
        assert_eq!(agree(&[("b", 1), ("a", 1)], &[("a", 1), ("b", 1)]).unwrap(), "a");
    }

    #[test]
    fn nothing_in_common_lists_both_sides() {
        let error = agree(&[("ud", 1)], &[("rdmacm", 1), ("oob", 2)]).unwrap_err();
        assert_eq!(error.why(), "here: ud; there: oob, rdmacm");
        assert_eq!(agree::<&str, &str>(&[], &[]).unwrap_err().why(), "here: none; there: none");
    }

    fn schemes() -> impl Strategy<Value = Vec<(String, i32)>> {
        prop::collection::vec(("[a-e]", -2..4i32), 0..8)
    }

    proptest! {
        #[test]
        fn both_sides_agree_on_the_same_scheme(a in schemes(), b in schemes()) {
            prop_assert_eq!(agree(&a, &b).ok(), agree(&b, &a).ok());
        }

        #[test]
        fn comparing_is_antisymmetric_and_names_one_rule(
            pa in 0..3i32, pb in 0..3i32, la in 0..3u8, lb in 0..3u8, na in "[ab]", nb in "[ab]",
        ) {
            let (a, b) = (ranked(&na, pa, f64::from(la)), ranked(&nb, pb, f64::from(lb)));
            for role in Role::DATA {
                let (forth, rule) = compare(&a, &b, role);
                let (back, same) = compare(&b, &a, role);
                prop_assert_eq!(forth, back.reverse());
                prop_assert_eq!(rule, same);
            }
        }
    }
}
