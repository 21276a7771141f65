//! The lanes to a peer: the paths that reach the peer, and their order.
//!
//! The module is a pure function: the caller queries interfaces, probes mechanisms, and passes the results as arguments. If a
//! module cannot reach a peer, the result has no lane over it, and a record with the reason.
//!
//! Lanes are sorted by rank. A path's reserve comes after similar message modules of other domains. Emulation over messages comes
//! last. If messages stay within the host, a network's memory operations that need the target's progress are left out, since
//! emulation needs that progress too. A lane whose module reaches only memory that its peer's module allocated (`alloc`) is skipped
//! for other memory.

mod small;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use tieline_plugin_api::caps;

use crate::address::CONNECTS_ONLY;
use crate::compose::Composition;
use crate::rank::{ModuleRef, Ranked, Role, compare};
use tieline_explain::{Record, Verdict};

/// A module of the peer, from its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerModule {
    /// The module's name at the peer; the domain may have another name on this side.
    pub at: ModuleRef,
    /// The module's priority at the peer.
    pub priority: i32,
}

/// The memory that an RMA or atomic lane serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Only memory that the peer's module provided itself.
    OwnMemory,
    /// Any memory registered with its domain.
    AnyMemory,
}

/// The target of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneTarget {
    /// A local module, and the peer's module that it reaches, as an index into the peer's list.
    Module(ModuleRef, usize),
    /// The core's emulation over the first message lane.
    Messages,
}

/// A lane that serves a class of operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedLane {
    /// The local module, or the emulation.
    pub via: LaneTarget,
    /// The memory that the lane serves; not used for messages.
    pub serves: Serves,
    /// The length up to which puts and gets use messages instead; see [`Lanes::choose_small`].
    pub small: usize,
    /// The reason for the lane's position.
    pub because: String,
}

/// The lanes of a pair; each list that is not empty begins with the first choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// The lanes for messages; empty: no message reaches the peer.
    pub message: Vec<RankedLane>,
    /// The lanes for put and get.
    pub rma: Vec<RankedLane>,
    /// The lanes for atomics.
    pub atomic: Vec<RankedLane>,
    /// The records of the modules that cannot reach this peer, of those chosen for it, and of those that emulation replaces.
    pub records: Vec<Record>,
}

impl Lanes {
    /// Returns the lanes of a role; none for connections.
    pub fn of(&self, role: Role) -> &[RankedLane] {
        match role {
            Role::Message => &self.message,
            Role::Rma => &self.rma,
            Role::Atomic => &self.atomic,
            Role::Connection => &[],
        }
    }
}

impl Lanes {
    /// Describes the composed lanes besides messages: `RMA verbs:rxe0/rc, atomic emulated, connect verbs:rxe0/ud`. Adds a record
    /// for each connection module that a used module has. `wired` holds local modules, each with the module that forms its
    /// connections with this peer.
    pub fn compose(&mut self, peer: &str, wired: &[(ModuleRef, ModuleRef)]) -> String {
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

/// Returns the modules that serve some memory, or messages, as long as nothing fails. These are the modules up to the first one
/// that serves all memory, and the same module in other domains, which share large transfers.
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

/// Builds the lanes to a peer. `reach` takes a local module and a peer's module of the same name, and returns the reason if the
/// peer's module is unreachable.
pub fn lanes(
    peer: &str,
    composition: &Composition,
    theirs: &[PeerModule],
    mut reach: impl FnMut(&ModuleRef, &PeerModule) -> Result<(), String>,
) -> Lanes {
    let mut reached: Vec<(ModuleRef, Result<usize, String>)> = Vec::new();
    for path in composition.usable() {
        for at in Role::DATA.into_iter().flat_map(|role| path.serving(role)) {
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
        for at in composition.usable().flat_map(|path| path.serving(role)) {
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
                        rule: "both need the target's progress, and emulation stays on this host"
                            .into(),
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
        if role == Role::Message {
            put_reserves_last(composition, &mut fit);
        }
        let mut built: Vec<RankedLane> = Vec::new();
        for (place, (ranked, index)) in fit.iter().enumerate() {
            built.push(RankedLane {
                via: LaneTarget::Module(ranked.at.clone(), *index),
                serves: serves(ranked, role),
                small: 0,
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

/// Moves a path's reserve after all modules that are like the path's message module, because another device may have a connection.
fn put_reserves_last(composition: &Composition, fit: &mut Vec<(&Ranked, usize)>) {
    let of = |ranked: &Ranked| {
        let path = composition.usable().find(|path| path.reserve.as_ref() == Some(&ranked.at));
        path.and_then(|path| path.message.as_ref())
    };
    let place = |at: usize| match of(fit[at].0) {
        Some(message) => {
            let like = |other: &Ranked| {
                other.at.provider == message.provider && other.at.module == message.module
            };
            (fit.iter().rposition(|(other, _)| like(other)).map_or(at, |last| last.max(at)), true)
        }
        None => (at, false),
    };
    let mut placed: Vec<_> = (0..fit.len()).map(|at| (place(at), fit[at])).collect();
    placed.sort_by_key(|(place, _)| *place);
    *fit = placed.into_iter().map(|(_, lane)| lane).collect();
}

/// Returns the module that carries messages, if it reaches no peer outside of this host.
fn local_messages(lanes: &Lanes, composition: &Composition) -> Option<ModuleRef> {
    match &lanes.message.first()?.via {
        LaneTarget::Module(at, _) => {
            let caps = composition.ranked(at)?.facts.caps;
            (caps & caps::LOCAL_ONLY != 0).then(|| at.clone())
        }
        LaneTarget::Messages => None,
    }
}

/// Returns the peer's module of the same provider and name that serves this local module. Only reachable modules count. The first
/// choice is the module whose domain has the same name, since devices of one fabric usually have the same names on every host. The
/// second choice is a module that serves no other local module, and the last choice is the first module.
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
        let carries = there.priority != CONNECTS_ONLY;
        let only = || Err("the peer uses it only to form connections".into());
        match if carries { reach(at, there) } else { only() } {
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
        Some(next) => match compare(ranked, next, role) {
            (Ordering::Greater, _) => format!("{scope}before {}, which is a reserve", next.at),
            (_, rule) => format!("{scope}before {}: {rule}", next.at),
        },
        None => format!("{scope}{}", ranked.priority_text()),
    }
}

fn emulation(before: &[RankedLane]) -> RankedLane {
    let because = if before.is_empty() {
        "no module reaches this peer's memory: emulated over messages"
    } else {
        "for memory that the lanes before cannot reach: emulated over messages"
    };
    RankedLane {
        via: LaneTarget::Messages,
        serves: Serves::AnyMemory,
        small: 0,
        because: because.into(),
    }
}

/// Makes a record for each module that serves this peer, except for later message lanes.
fn chosen(peer: &str, lanes: &Lanes) -> Vec<Record> {
    let mut uses: Vec<(ModuleRef, Vec<String>, Vec<String>)> = Vec::new();
    for role in Role::DATA {
        // A later message lane is not in use while the first one works.
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
mod tests;
