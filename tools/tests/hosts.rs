//! `tieline run --hosts`: over a real sshd on loopback, over network namespaces, and over a stand-in for ssh that
//! starts the shell here. Each test starts itself again as the ranks.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tieline::job::Job;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn is_rank() -> bool {
    std::env::var_os("TIELINE_RANK").is_some()
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .any(|dir| dir.join(program).is_file())
}

fn root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n")
}

/// A directory that is gone with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("tieline-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    /// A script that is called as ssh is, `HOST sh`, and starts the shell here.
    fn stand_in(&self) -> String {
        use std::os::unix::fs::PermissionsExt;
        let file = self.0.join("stand-in");
        // Its words and its environment are kept, for a look at what everybody could see.
        let script = format!(
            "#!/bin/sh\necho \"$@\" >> {0}/words\nhost=$1; shift\necho \"welcome to $host\"\n\
             exec env -i PATH=\"$PATH\" \"$@\"\n",
            self.0.display()
        );
        std::fs::write(&file, script).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file.display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(hosts: &str, n: usize, ssh: &str, options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let n = n.to_string();
    let _ = command.args(["run", "--hosts", hosts, "-n", &n, "--ssh", ssh]).args(options);
    let _ = command.arg("--").args(program);
    command
}

/// The named test of this file as the ranks.
fn job(hosts: &str, n: usize, ssh: &str, test: &str) -> Output {
    let itself = std::env::current_exe().unwrap();
    let program = [itself.to_str().unwrap(), test, "--exact", "--nocapture", "--test-threads=1"];
    run(hosts, n, ssh, &[], &program).output().unwrap()
}

/// What every rank does.
fn exchange() {
    let job = Job::from_env().unwrap();
    let all = job.exchange(&vec![job.rank() as u8; 10_000]).unwrap();
    assert!(all.iter().enumerate().all(|(rank, part)| *part == vec![rank as u8; 10_000]));
    job.barrier().unwrap();
    println!("local {} of {}", job.local_rank(), job.local_size());
    println!("rank {} of {} done", job.rank(), job.size());
}

#[test]
fn ranks_on_two_hosts_find_each_other_and_no_secret_is_on_a_command_line() {
    if is_rank() {
        assert_eq!(std::env::var("TIELINE_SECRET").unwrap().len(), 32);
        return exchange();
    }
    let dir = Dir::new("hosts");
    let name = "ranks_on_two_hosts_find_each_other_and_no_secret_is_on_a_command_line";
    let output = job("a,b", 5, &dir.stand_in(), name);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(" of 5 done").count(), 5, "{said}");
    assert_eq!(said.matches("of 3\n").count(), 3, "{said}");
    assert!(
        !said.contains("welcome"),
        "what a host says before the program is not the program's: {said}"
    );
    let mut words: Vec<String> =
        std::fs::read_to_string(dir.0.join("words")).unwrap().lines().map(str::to_owned).collect();
    words.sort();
    assert_eq!(words, ["a sh", "a sh", "a sh", "b sh", "b sh"]);
}

#[test]
fn variables_and_the_secret_of_this_shell_arrive() {
    let dir = Dir::new("variables");
    let script = "echo \"$TIELINE_SECRET|$TIELINE_QUEUE_BYTES|$TIELINE_SHM_DIR|$HOME|$1\"; pwd";
    let mut command =
        run("a", 1, &dir.stand_in(), &["--tag"], &["sh", "-c", script, "x", "it's $HOME"]);
    let output = command
        .env("TIELINE_SECRET", "it's \"sesame\"")
        .env("TIELINE_QUEUE_BYTES", "1m")
        .env("TIELINE_SHM_DIR", "/tmp/$(x)")
        .output()
        .unwrap();
    let here = std::env::current_dir().unwrap();
    let expected =
        format!("[0] it's \"sesame\"|1m|/tmp/$(x)||it's $HOME\n[0] {}\n", here.display());
    assert_eq!(text(&output), expected);
}

