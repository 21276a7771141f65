//! Which paths reach a peer, and in which order they serve it: the lanes of a pair.
//!
//! A pure function: the caller asks interfaces and probes mechanisms, and hands in what came out. One peer
//! that a mechanism cannot reach costs that pair that lane, and one record.
//!
//! Lanes stand in the order of rank, last the emulation over messages. Where messages stay within the host, a
//! network's put and get that need the target's progress just as emulation does are no lanes. A key is served by the first lane
//! that fits it: one whose module reaches only memory of its own domain (`alloc`) is passed over for other
//! memory.

use std::collections::BTreeMap;

use tieline_plugin_api::caps;

use crate::compose::Composition;
use crate::explain::{Record, Verdict};
use crate::rank::{ModuleRef, Ranked, Role, compare};

/// A module of the peer, as its address says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerModule {
    /// Its name there; the domain may be named differently here.
    pub(crate) at: ModuleRef,
    /// Its priority there.
    pub(crate) priority: i32,
}

/// The memory that an RMA or atomic lane serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// Memory that the peer's module provided itself.
    OwnMemory,
    /// Any memory registered with its domain.
    AnyMemory,
}

/// What a lane goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LaneTarget {
    /// A module here, and the peer's module that it reaches: an index into the peer's list.
    Module(ModuleRef, usize),
    /// The core's emulation over the first message lane.
    Messages,
}

/// One way to serve a class of operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankedLane {
    /// Through what.
    pub(crate) via: LaneTarget,
    /// For which memory; messages need none.
    pub(crate) serves: Serves,
    /// Why it stands where it stands.
    pub(crate) because: String,
}

/// The lanes of a pair, each list with the first choice first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lanes {
    /// For messages; empty: the peer cannot be reached.
    pub(crate) message: Vec<RankedLane>,
    /// For put and get.
    pub(crate) rma: Vec<RankedLane>,
    /// For atomics.
    pub(crate) atomic: Vec<RankedLane>,
    /// What cannot reach this peer, and what was chosen for it.
    pub(crate) records: Vec<Record>,
}

impl Lanes {
    /// The lanes of a role; none for connections.
    pub(crate) fn of(&self, role: Role) -> &[RankedLane] {
        match role {
            Role::Message => &self.message,
            Role::Rma => &self.rma,
            Role::Atomic => &self.atomic,
            Role::Connection => &[],
        }
    }
}

impl Lanes {
    /// What was composed for the peer besides messages: `RMA verbs:rxe0/rc, atomic emulated, connect verbs:rxe0/ud`.
    /// Adds a record for each connection module. `wired` holds modules here, each with the one that forms its
    /// connections with this peer.
    pub(crate) fn compose(&mut self, peer: &str, wired: &[(ModuleRef, ModuleRef)]) -> String {
        let mut used: Vec<ModuleRef> = in_use(&self.message);
        let mut parts = Vec::new();
        for role in [Role::Rma, Role::Atomic] {
            let modules = in_use(self.of(role));
            let mut names: Vec<String> = modules.iter().map(ToString::to_string).collect();
            let whole = |lane: &RankedLane| {
                matches!(lane.via, LaneTarget::Module(..)) && lane.serves == Serves::AnyMemory
            };
            if !self.of(role).iter().any(whole) {
                names.push("emulated".into());
            }
            parts.push(format!("{} {}", role.name(), names.join(" or ")));
            used.extend(modules);
        }
        let mut connected: BTreeMap<&ModuleRef, Vec<String>> = BTreeMap::new();
        for (at, by) in wired.iter().filter(|(at, _)| used.contains(at)) {
            let names = connected.entry(by).or_default();
            if !names.contains(&at.to_string()) {
                names.push(at.to_string());
            }
        }
        let by: Vec<String> = connected.keys().map(ToString::to_string).collect();
        if !by.is_empty() {
            parts.push(format!("connect {}", by.join(" or ")));
        }
        for (by, names) in connected {
            let because = format!("both sides can connect {} by it", names.join(", "));
            let roles = vec![Role::Connection.name().to_owned()];
            self.records.push(about(peer, by, Verdict::ChosenFor { roles, because }));
        }
        parts.join(", ")
    }
}

