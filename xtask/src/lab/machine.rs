//! The hosts: one qemu process each, with a virtio port for commands.

use super::kernel::Kernel;
use super::network::{self, NETWORKS};
use super::pace::{self, Deadline};
use super::show::{Growing, Story, console, print_tail};
use super::test::{Part, Test, Verdict};
use super::{folder, scripts};
use crate::sh::{Outcome, command, entries, make_folder, name_of, on, show_time, target, write};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The time limit for the boot of a host, on a busy machine.
const BOOT: Duration = Duration::from_secs(240);
pub(super) const NOT_UP: &str = "a host was not up in time";
/// The time for which the other hosts may continue after a host has failed its part.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The time limit for a host to write its state and to end a test that is over.
const TO_END: Duration = Duration::from_secs(30);

/// The place at which the hosts mount the scripts of the lab; below, those of cargo's build directory and of the results.
pub(super) const SCRIPTS: &str = "/run/tieline/scripts";
const TARGET: &str = "/run/tieline/target";
pub(super) const RESULTS: &str = "/run/lab";

pub(super) enum Event {
    Ready,
    /// A part of a test has ended, with this name and exit status.
    Done(String, i32),
    Gone,
}

pub(super) struct Lab {
    /// The emulator processes, whose standard input and output are the hosts' virtio ports.
    hosts: Vec<Child>,
    events: Receiver<(usize, Event)>,
    folder: PathBuf,
    sockets: PathBuf,
    /// Whether every host is alive and has ended its last test.
    pub(super) whole: bool,
    /// The time until all hosts were ready.
    pub(super) boot: Duration,
    slowness: u32,
}

/// The maximum number of emulated hosts that work at the same time: each uses one processor of this machine.
const AT_ONCE: usize = 2;

struct Going {
    test: Test,
    first: usize,
    logs: Vec<Growing>,
    began: Instant,
    story: Story,
    /// The end of each host's part, if it has ended.
    parts: Vec<Option<Part>>,
    deadline: Deadline,
    /// A deadline for the whole test, which measures the time that the test waited for processors.
    whole: Deadline,
    /// Whether the time limit has passed and the hosts were told to end the test.
    late: bool,
}

impl Going {
    fn is_over(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    fn read_logs(&mut self, last: bool, each: &mut dyn FnMut(usize, &str)) {
        let after = self.began.elapsed();
        for (log, host) in self.logs.iter_mut().zip(self.first..) {
            log.lines(last, |line| {
                self.story.heard(after, host, line);
                each(host, line);
            });
        }
    }

    /// Handles an event of a host, if the host belongs to this test.
    fn hear(&mut self, host: usize, event: &Event) {
        let part = host.checked_sub(self.first).and_then(|number| self.parts.get_mut(number));
        match (event, part) {
            (Event::Done(id, status), Some(part)) if *id == self.test.name => {
                *part = Some(if self.late { Part::Late } else { Part::Ended(*status) });
                if *status != 0 && !self.late {
                    self.deadline.bring_forward(AFTER_FAILURE);
                }
            }
            (Event::Gone, part) => {
                if let Some(part) = part {
                    *part = Some(Part::Gone);
                }
                self.deadline.bring_forward(AFTER_FAILURE);
            }
            _ => {}
        }
    }
}

pub(super) struct Ended {
    pub(super) verdict: Verdict,
    pub(super) time: Duration,
    pub(super) story: Story,
}

/// Makes a directory for the results of this run, and removes the results of runs whose process has ended.
pub(super) fn results() -> Outcome<PathBuf> {
    let all = folder();
    make_folder(&all)?;
    for entry in entries(&all)? {
        let of = name_of(&entry).parse::<u32>().ok();
        if of.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
            let _ = fs::remove_dir_all(entry);
        }
    }
    let own = all.join(std::process::id().to_string());
    make_folder(&own)?;
    let last = all.join("last");
    let _ = fs::remove_file(&last);
    let _ = std::os::unix::fs::symlink(&own, &last);
    on(&own, own.canonicalize())
}

