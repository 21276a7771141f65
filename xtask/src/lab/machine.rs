//! The hosts: one qemu each, spoken to over a virtio port.

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

/// How long a host may take to come up on a machine that has much else to do.
const BOOT: Duration = Duration::from_secs(240);
pub(super) const NOT_UP: &str = "a host was not up in time";
/// How long the others may go on once a host has failed its part.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long a host may take to write down what state it is in, and to end a test that is over.
const TO_END: Duration = Duration::from_secs(30);

/// The folders that the hosts see: the scripts of the lab, cargo's build folder, and the folder of results.
pub(super) const SCRIPTS: &str = "/run/tieline/scripts";
const TARGET: &str = "/run/tieline/target";
pub(super) const RESULTS: &str = "/run/lab";

/// One line of a host.
pub(super) enum Event {
    Ready,
    /// A part of a test ended: its name, its exit status.
    Done(String, i32),
    /// The machine has ended.
    Gone,
}

/// Hosts that are up.
pub(super) struct Lab {
    /// Their emulators, whose standard input and output are the hosts' virtio ports.
    hosts: Vec<Child>,
    events: Receiver<(usize, Event)>,
    folder: PathBuf,
    sockets: PathBuf,
    /// Every host is still there and has ended its last test.
    pub(super) whole: bool,
    /// How long it took until all hosts were ready.
    pub(super) boot: Duration,
    slowness: u32,
}

/// Emulated hosts that can work at once: each keeps a processor of this machine busy.
const AT_ONCE: usize = 2;

/// A test that runs.
struct Going {
    test: Test,
    /// The first of its hosts.
    first: usize,
    logs: Vec<Growing>,
    began: Instant,
    story: Story,
    /// How each host's part ended, if it has.
    parts: Vec<Option<Part>>,
    deadline: Deadline,
    /// The same from its beginning to its end, for how long it waited.
    whole: Deadline,
    /// The time was over, and the hosts were told to end it.
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

    /// Takes what a host says, when it is one of this test's.
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

/// A test that is over.
pub(super) struct Ended {
    pub(super) verdict: Verdict,
    pub(super) time: Duration,
    /// The output of its hosts.
    pub(super) story: Story,
}

/// A folder for the results of this run; those of earlier runs are gone.
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
    /// Starts the hosts and waits until all of them are ready, or for so long that there is no lab. They end with this process.
    pub(super) fn boot(
        kernel: &Kernel,
        folder: &Path,
        hosts: usize,
        cpus: usize,
    ) -> Outcome<Option<Lab>> {
        let began = Instant::now();
        // Socket paths are short: not below the build folder.
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

    /// Runs a test to its end on every host it asks for. Their output is passed on as it arrives.
    pub(super) fn run(&mut self, test: &Test, each: &mut dyn FnMut(usize, &str)) -> Outcome<Ended> {
        let mut going = self.begin(test, 0)?;
        while !going.is_over() {
            self.step(&mut [&mut going], each);
        }
        Ok(self.end(going))
    }

    /// Runs tests of one host each, one after another on as many hosts as this machine can emulate at once, and hands
    /// over how each ended. It leaves those for which there is no good host any more.
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
                // After a test without an end nothing is begun any more.
                if self.whole && !test.last {
                    *place = tests.pop_front().map(|test| self.begin(&test, host)).transpose()?;
                }
                again.into_iter().for_each(|test| tests.push_front(test));
            }
        }
        Ok(())
    }

    /// Starts a test on so many hosts as it asks for, from `first` on.
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

    /// Hears what comes next, for a moment, and moves each test on.
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
                        // To write down its state is how a host begins to end a test.
                        None if state.exists() => *part = Some(Part::Stuck),
                        None => *part = Some(Part::Silent),
                    }
                }
                going.late = true;
                going.deadline = self.deadline(TO_END);
            }
        }
    }

    /// The verdict on a test that is over.
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

    /// The next thing that a host says, or nothing for so long.
    fn next(&mut self, wait: Duration) -> Option<(usize, Event)> {
        self.events.recv_timeout(wait).ok()
    }

    /// A host that cannot be told is one that has ended, which is heard from it.
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

/// The command line of one host.
fn qemu(kernel: &Kernel, number: usize, cpus: usize, results: &Path, sockets: &Path) -> Command {
    let arguments = format!(
        "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr no_timer_check \
         nowatchdog random.trust_cpu=on lab_host={number}"
    );
    // A host never outlives this process, however that ends.
    let mut qemu = command("setpriv", &["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
    // qemu takes two commas for one that is part of a value.
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

/// Hands over what a host says until its end.
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
