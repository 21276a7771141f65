//! Starting the processes, and standing by until the last one has ended.

use super::hosts::{self, Seat};
use super::remote::{self, Control};
use super::{Args, output};
use crate::sys::{self, Signals};
use crate::system_error;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
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
    /// Where the ranks run, when not here.
    seats: Vec<Seat>,
    /// The variables of all ranks on other hosts.
    shared: Vec<(String, String)>,
}

struct Process {
    child: Child,
    running: bool,
    /// The line to the shell on another host.
    control: Option<Control>,
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
        let (mut seats, mut shared) = (Vec::new(), Vec::new());
        let exchange = if args.hosts.is_empty() {
            server.listen_unix()?
        } else {
            seats = hosts::seats(&args.hosts, size).map_err(|why| {
                crate::misuse("the ranks have no place", why, "give --hosts more, or -n less")
            })?;
            let secret = match secret()? {
                Some(secret) => secret,
                None => random_hex()?,
            };
            let exchange = listen(&mut server, args.address, &secret)?;
            shared = forwarded();
            shared.push(("TIELINE_SECRET".into(), secret));
            exchange
        };
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
        self.processes.push(Process { child, running: true, control: None });
        Ok(())
    }

    /// As [`Launch::spawn`], on another host.
    fn reach(&mut self, args: &Args, rank: usize, size: usize, seat: &Seat) -> Result<(), Error> {
        let here = std::env::current_dir().unwrap_or_default();
        let mut variables = self.shared.clone();
        let mut set = |name: &str, value: String| variables.push((name.to_owned(), value));
        set("TIELINE_RANK", rank.to_string());
        set("TIELINE_SIZE", size.to_string());
        set("TIELINE_LOCAL_RANK", seat.local_rank.to_string());
        set("TIELINE_LOCAL_SIZE", seat.local_size.to_string());
        set("TIELINE_JOB", self.job.clone());
        set("TIELINE_EXCHANGE", self.exchange.clone());
        let words = |word: &OsString| word.to_string_lossy().into_owned();
        let program: Vec<String> = args.program.iter().map(words).collect();
        let script = remote::script(&variables, &here.to_string_lossy(), &program);
        let mut command = remote::command(&args.ssh, &seat.host).ok_or_else(|| {
            crate::misuse("no way to the hosts", "--ssh is empty", "leave it out for plain ssh")
        })?;
        sys::tie(&mut command, None);
        let failed = |e: &std::io::Error| {
            let what = format!("cannot start `{}` for rank {rank} on {}", args.ssh, seat.host);
            system_error(what, e, "install ssh, or name another command with --ssh")
        };
        let mut child = command.spawn().map_err(|e| failed(&e))?;
        let (control, copying) =
            remote::drive(&mut child, script, args.tag.then_some(rank)).map_err(|e| failed(&e))?;
        self.copying.extend(copying);
        self.processes.push(Process { child, running: true, control: Some(control) });
        Ok(())
    }

    /// `rank 3`, or `rank 3 on nodeb`.
    fn name(&self, rank: usize) -> String {
        match self.seats.get(rank) {
            Some(seat) => format!("rank {rank} on {}", seat.host),
            None => format!("rank {rank}"),
        }
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
            if let Some(control) = &process.control {
                control.close();
            }
            let (who, how) = (self.name(rank), describe(status));
            self.server.ended(&format!("{who} {how}"));
            if !status.success() && self.failure.is_none() {
                let pid = self.processes[rank].child.id();
                let left = self.processes.iter().filter(|p| p.running).count();
                let end = match left {
                    0 => String::new(),
                    1 => "; the other one was ended".into(),
                    n => format!("; the {n} others that still ran were ended"),
                };
                let which = match self.processes[rank].control {
                    Some(_) if status.code() == Some(255) => "the way to it (ssh) ".to_owned(),
                    Some(_) => "it ".to_owned(),
                    None => format!("pid {pid} "),
                };
                self.failure = Some(Failure {
                    text: format!("{who} failed: {which}{how}{end}"),
                    code: code(status),
                });
                self.terminate(libc::SIGTERM);
                self.kill_at = Some(Instant::now() + GRACE);
            }
        }
    }

    fn terminate(&self, signal: i32) {
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
            // It has not been waited for, so the number is still its own; it may be dead already.
            let _ = sys::kill(process.child.id(), signal);
        }
    }
}

/// The job's secret as this shell has it.
fn secret() -> Result<Option<String>, Error> {
    let secret = tieline::job::secret()?;
    Ok(Some(secret).filter(|secret| !secret.is_empty()))
}

/// Every TIELINE_ variable of this shell but those that this launch sets itself.
fn forwarded() -> Vec<(String, String)> {
    const OWN: &[&str] = &["TIELINE_SECRET", "TIELINE_SECRET_FILE", "TIELINE_RENDEZVOUS"];
    let mut variables: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("TIELINE_") && !OWN.contains(&name.as_str()))
        // A name becomes part of a script.
        .filter(|(name, _)| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
        .collect();
    variables.sort();
    variables
}

/// Opens the exchange to other hosts; TIELINE_EXCHANGE names every address that may lead here.
fn listen(server: &mut Server, address: Option<IpAddr>, secret: &str) -> Result<String, Error> {
    let failed = |e: std::io::Error| {
        let fix = "let --address name an address of this host, or leave it out";
        system_error("cannot open the exchange of the job", &e, fix)
    };
    let any = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    let wanted = address.as_ref().map_or(&any[..], std::slice::from_ref);
    let mut listener = Err(std::io::ErrorKind::AddrNotAvailable.into());
    for address in wanted {
        listener = listener.or_else(|_| TcpListener::bind((*address, 0)));
    }
    let listener = listener.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    server.listen_tcp(listener, secret.as_bytes())?;
    let addresses = match address {
        Some(address) => vec![address],
        None => addresses()?,
    };
    let shown = addresses.iter().map(|ip| SocketAddr::from((*ip, port)).to_string());
    Ok(format!("tcp:{}", shown.collect::<Vec<_>>().join(",")))
}

/// This host's addresses, those of TIELINE_TCP_INTERFACES where it is set; loopback where there is nothing else.
fn addresses() -> Result<Vec<IpAddr>, Error> {
    let odd = |why: String| {
        crate::misuse("no address for the other hosts", why, "give one with --address")
    };
    let interfaces = std::env::var("TIELINE_TCP_INTERFACES").unwrap_or_default();
    let filter = tieline_net::Filter::parse(&interfaces).map_err(odd)?;
    let all = tieline_net::local_addresses(&filter).map_err(odd)?;
    let usable = |last_resort: bool| {
        // A link-local address of IPv6 means something only with an interface of the other side.
        let all = all.iter().filter(move |a| !a.loopback && a.scope_id == 0);
        all.filter(move |a| a.last_resort == last_resort).map(|a| a.ip).collect::<Vec<_>>()
    };
    let found = [usable(false), usable(true)].into_iter().find(|list| !list.is_empty());
    Ok(found.unwrap_or_else(|| all.iter().map(|a| a.ip).collect()))
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
