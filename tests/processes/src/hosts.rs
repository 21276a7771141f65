//! Hosts: network namespaces, each with one link per rail to a switch that connects all hosts.
//!
//! ```text
//!   host 0          host 1          host 2
//!   rail0 rail1     rail0 rail1     rail0 rail1        10.50.0.1 .2 .3 / fd00:50::1 ... and 10.51. / fd00:51::
//!     |     |         |     |         |     |
//!   h0r0  h0r1      h1r0  h1r1      h2r0  h2r1
//!   [ bridge rail0 ]  [ bridge rail1 ]                 the switch, a namespace of its own
//! ```
//!
//! A link can go down, as when a cable is pulled, or be cut silently, so that packets are lost and neither side is notified. The
//! hosts share a PID namespace and all files, but no network. A process that is started on a host sees a boot id of that host, so
//! shm does not connect processes of different hosts.
//!
//! Names contain the number and the start time of the test program, so runs never collide. The next run removes the namespaces of a
//! run that was killed.

use crate::node::Node;
use crate::peer::Launch;
use crate::{plugins, sys};
use std::io::Write;
use std::ops::Index;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A setting that selects the network providers only: between these hosts the kernel would also allow `shm-cma`.
pub const NETWORK: &str = "TIELINE_PROVIDERS=tcp,tcp-connect";

const FOLDER: &str = "/run/netns";
const PREFIX: &str = "tieline-";

/// Namespaces with links between them, which are removed on drop.
pub struct Hosts {
    list: Vec<Host>,
    switch: String,
}

/// A host: a network namespace with its links.
pub struct Host {
    namespace: String,
    boot: String,
    links: Vec<Link>,
}

/// The commands that a process on a host executes first; the first argument is the host's boot id.
const BOOTED: &str = "f=$(mktemp) && echo \"$0\" > $f && mount --bind $f /proc/sys/kernel/random/boot_id; \
                      rm $f; exec \"$@\"";

/// The link of a host to one switch.
#[derive(Clone)]
pub struct Link {
    host: String,
    device: String,
    switch: String,
    port: String,
    bridge: String,
}

/// Skips the test if hosts, or another requirement, are not available on this machine.
#[macro_export]
macro_rules! or_skip {
    ($possible:expr) => {
        match $possible {
            Ok(there) => there,
            Err(why) => return $crate::Verdict::Skipped(why),
        }
    };
}

