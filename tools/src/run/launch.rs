//! Starting the processes, and standing by until the last one has ended.

use super::{Args, output};
use crate::sys::{self, Signals};
use crate::system_error;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tieline::Error;
use tieline::job::server::Server;

/// How long a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// How long after a hang-up the process's end may follow, which is the better reason to tell.
const HANG_UP_GRACE: Duration = Duration::from_millis(200);

pub(super) struct Launch {
    server: Server,
    /// The job's identity: TIELINE_JOB.
    job: String,
    /// Where processes find us: TIELINE_EXCHANGE.
    exchange: String,
    signals: Signals,
    processes: Vec<Process>,
    copying: Vec<JoinHandle<()>>,
    kill_at: Option<Instant>,
    failure: Option<Failure>,
    interrupted: bool,
}

struct Process {
    child: Child,
    running: bool,
}

/// The first process that failed.
struct Failure {
    text: String,
    code: u8,
}

impl Launch {
    pub(super) fn start(args: &Args) -> Result<Launch, Error> {
        let signals =
            Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGCHLD]).map_err(|e| {
                system_error("cannot take over signals", &e, "check the limits of this shell")
            })?;
        let size = args.processes as usize;
        let job = random_hex()?;
        let mut server = Server::new(size, &job);
        server.set_grace(HANG_UP_GRACE);
        let exchange = server.listen_unix()?;
        let mut launch = Launch {
            server,
            job,
            exchange,
            signals,
            processes: Vec::with_capacity(size),
            copying: Vec::new(),
            kill_at: None,
            failure: None,
            interrupted: false,
        };
        for rank in 0..size {
            if let Err(error) = launch.spawn(args, rank, size) {
                launch.terminate(libc::SIGKILL);
                return Err(error);
            }
        }
        Ok(launch)
    }

    fn spawn(&mut self, args: &Args, rank: usize, size: usize) -> Result<(), Error> {
        let (program, arguments) = args.program.split_first().ok_or_else(|| {
            crate::misuse("nothing to run", "no program was named", "tieline run -n 2 -- program")
        })?;
        let mut command = Command::new(program);
        let _ = command
            .args(arguments)
            .env("TIELINE_RANK", rank.to_string())
            .env("TIELINE_SIZE", size.to_string())
            .env("TIELINE_LOCAL_RANK", rank.to_string())
            .env("TIELINE_LOCAL_SIZE", size.to_string())
            .env("TIELINE_JOB", &self.job)
            .env("TIELINE_EXCHANGE", &self.exchange);
        if rank > 0 {
            let _ = command.stdin(Stdio::null()); // one reader of the terminal is enough
        }
        if args.tag {
            let _ = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let cpu = (!args.cpus.is_empty()).then(|| args.cpus[rank % args.cpus.len()]);
        sys::tie(&mut command, cpu);
        let mut child = command.spawn().map_err(|e| {
            let what = format!("cannot start `{}` as rank {rank}", program.to_string_lossy());
            let fix = match e.kind() {
                std::io::ErrorKind::InvalidInput => {
                    "check that --cpus names processors that are online"
                }
                _ => "check its path and that it may be executed",
            };
            system_error(what, &e, fix)
        })?;
        if args.tag {
            self.copying.extend(output::tag(&mut child, rank));
        }
        self.processes.push(Process { child, running: true });
        Ok(())
    }

    /// Serves the exchange, forwards signals and collects the dead, until none is left.
    pub(super) fn supervise(mut self) -> Result<ExitCode, Error> {
        while self.processes.iter().any(|p| p.running) {
            // What the dying said comes before their death.
            let _ = self.server.turn(&[self.signals.as_raw_fd()], self.timeout())?;
            while let Some(signal) = self.signals.next() {
                match signal.number {
                    libc::SIGCHLD => {}
                    number => self.forward(number, signal.from_terminal),
                }
            }
            self.collect();
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.terminate(libc::SIGKILL);
                self.kill_at = None;
            }
        }
        for copying in self.copying {
            let _ = copying.join();
        }
        Ok(match self.failure {
            None => ExitCode::SUCCESS,
            Some(failure) => {
                eprintln!("tieline: {}", failure.text);
                ExitCode::from(failure.code)
            }
        })
    }

    fn timeout(&self) -> Option<Duration> {
        self.kill_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn forward(&mut self, signal: i32, from_terminal: bool) {
        if self.interrupted {
            self.terminate(libc::SIGKILL); // asked a second time
        } else if !from_terminal {
            self.terminate(signal);
        }
        self.interrupted = true;
    }

    fn collect(&mut self) {
        for rank in 0..self.processes.len() {
            let process = &mut self.processes[rank];
            let Some(status) =
                process.running.then(|| process.child.try_wait().ok().flatten()).flatten()
            else {
                continue;
            };
            process.running = false;
            let how = describe(status);
            self.server.ended(&format!("rank {rank} {how}"));
            if !status.success() && self.failure.is_none() {
                let pid = self.processes[rank].child.id();
                let left = self.processes.iter().filter(|p| p.running).count();
                let end = match left {
                    0 => String::new(),
                    1 => "; the other one was ended".into(),
                    n => format!("; the {n} others that still ran were ended"),
                };
                self.failure = Some(Failure {
                    text: format!("rank {rank} failed: pid {pid} {how}{end}"),
                    code: code(status),
                });
                self.terminate(libc::SIGTERM);
                self.kill_at = Some(Instant::now() + GRACE);
            }
        }
    }

    fn terminate(&self, signal: i32) {
        for process in self.processes.iter().filter(|p| p.running) {
            // It has not been waited for, so the number is still its own; it may be dead already.
            let _ = sys::kill(process.child.id(), signal);
        }
    }
}

/// 128 random bits.
fn random_hex() -> Result<String, Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| system_error("cannot make an identity for the job", &e, "see /dev/urandom"))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "ended".into(),
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}{}", name(signal)),
        (None, None) => "ended in an unknown way".into(),
    }
}

/// What a shell would say: 128 + the signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => " (SIGHUP)",
        libc::SIGINT => " (SIGINT)",
        libc::SIGQUIT => " (SIGQUIT)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGTERM => " (SIGTERM)",
        _ => "",
    }
}
