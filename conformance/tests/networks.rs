//! Tests of tcp-connect between processes, on the addresses of this host and between network namespaces. Programs that know only
//! the ABI load the provider file.
//!
//! Run it with `cargo test -p tieline-conformance --test networks [-- NAME]`.

#[path = "support/built.rs"]
mod built;
mod support;

use built::built;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use support::{Test, Verdict, program, run_all};
use tieline_conformance::PEER;
use tieline_net::Contact;

const TESTS: &[Test] = &[
    ("two_processes_exchange_datagrams_over_ipv4", over_ipv4),
    ("two_processes_exchange_datagrams_over_ipv6", over_ipv6),
    ("a_configured_secret_lets_its_owners_in_and_nobody_else", secrets),
    ("the_listener_takes_a_port_of_the_configured_range", ports),
    ("a_range_of_ports_that_is_taken_is_a_clear_error", ports_taken),
    ("wrong_values_are_errors_that_name_the_variable", wrong_values),
    ("scanners_do_not_disturb_datagrams_that_flow", scanners),
    ("two_hosts_exchange_datagrams", two_hosts),
    ("the_second_address_is_used_when_the_first_is_unreachable", second_address),
    ("a_link_that_is_cut_is_reported_with_the_reason", link_cut),
];

fn main() -> ExitCode {
    run_all(TESTS)
}

const PATIENCE: Duration = Duration::from_secs(120);

fn provider() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let library = "libtieline_tcp_connect.so";
    BUILT.get_or_init(|| built("tieline-provider-tcp-connect-plugin", library))
}

/// A process with a connector, which is killed on drop.
struct Member {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Member {
    /// Starts a process, in a network namespace if one is named.
    fn start(namespace: Option<&str>, variables: &[(&str, &str)]) -> Member {
        let mut command = match namespace {
            Some(namespace) => {
                let mut ip = Command::new("ip");
                let _ = ip.args(["netns", "exec", namespace]).arg(program());
                ip
            }
            None => Command::new(program()),
        };
        let command = command.arg(PEER).arg(provider()).arg("tcp-connect/stream");
        let mut child = command
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (lines, answers) = channel();
        let _ = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        Member { child, input, answers }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(_) => panic!("no answer: {}", self.last_words()),
        }
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    fn last_words(&mut self) -> String {
        let _ = self.child.kill();
        let mut words = String::new();
        let _ = self.child.stderr.take().unwrap().read_to_string(&mut words);
        words
    }