impl Lab {
    /// Starts the hosts and waits until all of them are ready, or until the time limit for the boot. The hosts end with this
    /// process.
    pub(super) fn boot(
        kernel: &Kernel,
        folder: &Path,
        hosts: usize,
        cpus: usize,
    ) -> Outcome<Option<Lab>> {
        let began = Instant::now();
        // Socket paths have a short maximum length, so the sockets are not below the build directory.
        let sockets = std::env::temp_dir().join(format!("tieline-lab-{}", std::process::id()));
        let _ = fs::remove_dir_all(&sockets);
        on(&sockets, fs::create_dir(&sockets))?;
        network::start(&sockets, hosts)?;
        let told = format!("LAB={SCRIPTS}\nTARGET={TARGET}\nLAB_HOSTS={hosts}\n");
        write(folder.join("lab.env"), told)?;
        let (sender, events) = channel();
        let mut lab = Lab {
            hosts: Vec::new(),
            events,
            folder: folder.to_path_buf(),
            sockets,
            whole: true,
            boot: Duration::ZERO,
            slowness: 1,
        };
        for number in 0..hosts {
            let mut qemu = lab.start(kernel, number, cpus)?;
            listen(qemu.stdout.take(), number, sender.clone());
            lab.hosts.push(qemu);
        }
        let until = Instant::now() + BOOT;
        for _ in 0..hosts {
            let event = lab.next(until.saturating_duration_since(Instant::now()));
            if let Some((_, Event::Ready)) = event {
                continue;
            }
            for number in 0..hosts {
                print_tail(&format!("h{number}"), &console(folder, number), 30);
            }
            return match event {
                Some((number, _)) => Err(format!("host h{number} ended while it started")),
                None => Ok(None),
            };
        }
        lab.boot = began.elapsed();
        lab.slowness = pace::slowness(lab.boot, hosts);
        let pace = match lab.slowness {
            1 => String::new(),
            n => format!("; this machine is slow now, deadlines are {n} times as long"),
        };
        println!("{hosts} hosts up in {}{pace}", show_time(lab.boot));
        Ok(Some(lab))
    }

    /// Runs a test to its end on every host that it requires. The output of the hosts goes to `each` when it arrives.
    pub(super) fn run(&mut self, test: &Test, each: &mut dyn FnMut(usize, &str)) -> Outcome<Ended> {
        let mut going = self.begin(test, 0)?;
        while !going.is_over() {
            self.step(&mut [&mut going], each);
        }
        Ok(self.end(going))
    }

    /// Runs tests of one host each, on several hosts at the same time, as many as this machine can emulate. Reports the end of each
    /// test. Tests for which no usable host is left stay in `tests`.
    pub(super) fn run_alone(
        &mut self,
        tests: &mut VecDeque<Test>,
        mut ended: impl FnMut(&Test, Ended) -> Option<Test>,
    ) -> Outcome {
        let mut going: Vec<Option<Going>> = Vec::new();
        for host in 0..self.hosts.len().min(AT_ONCE) {
            going.push(tests.pop_front().map(|test| self.begin(&test, host)).transpose()?);
        }
        while going.iter().any(Option::is_some) {
            let mut all: Vec<&mut Going> = going.iter_mut().flatten().collect();
            self.step(&mut all, &mut |_, _| {});
            for (host, place) in going.iter_mut().enumerate() {
                let Some(over) = place.take_if(|going| going.is_over()) else { continue };
                let test = over.test.clone();
                let again = ended(&test, self.end(over));
                // After a test that did not end, or that is marked `last`, no further test is started.
                if self.whole && !test.last {
                    *place = tests.pop_front().map(|test| self.begin(&test, host)).transpose()?;
                }
                again.into_iter().for_each(|test| tests.push_front(test));
            }
        }
        Ok(())
    }

    fn begin(&mut self, test: &Test, first: usize) -> Outcome<Going> {
        let own = self.folder.join(&test.name);
        make_folder(&own)?;
        let hosts = first..first + test.hosts;
        let (file, slowness) = (test.file.display(), self.slowness);
        let alone = if test.hosts == 1 { " alone" } else { "" };
        let going = Going {
            test: test.clone(),
            first,
            logs: hosts.clone().map(|h| Growing::new(own.join(format!("h{h}.log")))).collect(),
            began: Instant::now(),
            story: Story::new(&self.folder, &own, first, test.hosts),
            parts: vec![None; test.hosts],
            deadline: self.deadline(test.timeout),
            whole: self.deadline(test.timeout),
            late: false,
        };
        for host in hosts {
            let (name, devices) = (&test.name, test.devices);
            self.tell(host, &format!("test {name} {devices} {slowness} {file}{alone}"));
        }
        Ok(going)
    }

    fn step(&mut self, all: &mut [&mut Going], each: &mut dyn FnMut(usize, &str)) {
        let left = all.iter().map(|going| going.deadline.left()).min().unwrap_or_default();
        let event = self.next(left.min(Duration::from_millis(100)));
        for going in all {
            going.read_logs(false, each);
            if let Some((host, event)) = &event {
                if let Event::Gone = event {
                    self.whole = false;
                }
                going.hear(*host, event);
            } else if going.deadline.left().is_zero() && !going.is_over() {
                self.whole &= !going.late;
                for (part, host) in going.parts.iter_mut().zip(going.first..) {
                    let state = self.folder.join(format!("{}/h{host}.state", going.test.name));
                    match part {
                        Some(_) => {}
                        None if !going.late => self.tell(host, &format!("end {}", going.test.name)),
                        // A host writes its state when it begins to end a test.
                        None if state.exists() => *part = Some(Part::Stuck),
                        None => *part = Some(Part::Silent),
                    }
                }
                going.late = true;
                going.deadline = self.deadline(TO_END);
            }
        }
    }

