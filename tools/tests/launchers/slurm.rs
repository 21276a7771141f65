//! A Slurm of one controller and two nodes on this host: real daemons with their own configuration, key and ports in a separate
//! directory, ended by their process numbers. The first node is called 127.0.0.1, so that its name can be resolved as in a real
//! cluster.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The time limit for both nodes to become idle, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) struct Slurm {
    dir: PathBuf,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Starts Slurm. If this is impossible, prints the reason and returns `None`.
    pub(crate) fn start_or_say() -> Option<Slurm> {
        match Slurm::start() {
            Ok(slurm) => Some(slurm),
            Err(reason) => {
                println!("skipped: {reason}");
                None
            }
        }
    }

    fn start() -> Result<Slurm, String> {
        for (program, package) in [
            ("munged", "munge"),
            ("slurmctld", "slurmctld"),
            ("slurmd", "slurmd"),
            ("srun", "slurm-client"),
        ] {
            if super::installed(program).is_none() {
                return Err(format!("{program} is not installed ({package})"));
            }
        }
        let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n");
        if !root {
            return Err("slurmd needs root".into());
        }
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("tieline-slurm-{}-{number}", std::process::id()));
        let mut slurm = Slurm { dir, daemons: Vec::new() };
        slurm.bring_up().map_err(|e| format!("Slurm does not come up here: {e}"))?;
        Ok(slurm)
    }

    fn bring_up(&mut self) -> Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        for sub in ["run", "state", "127.0.0.1", "second-node", "tmp-127.0.0.1", "tmp-second-node"]
        {
            std::fs::create_dir_all(self.dir.join(sub)).map_err(text)?;
        }
        let (d, key) = (self.dir.display(), self.dir.join("munge.key"));
        let mut random = [0; 128];
        std::io::Read::read_exact(
            &mut std::fs::File::open("/dev/urandom").map_err(text)?,
            &mut random,
        )
        .map_err(text)?;
        std::fs::write(&key, random).map_err(text)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        std::fs::set_permissions(&key, private).map_err(text)?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(text)?;
        let host = host.trim().split('.').next().unwrap_or("127.0.0.1");
        let ports = ports();
        let configuration = format!(
            "ClusterName=tieline\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={d}/run/munge.sock\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={d}/state\nSlurmdSpoolDir={d}/%n\n\
             TmpFS={d}/tmp-%n\nSlurmctldPidFile={d}/run/slurmctld.pid\nSlurmdPidFile={d}/run/slurmd-%n.pid\n\
             SlurmctldLogFile={d}/slurmctld.log\nSlurmdLogFile={d}/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSchedulerType=sched/builtin\n\
             SlurmdParameters=config_overrides\nReturnToService=2\nMpiDefault=none\nMailProg=/bin/true\n\
             MessageTimeout=100\nTCPTimeout=60\n\
             NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=4\n\
             NodeName=second-node NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=4\n\
             PartitionName=test Nodes=127.0.0.1,second-node Default=YES State=UP\n",
            ports[0], ports[1], ports[2]
        );
        std::fs::write(self.conf(), configuration).map_err(text)?;
        let munge = |what: &str| format!("--{what}={d}/run/munged.{what}");
        self.daemon(
            "munged",
            &[
                "--foreground",
                "--force",
                &format!("--key-file={d}/munge.key"),
                &format!("--socket={d}/run/munge.sock"),
                &munge("pid-file"),
                &munge("log-file"),
                &munge("seed-file"),
            ],
        )?;
        self.until("the socket of munged", |slurm| slurm.dir.join("run/munge.sock").exists())?;
        let conf = self.conf().display().to_string();
        self.daemon("slurmctld", &["-D", "-c", "-f", &conf])?;
        self.daemon("slurmd", &["-D", "-N", "second-node", "-f", &conf])?;
        self.daemon("slurmd", &["-D", "-N", "127.0.0.1", "-f", &conf])?;
        self.until("two idle nodes", |slurm| {
            let output = slurm.command("sinfo", &["-h", "-t", "idle", "-o", "%D"]).output();
            output.is_ok_and(|o| o.stdout.trim_ascii() == b"2")
        })
    }

    /// Waits for a state of the cluster. Returns an error if a daemon does not run on this machine. Panics if the daemons run and
    /// do not reach the state.
    fn until(&mut self, what: &str, is: impl Fn(&Slurm) -> bool) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while !is(self) {
            let ended = self.daemons.iter_mut().position(|d| !matches!(d.try_wait(), Ok(None)));
            if let Some(number) = ended {
                let said = self.dir.join(format!("daemon-{number}.out"));
                let said = std::fs::read_to_string(said).unwrap_or_default();
                let last = said.lines().last().unwrap_or("a daemon has ended without a word");
                return Err(format!("{last}{}", self.error()));
            }
            assert!(Instant::now() < end, "no {what} within {PATIENCE:?}{}", self.error());
            std::thread::sleep(Duration::from_millis(100)); // Slurm has no event for outsiders
        }
        Ok(())
    }

    fn error(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("slurmctld.log")).unwrap_or_default();
        let error = log.lines().rev().find(|line| line.contains("error"));
        error.map(|error| format!(" ({error})")).unwrap_or_default()
    }

    fn daemon(&mut self, program: &str, args: &[&str]) -> Result<(), String> {
        let program = super::installed(program).unwrap_or_else(|| program.into());
        let log = self.dir.join(format!("daemon-{}.out", self.daemons.len()));
        let log = std::fs::File::create(log).map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        let _ = command.args(args).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        let _ = command.stdout(log.try_clone().map_err(|e| e.to_string())?).stderr(log);
        // Variables of a launcher of this process must not reach the ranks.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["PMIX", "OMPI", "TIELINE_"].iter().any(|prefix| name.starts_with(prefix)) {
                let _ = command.env_remove(name);
            }
        }
        self.daemons.push(command.spawn().map_err(|e| e.to_string())?);
        Ok(())
    }

    fn conf(&self) -> PathBuf {
        self.dir.join("slurm.conf")
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        let _ = command.args(args).env("SLURM_CONF", self.conf()).current_dir(Path::new("/"));
        command
    }

    pub(crate) fn has_pmix(&self) -> bool {
        let output = self.command("srun", &["--mpi=list"]).output().unwrap();
        super::text(&output).contains("pmix")
    }

    pub(crate) fn srun(&self, args: &[&str], program: &[String], set: &[(&str, &str)]) -> Output {
        let mut command = self.command("srun", args);
        let _ = command.args(program).env("TIELINE_TEST_RANK", "1");
        let _ = command.env("TIELINE_BOOTSTRAP_TIMEOUT", "60s").envs(set.iter().copied());
        command.output().unwrap()
    }
}

fn ports() -> Vec<u16> {
    let low = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let low =
        low.split_whitespace().next().and_then(|low| low.parse::<u32>().ok()).unwrap_or(32768);
    let span = low.max(12_000) - 10_000;
    // Other runs of this test start their search at another port.
    let start = std::process::id().wrapping_mul(97) % span;
    let all = (0..span).map(|at| 10_000 + ((start + at) % span) as u16);
    let free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    static NEXT: std::sync::Mutex<Vec<u16>> = std::sync::Mutex::new(Vec::new());
    let mut given = NEXT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let ports: Vec<u16> = all.filter(|port| !given.contains(port) && free(port)).take(3).collect();
    given.extend(&ports);
    ports
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
