//! Tests of hosts with incompatible settings, of ports that are in use, and of missing descriptors.

use tieline_processes::hosts::NETWORK;
use tieline_processes::{Hosts, Node, Test, Verdict, named, or_skip};

pub(crate) const TESTS: &[Test] = named![
    sides_without_common_connection_module_learn_what_each_has,
    side_without_tcp_learns_what_each_has,
    sides_with_other_providers_agree_on_what_both_have,
    a_port_that_is_taken_is_an_error_that_names_it,
    a_range_of_ports_that_is_used_up_is_an_error_that_names_it,
    lack_of_descriptors_while_connecting_fails_the_call,
];

/// Returns the error of an attempt that cannot succeed: of the connect, or of the first message.
fn refused(from: &mut Node, to: &mut Node) -> String {
    let address = to.must("address");
    let name = to.peer.name.clone();
    let failed = match from.ask(&format!("connect {name} {address}")) {
        Err(failed) => failed,
        Ok(_) => from.ask(&format!("ping {name}")).expect_err("there is no way"),
    };
    println!("    {} is told: {} {}", from.peer.name, failed.status, failed.text);
    assert_eq!(failed.status, "Unreachable");
    failed.text
}

fn sides_without_common_connection_module_learn_what_each_has() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut a = hosts[0].node("a", &[NETWORK]);
    let mut b = Node::bare(hosts[1].launch("b"));
    let _ = b.must(&format!("open-carrying b {NETWORK} TIELINE_CONNECT=oob"));
    for text in [refused(&mut a, &mut b), refused(&mut b, &mut a)] {
        assert!(text.contains("tcp-connect") && text.contains("oob"), "{text}");
    }
    a.end();
    b.end();
    Verdict::Passed
}

fn side_without_tcp_learns_what_each_has() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut a = hosts[0].node("a", &[]);
    let mut b = hosts[1].node("b", &["TIELINE_PROVIDERS=^tcp"]);
    let text = refused(&mut a, &mut b);
    assert!(text.contains("tcp") && text.contains("shm"), "{text}");
    let text = refused(&mut b, &mut a);
    assert!(text.contains("tcp") && text.contains("shm"), "{text}");
    a.end();
    b.end();
    Verdict::Passed
}

fn sides_with_other_providers_agree_on_what_both_have() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut a = hosts[0].node("a", &[NETWORK]);
    let mut b = hosts[1].node("b", &["TIELINE_PROVIDERS=^shm-cma"]);
    a.connect(&mut b);
    b.connect(&mut a);
    let _ = a.must("ping b");
    let _ = b.must("ping a");
    a.end();
    b.end();
    Verdict::Passed
}

fn does_not_open(hosts: &Hosts, setting: &str) -> String {
    let mut node = Node::bare(hosts[0].launch("late"));
    let failed = node.ask(&format!("open {NETWORK} {setting}")).expect_err("there is no port");
    println!("    {} {}", failed.status, failed.text);
    node.end();
    failed.text
}

fn a_port_that_is_taken_is_an_error_that_names_it() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let mut thief = hosts[0].stranger();
    let _ = thief.must("listen [::]:20000");
    let text = does_not_open(&hosts, "TIELINE_TCP_PORTS=20000");
    assert!(text.contains("20000") && text.contains("TIELINE_TCP_PORTS"), "{text}");
    thief.end();
    Verdict::Passed
}

fn a_range_of_ports_that_is_used_up_is_an_error_that_names_it() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let setting = "TIELINE_TCP_PORTS=20000-20003";
    let mut nodes = vec![hosts[1].node("b", &[NETWORK])];
    // Processes open the network until no port is left: each uses one or more ports.
    let mut count = 0;
    let text = loop {
        assert!(count <= 4, "four ports are enough for {count} processes");
        let mut node = Node::bare(hosts[0].launch(&format!("n{count}")));
        match node.ask(&format!("open {NETWORK} {setting}")) {
            Ok(_) => nodes.push(node),
            Err(failed) => {
                node.end();
                break failed.text;
            }
        }
        count += 1;
    };
    println!("    {count} processes fit; then: {text}");
    assert!(text.contains("20000-20003") && text.contains("TIELINE_TCP_PORTS"), "{text}");
    assert!(count >= 1);
    // The existing endpoints work.
    let (b, rest) = nodes.split_first_mut().expect("b is there");
    for node in rest {
        node.connect(b);
        let _ = node.must("ping b");
    }
    for node in nodes {
        node.end();
    }
    Verdict::Passed
}

fn lack_of_descriptors_while_connecting_fails_the_call() -> Verdict {
    let hosts = or_skip!(Hosts::two());
    let settings = [NETWORK, "TIELINE_CONNECT_TIMEOUT=3s"];
    let mut rich = hosts[1].node("rich", &settings);
    let address = rich.must("address");
    let mut complete = false;
    let mut last = String::new();
    // The side without descriptors connects in one case, and the peer connects to it in the other case.
    for called in [false, true] {
        for room in 0..24 {
            let mut poor = hosts[0].node("poor", &settings);
            let poor_address = poor.must("address");
            let open: u64 = poor.must("descriptors").parse().expect("a number");
            // The descriptor that counted the open descriptors is closed again.
            let _ = poor.must(&format!("limit descriptors {}", open - 1 + room));
            let outcome = if called {
                let _ = rich.must(&format!("connect poor {poor_address}"));
                rich.ask("ping poor")
            } else {
                let _ = poor.must(&format!("connect rich {address}"));
                poor.ask("ping rich")
            };
            complete = outcome.is_ok();
            match outcome {
                Ok(_) => println!("    room for {room}: it works"),
                Err(failed) => {
                    let said = format!("{} {}", failed.status, failed.text);
                    if said != last {
                        println!("    room for {room}: {said}");
                    }
                    assert_ne!(failed.status, "Again");
                    if !called {
                        let named = said.contains("descriptor") || said.contains("open files");
                        assert!(named, "room for {room}: {said}");
                        assert_eq!(failed.status, "NoMemory", "room for {room}: {said}");
                        assert!(said.contains("`ulimit -n`"), "room for {room}: {said}");
                    }
                    last = said;
                }
            }
            // When the limit is raised, the same process can connect.
            let _ = poor.must("limit descriptors 1000");
            let _ = poor.ask("disconnect rich");
            let _ = rich.ask("disconnect poor");
            let _ = poor.must(&format!("connect rich {address}"));
            if poor.ask("ping rich").is_err() {
                // The other side had begun that connection and abandoned it.
                let _ = poor.must("disconnect rich");
                let _ = poor.must(&format!("connect rich {address}"));
                let _ = poor.must("ping rich");
            }
            poor.end();
            if complete {
                break;
            }
        }
        assert!(complete);
    }
    rich.nothing_was_wrong();
    rich.end();
    Verdict::Passed
}
