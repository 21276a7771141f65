//! Starts the processes of a job.

use super::hosts::{self, Host, Seat};
use super::output::{self, Copy, Copying, Running, Sink};
use super::remote::{self, Control, Shell, Told};
use super::status::End;
use super::{Args, variables};
use crate::sys::{self, Signals};
use crate::system_error;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tieline::Error;
use tieline::job::server::Server;

/// The time within which the end of a process may follow its disconnect. The end is the more precise reason to report.
const HANG_UP_GRACE: Duration = Duration::from_millis(200);

pub(super) struct Launch {
    pub(super) server: Server,
    /// The job's identity, for TIELINE_JOB.
    job: String,
    /// The address of the exchange, for TIELINE_EXCHANGE.
    exchange: String,
    pub(super) signals: Signals,
    pub(super) processes: Vec<Process>,
    pub(super) copying: Copying,
    out: Sink,
    err: Sink,
    pub(super) kill_at: Option<Instant>,
    /// The time at which connections to other hosts are cut.
    pub(super) cut_at: Option<Instant>,
    /// The time between SIGTERM to this process and the kill of remaining processes.
    pub(super) kill_after: Duration,
    /// Whether the other ranks continue when a rank fails.
    pub(super) keep_going: bool,
    pub(super) failure: Option<Failure>,
    pub(super) interrupted: bool,
    /// The hosts of the ranks, if the ranks run on other hosts.
    seats: Vec<Seat>,
    shared: Vec<(String, OsString)>,
}

pub(super) struct Process {
    pub(super) child: Child,
    pub(super) running: bool,
    pub(super) control: Option<Control>,
    /// The mark of a running process; `None` after its end.
    pub(super) life: Option<Running>,
}

pub(super) struct Failure {
    pub(super) text: String,
    pub(super) code: u8,
}