/// The modules that serve some memory, or messages, while nothing fails: those up to the first that serves all, and
/// its like in other domains, which share what is large.
fn in_use(lanes: &[RankedLane]) -> Vec<ModuleRef> {
    let mut whole: Option<&ModuleRef> = None;
    let mut modules = Vec::new();
    for lane in lanes {
        let LaneTarget::Module(at, _) = &lane.via else { continue };
        match whole {
            Some(first) if (&first.provider, &first.module) != (&at.provider, &at.module) => {}
            _ => modules.push(at.clone()),
        }
        if lane.serves == Serves::AnyMemory {
            whole = whole.or(Some(at));
        }
    }
    modules
}

/// Builds the lanes to a peer. `reach` answers for a module here and one of the same name there: reachable,
/// or why not.
pub(crate) fn lanes(
    peer: &str,
    composition: &Composition,
    theirs: &[PeerModule],
    mut reach: impl FnMut(&ModuleRef, &PeerModule) -> Result<(), String>,
) -> Lanes {
    let mut reached: Vec<(ModuleRef, Result<usize, String>)> = Vec::new();
    for path in composition.usable() {
        for at in Role::DATA.into_iter().filter_map(|role| path.module(role)) {
            if !reached.iter().any(|(known, _)| known == at) {
                let taken: Vec<usize> =
                    reached.iter().filter_map(|(_, result)| result.clone().ok()).collect();
                reached.push((at.clone(), counterpart(at, theirs, &taken, &mut reach)));
            }
        }
    }

    let mut lanes = Lanes::default();
    for (at, result) in &reached {
        if let Err(because) = result {
            lanes.records.push(about(peer, at, Verdict::Unreachable { because: because.clone() }));
        }
    }
    for role in Role::DATA {
        let mut fit: Vec<(&Ranked, usize)> = Vec::new();
        for path in composition.usable() {
            let Some(at) = path.module(role) else { continue };
            let there = reached.iter().find(|(known, _)| known == at).map(|(_, result)| result);
            if let (Some(ranked), Some(Ok(index))) = (composition.ranked(at), there) {
                fit.push((ranked, *index));
            }
        }
        if let (true, Some(local)) = (role != Role::Message, local_messages(&lanes, composition)) {
            fit.retain(|(ranked, _)| {
                let keep = ranked.facts.caps & (caps::LOCAL_ONLY | caps::PASSIVE_TARGET) != 0;
                if !keep {
                    let verdict = Verdict::OutrankedBy {
                        winner: format!("emulation over {local}"),
                        rule: "both need the target's progress, and that stays on this host".into(),
                    };
                    let record = about(peer, &ranked.at, verdict);
                    if !lanes.records.contains(&record) {
                        lanes.records.push(record);
                    }
                }
                keep
            });
        }
        fit.sort_by(|a, b| compare(a.0, b.0, role).0);
        let mut built: Vec<RankedLane> = Vec::new();
        for (place, (ranked, index)) in fit.iter().enumerate() {
            built.push(RankedLane {
                via: LaneTarget::Module(ranked.at.clone(), *index),
                serves: serves(ranked, role),
                because: because(ranked, fit.get(place + 1).map(|next| next.0), role),
            });
        }
        if role != Role::Message && !lanes.message.is_empty() {
            built.push(emulation(&built));
        }
        match role {
            Role::Message => lanes.message = built,
            Role::Rma => lanes.rma = built,
            _ => lanes.atomic = built,
        }
    }
    lanes.records.extend(chosen(peer, &lanes));
    lanes
}

/// The module that carries messages, when it reaches nobody outside of this host.
fn local_messages(lanes: &Lanes, composition: &Composition) -> Option<ModuleRef> {
    match &lanes.message.first()?.via {
        LaneTarget::Module(at, _) => {
            let caps = composition.ranked(at)?.facts.caps;
            (caps & caps::LOCAL_ONLY != 0).then(|| at.clone())
        }
        LaneTarget::Messages => None,
    }
}

/// The peer's module of the same provider and name that serves this one: of those that can be reached, the one
/// whose domain has the same name, since devices of one fabric are mostly named alike on every host; else one that
/// serves no other module here; else the first.
fn counterpart(
    at: &ModuleRef,
    theirs: &[PeerModule],
    taken: &[usize],
    reach: &mut impl FnMut(&ModuleRef, &PeerModule) -> Result<(), String>,
) -> Result<usize, String> {
    let mut reasons: Vec<String> = Vec::new();
    let same = |other: &ModuleRef| other.provider == at.provider && other.module == at.module;
    let mut fit: Vec<(usize, &PeerModule)> =
        theirs.iter().enumerate().filter(|(_, there)| same(&there.at)).collect();
    fit.sort_by_key(|(index, there)| (there.at.domain != at.domain, taken.contains(index)));
    for (index, there) in fit {
        match reach(at, there) {
            Ok(()) => return Ok(index),
            Err(why) if reasons.contains(&why) => {}
            Err(why) => reasons.push(why),
        }
    }
    if reasons.is_empty() {
        Err(format!("the peer offers no {} of provider {}", at.module, at.provider))
    } else {
        Err(reasons.join("; "))
    }
}

