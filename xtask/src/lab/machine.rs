//! The hosts: one qemu each, spoken to over a virtio port.

use super::kernel::Kernel;
use super::network::{self, NETWORKS};
use super::pace::{self, Deadline, SLOWEST};
use super::show::{Growing, Story, print_tail};
use super::test::{Test, Verdict};
use super::{folder, scripts};
use crate::sh::{Outcome, command, show_time, target, which};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long a host may take to come up on a machine that has much else to do.
const BOOT: Duration = Duration::from_secs(240);
/// How long the others may go on once a host has failed its part.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long a host may take to write down what state it is in, and to end a test that is over.
const TO_END: Duration = Duration::from_secs(30);

/// What a host says.
pub(super) enum Event {
    Ready,
    /// A part of a test ended: its name, its exit status.
    Done(String, i32),
    /// The machine has ended.
    Gone,
}

struct Host {
    qemu: Child,
    control: UnixStream,
}

/// Hosts that are up.
pub(super) struct Lab {
    hosts: Vec<Host>,
    events: Receiver<(usize, Event)>,
    folder: PathBuf,
    sockets: PathBuf,
    whole: bool,
    /// How long it took until all hosts were ready.
    boot: Duration,
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
    parts: Vec<Option<Result<i32, &'static str>>>,
    deadline: Deadline,
    /// The same from its beginning to its end, for how long it waited.
    whole: Deadline,
    /// The hosts that were told to end, once the time was over.
    late: Option<Vec<usize>>,
    /// It did not end even then.
    hangs: bool,
}

