//! Tests of several ports: pairing within InfiniBand subnets, routes over a router, and failover between ports.

use crate::abi::IBV_LINK_LAYER_INFINIBAND;
use crate::config::Settings;
use crate::devices::PortName;
use crate::devices::tests::FakeClass;
use crate::double::nature::{MLX5, Nature, play};
use crate::double::world::{attributes, fault, pairs, queues};
use crate::double::{class, connect, domain_of, side, sys};
use crate::{RC, UD, VerbsDomain, VerbsInterface};
use std::cell::Cell;
use std::rc::Rc;
use tieline::{Context, Worker};
use tieline_plugin_api::abi::shims::entry;
use tieline_plugin_api::{
    ConfigDoc, Domain, DomainInfo, Endpoint, Failure, HostHandle, Interface, Posting, Provider,
    Status, memory_caps,
};

const INFINIBAND: Nature = Nature { link_layer: IBV_LINK_LAYER_INFINIBAND, ..MLX5 };
/// The subnet prefixes. The last two contain LIDs that are routed from everywhere.
const SUBNETS: [&str; 4] =
    ["fe80:0000:0000:0000", "fec0:0000:0000:0001", "fec0:0000:4001:0002", "fec0:0000:4002:0003"];

/// Puts a port into a subnet in the kernel's description.
fn put_into(class: &FakeClass, port: u8, subnet: usize) {
    let port = format!("{}/ports/{port}", sys::NAME.to_str().unwrap());
    class.file(&format!("{port}/state"), "4: ACTIVE\n");
    class.file(&format!("{port}/pkeys/0"), "0xffff\n");
    class.file(&format!("{port}/lid"), "0x7\n");
    class.gid(&port, 0, &format!("{}:0202:03ff:fe04:0506", SUBNETS[subnet]), "IB/RoCE v1");
}

fn domain_in(subnet: usize, settings: &[(&str, &str)]) -> VerbsDomain {
    let class = class();
    put_into(&class, 1, subnet);
    domain_of(&class, settings).unwrap()
}

fn open(domain: &VerbsDomain, module: &str) -> VerbsInterface {
    domain.open_interface(module, [0; 16]).unwrap()
}

#[test]
fn port_reaches_its_own_subnet_and_names_both_subnets_otherwise() {
    play(INFINIBAND);
    let here: Vec<_> = (0..4).map(|subnet| domain_in(subnet, &[])).collect();
    let there: Vec<_> = (0..4).map(|subnet| domain_in(subnet, &[])).collect();
    for module in [RC, UD] {
        for (a, near) in here.iter().enumerate() {
            for (b, far) in there.iter().enumerate() {
                let (near, far) = (open(near, module), open(far, module));
                let reached = near.reachable(&far.address());
                assert_eq!(reached.is_ok(), a == b, "{module}: {a} and {b}");
                let Err(failure) = reached else { continue };
                assert_eq!(failure.status, Status::Unreachable);
                for subnet in [a, b] {
                    let prefix = SUBNETS[subnet].replace(':', "");
                    assert!(failure.text.contains(&prefix), "{}", failure.text);
                }
            }
        }
    }
    // A direct connection request is rejected, too.
    let (near, far) = (open(&here[0], RC), open(&there[1], RC));
    let (at_a, at_b) = (near.connect(&[], &[], 1).unwrap(), far.connect(&[], &[], 2).unwrap());
    let failure = at_a.connect(&at_b.address()).unwrap_err();
    assert!(failure.text.contains("is in another InfiniBand subnet"), "{}", failure.text);
    let (near, far) = (open(&here[0], UD), open(&there[1], UD));
    assert!(near.connect(&far.address(), b"a", 1).is_err());
}

