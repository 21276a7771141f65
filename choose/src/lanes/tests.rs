mod one_host;

use super::*;
use crate::compose::{FoundModule, Preferences, compose};
use crate::rank::ModuleFacts;
use tieline_config::Config;
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
    module("shm", "mem", caps, 80)
}

fn single_copy() -> Vec<FoundModule> {
    vec![
        module("shm-knem", "copy", RMA, 65),
        module("shm-cma", "copy", RMA, 70),
        module("shm-xpmem", "map", RMA, 75),
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
    candidates.iter().map(|c| PeerModule { at: c.at.clone(), priority: c.facts.priority }).collect()
}

/// Formats lanes as `shm/mem* shm-cma/copy ~`: a star marks a lane for own memory only, a tilde marks emulation.
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
        "any registered memory; before shm-cma/copy: priority 75 over 70"
    );
}

#[test]
fn module_that_peer_excludes_from_data_carries_none() {
    let all = [tcp(), shm()];
    let mut theirs = peers(&all);
    theirs[0].priority = CONNECTS_ONLY;
    let lanes = lanes("p1", &composed(&all), &theirs, |_, _| Ok(()));
    assert_eq!(row(&lanes.message), "shm/mem");
    let said = |record: &Record| record.verdict.to_string().contains("only to form connections");
    assert!(lanes.records.iter().any(said), "{:?}", lanes.records);
}

/// The user's preference applies to a device, and does not place its datagram module before the connections of another device.
#[test]
fn a_reserve_stands_behind_its_like_of_all_domains() {
    let of = |domain: &str, name: &str, caps: u64, priority: i32| {
        let mut module = module("verbs", name, caps, priority);
        module.at.domain = format!("verbs:{domain}");
        module.facts.connects_to_endpoint = name == "rc";
        module
    };
    let device = |domain: &str| {
        let messages = caps::AM_SHORT | caps::AM_PACKED;
        [of(domain, "rc", messages | RMA, 60), of(domain, "ud", messages, 10)]
    };
    let all: Vec<FoundModule> = [device("a"), device("b")].into_iter().flatten().collect();
    let all = [all, vec![tcp()]].concat();
    for (domains, expected) in [
        ("verbs:a,tcp,verbs:b", "verbs:a/rc tcp/stream verbs:b/rc verbs:a/ud verbs:b/ud"),
        ("verbs:b,verbs:a,tcp", "verbs:b/rc verbs:a/rc verbs:b/ud verbs:a/ud tcp/stream"),
    ] {
        let config = Config::builder().set("TIELINE_DOMAINS", domains).build().unwrap();
        let composition = compose(&all, &Preferences::from_config(&config).unwrap());
        let lanes = lanes("p1", &composition, &peers(&all), |_, _| Ok(()));
        assert_eq!(row(&lanes.message), expected, "{domains}");
        let moved = lanes.message.iter().find(|lane| lane.because.contains("which is a reserve"));
        assert!(matches!(&moved.unwrap().via, LaneTarget::Module(at, _) if at.module == "rc"));
    }
}

#[test]
fn a_priority_of_the_user_moves_a_lane_to_the_front() {
    let mut cma = module("shm-cma", "copy", RMA, 70);
    cma.priority = Some((90, "TIELINE_PRIORITY_SHM_CMA=90 (environment)".into()));
    let all = [shm(), cma];
    let lanes = lanes("p1", &composed(&all), &peers(&all), |_, _| Ok(()));
    assert_eq!(row(&lanes.rma), "shm-cma/copy shm/mem* ~");
}

#[test]
fn a_mechanism_that_one_peer_refuses_costs_that_pair_that_lane() {
    let all = [shm(), module("shm-cma", "copy", RMA, 70)];
    let refused = |at: &ModuleRef, _: &PeerModule| match at.provider.as_str() {
        "shm-cma" => Err("process_vm_readv: operation not permitted (ptrace_scope is 2)".into()),
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
            "shm/mem to p1 used for message, RMA, atomic: priority 80; memory from alloc; priority 80",
        ]
    );
}