#[test]
fn the_first_failure_ends_the_others_wherever_they_are() {
    let dir = Dir::new("failure");
    let script = "echo $$ > $0/pid.$TIELINE_RANK; if [ $TIELINE_RANK = 1 ]; then while ! [ -s $0/pid.0 ]; do \
                  sleep 0.05; done; exit 7; fi; exec sleep 1000";
    let place = dir.0.to_str().unwrap();
    let output =
        run("a,b", 2, &dir.stand_in(), &[], &["sh", "-c", script, place]).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(
        said.contains("rank 1 on b failed: it exited with code 7; the other one was ended"),
        "{said}"
    );
    gone(&dir, 0);
}

#[test]
fn a_launcher_that_is_killed_takes_the_ranks_along() {
    let dir = Dir::new("killed");
    let script = "echo $$ > $0/new; mv $0/new $0/pid.0; trap '' HUP; exec sleep 1000";
    let place = dir.0.to_str().unwrap();
    let mut launcher =
        run("a", 1, &dir.stand_in(), &[], &["sh", "-c", script, place]).spawn().unwrap();
    until(|| dir.0.join("pid.0").exists());
    launcher.kill().unwrap();
    let _ = launcher.wait();
    gone(&dir, 0);
}

#[test]
fn a_signal_to_the_launcher_reaches_the_ranks() {
    let dir = Dir::new("signal");
    let script = "trap 'echo caught; exit 0' TERM; echo $$ > $0/new; mv $0/new $0/pid.0; \
                  while :; do sleep 0.05; done";
    let place = dir.0.to_str().unwrap();
    let launcher = run("a", 1, &dir.stand_in(), &[], &["sh", "-c", script, place])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| dir.0.join("pid.0").exists());
    let _ = Command::new("kill").args(["-TERM", &launcher.id().to_string()]).status();
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(text(&output), "caught\n");
    assert!(output.status.success());
}

#[test]
fn a_host_that_cannot_be_reached_is_one_line_that_names_it() {
    let output = run("nowhere", 1, "false", &[], &["true"]).output().unwrap();
    let said = text(&output);
    assert!(said.contains("rank 0 on nowhere failed"), "{said}");
    assert!(!output.status.success());
    let output = run("nowhere", 1, "./no-such-ssh", &[], &["true"]).output().unwrap();
    let said = text(&output);
    assert!(said.contains("cannot start `./no-such-ssh` for rank 0 on nowhere"), "{said}");
}

#[test]
fn a_program_that_is_not_there_is_said_by_the_shell_and_by_the_launcher() {
    let dir = Dir::new("absent");
    let output = run("a", 1, &dir.stand_in(), &[], &["./no-such-program"]).output().unwrap();
    let said = text(&output);
    assert!(said.contains("rank 0 on a failed: it exited with code 127"), "{said}");
    assert!(said.contains("no-such-program"), "{said}");
}

#[test]
fn ranks_in_two_network_namespaces_reach_the_launcher_in_a_third() {
    if is_rank() {
        return exchange();
    }
    if !root() || !installed("ip") {
        return println!("skipped: network namespaces need root and iproute2");
    }
    let Some(net) = Namespaces::new() else {
        return println!("skipped: network namespaces cannot be made here");
    };
    let itself = std::env::current_exe().unwrap();
    let name = "ranks_in_two_network_namespaces_reach_the_launcher_in_a_third";
    let hosts = format!("{},{}", net.name(1), net.name(2));
    let program = [itself.to_str().unwrap(), name, "--exact", "--nocapture", "--test-threads=1"];
    let command = run(&hosts, 4, "ip netns exec", &[], &program);
    let mut outer = Command::new("ip");
    let _ = outer.args(["netns", "exec", &net.name(0)]).arg(command.get_program());
    let output = outer.args(command.get_args()).output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(" of 4 done").count(), 4, "{said}");
}

/// Three hosts on a bridge of the first.
struct Namespaces;

