//! Tests of `tieline run --hosts`: over a real sshd on loopback, over network namespaces, and over a substitute for ssh that starts
//! the shell on this host. The tests start their own program again for the ranks, or a shell script.

#[path = "hosts/sshd.rs"]
mod sshd;
mod support;

use sshd::Sshd;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::{ended, until};
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

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("tieline-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    /// Writes a script with this text, which is called in the same form as ssh.
    fn script(&self, name: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let file = self.0.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file.display().to_string()
    }

    /// Writes a script that is called as `HOST sh`, like ssh, and starts the shell on this host.
    fn stand_in(&self) -> String {
        // The script records its arguments and its environment, which other users could see.
        let script = format!(
            "echo \"$@\" >> {0}/words\nhost=$1; shift\necho \"welcome to $host\"\n\
             exec env -i PATH=\"$PATH\" \"$@\"",
            self.0.display()
        );
        self.script("stand-in", &script)
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

fn job(hosts: &str, n: usize, ssh: &str, test: &str) -> Output {
    let itself = std::env::current_exe().unwrap();
    let program = [itself.to_str().unwrap(), test, "--exact", "--nocapture", "--test-threads=1"];
    run(hosts, n, ssh, &[], &program).output().unwrap()
}

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
fn every_argument_arrives_as_it_is_whatever_bytes_it_has() {
    let dir = Dir::new("arguments");
    let odd = OsStr::from_bytes(b"a\n#go\ntieline-ready\n\xff\xfe'\\ \n\n");
    let mut command =
        run("a", 1, &dir.stand_in(), &[], &["sh", "-c", "printf %s \"$1$TIELINE_ODD\"", "x"]);
    let output = command.arg(odd).env("TIELINE_ODD", odd).output().unwrap();
    assert_eq!(output.stdout, [odd.as_bytes(), odd.as_bytes()].concat(), "{}", text(&output));
    assert!(output.status.success());
}

#[test]
fn connection_that_hangs_in_a_long_command_does_not_block_the_launcher() {
    let dir = Dir::new("stuck");
    // The shell reports that it is ready, and then reads no more. The pause lets the launcher fill the pipe; without the pause the
    // pipe may not be full.
    let text =
        format!("echo tieline-ready; sleep 0.5; touch {}/stuck; exec sleep 1000", dir.0.display());
    let ssh = dir.script("ssh", &text);
    let long = "x".repeat(100_000);
    let child = run("a", 1, &ssh, &[], &["true", &long]).spawn().unwrap();
    until(|| dir.0.join("stuck").exists());
    let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(!ended(child).status.success());
}

#[test]
fn a_long_command_arrives_whole() {
    let dir = Dir::new("long");
    let long = "it's ".repeat(25_000);
    let program = ["sh", "-c", "printf %s \"$1\"", "x", &long];
    let output = run("a", 1, &dir.stand_in(), &[], &program).output().unwrap();
    assert_eq!(output.stdout, long.as_bytes());
}

#[test]
fn a_program_that_exits_with_255_is_told_from_a_way_that_breaks() {
    let dir = Dir::new("exit");
    let output = run("a", 1, &dir.stand_in(), &[], &["sh", "-c", "exit 255"]).output().unwrap();
    let said = text(&output);
    assert!(said.contains("rank 0 on a failed: it exited with code 255"), "{said}");
    assert_eq!(output.status.code(), Some(255), "{said}");
    let broken = dir.script("broken", "exit 255");
    let said = text(&run("a", 1, &broken, &[], &["true"]).output().unwrap());
    assert!(
        said.contains("rank 0 on a failed: the way to it (ssh) exited with code 255"),
        "{said}"
    );
}

#[test]
fn last_output_of_a_rank_arrives_even_after_its_end_is_reported() {
    let dir = Dir::new("last-words");
    // Output on stderr arrives after all other processes have ended.
    let slow = dir.script(
        "slow",
        "shift\nexec 4>&1\nenv -i PATH=\"$PATH\" \"$@\" 2>&1 >&4 4>&- | { said=$(cat); echo \"$said\" >&2; }",
    );
    let program = ["sh", "-c", "echo what was wrong >&2; exit 3"];
    let output = run("a", 1, &slow, &[], &program).output().unwrap();
    assert!(text(&output).contains("what was wrong\n"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
}

#[test]
fn process_left_on_a_host_neither_blocks_the_launcher_nor_survives() {
    let dir = Dir::new("leaves");
    // The script keeps the connection open as sshd does: until all processes have closed it.
    let ssh = dir.script("ssh", "shift; \"$@\" | cat");
    let script = "sleep 1000 & echo $! > $0/pid.0; echo said";
    let place = dir.0.to_str().unwrap();
    for ssh in [dir.stand_in(), ssh] {
        let mut command = run("a", 1, &ssh, &[], &["sh", "-c", script, place]);
        let printed = dir.0.join("printed");
        let _ = command.stdout(std::fs::File::create(&printed).unwrap()).stderr(Stdio::null());
        assert!(ended(command.spawn().unwrap()).status.success());
        assert_eq!(std::fs::read_to_string(&printed).unwrap(), "said\n");
        gone(&dir, 0);
    }
}

#[test]
fn rank_outside_the_session_with_its_pipe_does_not_block_the_launcher() {
    if !installed("setsid") {
        return println!("skipped: setsid is not installed (util-linux)");
    }
    let dir = Dir::new("daemon");
    let ssh = dir.script("ssh", "shift; \"$@\" | cat");
    let script = "setsid sh -c 'echo $$ > $0/new; mv $0/new $0/pid.0; exec sleep 1000' $0 & \
                  while ! [ -e $0/pid.0 ]; do sleep 0.05; done; exit 4";
    let mut command = run("a", 1, &ssh, &[], &["sh", "-c", script, dir.0.to_str().unwrap()]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(ended(child).status.code(), Some(4));
    // On a real host, the process stays as a daemon does; the test must end it.
    let pid = std::fs::read_to_string(dir.0.join("pid.0")).unwrap();
    let _ = Command::new("kill").args(["-9", pid.trim()]).status();
}

#[test]
fn a_prompt_on_a_host_appears_before_its_line_ends() {
    let dir = Dir::new("prompt");
    let script = "printf 'name? '; while ! [ -e $0/answer ]; do sleep 0.05; done; echo thanks";
    let mut command =
        run("a", 1, &dir.stand_in(), &[], &["sh", "-c", script, dir.0.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut from = child.stdout.take().unwrap();
    let (to_us, said) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut prompt = [0; 6];
        let _ = to_us.send(from.read_exact(&mut prompt).map(|()| prompt));
        let mut rest = String::new();
        let _ = from.read_to_string(&mut rest);
        rest
    });
    let prompt = said.recv_timeout(Duration::from_secs(30));
    std::fs::write(dir.0.join("answer"), "").unwrap();
    let _ = ended(child);
    assert_eq!(prompt.expect("the prompt does not appear").unwrap(), *b"name? ");
    assert_eq!(reader.join().unwrap(), "thanks\n");
}

#[test]
fn the_name_of_a_host_is_bounded_and_has_no_control_characters() {
    for name in ["a\x1b[31m", &"x".repeat(300)] {
        let output = run(name, 1, "false", &[], &["true"]).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is not the name of a host"), "{said}");
        assert!(!said.contains('\x1b') && said.len() < 1000, "{said:?}");
    }
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

/// Three hosts on a bridge in the first host.
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
    // If a rank is killed on its host, the launcher ends the others through ssh.
    let script = "if [ $TIELINE_RANK = 1 ]; then kill -9 $$; fi; exec sleep 1000";
    let output = run("127.0.0.1,localhost", 2, &sshd.ssh(&dir), &[], &["sh", "-c", script])
        .output()
        .unwrap();
    let said = text(&output);
    assert!(said.contains("rank 1 on localhost failed: it exited with code 137"), "{said}");
}

/// Waits until the process that wrote its number to `pid.RANK` has ended.
fn gone(dir: &Dir, rank: usize) {
    let pid = std::fs::read_to_string(dir.0.join(format!("pid.{rank}"))).unwrap();
    let place = format!("/proc/{}/stat", pid.trim());
    // A zombie has ended; its new parent may reap it later.
    until(|| std::fs::read_to_string(&place).map_or(true, |stat| stat.contains(") Z ")));
}