/// Runs `ip`. Returns whether it succeeded.
fn ip(arguments: &[&str]) -> Result<(), String> {
    let outcome = Command::new("ip").args(arguments).output();
    let output = outcome.map_err(|e| format!("ip (iproute2): {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(format!("ip {}: {said}", arguments.join(" ")))
}

fn batch(namespace: &str, commands: &[String]) -> Result<(), String> {
    let mut child = Command::new("ip")
        .args(["-netns", namespace, "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("ip (iproute2): {e}"))?;
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all((commands.join("\n") + "\n").as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| format!("ip: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("in {namespace}: {said}")) }
}

/// Returns the prefix of all names of this process: `tieline-NUMBER-START-`.
fn mark() -> String {
    format!("{PREFIX}{}-{}-", std::process::id(), started(std::process::id()).unwrap_or(0))
}

/// Returns the start time of a process, in the kernel's ticks; `None` if there is no such process.
fn started(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields after the program's name, which may contain any character: the state is field 3, and the start time is field 22.
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(19)?.parse().ok()
}

fn namespaces() -> Vec<String> {
    let entries = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the namespaces of this process that still exist.
#[must_use]
pub fn left() -> Vec<String> {
    let mark = mark();
    namespaces().into_iter().filter(|name| name.starts_with(&mark)).collect()
}

fn sweep() {
    for name in namespaces() {
        let mut words = name.strip_prefix(PREFIX).unwrap_or_default().split('-');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        if let (Some(process), Some(start), Some(_)) = (number(), number(), number()) {
            if started(process as u32) != Some(start) {
                let _ = ip(&["netns", "del", &name]);
            }
        }
    }
}

impl Hosts {
    /// Makes two hosts with one link between them.
    ///
    /// # Errors
    /// Returns the reason why hosts are not available on this machine.
    pub fn two() -> Result<Hosts, String> {
        Hosts::new(2, 1)
    }

    /// Makes two hosts with `rails` links between them.
    ///
    /// # Errors
    /// Returns the errors of [`Hosts::two`].
    pub fn with_rails(rails: usize) -> Result<Hosts, String> {
        Hosts::new(2, rails)
    }

    /// Makes `count` hosts at one switch.
    ///
    /// # Errors
    /// Returns the errors of [`Hosts::two`].
    pub fn many(count: usize) -> Result<Hosts, String> {
        Hosts::new(count, 1)
    }

    fn new(count: usize, rails: usize) -> Result<Hosts, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !sys::is_root() {
            return Err("several hosts are network namespaces, which need root".into());
        }
        let _ = plugins::folder()?;
        sweep();
        let mark = format!("{}{}", mark(), NEXT.fetch_add(1, Ordering::Relaxed));
        // Dropping this value removes everything that the code below creates.
        let mut hosts = Hosts { list: Vec::new(), switch: format!("{mark}-switch") };
        ip(&["netns", "add", &hosts.switch])?;
        let mut switching = Vec::new();
        for rail in 0..rails {
            switching.push(format!("link add rail{rail} type bridge"));
            switching.push(format!("link set rail{rail} up"));
        }
        batch(&hosts.switch, &switching)?;
        for number in 0..count {
            let host = Host::new(format!("{mark}-host{number}"), &hosts.switch, number, rails);
            ip(&["netns", "add", &host.namespace])?;
            hosts.list.push(host);
            hosts.list[number].wire(number)?;
        }
        Ok(hosts)
    }

    /// Iterates over all hosts.
    pub fn iter(&self) -> std::slice::Iter<'_, Host> {
        self.list.iter()
    }
}

impl Index<usize> for Hosts {
    type Output = Host;

    fn index(&self, number: usize) -> &Host {
        &self.list[number]
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.list {
            let _ = ip(&["netns", "del", &host.namespace]);
        }
        let _ = ip(&["netns", "del", &self.switch]);
    }
}

impl Host {
    fn new(namespace: String, switch: &str, number: usize, rails: usize) -> Host {
        let link = |rail| Link {
            host: namespace.clone(),
            device: format!("rail{rail}"),
            switch: switch.to_string(),
            port: format!("h{number}r{rail}"),
            bridge: format!("rail{rail}"),
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        let boot = boot.trim().to_string();
        Host { links: (0..rails).map(link).collect(), boot, namespace }
    }

    fn wire(&self, number: usize) -> Result<(), String> {
        let mut here = vec!["link set lo up".to_string()];
        let mut there = Vec::new();
        for (rail, link) in self.links.iter().enumerate() {
            let Link { device, switch, port, bridge, .. } = link;
            here.push(format!("link add {device} type veth peer name {port} netns {switch}"));
            let (v4, v6) = (address_of(number, rail, false), address_of(number, rail, true));
            here.push(format!("addr add {v4}/16 dev {device}"));
            here.push(format!("addr add {v6}/64 dev {device} nodad"));
            here.push(format!("link set {device} up"));
            there.push(format!("link set {port} master {bridge} up"));
        }
        // The settings keep the addresses of a host whose cable was pulled. The congestion control is Reno, which sends when an
        // acknowledgement arrives: with one that paces its packets, a send would be the last event before almost every cut.
        const SETTINGS: &str = "cd /proc/sys/net && echo 1 > ipv6/conf/all/keep_addr_on_down && \
                                { echo reno > ipv4/tcp_congestion_control || true; }";
        let _ = self.run(&["sh", "-c", SETTINGS])?;
        batch(&self.namespace, &here)?;
        batch(&self.links[0].switch, &there)
    }

    /// Runs a command on the host.
    ///
    /// # Errors
    /// Returns the command's error output if the command failed.
    pub fn run(&self, command: &[&str]) -> Result<String, String> {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.namespace])
            .args(command)
            .output()
            .map_err(|e| format!("ip (iproute2): {e}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(format!("{}: {}", command.join(" "), text(&output.stderr))),
        }
    }

    /// Returns the launch of a process on the host, with the network providers.
    ///
    /// # Panics
    /// Panics if the network providers are not built; hosts are then not available.
    #[must_use]
    pub fn launch(&self, name: &str) -> Launch {
        let providers = plugins::folder().expect("hosts come after the providers");
        Launch::new(name, "node")
            .through(&["ip", "netns", "exec", &self.namespace, "sh", "-c", BOOTED, &self.boot])
            .env("TIELINE_PROVIDER_PATH", providers.display())
    }

    /// Starts a process on the host that does not implement the protocol: see [`crate::stranger`].
    #[must_use]
    pub fn stranger(&self) -> Node {
        let namespace = ["ip", "netns", "exec", self.namespace.as_str()];
        Node::bare(Launch::new("stranger", "stranger").through(&namespace))
    }

    /// Returns the ports with a listener on the host.
    #[must_use]
    pub fn listening(&self) -> Vec<u16> {
        let text = self.run(&["cat", "/proc/net/tcp", "/proc/net/tcp6"]).unwrap_or_default();
        let mut ports: Vec<u16> = text.lines().filter_map(listener).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Starts a process on the host, with an open context and worker.
    #[must_use]
    pub fn node(&self, name: &str, settings: &[&str]) -> Node {
        Node::open(self.launch(name), settings)
    }

    /// Returns the host's address on a rail, an IPv6 or IPv4 address.
    #[must_use]
    pub fn address(&self, rail: usize, v6: bool) -> String {
        let port = &self.links[rail].port;
        let number = port[1..].split('r').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        address_of(number, rail, v6)
    }

    /// Returns the host's link of a rail.
    #[must_use]
    pub fn link(&self, rail: usize) -> &Link {
        &self.links[rail]
    }

    /// Drops the first packet of each TCP connection from this host. Other hosts can still connect to this host.
    pub fn drop_outgoing_calls(&self) -> Result<(), String> {
        self.filter("output", "tcp flags & (syn | ack) == syn drop")
    }

    /// Drops the first packet of each TCP connection to this host.
    pub fn drop_incoming_calls(&self) -> Result<(), String> {
        self.filter("input", "tcp flags & (syn | ack) == syn drop")
    }

    /// Rejects connections to this host, as a firewall that sends a reset.
    ///
    /// # Errors
    /// Returns an error if `nft` is missing or refuses the rule.
    pub fn refuse_incoming_calls(&self) -> Result<(), String> {
        self.filter("input", "tcp flags & (syn | ack) == syn reject with tcp reset")
    }

    /// Silently drops incoming packets of more than `bytes` bytes, as a link does whose MTU is smaller than its ends assume.
    ///
    /// # Errors
    /// Returns an error if `nft` is missing or refuses the rule.
    pub fn drop_incoming_longer_than(&self, bytes: usize) -> Result<(), String> {
        self.filter("input", &format!("meta length > {bytes} drop"))
    }

    fn filter(&self, hook: &str, rule: &str) -> Result<(), String> {
        let rules = format!(
            "add table inet tieline; \
             add chain inet tieline {hook} {{ type filter hook {hook} priority 0 ; }}; \
             add rule inet tieline {hook} {rule}"
        );
        self.run(&["nft", &rules]).map(|_| ())
    }

    /// Removes all rules that drop or reject packets.
    pub fn stop_dropping(&self) {
        let _ = self.run(&["nft", "delete table inet tieline"]);
    }

    /// Returns the numbers of the processes on the host.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let outcome = Command::new("ip").args(["netns", "pids", &self.namespace]).output();
        let text = outcome.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        text.unwrap_or_default().lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Kills all processes of the host; its kernel closes their connections.
    pub fn lose_processes(&self) {
        for process in self.processes() {
            sys::signal(process, sys::Signal::Kill);
        }
    }

    /// Cuts the host off as a power failure does: no packet of the host arrives after that. Returns the time, in nanoseconds.
    #[must_use]
    pub fn vanish(&self) -> u64 {
        let at = sys::now_ns();
        for link in &self.links {
            link.cut();
        }
        self.lose_processes();
        at
    }
}

/// Returns the port in a line of /proc/net/tcp, if the line is that of a listener.
fn listener(line: &str) -> Option<u16> {
    const LISTEN: &str = "0A";
    let mut words = line.split_whitespace().skip(1);
    let (local, _, state) = (words.next()?, words.next()?, words.next()?);
    let port = local.rsplit_once(':')?.1;
    if state == LISTEN { u16::from_str_radix(port, 16).ok() } else { None }
}

fn address_of(host: usize, rail: usize, v6: bool) -> String {
    match v6 {
        true => format!("fd00:{}::{}", 50 + rail, host + 1),
        false => format!("10.{}.0.{}", 50 + rail, host + 1),
    }
}

impl Link {
    /// Takes the host's device down: the host is notified, and has no route over this device afterwards.
    pub fn down(&self) {
        self.at_host("down");
    }

    /// Takes the device up again.
    pub fn up(&self) {
        self.at_host("up");
    }

    fn at_host(&self, state: &str) {
        must(ip(&["-netns", &self.host, "link", "set", &self.device, state]));
    }

    /// Stops all packets in both directions; neither side is notified.
    pub fn cut(&self) {
        must(ip(&["-netns", &self.switch, "link", "set", &self.port, "nomaster"]));
    }

    /// Lets packets pass again.
    pub fn restore(&self) {
        must(ip(&["-netns", &self.switch, "link", "set", &self.port, "master", &self.bridge]));
    }
}

fn must(outcome: Result<(), String>) {
    if let Err(why) = outcome {
        panic!("{why}");
    }
}
