//! Tests of shm-cma between real processes. The test binary starts itself as the peer.
//!
//! `cargo test -p tieline-provider-shm-cma --test between_processes [-- NAME]`

#[path = "common/sys.rs"]
mod sys;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use sys::Change;
use tieline_plugin_api::abi::{Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Interface, Posting, Revoked, RmaOp, Status, access};
use tieline_provider_shm_cma::{CmaDomain, CmaEndpoint, MODULE, RemoteKey};

/// The length of the peer's buffer, in bytes. The region is in the middle of the buffer; the rest are guard bytes.
const BUFFER: usize = 3 << 20;
const GUARD: usize = 4096 + 13;
const REGION: usize = BUFFER - 2 * GUARD;
const FILL: u8 = 0xa5;

type Test = (&'static str, fn() -> Verdict);

/// `Ok`, or the reason why the test could not be run.
type Verdict = Result<(), String>;

const TESTS: &[Test] = &[
    ("put_and_get_move_the_bytes_and_nothing_beside_them", put_and_get_move_the_bytes),
    ("a_gathered_put_and_a_scattered_get_keep_the_order", gathered_and_scattered),
    ("a_forged_key_writes_nothing_in_the_peer", a_forged_key_writes_nothing),
    ("a_revoked_key_is_rejected_and_the_endpoint_lives", a_revoked_key_is_rejected),
    ("a_range_outside_the_region_is_refused", a_range_outside_is_refused),
    ("a_killed_peer_is_a_failed_peer", a_killed_peer_is_a_failed_peer),
    ("a_peer_that_called_exec_is_a_failed_peer", a_peer_that_called_exec_has_failed),
    ("a_reused_process_number_does_not_pass_for_the_peer", a_reused_number_is_found_out),
    ("memory_is_not_free_while_a_peer_is_between_check_and_copy", an_access_is_waited_for),
    ("a_peer_that_is_killed_between_check_and_copy_is_not_waited_for", a_killed_access_is_over),
    ("a_peer_that_closes_or_ends_leaves_nothing_to_wait_for", closed_accessors_are_forgotten),
    ("another_users_process_is_refused_in_words", another_user_is_refused),
    ("another_pid_namespace_is_named", another_pid_namespace_is_named),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("peer") => {
            serve();
            return ExitCode::SUCCESS;
        }
        Some("accessor") => {
            access(&unhex(&arguments.next().unwrap()), &unhex(&arguments.next().unwrap()));
            return ExitCode::SUCCESS;
        }
        Some("sleeper") => {
            println!("sleeping");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            return ExitCode::SUCCESS;
        }
        Some("reach") => {
            let address = unhex(&arguments.next().expect("an address"));
            let domain = CmaDomain::new(false).unwrap();
            match domain.open_interface(MODULE, [0; 16]).unwrap().reachable(&address) {
                Ok(()) => println!("reachable"),
                Err(failure) => println!("{:?} {}", failure.status, failure.text),
            }
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in TESTS {
        if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        match std::panic::catch_unwind(test) {
            Ok(Ok(())) => println!("test {name} ... ok"),
            Ok(Err(reason)) => println!("test {name} ... skipped: {reason}"),
            Err(_) => {
                println!("test {name} ... FAILED");
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs as the peer process: registers a region and executes the commands on its standard input until that closes.
fn serve() {
    let buffer: Vec<AtomicU8> = (0..BUFFER).map(|_| AtomicU8::new(FILL)).collect();
    let domain = CmaDomain::new(true).unwrap();
    let interface = domain.open_interface(MODULE, [1; 16]).unwrap();
    let rights = access::REMOTE_READ | access::REMOTE_WRITE;
    let base = buffer[GUARD..].as_ptr().cast_mut().cast();
    let mut region = Some(domain.register(&RegisterParams::new(base, REGION, rights)).unwrap());
    let mut key = [0; 64];
    let len = domain.pack_key(region.as_ref().unwrap(), &KeyParams::empty(), &mut key).unwrap();
    println!("{} {}", hex(&interface.address()), hex(&key[..len]));
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().as_str() {
            "sum" => {
                // The answer has the sum of the region, and the number of unmodified guard bytes.
                let value = |byte: &AtomicU8| u64::from(byte.load(Ordering::Relaxed));
                let sum: u64 = buffer[GUARD..GUARD + REGION].iter().map(value).sum();
                let guards = buffer[..GUARD].iter().chain(&buffer[GUARD + REGION..]);
                let intact = guards.filter(|b| b.load(Ordering::Relaxed) == FILL).count();
                println!("{sum} {intact}");
            }
            "revoke" => {
                drop(region.take());
                println!("revoked");
            }
            "exec" => {
                let exe = std::env::current_exe().unwrap();
                panic!("{}", Command::new(exe).arg("sleeper").exec());
            }
            other => panic!("no such command: {other}"),
        }
    }
}

/// Runs as the accessing process: puts 8 bytes into the region, gets them back, and prints both results, until its standard input
/// closes.
fn access(address: &[u8], key: &[u8]) {
    let domain = CmaDomain::new(false).unwrap();
    let interface = domain.open_interface(MODULE, [3; 16]).unwrap();
    let endpoint = interface.connect(address, b"", 0).unwrap();
    let key = endpoint.import_key(key).unwrap();
    loop {
        let put = endpoint.put(&key, &op(&[piece(&mut [0x77; 8])], 0));
        let get = endpoint.get(&key, &op(&[piece(&mut [0; 8])], 0));
        println!("{put:?} {get:?}");
        if std::io::stdin().lock().read_line(&mut String::new()).unwrap() == 0 {
            return;
        }
    }
}

/// A region of this process, with the address and key for a child.
struct Offered {
    domain: CmaDomain,
    memory: Vec<u8>,
    region: tieline_provider_shm_cma::Registration,
}

impl Offered {
    fn new() -> Offered {
        let domain = CmaDomain::new(true).unwrap();
        let mut memory = vec![FILL; 4096];
        let rights = access::REMOTE_READ | access::REMOTE_WRITE;
        let region = domain
            .register(&RegisterParams::new(memory.as_mut_ptr(), memory.len(), rights))
            .unwrap();
        Offered { domain, memory, region }
    }

    /// Starts a child. If `stops` is true, the child stops itself in its first put.
    fn accessor(&self, stops: bool) -> Child {
        let interface = self.domain.open_interface(MODULE, [1; 16]).unwrap();
        let mut key = [0; 64];
        let len = self.domain.pack_key(&self.region, &KeyParams::empty(), &mut key).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        if stops {
            let _ = command.env("TIELINE_SHM_CMA_TEST_STOP_AT", "1");
        }
        let arguments = ["accessor", &hex(&interface.address()), &hex(&key[..len])];
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Returns the first bytes of the region, read as `volatile`, because the child writes without the compiler's knowledge.
    fn first_bytes(&self) -> [u8; 8] {
        std::hint::black_box(&self.memory)[..8].try_into().unwrap()
    }
}

fn needs_hooks() -> Verdict {
    if cfg!(feature = "test-hooks") { Ok(()) } else { Err("needs --features test-hooks".into()) }
}

fn an_access_is_waited_for() -> Verdict {
    needs_hooks()?;
    let offered = Offered::new();
    let mut beside = vec![0u8; 64];
    let other = offered
        .domain
        .register(&RegisterParams::new(beside.as_mut_ptr(), 64, access::REMOTE_WRITE))
        .unwrap();
    let mut child = offered.accessor(true);
    assert_eq!(sys::wait_for(child.id()), Change::Stopped);
    // The child has found the key valid and will write as soon as it is continued.
    for _ in 0..3 {
        assert_eq!(offered.domain.revoke(&offered.region), Revoked::Busy);
    }
    assert_eq!(offered.domain.revoke(&other), Revoked::Quiet, "nobody is in that one");
    assert_eq!(offered.first_bytes(), [FILL; 8]);
    sys::signal(child.id(), libc::SIGCONT);
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let _ = output.read_line(&mut line).unwrap();
    // The put was in progress before the revocation; the get came after it.
    assert_eq!(line.trim_end(), "Ok(Done) Err(KeyRejected)");
    assert_eq!(offered.first_bytes(), [0x77; 8]);
    assert_eq!(offered.domain.revoke(&offered.region), Revoked::Quiet);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    Ok(())
}

fn a_killed_access_is_over() -> Verdict {
    needs_hooks()?;
    let offered = Offered::new();
    let mut killed = offered.accessor(true);
    assert_eq!(sys::wait_for(killed.id()), Change::Stopped);
    assert_eq!(offered.domain.revoke(&offered.region), Revoked::Busy);
    sys::signal(killed.id(), libc::SIGKILL);
    assert_eq!(sys::wait_for(killed.id()), Change::Ended);
    // The child is dead but not reaped.
    assert_eq!(offered.domain.revoke(&offered.region), Revoked::Quiet);
    assert_eq!(offered.first_bytes(), [FILL; 8]);
    let _ = killed.wait().unwrap();
    Ok(())
}

fn closed_accessors_are_forgotten() -> Verdict {
    let offered = Offered::new();
    for _ in 0..3 {
        let mut child = offered.accessor(false);
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let _ = output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), "Ok(Done) Ok(Done)");
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(offered.domain.revoke(&offered.region), Revoked::Quiet);
    Ok(())
}

/// A peer process and this process's endpoint to it. The peer is killed on drop.
struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    address: Vec<u8>,
    key: Vec<u8>,
}

impl Peer {
    fn start() -> Peer {
        Peer::start_by(Command::new(std::env::current_exe().unwrap()).arg("peer")).unwrap()
    }

    fn start_by(command: &mut Command) -> Result<Peer, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{command:?} does not start: {e}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut peer = Peer { child, input, output, address: Vec::new(), key: Vec::new() };
        let line = peer.line();
        let (address, key) =
            line.split_once(' ').ok_or_else(|| format!("{command:?} ended early"))?;
        (peer.address, peer.key) = (unhex(address), unhex(key));
        Ok(peer)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.output.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
        self.line()
    }

    fn connect(&self) -> (CmaEndpoint, RemoteKey) {
        let domain = CmaDomain::new(false).unwrap();
        let interface = domain.open_interface(MODULE, [2; 16]).unwrap();
        interface.reachable(&self.address).unwrap();
        let endpoint = interface.connect(&self.address, b"", 0).unwrap();
        let key = endpoint.import_key(&self.key).unwrap();
        (endpoint, key)
    }

    /// Kills the process and returns when it is dead but not reaped.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        let _ = self.output.read_to_end(&mut Vec::new()).unwrap();
    }

    /// Compares the peer's "sum" with the sum of an unmodified region.
    fn assert_untouched(&mut self) {
        let sum = u64::from(FILL) * REGION as u64;
        assert_eq!(self.ask("sum"), format!("{sum} {}", 2 * GUARD));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn piece(buffer: &mut [u8]) -> Iov {
    Iov::new(buffer.as_mut_ptr(), buffer.len())
}

fn op(iov: &[Iov], offset: u64) -> RmaOp<'_> {
    RmaOp { iov, len: iov.iter().map(|p| p.len).sum(), offset, cookie: 0, flags: 0 }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 17 + (i >> 9)) as u8).collect()
}

fn put_and_get_move_the_bytes() -> Verdict {
    let mut peer = Peer::start();
    let (endpoint, key) = peer.connect();
    let mut model = vec![FILL; REGION];
    let sizes = [0, 1, 7, 8, 64, 4095, 4096, 4097, 65_536, 1 << 20, REGION];
    for (seed, &len) in sizes.iter().enumerate() {
        let offset = (seed * 997) % (REGION - len + 1);
        let mut sent = pattern(len, seed);
        model[offset..offset + len].copy_from_slice(&sent);
        assert_eq!(endpoint.put(&key, &op(&[piece(&mut sent)], offset as u64)), Ok(Posting::Done));
        let mut received = vec![0; len + 2];
        let inner = piece(&mut received[1..=len]);
        assert_eq!(endpoint.get(&key, &op(&[inner], offset as u64)), Ok(Posting::Done));
        assert_eq!(received[1..=len], model[offset..offset + len]);
        assert_eq!((received[0], received[len + 1]), (0, 0));
        let sum: u64 = model.iter().map(|&b| u64::from(b)).sum();
        assert_eq!(peer.ask("sum"), format!("{sum} {}", 2 * GUARD), "after {len} bytes");
    }
    Ok(())
}

fn gathered_and_scattered() -> Verdict {
    let peer = Peer::start();
    let (endpoint, key) = peer.connect();
    for count in [2, 7, 8, 100, 1024, 3000] {
        let mut sent = pattern(count * 300, count);
        let pieces: Vec<Iov> = sent.chunks_mut(300).map(piece).collect();
        assert_eq!(endpoint.put(&key, &op(&pieces, 5)), Ok(Posting::Done));
        let mut received = vec![0; sent.len()];
        let pieces: Vec<Iov> = received.chunks_mut(401).map(piece).collect();
        assert_eq!(endpoint.get(&key, &op(&pieces, 5)), Ok(Posting::Done));
        assert_eq!(received, sent, "{count} pieces");
    }
    Ok(())
}

fn a_forged_key_writes_nothing() -> Verdict {
    let mut peer = Peer::start();
    let (endpoint, _) = peer.connect();
    let mut data = vec![0x5a; REGION];
    for bit in 0..peer.key.len() * 8 {
        let mut forged = peer.key.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        let Ok(key) = endpoint.import_key(&forged) else { continue };
        for (len, offset) in [(8, 0), (REGION, 0), (8, REGION as u64)] {
            let put = endpoint.put(&key, &op(&[piece(&mut data[..len])], offset));
            assert!(matches!(put, Err(Status::KeyRejected | Status::OutOfRange)), "{bit}: {put:?}");
        }
    }
    peer.assert_untouched();
    Ok(())
}

fn a_revoked_key_is_rejected() -> Verdict {
    let mut peer = Peer::start();
    let (endpoint, key) = peer.connect();
    assert_eq!(peer.ask("revoke"), "revoked");
    let mut data = [1; 8];
    let rejected = Err(Status::KeyRejected);
    assert_eq!(endpoint.put(&key, &op(&[piece(&mut data)], 0)), rejected);
    assert_eq!(endpoint.get(&key, &op(&[piece(&mut data)], 0)), rejected);
    peer.assert_untouched();
    Ok(())
}

fn a_range_outside_is_refused() -> Verdict {
    let mut peer = Peer::start();
    let (endpoint, key) = peer.connect();
    let mut data = [1; 8];
    for offset in [REGION as u64 - 7, REGION as u64, u64::MAX - 3, u64::MAX] {
        let outside = Err(Status::OutOfRange);
        assert_eq!(endpoint.put(&key, &op(&[piece(&mut data)], offset)), outside);
        assert_eq!(endpoint.get(&key, &op(&[piece(&mut data)], offset)), outside);
    }
    peer.assert_untouched();
    Ok(())
}

fn a_killed_peer_is_a_failed_peer() -> Verdict {
    let mut peer = Peer::start();
    let (endpoint, key) = peer.connect();
    let mut data = [1; 8];
    // Later puts do not read the entry again.
    assert_eq!(endpoint.put(&key, &op(&[piece(&mut data)], 0)), Ok(Posting::Done));
    peer.kill();
    for reaped in [false, true] {
        if reaped {
            let _ = peer.child.wait().unwrap();
        }
        let failed = Err(Status::PeerFailed);
        assert_eq!(endpoint.put(&key, &op(&[piece(&mut data)], 0)), failed, "reaped: {reaped}");
        assert_eq!(endpoint.get(&key, &op(&[piece(&mut data)], 0)), failed, "reaped: {reaped}");
    }
    let domain = CmaDomain::new(false).unwrap();
    let interface = domain.open_interface(MODULE, [0; 16]).unwrap();
    let failure = interface.reachable(&peer.address).unwrap_err();
    assert_eq!(failure.status, Status::PeerFailed);
    assert!(failure.text.contains("has ended"), "{failure}");
    Ok(())
}

fn a_peer_that_called_exec_has_failed() -> Verdict {
    let mut peer = Peer::start();
    let (endpoint, key) = peer.connect();
    let mut data = [1; 8];
    assert_eq!(endpoint.put(&key, &op(&[piece(&mut data)], 0)), Ok(Posting::Done));
    assert_eq!(peer.ask("exec"), "sleeping");
    let failed = Err(Status::PeerFailed);
    assert_eq!(endpoint.put(&key, &op(&[piece(&mut data)], 0)), failed);
    assert_eq!(endpoint.get(&key, &op(&[piece(&mut data)], 0)), failed);
    Ok(())
}

fn a_reused_number_is_found_out() -> Verdict {
    // The test uses the first peer's address with the process number of another process.
    let (first, mut second) = (Peer::start(), Peer::start());
    let mut address = first.address.clone();
    address[4..8].copy_from_slice(&second.child.id().to_ne_bytes());
    let domain = CmaDomain::new(false).unwrap();
    let interface = domain.open_interface(MODULE, [0; 16]).unwrap();
    let failure = interface.reachable(&address).unwrap_err();
    assert_eq!(failure.status, Status::PeerFailed);
    assert!(interface.connect(&address, b"", 0).is_err());
    second.assert_untouched();
    // A key of one peer is rejected by another.
    let (endpoint, _) = second.connect();
    let refused = endpoint.import_key(&first.key).err().unwrap();
    assert_eq!(refused.status, Status::KeyRejected);
    Ok(())
}

/// Runs this binary as `reach ADDRESS` through `command` and returns its output.
fn reach_from(command: &mut Command, address: &[u8]) -> Result<String, String> {
    let output = command
        .args(["reach", &hex(address)])
        .output()
        .map_err(|e| format!("{command:?} does not start: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_string();
    if text.is_empty() {
        let error = String::from_utf8_lossy(&output.stderr).trim_end().to_string();
        return Err(format!("{command:?} failed: {error}"));
    }
    Ok(text)
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

fn another_user_is_refused() -> Verdict {
    if !is_root() {
        return Err("only root can start a process of another user".to_string());
    }
    let peer = Peer::start();
    let exe = std::env::current_exe().unwrap();
    let answer = reach_from(Command::new(exe).uid(65_534).gid(65_534), &peer.address)?;
    assert!(answer.starts_with("Permission"), "{answer}");
    assert!(answer.contains("as user 0") && answer.contains("same user"), "{answer}");
    Ok(())
}

fn another_pid_namespace_is_named() -> Verdict {
    if !is_root() {
        return Err("only root can make a PID namespace".to_string());
    }
    let exe = std::env::current_exe().unwrap();
    let mut unshare = Command::new("unshare");
    let unshare = unshare.args(["--fork", "--pid", "--kill-child"]).arg(exe);
    let peer = Peer::start();
    let answer = reach_from(unshare, &peer.address)?;
    assert!(answer.starts_with("Unreachable"), "{answer}");
    assert!(answer.contains("PID namespace"), "{answer}");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}