#[test]
fn router_is_used_only_for_packets_that_leave_the_subnet() {
    play(INFINIBAND);
    // The cases: the subnets of both sides, the router setting, and the destination of the first side's packets.
    for (subnets, router, way) in [
        ((0, 0), "0x99", Some((0, 7))),
        ((0, 1), "0x99", Some((1, 0x99))),
        ((0, 1), "flid", None),
        ((2, 1), "flid", None),
        ((2, 3), "flid", Some((1, 0x4002))),
        ((3, 2), "flid", Some((1, 0x4001))),
        ((3, 3), "flid", Some((0, 7))),
        ((2, 3), "off", None),
    ] {
        let settings = [("TIELINE_VERBS_ROUTER", router)];
        let (mut a, mut b) = (side(&[]), side(&[]));
        for (side, subnet) in [(&mut a, subnets.0), (&mut b, subnets.1)] {
            side.domain = domain_in(subnet, &settings);
            side.interface = open(&side.domain, RC);
        }
        let reached = a.interface.reachable(&b.interface.address());
        assert_eq!(reached.is_ok(), way.is_some(), "{subnets:?} {router}");
        assert_eq!(b.interface.reachable(&a.interface.address()).is_ok(), way.is_some());
        let Some(way) = way else { continue };
        let (at_a, _at_b) = connect(&mut a, &mut b);
        assert_eq!(at_a.am_short(1, 1, b"x"), Ok(Posting::Done));
        while b.told.messages.is_empty() {
            b.poll();
        }
        let theirs = b.domain.state.port.gid;
        let of_a = pairs().into_iter().map(attributes).find(|a| {
            a.ah_attr.grh.dgid.raw == theirs && (a.ah_attr.is_global, a.ah_attr.dlid) == way
        });
        assert!(of_a.is_some(), "{subnets:?} {router}");
    }
}

thread_local! {
    /// The subnets of the two ports of the next provider that is opened.
    static PORTS: Cell<[usize; 2]> = const { Cell::new([0, 1]) };
}

/// The provider with one device of two ports.
struct TwoPorts([usize; 2]);

impl Provider for TwoPorts {
    type Domain = VerbsDomain;

    fn open(_: HostHandle) -> Result<TwoPorts, Failure> {
        Ok(TwoPorts(PORTS.get()))
    }

    fn config() -> &'static [ConfigDoc] {
        &[]
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        let domain = |name: &str| DomainInfo {
            name: name.into(),
            caps: memory_caps::REGISTER,
            max_key_len: crate::keys::KEY_LEN as u32,
            register_ns: 15_000.0,
            register_ns_per_byte: 0.06,
        };
        Ok(vec![domain("twoports:double0"), domain("twoports:double0:2")])
    }

    fn open_domain(&self, name: &str, _: [u8; 16]) -> Result<VerbsDomain, Failure> {
        let class = class();
        let port = if name.ends_with(":2") { 2 } else { 1 };
        put_into(&class, port, self.0[usize::from(port) - 1]);
        let device = sys::NAME.to_str().unwrap().to_string();
        let settings = Settings::of(|_| None)?;
        VerbsDomain::open(&class.0, PortName { device, port }, settings, sys::host())
    }
}

/// Returns a worker with ports in these subnets.
fn worker(subnets: [usize; 2]) -> (Worker, Context) {
    PORTS.set(subnets);
    tieline::link_provider("twoports", "1.0.0", entry::<TwoPorts>);
    let settings = [("TIELINE_PROVIDERS", "twoports@^1.0"), ("TIELINE_LIVE", "off")];
    let builder = settings.iter().fold(Context::builder(), |b, (name, to)| b.set(name, to));
    let context = builder.set("TIELINE_PROVIDER_PATH", "").open().unwrap();
    (context.worker().unwrap(), context)
}

/// Returns the source subnet and the destination subnet of each connected queue pair.
fn subnets_in_use() -> Vec<([u8; 8], [u8; 8])> {
    let prefix =
        |qpn: u32| -> [u8; 8] { attributes(qpn).ah_attr.grh.dgid.raw[..8].try_into().unwrap() };
    let connected = |qpn: &u32| attributes(*qpn).dest_qp_num != 0;
    // The peer's destination is this queue pair's source.
    let of = |qpn: u32| (prefix(attributes(qpn).dest_qp_num), prefix(qpn));
    pairs().into_iter().filter(connected).map(of).collect()
}