#[test]
fn composed_lanes_of_peer_omit_standby_modules() {
    let rc = module("verbs", "rc", caps::AM_SHORT | RMA | caps::PASSIVE_TARGET, 60);
    let all = [shm(), rc.clone(), tcp()];
    let by = |name: &str| ModuleRef::new(name, name, "m");
    let wired = [(rc.at.clone(), by("ud")), (tcp().at, by("tcp-connect"))];
    let near = &mut lanes("p1", &composed(&all), &peers(&all), |_, _| Ok(()));
    assert_eq!(
        near.compose("p1", &wired),
        "RMA shm/mem or verbs/rc, atomic shm/mem or emulated, connect ud/m"
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
fn network_lane_to_local_memory_requires_passive_target() {
    let local = module("shm", "ring", caps::AM_SHORT | caps::LOCAL_ONLY, 80);
    let stream = module("tcp", "stream", caps::AM_SHORT | RMA, 10);
    let rc = module("verbs", "rc", caps::AM_SHORT | RMA | caps::PASSIVE_TARGET, 60);
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
    let all = [module("shm-cma", "copy", RMA, 70)];
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

fn told(lanes: &Lanes) -> Vec<String> {
    lanes.records.iter().map(ToString::to_string).collect()
}

#[test]
fn network_outranked_on_this_host_is_recorded_once_and_reserve_is_unused() {
    let local = module("shm", "ring", caps::AM_SHORT | caps::LOCAL_ONLY, 80);
    let stream = module("tcp", "stream", caps::AM_SHORT | RMA | caps::ATOMICS, 10);
    let rc = module("verbs", "rc", caps::AM_SHORT | RMA | caps::PASSIVE_TARGET, 60);
    let all = [local, stream, rc];
    let lanes = lanes("p1", &composed(&all), &peers(&all), |_, _| Ok(()));
    assert_eq!((row(&lanes.rma), row(&lanes.atomic)), ("verbs/rc ~".into(), "~".into()));
    assert_eq!(
        told(&lanes),
        [
            "tcp/stream to p1: outranked by emulation over shm/ring: both need the target's progress, and emulation stays on this host",
            "shm/ring to p1: used for message: before verbs/rc: priority 80 over 60",
            "verbs/rc to p1: used for RMA: any registered memory; priority 60",
        ]
    );
}

#[test]
fn small_rma_goes_by_messages_if_synchronous_module_is_clearly_slower() {
    let mut ring = module("shm", "ring", caps::AM_SHORT, 80);
    let cost = |overhead_ns, latency_ns, bytes_per_second| Cost {
        overhead_ns,
        latency_ns,
        bytes_per_second,
    };
    ring.facts.cost[cost_class::SMALL_MESSAGE] = cost(10.0, 60.0, 5e9);
    ring.facts.cost[cost_class::BULK_MESSAGE] = cost(60.0, 100.0, 30e9);
    let mut copy = module("shm-cma", "copy", RMA | caps::LOCAL_ONLY | caps::SYNCHRONOUS, 70);
    copy.facts.cost[cost_class::SMALL_RMA] = cost(1000.0, 0.0, 12e9);
    let mut later = copy.clone();
    later.at = ModuleRef::new("ofi", "ofi", "rdm");
    later.facts.caps &= !caps::SYNCHRONOUS;
    later.facts.priority = 20;
    let all = [ring, copy, later];
    let composition = composed(&all);
    let mut lanes = lanes("p1", &composition, &peers(&all), |_, _| Ok(()));
    let (before, because) = (lanes.records.len(), lanes.rma[0].because.clone());
    lanes.choose_small("p1", &composition);
    assert_eq!(row(&lanes.rma), "shm-cma/copy ofi/rdm ~");
    assert_eq!(lanes.rma.iter().map(|lane| lane.small).collect::<Vec<_>>(), [2048, 0, 0]);
    let goes = "; RMA of up to 2048 bytes goes by messages to a peer that polls often: 8 bytes in 393 ns against 1001 ns";
    assert_eq!(lanes.rma[0].because, because + goes);
    assert_eq!(
        told(&lanes)[before..],
        [
            "shm/ring to p1: used for RMA of up to 2048 bytes: the peer polls often; 8 bytes in 393 ns, by shm-cma/copy in 1001 ns"
        ]
    );
}

#[test]
fn reasons_of_unreachable_modules_are_recorded_once_each() {
    let all = [tcp()];
    let mut there = peers(&[tcp(), tcp(), tcp()]);
    for (peer, domain) in there.iter_mut().zip(["tcp:a", "tcp:b", "tcp:c"]) {
        peer.at.domain = domain.into();
    }
    let lanes = lanes("p5", &composed(&all), &there, |_, there| {
        Err(if there.at.domain == "tcp:b" { "no route" } else { "another subnet" }.into())
    });
    assert_eq!(told(&lanes), ["tcp/stream to p5: unreachable: another subnet; no route"]);
    assert!(Role::DATA.iter().all(|role| lanes.of(*role).is_empty()));
    assert!(lanes.of(Role::Connection).is_empty());
}