impl Launch {
    pub(super) fn start(args: &Args, hosts: &[Host]) -> Result<Launch, Error> {
        let fix = "check the limits of this shell";
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM])
            .map_err(|e| system_error("cannot take over signals", &e, fix))?;
        sys::raise_open_files();
        // Without this setting, processes that ranks leave behind are not ended; the job starts anyway on a kernel that does not
        // support the setting.
        let _ = sys::adopt_orphans();
        let size = args.processes as usize;
        let job = variables::random_hex()?;
        let mut server = Server::new(size, &job)?;
        server.set_grace(HANG_UP_GRACE);
        let (mut seats, mut shared) = (Vec::new(), Vec::new());
        let exchange = if hosts.is_empty() {
            server.listen_unix()?
        } else {
            seats = hosts::seats(hosts, size).map_err(|why| {
                crate::misuse("the ranks have no place", why, "give --hosts more, or -n less")
            })?;
            let secret = match variables::secret()? {
                Some(secret) => secret,
                None => variables::random_hex()?,
            };
            let exchange = variables::listen(&mut server, args.address, &secret)?;
            shared = variables::forwarded();
            shared.push(("TIELINE_SECRET".into(), secret.into()));
            exchange
        };
        let copying =
            Copying::new().map_err(|e| system_error("cannot copy what ranks print", &e, fix))?;
        let mut launch = Launch {
            server,
            job,
            exchange,
            signals,
            processes: Vec::with_capacity(size),
            copying,
            out: Sink::new(std::io::stdout()),
            err: Sink::new(std::io::stderr()),
            kill_at: None,
            cut_at: None,
            kill_after: args.kill_after,
            keep_going: args.keep_going,
            failure: None,
            interrupted: false,
            seats,
            shared,
        };
        for rank in 0..size {
            let spawned = match launch.seats.get(rank).cloned() {
                Some(seat) => launch.reach(args, rank, size, &seat),
                None => launch.spawn(args, rank, size),
            };
            if let Err(error) = spawned {
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
        let failed = |e: std::io::Error| {
            let what = format!("cannot start `{}` as rank {rank}", program.to_string_lossy());
            let fix = match e.kind() {
                ErrorKind::InvalidInput => "check that --cpus names processors that are online",
                ErrorKind::NotFound | ErrorKind::PermissionDenied => {
                    "check its path and that it may be executed"
                }
                _ => match e.raw_os_error() {
                    Some(libc::EMFILE) => "raise the limit of open files: ulimit -n",
                    Some(libc::EAGAIN) => "raise the limit of processes: ulimit -u, or start fewer",
                    Some(libc::ENOEXEC) => {
                        "check that it is a program of this machine, or begins with #!"
                    }
                    _ => "check the limits of this shell",
                },
            };
            system_error(what, &e, fix)
        };
        let mut child = command.spawn().map_err(failed)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        self.processes.push(Process { child, running: true, control: None, life: None });
        if let (Some(out), Some(err)) = (out, err) {
            let (life, ended) = output::life().map_err(failed)?;
            let copy = |sink: &Sink| Copy::new(sink.clone(), Some(rank));
            self.copying.start(out, &ended, copy(&self.out)).map_err(failed)?;
            self.copying.start(err, &ended, copy(&self.err)).map_err(failed)?;
            self.processes[rank].life = Some(life);
        }
        Ok(())
    }

    fn reach(&mut self, args: &Args, rank: usize, size: usize, seat: &Seat) -> Result<(), Error> {
        let here = std::env::current_dir().unwrap_or_default();
        let mut variables = self.shared.clone();
        let mut set = |name: &str, value: String| variables.push((name.to_owned(), value.into()));
        set("TIELINE_RANK", rank.to_string());
        set("TIELINE_SIZE", size.to_string());
        set("TIELINE_LOCAL_RANK", seat.local_rank.to_string());
        set("TIELINE_LOCAL_SIZE", seat.local_size.to_string());
        set("TIELINE_JOB", self.job.clone());
        set("TIELINE_EXCHANGE", self.exchange.clone());
        let token = variables::random_hex()?;
        let script = remote::script(&token, &variables, here.as_os_str(), &args.program);
        let mut command = remote::command(&args.ssh, &seat.host).ok_or_else(|| {
            crate::misuse("no way to the hosts", "--ssh is empty", "leave it out for plain ssh")
        })?;
        sys::tie(&mut command, None);
        let failed = |e: std::io::Error| {
            let what = format!("cannot start `{}` for rank {rank} on {}", args.ssh, seat.host);
            system_error(what, &e, "install ssh, or name another command with --ssh")
        };
        let mut child = command.spawn().map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.processes.push(Process { child, running: true, control: None, life: None });
        let (Some(to), Some(out), Some(err)) = pipes else {
            return Err(failed(ErrorKind::BrokenPipe.into()));
        };
        let control = Control::new(to, &token).map_err(failed)?;
        let (life, ended) = output::life().map_err(failed)?;
        let copy = |sink: &Sink| Copy::new(sink.clone(), args.tag.then_some(rank));
        let wake = self.copying.waker();
        let shell = Shell::new(control.clone(), wake, &token, script, copy(&self.out));
        self.copying.start(out, &ended, shell).map_err(failed)?;
        self.copying.start(err, &ended, copy(&self.err)).map_err(failed)?;
        let process = &mut self.processes[rank];
        (process.control, process.life) = (Some(control), Some(life));
        Ok(())
    }

    /// Returns the name of a rank in messages: `rank 3`, or `rank 3 on nodeb`.
    pub(super) fn name(&self, rank: usize) -> String {
        match self.seats.get(rank) {
            Some(seat) => format!("rank {rank} on {}", seat.host),
            None => format!("rank {rank}"),
        }
    }

    pub(super) fn terminate(&self, signal: i32) {
        for process in self.processes.iter().filter(|p| p.running) {
            if let Some(control) = &process.control {
                let name = if signal == libc::SIGKILL { "KILL" } else { "TERM" };
                let told = control.signal(name);
                if signal == libc::SIGKILL {
                    control.close(); // and if the shell there did not hear it, it hears this
                }
                if told {
                    continue;
                }
            }
            // The process was not reaped, so its number is not reused; the process may have ended.
            let _ = sys::kill(process.child.id(), signal);
        }
    }
}

impl Process {
    /// Returns the end of the process, if it has ended.
    pub(super) fn end(&mut self) -> Option<End> {
        let ended = match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(End::of(status)),
            Err(_) => Some(End::unknown()),
        };
        let Some(control) = &self.control else { return ended };
        if ended.is_some() {
            // The output of the shell is read to its end. If the shell printed no end, the connection has broken.
            drop(self.life.take());
        }
        match control.told() {
            Told::Status(code) => Some(End::told(code)),
            Told::Nothing => None,
            Told::Silent => ended.map(|end| End { is_the_ways: true, ..end }),
        }
    }
}
