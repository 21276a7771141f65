//! Tests of the port's address: the selection of GID and partition, and the effect on connections when a published fact changes.

use crate::abi::*;
use crate::devices::tests::FakeClass;
use crate::double::nature::{ADAPTERS, MLX5, Nature, play};
use crate::double::world::{Faults, announce, attributes, fault, pairs};
use crate::double::{Told, class, connect, domain_of, poll, side, sys};
use crate::{RC, VerbsDomain};
use tieline_plugin_api::{Domain, Endpoint, Failure, Interface, Status};

const INFINIBAND: Nature = Nature { link_layer: IBV_LINK_LAYER_INFINIBAND, ..MLX5 };
const OTHER: &str = "0000:0000:0000:0000:0000:ffff:0a00:0009\n";

fn file(class: &FakeClass, name: &str, text: &str) {
    class.file(&format!("{}/ports/1/{name}", sys::NAME.to_str().unwrap()), text);
}

fn open(class: &FakeClass, settings: &[(&str, &str)]) -> VerbsDomain {
    domain_of(class, settings).unwrap()
}

fn refusal(class: &FakeClass, settings: &[(&str, &str)]) -> Failure {
    domain_of(class, settings).err().unwrap()
}

#[test]
fn changed_port_address_fails_connections_until_it_returns() {
    for (nature, name, before, after, kind, words) in [
        (
            INFINIBAND,
            "lid",
            "0x7\n",
            "0x9\n",
            IBV_EVENT_LID_CHANGE,
            "the LID of double0 port 1 was 0x7",
        ),
        (MLX5, "gids/1", "", OTHER, IBV_EVENT_GID_CHANGE, "the GID of double0 port 1 was 0000:"),
        (MLX5, "pkeys/0", "0xffff\n", "0x9001\n", IBV_EVENT_PKEY_CHANGE, "the partition key of"),
        (INFINIBAND, "lid", "0x7\n", "0x9\n", IBV_EVENT_SM_CHANGE, "the LID of double0 port 1"),
    ] {
        play(nature);
        let class = class();
        let (mut a, mut b) = (side(&[]), side(&[]));
        a.domain = open(&class, &[]);
        a.interface = a.domain.open_interface(RC, [0; 16]).unwrap();
        let (at_a, at_b) = connect(&mut a, &mut b);
        // The event alone has no effect, because the address has not changed.
        for kind in [kind, IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE] {
            announce(kind);
            (0..200).for_each(|_| a.poll());
            assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
        }
        let before = match before {
            "" => "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
            before => before,
        };
        file(&class, name, after);
        announce(kind);
        while a.told.failed.is_empty() {
            a.poll();
        }
        let (_, status, text) = &a.told.failed[0];
        assert_eq!(*status, Status::Unreachable);
        assert!(text.starts_with(words), "{text}");
        let failure = a.interface.connect(&[], &[], 3).err().unwrap();
        assert_eq!((failure.status, failure.text.starts_with(words)), (Status::Unreachable, true));
        file(&class, name, before);
        announce(kind);
        (0..200).for_each(|_| a.poll());
        assert!(a.interface.connect(&[], &[], 3).is_ok(), "the address holds again");
        drop((at_a, at_b));
    }
}

#[test]
fn briefly_absent_gid_does_not_count_as_changed() {
    const AWAY: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    const BACK: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001\n";
    let class = class();
    let (mut a, mut b) = (side(&[]), side(&[]));
    a.domain = open(&class, &[]);
    a.interface = a.domain.open_interface(RC, [0; 16]).unwrap();
    let (at_a, _at_b) = connect(&mut a, &mut b);
    for now in [AWAY, BACK, AWAY, "\n", BACK] {
        file(&class, "gids/1", now);
        announce(IBV_EVENT_GID_CHANGE);
        (0..200).for_each(|_| a.poll());
        assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
        assert!(at_a.am_short(1, 1, b"x").is_ok());
        (0..4).for_each(|_| b.poll());
    }
    file(&class, "gids/1", AWAY);
    file(&class, "gids/1", OTHER);
    announce(IBV_EVENT_GID_CHANGE);
    while a.told.failed.is_empty() {
        a.poll();
    }
    assert_eq!(a.told.failed[0].1, Status::Unreachable, "another one has come in its place");
}

#[test]
fn unusable_gid_is_skipped() {
    let class = class();
    // The second GID is the best one, an IPv4 address. That address may belong to another network namespace.
    for (dead, taken) in [(&[][..], 1), (&[1][..], 0), (&[0, 1][..], 2), (&[0, 1, 2][..], 1)] {
        fault(|faults| *faults = Faults { dead_gids: dead.to_vec(), ..Faults::default() });
        assert_eq!(open(&class, &[]).state.local.gid_index, taken, "without {dead:?}");
    }
    fault(|faults| faults.dead_gids = vec![2]);
    let asked = open(&class, &[("TIELINE_VERBS_GID_INDEX", "2")]);
    assert_eq!(asked.state.local.gid_index, 2, "who asks for one knows better");
}