fn serves(ranked: &Ranked, role: Role) -> Serves {
    if role != Role::Message && ranked.facts.caps & caps::OWN_MEMORY_ONLY != 0 {
        Serves::OwnMemory
    } else {
        Serves::AnyMemory
    }
}

fn because(ranked: &Ranked, next: Option<&Ranked>, role: Role) -> String {
    let scope = match (role, serves(ranked, role)) {
        (Role::Message, _) => "",
        (_, Serves::OwnMemory) => "memory from alloc; ",
        (_, Serves::AnyMemory) => "any registered memory; ",
    };
    match next {
        Some(next) => format!("{scope}before {}: {}", next.at, compare(ranked, next, role).1),
        None => format!("{scope}{}", ranked.priority_text()),
    }
}

fn emulation(before: &[RankedLane]) -> RankedLane {
    let because = if before.is_empty() {
        "no module reaches this peer's memory: emulated over messages"
    } else {
        "for memory that the lanes before cannot reach: emulated over messages"
    };
    RankedLane { via: LaneTarget::Messages, serves: Serves::AnyMemory, because: because.into() }
}

/// A record for each module in use towards this peer.
fn chosen(peer: &str, lanes: &Lanes) -> Vec<Record> {
    let mut uses: Vec<(ModuleRef, Vec<String>, Vec<String>)> = Vec::new();
    for role in Role::DATA {
        // A second message lane is a reserve, not in use.
        let active = if role == Role::Message { 1 } else { usize::MAX };
        for lane in lanes.of(role).iter().take(active) {
            let LaneTarget::Module(at, _) = &lane.via else { continue };
            let place = match uses.iter().position(|(known, ..)| known == at) {
                Some(place) => place,
                None => {
                    uses.push((at.clone(), Vec::new(), Vec::new()));
                    uses.len() - 1
                }
            };
            uses[place].1.push(role.name().to_owned());
            if !uses[place].2.contains(&lane.because) {
                uses[place].2.push(lane.because.clone());
            }
        }
    }
    let record = |(at, roles, reasons): (ModuleRef, Vec<String>, Vec<String>)| {
        about(peer, &at, Verdict::ChosenFor { roles, because: reasons.join("; ") })
    };
    uses.into_iter().map(record).collect()
}