impl Going {
    fn is_over(&self) -> bool {
        self.hangs || self.parts.iter().all(Option::is_some)
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
                *part = Some(Ok(*status));
                if *status != 0 && self.late.is_none() {
                    self.deadline.bring_forward(AFTER_FAILURE);
                }
            }
            (Event::Gone, part) => {
                if let Some(part) = part {
                    *part = Some(Err("the machine ended"));
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
    /// What its hosts said.
    pub(super) story: Story,
}

/// A folder for the results of this run; those of earlier runs are gone.
pub(super) fn results() -> Outcome<PathBuf> {
    let all = folder();
    let said = |e: std::io::Error| format!("{}: {e}", all.display());
    fs::create_dir_all(&all).map_err(said)?;
    for entry in fs::read_dir(&all).map_err(said)?.flatten() {
        let of = entry.file_name().to_string_lossy().parse::<u32>().ok();
        if of.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let own = all.join(std::process::id().to_string());
    fs::create_dir_all(&own).map_err(said)?;
    let last = all.join("last");
    let _ = fs::remove_file(&last);
    let _ = std::os::unix::fs::symlink(&own, &last);
    own.canonicalize().map_err(said)
}

impl Lab {
    /// Starts the hosts and waits until all of them are ready. They end when `deadline` has passed,
    /// whatever becomes of this process.
    pub(super) fn boot(
        kernel: &Kernel,
        folder: &Path,
        hosts: usize,
        cpus: usize,
        deadline: Duration,
    ) -> Outcome<Lab> {
        let began = Instant::now();
        // Socket paths are short: not below the build folder.
        let sockets = std::env::temp_dir().join(format!("tieline-lab-{}", std::process::id()));
        let said = |e: std::io::Error| format!("{}: {e}", sockets.display());
        let _ = fs::remove_dir_all(&sockets);
        fs::create_dir(&sockets).map_err(said)?;
        network::start(&sockets, hosts)?;
        let told = format!(
            "LAB='{}'\nTARGET='{}'\nLAB_HOSTS={hosts}\nLAB_DEADLINE={}\n",
            scripts().display(),
            target().display(),
            deadline.as_secs() * u64::from(SLOWEST),
        );
        fs::write(folder.join("lab.env"), told).map_err(|e| format!("lab.env: {e}"))?;
        let (sender, events) = channel();
        let mut lab = Lab {
            hosts: Vec::new(),
            events,
            folder: folder.to_path_buf(),
            sockets: sockets.clone(),
            whole: true,
            boot: Duration::ZERO,
            slowness: 1,
        };
        for number in 0..hosts {
            let listener = UnixListener::bind(sockets.join(format!("control{number}")));
            let listener = listener.map_err(said)?;
            let mut qemu = lab.start(kernel, number, cpus)?;
            let control = match connection(&listener, &mut qemu) {
                Ok(control) => control,
                Err(text) => {
                    let _ = qemu.kill();
                    let _ = qemu.wait();
                    print_tail(&format!("h{number}"), &lab.console(number), 20);
                    return Err(text);
                }
            };
            let heard = control.try_clone().map_err(said)?;
            lab.hosts.push(Host { qemu, control });
            listen(heard, number, sender.clone());
        }
        let until = Instant::now() + BOOT;
        for _ in 0..hosts {
            match lab.next(until.saturating_duration_since(Instant::now())) {
                Some((_, Event::Ready)) => {}
                other => {
                    let (number, what) = match other {
                        Some((number, _)) => (number, "ended while it started"),
                        None => (0, "was not up in time"),
                    };
                    print_tail(&format!("h{number}"), &lab.console(number), 30);
                    return Err(format!("host h{number} {what}"));
                }
            }
        }
        lab.boot = began.elapsed();
        lab.slowness = pace::slowness(lab.boot, hosts);
        let pace = match lab.slowness {
            1 => String::new(),
            n => format!("; this machine is slow now, deadlines are {n} times as long"),
        };
        println!("{hosts} hosts up in {}{pace}", show_time(lab.boot));
        Ok(lab)
    }

    pub(super) fn boot_time(&self) -> Duration {
        self.boot
    }

    pub(super) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Whether every host is still there and has ended its last test.
    pub(super) fn whole(&self) -> bool {
        self.whole
    }

    /// Runs a test to its end on every host it asks for. What they print is handed over as it comes.
    pub(super) fn run(&mut self, test: &Test, each: &mut dyn FnMut(usize, &str)) -> Outcome<Ended> {
        let mut going = self.begin(test, 0)?;
        while !going.is_over() {
            self.step(&mut [&mut going], each);
        }
        Ok(self.end(going))
    }

    /// Runs tests of one host each, one after another on as many hosts as this machine can emulate at once, and hands
    /// over how each ended. Returns those for which no host is left that nothing has spoilt.
    pub(super) fn run_alone(
        &mut self,
        tests: &[Test],
        mut ended: impl FnMut(&Test, Ended),
    ) -> Outcome<Vec<Test>> {
        let mut next = tests.iter();
        let mut going: Vec<Option<Going>> = Vec::new();
        for host in 0..self.hosts().min(AT_ONCE) {
            going.push(next.next().map(|test| self.begin(test, host)).transpose()?);
        }
        while going.iter().any(Option::is_some) {
            let mut all: Vec<&mut Going> = going.iter_mut().flatten().collect();
            self.step(&mut all, &mut |_, _| {});
            for (host, place) in going.iter_mut().enumerate() {
                if place.as_ref().is_none_or(|going| !going.is_over()) {
                    continue;
                }
                let Some(over) = place.take() else { continue };
                let test = over.test.clone();
                ended(&test, self.end(over));
                // Who did not end a test is not trusted with another one.
                if self.whole && !test.last {
                    *place = next.next().map(|test| self.begin(test, host)).transpose()?;
                }
            }
        }
        if self.whole {
            return Ok(next.cloned().collect());
        }
        // Behind a host that was lost nothing was begun any more: what is left says so by not having ended.
        for test in next {
            let story = Story::new(&self.folder, &self.folder, 0, 0);
            let verdict = Verdict::Failed("a host was lost before it could begin".into());
            ended(test, Ended { verdict, time: Duration::ZERO, story });
        }
        Ok(Vec::new())
    }

    /// Starts a test on so many hosts as it asks for, from `first` on.
    fn begin(&mut self, test: &Test, first: usize) -> Outcome<Going> {
        let own = self.folder.join(&test.name);
        fs::create_dir_all(&own).map_err(|e| format!("{}: {e}", own.display()))?;
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
            late: None,
            hangs: false,
        };
        for host in hosts {
            self.tell(
                host,
                &format!("test {} {} {slowness} {file}{alone}", test.name, test.devices),
            );
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
                if going.late.is_none() {
                    let hosts = going.first..going.first + going.test.hosts;
                    let late: Vec<_> =
                        hosts.filter(|host| going.parts[host - going.first].is_none()).collect();
                    for host in &late {
                        self.tell(*host, &format!("end {}", going.test.name));
                    }
                    going.late = Some(late);
                    going.deadline = self.deadline(TO_END);
                } else {
                    self.whole = false;
                    going.hangs = true;
                }
            }
        }
    }

    /// The verdict on a test that is over.
    fn end(&self, mut going: Going) -> Ended {
        let time = going.began.elapsed();
        going.read_logs(true, &mut |_, _| {});
        let verdict = self.verdict(&going, time);
        going.story.ended(time, going.whole.waited(), self.slowness);
        Ended { verdict, time, story: going.story }
    }

    fn deadline(&self, length: Duration) -> Deadline {
        Deadline::new(length, self.slowness, self.hosts.iter().map(|host| host.qemu.id()))
    }

    fn verdict(&self, going: &Going, time: Duration) -> Verdict {
        let Going { test, first, parts, late, .. } = going;
        let reason = fs::read_to_string(self.folder.join(&test.name).join("skipped"));
        let mut failures = Vec::new();
        for (part, host) in parts.iter().zip(*first..) {
            let text = match part {
                None => "does not end: the machine hangs".to_owned(),
                Some(Err(text)) => (*text).to_owned(),
                Some(Ok(_)) if late.as_ref().is_some_and(|late| late.contains(&host)) => {
                    format!("was ended after {:.0} s", time.as_secs_f64())
                }
                Some(Ok(77)) if reason.is_ok() => continue,
                Some(Ok(0)) => continue,
                Some(Ok(status)) => format!("ended with {status}"),
            };
            failures.push(format!("h{host} {text}"));
        }
        match (failures.is_empty(), reason) {
            (_, Ok(reason)) if parts.iter().all(|part| matches!(part, Some(Ok(_)))) => {
                Verdict::Skipped(reason.trim().to_owned())
            }
            (true, _) => Verdict::Passed,
            (false, _) => Verdict::Failed(failures.join(", ")),
        }
    }

    /// The next thing that a host says, or nothing for so long.
    fn next(&mut self, wait: Duration) -> Option<(usize, Event)> {
        self.events.recv_timeout(wait).ok()
    }

    /// A host that cannot be told is one that has ended, which is heard from it.
    fn tell(&mut self, host: usize, line: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            let _ = host.control.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn console(&self, host: usize) -> PathBuf {
        self.folder.join(format!("h{host}.console"))
    }

    fn start(&self, kernel: &Kernel, number: usize, cpus: usize) -> Outcome<Child> {
        let file = self.console(number);
        let said = |e: std::io::Error| format!("{}: {e}", file.display());
        let console = File::create(&file).map_err(said)?;
        let errors = console.try_clone().map_err(said)?;
        qemu(kernel, number, cpus, &self.folder, &self.sockets)
            .stdin(Stdio::null())
            .stdout(console)
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("cannot start qemu: {e}"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.qemu.kill();
            let _ = host.qemu.wait();
        }
        let _ = fs::remove_dir_all(&self.sockets);
    }
}

/// The command line of one host.
fn qemu(kernel: &Kernel, number: usize, cpus: usize, results: &Path, sockets: &Path) -> Command {
    let main = scripts().join("host");
    let arguments = format!(
        "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr no_timer_check \
         nowatchdog random.trust_cpu=on lab.host={number} lab.main={}",
        main.display()
    );
    // A host never outlives this process, however that ends.
    let mut qemu = if which("setpriv").is_some() {
        command("setpriv", &["--pdeathsig", "KILL", "--", "qemu-system-x86_64"])
    } else {
        command("qemu-system-x86_64", &[])
    };
    let share = |path: &Path, tag: &str, more: &str| {
        format!(
            "local,path={},mount_tag={tag},security_model=none,multidevs=remap{more}",
            path.display()
        )
    };
    let _ = qemu
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024"])
        .args(["-smp", &cpus.to_string()])
        .args(["-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&kernel.initramfs)
        .args(["-append", &arguments])
        .args(["-virtfs", &share(Path::new("/"), "host", ",readonly=on")])
        .args(["-virtfs", &share(results, "lab", "")])
        .args(["-device", "virtio-serial-pci", "-chardev"])
        .arg(format!("socket,id=lab,path={}/control{number}", sockets.display()))
        .args(["-device", "virtserialport,chardev=lab,name=lab"])
        .args(["-device", "virtio-rng-pci"]);
    for net in 0..NETWORKS {
        let (own, other) =
            (network::host_end(sockets, net, number), network::switch_end(sockets, net, number));
        let _ = qemu.arg("-netdev").arg(format!(
            "dgram,id=net{net},local.type=unix,local.path={},remote.type=unix,remote.path={}",
            own.display(),
            other.display()
        ));
        let _ = qemu.arg("-device").arg(format!(
            "virtio-net-pci,netdev=net{net},romfile=,mac={}",
            network::mac(net, number)
        ));
    }
    qemu
}

/// qemu's end of the virtio port; it connects before it boots.
fn connection(listener: &UnixListener, qemu: &mut Child) -> Outcome<UnixStream> {
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                return Ok(stream);
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(format!("control socket: {e}")),
        }
        if let Ok(Some(status)) = qemu.try_wait() {
            return Err(format!("qemu did not start: {status}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Hands over what a host says until its end.
fn listen(stream: UnixStream, number: usize, sender: Sender<(usize, Event)>) {
    let _ = std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
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