    fn refusal(namespace: Option<&str>, variables: &[(&str, &str)]) -> String {
        let mut member = Member::start(namespace, variables);
        assert!(!member.child.wait().unwrap().success(), "it began");
        member.last_words()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn places(address: &str) -> Vec<SocketAddr> {
    let digits = |at| u8::from_str_radix(&address[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..address.len()).step_by(2).map(digits).collect();
    let contact = Contact::parse(&bytes).unwrap();
    contact.addresses.iter().map(|at| SocketAddr::new(at.ip, at.port)).collect()
}

fn exchange(a: &mut Member, b: &mut Member) {
    let (at_a, at_b) = (a.ask("address"), b.ask("address"));
    a.tell(&format!("send {at_b} 3000"));
    b.tell(&format!("send {at_a} 3000"));
    assert_eq!((a.answer(), b.answer()), ("done".into(), "done".into()));
    a.tell("expect 3000");
    b.tell("expect 3000");
    assert_eq!((a.answer(), b.answer()), ("done".into(), "done".into()));
}

fn over(ip: IpAddr) -> Verdict {
    if let Err(error) = TcpListener::bind((ip, 0)) {
        return Err(format!("{ip} is no address of this machine: {error}"));
    }
    let only = [("TIELINE_TCP_INTERFACES", &*ip.to_string())];
    let (mut a, mut b) = (Member::start(None, &only), Member::start(None, &only));
    let there = places(&a.ask("address"));
    assert!(there.iter().all(|place| place.ip() == ip), "{there:?}");
    exchange(&mut a, &mut b);
    Ok(())
}

fn over_ipv4() -> Verdict {
    over("127.0.0.1".parse().unwrap())
}

fn over_ipv6() -> Verdict {
    over("::1".parse().unwrap())
}

fn secrets() -> Verdict {
    let (own, other) = ([("TIELINE_SECRET", "ours")], [("TIELINE_SECRET", "theirs")]);
    let (mut a, mut b) = (Member::start(None, &own), Member::start(None, &own));
    exchange(&mut a, &mut b);
    let at_a = a.ask("address");
    for stranger in [&other[..], &[]] {
        let mut stranger = Member::start(None, stranger);
        assert_eq!(stranger.ask(&format!("send {at_a} 1")), "done");
        let words = stranger.ask("left");
        assert!(words.contains("wrong secret"), "{words}");
        assert!(words.contains("TIELINE_SECRET"), "{words}");
    }
    exchange(&mut b, &mut a);
    Ok(())
}

fn a_free_port() -> u16 {
    TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port()
}

fn ports() -> Verdict {
    let (first, last) = loop {
        let first = a_free_port();
        if let Some(last) = first.checked_add(20) {
            break (first, last);
        }
    };
    let range = format!("{first}-{last}");
    let only = [("TIELINE_TCP_PORTS", range.as_str())];
    let (mut a, mut b) = (Member::start(None, &only), Member::start(None, &only));
    for member in [&mut a, &mut b] {
        let there = places(&member.ask("address"));
        assert!(there.iter().all(|at| (first..=last).contains(&at.port())), "{range}: {there:?}");
    }
    exchange(&mut a, &mut b);
    Ok(())
}

fn ports_taken() -> Verdict {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let words = Member::refusal(None, &[("TIELINE_TCP_PORTS", &port)]);
    assert!(words.contains(&format!("every port of {port} is taken")), "{words}");
    assert!(words.contains("TIELINE_TCP_PORTS"), "{words}");
    Ok(())
}

fn wrong_values() -> Verdict {
    for (name, value) in [
        ("TIELINE_TCP_PORTS", "many"),
        ("TIELINE_TCP_INTERFACES", "10.0.0.0/99"),
        ("TIELINE_CONNECT_TIMEOUT", "soon"),
        ("TIELINE_FAILURE_TIMEOUT", "20"),
        ("TIELINE_TCP_CONNECT_MAX", "none"),
    ] {
        let words = Member::refusal(None, &[(name, value)]);
        assert!(words.contains(name) && words.contains(value), "{words}");
    }
    let words = Member::refusal(None, &[("TIELINE_TCP_INTERFACES", "nosuch0")]);
    assert!(words.contains("no interface that is up matches `nosuch0`"), "{words}");
    Ok(())
}

fn scanners() -> Verdict {
    let (mut a, mut b) = (Member::start(None, &[]), Member::start(None, &[]));
    let at_b = b.ask("address");
    let loopback = places(&at_b).into_iter().find(|place| place.ip().is_loopback());
    let Some(door) = loopback else { return Err("the loopback interface is down".into()) };
    a.tell(&format!("send {at_b} 20000"));
    b.tell("expect 20000");
    let mut silent = Vec::new();
    for n in 0..200u8 {
        // Some connections send garbage, some nothing at all, and some begin correctly.
        let mut stream = TcpStream::connect(door).unwrap();
        match n % 3 {
            0 => drop(stream.write_all(&[n; 5000])),
            1 => drop(stream.write_all(b"TLN\x01")),
            _ => {}
        }
        silent.push(stream);
    }
    assert_eq!((a.answer(), b.answer()), ("done".into(), "done".into()));
    exchange(&mut a, &mut b);
    Ok(())
}

/// Network namespaces with two links between them, which are removed on drop.
struct Hosts {
    names: [String; 2],
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip (iproute2): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Hosts {
    /// Makes two hosts with `rail0` (10.61.0.1 and .2), `rail1` (10.61.1.1 and .2), and loopback.
    fn two() -> Result<Hosts, String> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (id, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let hosts = Hosts { names: [0, 1].map(|host| format!("conformance-{id}-{n}-{host}")) };
        let [a, b] = &hosts.names;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        for rail in 0..2 {
            let pair =
                format!("name rail{rail} netns {a} type veth peer name rail{rail} netns {b}");
            ip(&format!("link add {pair}"))?;
            for (name, host) in [(a, 1), (b, 2)] {
                ip(&format!("-n {name} addr add 10.61.{rail}.{host}/24 dev rail{rail}"))?;
                ip(&format!("-n {name} link set rail{rail} up"))?;
            }
        }
        Ok(hosts)
    }

    fn start(&self, host: usize, variables: &[(&str, &str)]) -> Member {
        Member::start(Some(&self.names[host]), variables)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The setting that selects IPv4: IPv6 addresses are not usable before the kernel has finished duplicate address detection.
const RAILS: (&str, &str) = ("TIELINE_TCP_INTERFACES", "10.61.0.0/16");

fn two_hosts() -> Verdict {
    let hosts = Hosts::two()?;
    let (mut a, mut b) = (hosts.start(0, &[]), hosts.start(1, &[]));
    exchange(&mut a, &mut b);
    Ok(())
}

fn second_address() -> Verdict {
    let hosts = Hosts::two()?;
    let (mut a, mut b) = (hosts.start(0, &[RAILS]), hosts.start(1, &[RAILS]));
    let there = places(&b.ask("address"));
    assert_eq!(there.len(), 2, "{there:?}");
    // The first address in b's address record does not exist any more, and no host reports that.
    let second = there[0].ip().to_string().replace("10.61.", "").starts_with('1');
    let rail = u8::from(second);
    ip(&format!("-n {} addr del 10.61.{rail}.2/24 dev rail{rail}", hosts.names[1]))?;
    let at_b = b.ask("address");
    assert_eq!(a.ask(&format!("send {at_b} 1000")), "done");
    assert_eq!(b.ask("expect 1000"), "done");
    // Without the other address no route remains, and the error names both.
    drop(a);
    assert!(b.ask("left").contains("closed"), "the first peer is gone");
    let rest = 1 - rail;
    ip(&format!("-n {} addr del 10.61.{rest}.2/24 dev rail{rest}", hosts.names[1]))?;
    let mut a = hosts.start(0, &[RAILS, ("TIELINE_CONNECT_TIMEOUT", "6s")]);
    assert_eq!(a.ask(&format!("send {at_b} 1")), "done");
    let words = a.ask("left");
    for place in there {
        assert!(words.contains(&place.to_string()), "{words}");
    }
    assert!(words.contains("same subnet as rail"), "{words}");
    Ok(())
}

fn link_cut() -> Verdict {
    let hosts = Hosts::two()?;
    let only = ("TIELINE_TCP_INTERFACES", "rail0");
    let short = ("TIELINE_FAILURE_TIMEOUT", "2s");
    let (mut a, mut b) = (hosts.start(0, &[only, short]), hosts.start(1, &[only, short]));
    exchange(&mut a, &mut b);
    ip(&format!("-n {} addr del 10.61.0.2/24 dev rail0", hosts.names[1]))?;
    let at_b = b.ask("address");
    assert_eq!(a.ask(&format!("send {at_b} 1")), "done");
    let words = a.ask("left");
    assert!(words.contains("the connection to the peer at 10.61.0.2"), "{words}");
    Ok(())
}