fn about(peer: &str, at: &ModuleRef, verdict: Verdict) -> Record {
    let mut record = Record::module(&at.provider, &at.domain, &at.module, verdict);
    record.peer = Some(peer.to_owned());
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compose::{FoundModule, Preferences, compose};
    use crate::config::Config;
    use crate::rank::ModuleFacts;
    use tieline_plugin_api::{abi::Cost, cost_class};

    fn module(provider: &str, module: &str, caps: u64, priority: i32) -> FoundModule {
        FoundModule {
            at: ModuleRef::new(provider, provider, module),
            facts: ModuleFacts {
                connection_only: false,
                connects_to_endpoint: false,
                caps,
                fetching_atomics: caps & caps::ATOMICS != 0,
                priority,
                cost: [Cost::default(); cost_class::COUNT],
            },
            provider_preference: 0,
            provider_asked_for: false,
            priority: None,
            connect: None,
        }
    }

    const RMA: u64 = caps::PUT | caps::GET | caps::REMOTE_COMPLETION;

    fn shm() -> FoundModule {
        let caps = caps::AM_SHORT | RMA | caps::ATOMICS | caps::OWN_MEMORY_ONLY;
        module("shm", "mem", caps, 50)
    }

    fn single_copy() -> Vec<FoundModule> {
        vec![
            module("shm-knem", "copy", RMA, 38),
            module("shm-cma", "copy", RMA, 39),
            module("shm-xpmem", "map", RMA, 40),
        ]
    }

    fn tcp() -> FoundModule {
        module("tcp", "stream", caps::AM_SHORT, 10)
    }

    fn composed(candidates: &[FoundModule]) -> Composition {
        let preferences = Preferences::from_config(&Config::builder().build().unwrap()).unwrap();
        compose(candidates, &preferences)
    }

    fn peers(candidates: &[FoundModule]) -> Vec<PeerModule> {
        candidates
            .iter()
            .map(|c| PeerModule { at: c.at.clone(), priority: c.facts.priority })
            .collect()
    }

    /// `shm/mem* shm-cma/copy ~`: a star for own memory alone, a tilde for emulation.
    fn row(lanes: &[RankedLane]) -> String {
        let words = lanes.iter().map(|lane| match &lane.via {
            LaneTarget::Messages => "~".to_owned(),
            LaneTarget::Module(at, _) if lane.serves == Serves::OwnMemory => format!("{at}*"),
            LaneTarget::Module(at, _) => at.to_string(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lanes_stand_by_rank_and_emulation_comes_last() {
        let mut all = vec![tcp(), shm()];
        all.extend(single_copy());
        let lanes = lanes("p1", &composed(&all), &peers(&all), |_, _| Ok(()));
        assert_eq!(row(&lanes.message), "shm/mem tcp/stream");
        assert_eq!(row(&lanes.rma), "shm/mem* shm-xpmem/map shm-cma/copy shm-knem/copy ~");
        assert_eq!(row(&lanes.atomic), "shm/mem* ~");
        assert_eq!(
            lanes.rma[1].because,
            "any registered memory; before shm-cma/copy: priority 40 over 39"
        );
    }

    #[test]
    fn a_priority_of_the_user_moves_a_lane_to_the_front() {
        let mut cma = module("shm-cma", "copy", RMA, 39);
        cma.priority = Some((60, "TIELINE_PRIORITY_SHM_CMA=60 (environment)".into()));
        let all = [shm(), cma];
        let lanes = lanes("p1", &composed(&all), &peers(&all), |_, _| Ok(()));
        assert_eq!(row(&lanes.rma), "shm-cma/copy shm/mem* ~");
    }

    #[test]
    fn a_mechanism_that_one_peer_refuses_costs_that_pair_that_lane() {
        let all = [shm(), module("shm-cma", "copy", RMA, 39)];
        let refused = |at: &ModuleRef, _: &PeerModule| match at.provider.as_str() {
            "shm-cma" => {
                Err("process_vm_readv: operation not permitted (ptrace_scope is 2)".into())
            }
            _ => Ok(()),
        };
        let lanes = lanes("p1", &composed(&all), &peers(&all), refused);
        assert_eq!(row(&lanes.rma), "shm/mem* ~");
        let texts: Vec<_> =
            lanes.records.iter().map(|r| format!("{} {}", r.subject(), r.verdict)).collect();
        assert_eq!(
            texts,
            [
                "shm-cma/copy to p1 unreachable: process_vm_readv: operation not permitted (ptrace_scope is 2)",
                "shm/mem to p1 used for message, RMA, atomic: priority 50; memory from alloc; priority 50",
            ]
        );
    }

    #[test]
    fn what_is_composed_for_a_peer_leaves_out_what_only_waits_for_a_failure() {
        let rc = module("verbs", "rc", caps::AM_SHORT | RMA | caps::PASSIVE_TARGET, 60);
        let all = [shm(), rc.clone(), tcp()];
        let by = |name: &str| ModuleRef::new(name, name, "m");
        let wired = [(rc.at.clone(), by("ud")), (tcp().at, by("tcp-connect"))];
        let near = &mut lanes("p1", &composed(&all), &peers(&all), |_, _| Ok(()));
        assert_eq!(
            near.compose("p1", &wired),
            "RMA verbs/rc, atomic shm/mem or emulated, connect ud/m"
        );
        let far = &mut lanes("p2", &composed(&all[1..]), &peers(&all), |_, _| Ok(()));
        assert_eq!(far.compose("p2", &wired), "RMA verbs/rc, atomic emulated, connect ud/m");
        let told = far.records.last().map(|r| format!("{} {}", r.subject(), r.verdict));
        assert_eq!(
            told.as_deref(),
            Some("ud/m to p2 used for connection: both sides can connect verbs/rc by it")
        );
        let alone = &mut lanes("p3", &composed(&[shm()]), &peers(&all), |_, _| Ok(()));
        assert_eq!(alone.compose("p3", &[]), "RMA shm/mem or emulated, atomic shm/mem or emulated");
    }

    #[test]
    fn a_peer_on_another_host_is_served_by_what_reaches_it() {
        let all = [shm(), tcp()];
        let far = |at: &ModuleRef, _: &PeerModule| match at.provider.as_str() {
            "shm" => Err("another host".into()),
            _ => Ok(()),
        };
        let lanes = lanes("p2", &composed(&all), &peers(&all), far);
        assert_eq!(row(&lanes.message), "tcp/stream");
        assert_eq!(row(&lanes.rma), "~");
        assert_eq!(
            lanes.rma[0].because,
            "no module reaches this peer's memory: emulated over messages"
        );
    }

    #[test]
    fn a_network_is_no_lane_to_memory_on_this_host_unless_it_needs_nothing_from_the_target() {
        let local = module("shm", "ring", caps::AM_SHORT | caps::LOCAL_ONLY, 50);
        let stream = module("tcp", "stream", caps::AM_SHORT | RMA, 10);
        let rc = module("verbs", "rc", caps::AM_SHORT | RMA | caps::PASSIVE_TARGET, 30);
        let all = [local, stream, rc];
        let lanes = lanes("p1", &composed(&all), &peers(&all), |_, _| Ok(()));
        assert_eq!(row(&lanes.message), "shm/ring verbs/rc tcp/stream");
        assert_eq!(row(&lanes.rma), "verbs/rc ~");
        let told = lanes.records.iter().any(|r| {
            r.subject().contains("tcp/stream")
                && r.verdict.to_string().contains("emulation over shm/ring")
        });
        assert!(told, "{:?}", lanes.records);
    }

    #[test]
    fn a_module_that_the_peer_does_not_have_says_so() {
        let all = [shm(), tcp()];
        let lanes = lanes("p3", &composed(&all), &peers(&[tcp()]), |_, _| Ok(()));
        assert_eq!(row(&lanes.message), "tcp/stream");
        assert_eq!(
            lanes.records[0].verdict.to_string(),
            "unreachable: the peer offers no mem of provider shm"
        );
    }

    #[test]
    fn without_a_message_lane_nothing_is_emulated() {
        let all = [module("shm-cma", "copy", RMA, 39)];
        let lanes = lanes("p4", &composed(&all), &peers(&all), |_, _| Ok(()));
        assert!(lanes.message.is_empty() && lanes.atomic.is_empty());
        assert_eq!(row(&lanes.rma), "shm-cma/copy");
    }

    #[test]
    fn the_peers_domain_may_have_another_name() {
        let all = [tcp()];
        let mut there = peers(&all);
        there[0].at.domain = "tcp:eth7".into();
        let mut unreachable = there[0].clone();
        unreachable.at.domain = "tcp:wrong-subnet".into();
        there.insert(0, unreachable);
        let lanes = lanes("p5", &composed(&all), &there, |_, there| {
            if there.at.domain == "tcp:eth7" { Ok(()) } else { Err("no route".into()) }
        });
        assert_eq!(lanes.message[0].via, LaneTarget::Module(all[0].at.clone(), 1));
    }

    fn rail(name: &str) -> FoundModule {
        let mut rail = module("verbs", "rc", caps::AM_SHORT | RMA | caps::PASSIVE_TARGET, 60);
        rail.at.domain = format!("verbs:{name}");
        rail
    }

    fn pairs(ours: &[FoundModule], theirs: &[FoundModule]) -> Vec<(String, String)> {
        let theirs = peers(theirs);
        let lanes = lanes("p6", &composed(ours), &theirs, |_, _| Ok(()));
        let pair = |lane: &RankedLane| match &lane.via {
            LaneTarget::Module(at, there) => {
                Some((at.domain.clone(), theirs[*there].at.domain.clone()))
            }
            LaneTarget::Messages => None,
        };
        lanes.rma.iter().filter_map(pair).collect()
    }

    fn pair(ours: &str, theirs: &str) -> (String, String) {
        (format!("verbs:{ours}"), format!("verbs:{theirs}"))
    }

    #[test]
    fn devices_are_paired_by_name_whatever_order_the_peer_lists_them_in() {
        let ours = [rail("a"), rail("b")];
        let both = [pair("a", "a"), pair("b", "b")];
        assert_eq!(pairs(&ours, &[rail("a"), rail("b")]), both);
        assert_eq!(pairs(&ours, &[rail("b"), rail("a")]), both);
    }

    #[test]
    fn devices_of_other_names_are_paired_one_to_one_as_far_as_they_go() {
        let ours = [rail("a"), rail("b")];
        assert_eq!(pairs(&ours, &[rail("x"), rail("y")]), [pair("a", "x"), pair("b", "y")]);
        assert_eq!(pairs(&ours, &[rail("x")]), [pair("a", "x"), pair("b", "x")]);
    }
}