#[test]
fn ports_are_paired_within_their_subnets_regardless_of_names() {
    play(INFINIBAND);
    const LEN: usize = 4 << 20;
    for far_ports in [[0, 1], [1, 0]] {
        let ((a, near), (b, far)) = (worker([0, 1]), worker(far_ports));
        let endpoint = a.connect(&b.address().unwrap()).unwrap();
        let (from, to) = (near.alloc(LEN).unwrap(), far.alloc(LEN).unwrap());
        from.write(0, &[7; LEN]).unwrap();
        let key = endpoint.import_key(&to.remote_key().unwrap()).unwrap();
        let mut outcome = None;
        while outcome.is_none() || key.is_settling() {
            let _ = a.progress() + b.progress();
            if outcome.is_none() {
                outcome = endpoint.put(&from, 0..LEN, &key, 0).ok();
            }
        }
        // All rails are connected.
        let finish = |outcome| match outcome {
            tieline::Outcome::Done(_) => {}
            tieline::Outcome::Pending(request) => {
                while a.test(&request).is_none() {
                    let _ = a.progress() + b.progress();
                }
            }
        };
        finish(outcome.unwrap());
        finish(endpoint.put(&from, 0..LEN, &key, 0).unwrap());
        assert_eq!(to.to_vec(LEN - 8..LEN).unwrap(), [7; 8]);
        assert_eq!(endpoint.error(), None);
        let used = subnets_in_use();
        assert!(used.iter().all(|(from, to)| from == to), "{used:x?}");
        let both = used.iter().map(|(from, _)| from).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(both.len(), 2, "{far_ports:?}: {used:x?}");
    }
}

#[test]
fn peers_without_common_subnet_get_an_error() {
    play(INFINIBAND);
    let ((a, _near), (b, _far)) = (worker([0, 1]), worker([2, 3]));
    let failure = a.connect(&b.address().unwrap()).err().unwrap().to_string();
    assert!(failure.contains("in another InfiniBand subnet"), "{failure}");
}

/// Neither side has sent anything when one side lacks the memory, so the other port serves.
#[test]
fn port_without_memory_at_first_use_fails_over_to_another_port() {
    play(INFINIBAND);
    for (at_near, at_far) in [(1, 0), (0, 1), (0, 0)] {
        let ((a, _near), (b, far)) = (worker([0, 1]), worker([0, 1]));
        let heard = Rc::new(Cell::new(0));
        let count = heard.clone();
        b.on_message(1, move |_| count.set(count.get() + 1)).unwrap();
        let datagrams = queues().0;
        assert_eq!(datagrams, 4, "two ports at two sides");
        let endpoint = a.connect(&b.address().unwrap()).unwrap();
        assert_eq!(endpoint.message_path(), "twoports:double0/rc");
        fault(|faults| faults.refuse_completion_queues = at_near);
        let mut sent = endpoint.send(1, 0, b"first").is_ok();
        fault(|faults| faults.refuse_completion_queues = at_far);
        while !sent || heard.get() == 0 {
            let _ = b.progress() + a.progress();
            sent = sent || endpoint.send(1, 0, b"first").is_ok();
        }
        assert_eq!((endpoint.error(), heard.get()), (None, 1), "{at_near} {at_far}");
        let serves =
            if at_near + at_far > 0 { "twoports:double0:2/rc" } else { "twoports:double0/rc" };
        assert_eq!(endpoint.message_path(), serves, "{at_near} {at_far}");
        // If the far side refuses, the near side has made its queues on the first port before.
        let made = queues().0 - datagrams;
        assert_eq!(made, if at_far > 0 { 3 } else { 2 }, "{at_near} {at_far}");
        drop((endpoint, a, b, far));
    }
}