    fn end(&self, mut going: Going) -> Ended {
        let time = going.began.elapsed();
        going.read_logs(true, &mut |_, _| {});
        let parts: Vec<Part> = going.parts.iter().flatten().copied().collect();
        let skipped = fs::read_to_string(self.folder.join(&going.test.name).join("skipped")).ok();
        let verdict = Verdict::on(&parts, going.first, skipped, going.story.kernel_trouble());
        going.story.ended(time, going.whole.waited(), self.slowness);
        Ended { verdict, time, story: going.story }
    }

    fn deadline(&self, length: Duration) -> Deadline {
        Deadline::new(length, self.slowness, self.hosts.iter().map(Child::id))
    }

    /// Returns the next event of a host, or `None` after `wait`.
    fn next(&mut self, wait: Duration) -> Option<(usize, Event)> {
        self.events.recv_timeout(wait).ok()
    }

    /// Sends a line to a host. A host that does not accept the line has ended, and its end is received as an event.
    fn tell(&mut self, host: usize, line: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            let _ = host.stdin.as_mut().map(|port| port.write_all(format!("{line}\n").as_bytes()));
        }
    }

    fn start(&self, kernel: &Kernel, number: usize, cpus: usize) -> Outcome<Child> {
        let file = console(&self.folder, number);
        let _ = fs::remove_file(&file);
        let console = on(&file, File::options().append(true).create(true).open(&file))?;
        qemu(kernel, number, cpus, &self.folder, &self.sockets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(console)
            .spawn()
            .map_err(|e| format!("cannot start qemu: {e}"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.kill();
            let _ = host.wait();
        }
        let _ = fs::remove_dir_all(&self.sockets);
    }
}

fn qemu(kernel: &Kernel, number: usize, cpus: usize, results: &Path, sockets: &Path) -> Command {
    let arguments = format!(
        "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr no_timer_check \
         nowatchdog random.trust_cpu=on lab_host={number}"
    );
    // The option ends a host with this process, for any reason.
    let mut qemu = command("setpriv", &["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
    // qemu parses two commas as one comma inside a value.
    let value = |path: &Path| path.display().to_string().replace(',', ",,");
    let share = |path: &Path, tag: &str, more: &str| {
        let path = value(path);
        format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}")
    };
    let _ = qemu
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024"])
        .args(["-smp", &cpus.to_string()])
        .args(["-serial", "chardev:console", "-chardev"])
        .arg(format!("file,id=console,append=on,path={}", value(&console(results, number))))
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&kernel.initramfs)
        .args(["-append", &arguments])
        .args(["-virtfs", &share(Path::new("/"), "host", ",readonly=on")])
        .args(["-virtfs", &share(&scripts(), "scripts", ",readonly=on")])
        .args(["-virtfs", &share(&target(), "target", ",readonly=on")])
        .args(["-virtfs", &share(results, "lab", "")])
        .args(["-device", "virtio-serial-pci", "-chardev", "stdio,id=lab"])
        .args(["-device", "virtserialport,chardev=lab,name=lab"])
        .args(["-device", "virtio-rng-pci"]);
    for net in 0..NETWORKS {
        let own = value(&network::host_end(sockets, net, number));
        let other = value(&network::switch_end(sockets, net, number));
        let ends = format!("local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
        let _ = qemu.args(["-netdev", &format!("dgram,id=net{net},{ends}")]);
        let mac = network::mac(net, number);
        let _ =
            qemu.args(["-device", &format!("virtio-net-pci,netdev=net{net},romfile=,mac={mac}")]);
    }
    qemu
}

/// Sends the events of a host to a channel until the host ends.
fn listen(stream: Option<ChildStdout>, number: usize, sender: Sender<(usize, Event)>) {
    let _ = std::thread::spawn(move || {
        let lines = stream.into_iter().flat_map(|stream| BufReader::new(stream).lines());
        for line in lines.map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let event = match words.as_slice() {
                ["ready"] => Event::Ready,
                ["done", id, status] => Event::Done((*id).to_owned(), status.parse().unwrap_or(-1)),
                _ => continue,
            };
            if sender.send((number, event)).is_err() {
                return;
            }
        }
        let _ = sender.send((number, Event::Gone));
    });
}