#[test]
fn gid_outside_configured_subnets_is_refused() {
    let class = class();
    let within = |subnets: &str| [("TIELINE_VERBS_SUBNET", subnets.to_string())];
    for (subnets, taken) in [
        ("10.0.0.0/8", 1),
        ("192.168.0.0/16, 10.0.0.1/32", 1),
        ("fe80::/10", 0),
        ("::/0", 1),
        ("", 1),
    ] {
        let [(name, value)] = &within(subnets);
        assert_eq!(open(&class, &[(name, value)]).state.local.gid_index, taken, "{subnets:?}");
    }
    let failure = refusal(&class, &[("TIELINE_VERBS_SUBNET", "192.168.0.0/16")]);
    assert_eq!(failure.status, Status::NoDevice);
    let words = "double0 port 1 has no GID in a subnet of TIELINE_VERBS_SUBNET; it has fe80::202:3ff:fe04:506, ";
    assert!(failure.text.starts_with(words), "{}", failure.text);
    for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "fe80::/129"] {
        let settings = |name: &str| (name == "TIELINE_VERBS_SUBNET").then(|| wrong.to_string());
        let failure = crate::config::Settings::of(settings).unwrap_err();
        assert_eq!(failure.status, Status::Invalid, "{}", failure.text);
        assert!(failure.text.contains("is no network such as 10.1.0.0/16"), "{}", failure.text);
    }
}

#[test]
fn partition_with_full_membership_is_selected_over_earlier_one() {
    let class = class();
    file(&class, "pkeys/0", "0x7fff\n");
    file(&class, "pkeys/1", "0xffff\n");
    file(&class, "pkeys/2", "0x8001\n");
    for (settings, index, key) in [
        (&[][..], 1, 0xffff),
        (&[("TIELINE_VERBS_PARTITION_KEY", "0x7fff")][..], 1, 0xffff),
        (&[("TIELINE_VERBS_PARTITION_KEY", "0x0001")][..], 2, 0x8001),
    ] {
        let domain = open(&class, settings);
        assert_eq!((domain.state.local.partition_index, domain.state.port.partition), (index, key));
    }
    (1..3).for_each(|at| file(&class, &format!("pkeys/{at}"), "0x0000\n"));
    assert_eq!(open(&class, &[]).state.port.partition, 0x7fff, "there is no other");
}

#[test]
fn unsupported_device_is_refused_by_name() {
    let class = class();
    for (kind, words) in [
        ("4: RNIC\n", "double0 is an iWARP device"),
        ("7: unspecified\n", "double0 is of the kind \"unspecified\""),
    ] {
        class.file("double0/node_type", kind);
        let failure = refusal(&class, &[]);
        assert_eq!(failure.status, Status::NoDevice);
        assert!(failure.text.starts_with(words), "{}", failure.text);
    }
    class.file("double0/node_type", "1: CA\n");
    class.driver("double0", "mana");
    let failure = refusal(&class, &[]);
    assert_eq!(failure.status, Status::NoDevice);
    let words = "double0 is of the driver mana, which ignores inline sends";
    assert!(failure.text.starts_with(words), "{}", failure.text);
    class.driver("double0", "mlx5_core");
    assert!(domain_of(&class, &[]).is_ok());
}

#[test]
fn packets_have_global_header_on_ethernet_or_if_port_requires_it() {
    for nature in ADAPTERS {
        play(*nature);
        let (mut a, mut b) = (side(&[]), side(&[]));
        let _ends = connect(&mut a, &mut b);
        let needs = nature.link_layer == IBV_LINK_LAYER_ETHERNET || nature.needs_grh;
        for qpn in pairs() {
            let way = attributes(qpn).ah_attr;
            assert_eq!(way.is_global, u8::from(needs), "{}", nature.name);
            let lid = if nature.link_layer == IBV_LINK_LAYER_ETHERNET { 0 } else { 7 };
            assert_eq!(way.dlid, lid, "{}", nature.name);
        }
    }
}

#[test]
fn arrivals_before_queue_failure_precede_connection_failures() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    for header in 0..3 {
        assert!(at_a.am_short(1, header, b"x").is_ok());
    }
    let ours = |c: &crate::VerbsInterface| match c {
        crate::VerbsInterface::Rc(rc) => {
            rc.state.borrow().connections.iter().flatten().next().unwrap().own.qpn
        }
        crate::VerbsInterface::Ud(_) => panic!("reliable"),
    };
    crate::double::world::queue_fails(ours(&b.interface), IBV_EVENT_CQ_ERR);
    crate::double::clock::pass(core::time::Duration::from_secs(1));
    let mut told = Told::default();
    while told.failed.is_empty() {
        let _ = poll(&b.interface, &mut told);
    }
    let headers: Vec<u64> = told.messages.iter().map(|(header, _)| *header).collect();
    assert_eq!(headers, [0, 1, 2]);
}
