//! Tests of `TIELINE_TCP_PORTS`: a range with too few ports for the listeners of a process is an error, and never an unreachable
//! worker.

use super::{finish, over_tcp, providers};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::rc::Rc;
use std::sync::Mutex;
use tieline::Status;

/// Returns the first of `count` adjacent free ports, below the range that the kernel assigns. Tests of one process, which may run at
/// the same time, get different ports.
fn free_neighbours(count: u16) -> u16 {
    static TAKEN: Mutex<u16> = Mutex::new(0);
    let mut taken = TAKEN.lock().unwrap();
    let is_free = |port| {
        let taken = |ip: IpAddr| {
            let bound = TcpListener::bind((ip, port));
            bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
        };
        !taken(Ipv4Addr::UNSPECIFIED.into()) && !taken(Ipv6Addr::UNSPECIFIED.into())
    };
    let start = 10_000 + (std::process::id() % 2_000) as u16 * 10;
    let mut firsts = (start.max(*taken)..32_000).step_by(usize::from(count) + 2);
    let first = firsts.find(|first| (*first..*first + count).all(is_free)).expect("free ports");
    *taken = first + count;
    first
}

#[test]
fn one_port_for_two_listeners_is_refused_with_their_names() {
    let Some(folder) = providers() else { return };
    let port = free_neighbours(1).to_string();
    let refused = over_tcp(&folder).set("TIELINE_TCP_PORTS", &port).open().map(|_| ()).unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.status(), Status::Invalid, "{text}");
    for part in [
        &format!("TIELINE_TCP_PORTS={port} (program)"),
        "needs 2",
        "1 for tcp (in each process)",
        "1 for tcp-connect (in each context)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_second_context_without_a_port_opens_no_worker_that_nobody_reaches() {
    let Some(folder) = providers() else { return };
    let first = free_neighbours(2);
    let range = format!("{first}-{}", first + 1);
    let open = || over_tcp(&folder).set("TIELINE_TCP_PORTS", &range).open().unwrap();
    // Both contexts check the range before either listens.
    let (one, other) = (open(), open());
    let worker = one.worker().unwrap();
    let refused = other.worker().map(|_| ()).unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.status(), Status::NoDevice, "{text}");
    for part in
        ["no peer could connect to this worker over tcp/stream", "tcp-connect/stream", &range]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The first context has all ports that it needs.
    let got = Rc::new(Cell::new(0));
    let count = got.clone();
    worker.on_message(1, move |_| count.set(count.get() + 1)).unwrap();
    let endpoint = worker.connect(&worker.address().unwrap()).unwrap();
    let _ = finish(&[&worker], endpoint.send(1, 0, b"here").unwrap()).unwrap();
    super::until(&[&worker], || got.get() == 1);
}