impl Namespaces {
    fn new() -> Option<Namespaces> {
        let net = Namespaces;
        for index in 0..3 {
            if !ip(&["netns", "add", &net.name(index)]) {
                return None;
            }
            let _ = ip(&["-n", &net.name(index), "link", "set", "lo", "up"]);
        }
        let hub = net.name(0);
        for index in 1..3 {
            let (here, subnet) = (format!("v{index}"), format!("10.77.{index}"));
            let there = net.name(index);
            let made =
                ip(&[
                    "-n", &hub, "link", "add", &here, "type", "veth", "peer", "name", "v0",
                    "netns", &there,
                ]) && ip(&["-n", &hub, "addr", "add", &format!("{subnet}.1/24"), "dev", &here])
                    && ip(&["-n", &there, "addr", "add", &format!("{subnet}.2/24"), "dev", "v0"])
                    && ip(&["-n", &hub, "link", "set", &here, "up"])
                    && ip(&["-n", &there, "link", "set", "v0", "up"]);
            if !made {
                return None;
            }
        }
        Some(net)
    }

    fn name(&self, index: usize) -> String {
        format!("tieline-run-{}-{index}", std::process::id())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for index in 0..3 {
            let _ = ip(&["netns", "del", &self.name(index)]);
        }
    }
}

fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

#[test]
fn ranks_start_over_a_real_sshd() {
    if is_rank() {
        return exchange();
    }
    let dir = Dir::new("sshd");
    let Some(sshd) = Sshd::start(&dir) else { return };
    let output = job("127.0.0.1:2,localhost:1", 3, &sshd.ssh(&dir), "ranks_start_over_a_real_sshd");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(" of 3 done").count(), 3, "{said}");
    // One that is killed on its side ends the others, through ssh.
    let script = "if [ $TIELINE_RANK = 1 ]; then kill -9 $$; fi; exec sleep 1000";
    let output = run("127.0.0.1,localhost", 2, &sshd.ssh(&dir), &[], &["sh", "-c", script])
        .output()
        .unwrap();
    let said = text(&output);
    assert!(said.contains("rank 1 on localhost failed: it exited with code 137"), "{said}");
}

/// An sshd of this test's own on loopback.
struct Sshd {
    child: Child,
    port: u16,
    made_room: bool,
}

impl Sshd {
    fn start(dir: &Dir) -> Option<Sshd> {
        if !installed("sshd") || !installed("ssh") {
            println!("skipped: ssh or sshd is not installed (openssh-client, openssh-server)");
            return None;
        }
        if !root() {
            println!("skipped: an sshd that starts sessions needs root");
            return None;
        }
        let d = dir.0.display();
        for key in ["host", "user"] {
            let file = format!("{d}/{key}");
            let mut make = Command::new("ssh-keygen");
            let _ = make.args(["-q", "-t", "ed25519", "-N", "", "-f", &file]);
            assert!(make.status().unwrap().success());
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let configuration = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {d}/host\nAuthorizedKeysFile {d}/user.pub\n\
             PidFile none\nStrictModes no\nPermitRootLogin yes\nUsePAM no\nPasswordAuthentication no\n"
        );
        std::fs::write(dir.0.join("sshd.conf"), configuration).unwrap();
        // Where sshd locks itself in; the package makes it at boot.
        let made_room = std::fs::create_dir("/run/sshd").is_ok();
        let conf = format!("{d}/sshd.conf");
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f", &conf])
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut sshd = Sshd { child, port, made_room };
        let end = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = sshd.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > end {
                println!("skipped: sshd does not start here ({ended:?})");
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(sshd)
    }

    fn ssh(&self, dir: &Dir) -> String {
        format!(
            "ssh -F none -p {} -i {}/user -o BatchMode=yes -o StrictHostKeyChecking=no -o \
             UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            self.port,
            dir.0.display()
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.made_room {
            let _ = std::fs::remove_dir("/run/sshd");
        }
    }
}

/// Waits until the process that wrote its number to `pid.RANK` is no more.
fn gone(dir: &Dir, rank: usize) {
    let pid = std::fs::read_to_string(dir.0.join(format!("pid.{rank}"))).unwrap();
    let place = format!("/proc/{}/stat", pid.trim());
    // A zombie has ended; whoever adopted it may take its time.
    until(|| std::fs::read_to_string(&place).map_or(true, |stat| stat.contains(") Z ")));
}

fn until(is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}
