//! The source of a figure: a command of Tieline, a command of a rival, or a small program.

use super::groups::Unit;
use crate::sh::{Outcome, capture, command, is_root, listened, make_folder, root, target};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub(crate) type Setting = (&'static str, &'static str);

/// The settings for `tcp;ofi_rxm` on loopback.
pub(crate) const OVER_LIBFABRIC: &[Setting] = &[
    ("TIELINE_OFI_PROVIDERS", "tcp"),
    ("TIELINE_OFI_INTERFACES", "lo"),
    ("TIELINE_PROVIDERS", "ofi"),
];

/// A function that measures once, in this unit; the flag requests a shorter measurement.
type Measure = Box<dyn Fn(Unit, bool) -> Outcome<f64>>;

pub(crate) struct Source {
    /// The program that must be installed.
    pub(crate) needs: Option<&'static str>,
    pub(crate) measure: Measure,
}

impl Source {
    pub(crate) fn new(
        needs: impl Into<Option<&'static str>>,
        measure: impl Fn(Unit, bool) -> Outcome<f64> + 'static,
    ) -> Source {
        Source { needs: needs.into(), measure: Box::new(measure) }
    }
}

fn program() -> std::path::PathBuf {
    target().join("release/tieline")
}

/// Makes a source from `tieline perf`: a test, a size, further words, and settings.
pub(crate) fn tieline(
    [test, size, more]: [&str; 3],
    settings: &[Setting],
    unit: Unit,
    quick: bool,
) -> Outcome<f64> {
    let seconds = if quick { "0.2" } else { "0.5" };
    let mut perf = built_here(settings);
    let _ = perf.args(["perf", "--json", "--cpus", "0,1", "--seconds", seconds]);
    let _ = perf.args(["--test", test, "--size", size]).args(more.split_whitespace());
    let out = capture(&mut perf)?;
    number(out.lines().last().ok_or("tieline perf printed nothing")?, unit.field())
}

/// Returns the command `tieline` of this build with settings. If its rival runs on a separate loopback, the command does too.
fn built_here(settings: &[Setting]) -> Command {
    let over_libfabric = settings.contains(&OVER_LIBFABRIC[0]);
    let mut tieline =
        if over_libfabric { on_a_loopback_of_its_own(program()) } else { command(program(), &[]) };
    let _ = tieline.envs(settings.iter().copied());
    tieline
}

/// Runs a program in a separate network namespace, whose TCP does not pace packets. The machine's default may be BBR, which paces a
/// loopback by an estimate of its rate. With BBR, the times of equally fast programs for a megabyte differed by half, and so did
/// the runs of one program. If no network namespace can be made, the machine's network is used.
fn on_a_loopback_of_its_own(program: PathBuf) -> Command {
    const ALONE: &str =
        "ip link set lo up && echo reno > /proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"";
    static IS_POSSIBLE: LazyLock<bool> = LazyLock::new(|| capture(alone().arg("true")).is_ok());
    fn alone() -> Command {
        command("unshare", &["--net", "sh", "-c", ALONE, "sh"])
    }
    if !*IS_POSSIBLE {
        return command(program, &[]);
    }
    let mut alone = alone();
    let _ = alone.arg(program);
    alone
}

/// Makes a source from the example of `tests/runtime` under `tieline run`, with two ranks, on processors 0 and 1. The parameters
/// are a test, a number of bytes and a number of messages.
pub(crate) fn tags(what: &str, bytes: u64, count: u64, unit: Unit) -> Outcome<f64> {
    let tags = target().join("release/examples/tags");
    let on_its_own = "exec taskset -c $TIELINE_RANK \"$@\"";
    let mut job = command(program(), &["run", "-n", "2", "--", "sh", "-c", on_its_own, "sh"]);
    let _ = job.arg(tags).args([what, &bytes.to_string(), &count.to_string()]);
    let out = capture(&mut job)?;
    let line = out.lines().find_map(|line| Some(&line[line.find('{')?..]));
    number(line.ok_or("tags printed nothing")?, unit.field())
}

pub(crate) fn footprint(settings: &[Setting], field: &str) -> Outcome<f64> {
    let out = capture(built_here(settings).arg("footprint"))?;
    number(out.trim(), field)
}

/// Measures the time of a command that lists devices and providers, from its start to its end: `tieline` of this build, or a rival
/// in PATH.
pub(crate) fn shows(name: &str, args: &[&str]) -> Outcome<f64> {
    let built_here = name == "tieline";
    let program = if built_here { program() } else { PathBuf::from(name) };
    let began = Instant::now();
    let said = capture(&mut command(program, args))?;
    let took = began.elapsed();
    if said.trim().is_empty() {
        return Err(format!("{name} {} printed nothing", args.join(" ")));
    }
    Ok(took.as_secs_f64() * 1e9)
}

pub(crate) fn number(json: &str, name: &str) -> Outcome<f64> {
    let value: serde_json::Value =
        serde_json::from_str(json).map_err(|e| format!("`{json}` is not JSON: {e}"))?;
    value[name].as_f64().ok_or_else(|| format!("`{json}` has no {name}"))
}

/// The next port. Each pair has a separate port, so that a closing pair does not block the port of the next one.
static PORT: AtomicU16 = AtomicU16::new(21_000);

/// Makes a source from `ucx_perftest`, with the server on processor 0 and the client on processor 1: a transport, a test, and
/// iterations.
pub(crate) fn ucx(transport: &str, test: &str, iterations: u64, unit: Unit) -> Outcome<f64> {
    let (_server, port) = server("ucx_perftest", &["-c", "0"])?;
    let mut client = command("ucx_perftest", &["-c", "1", "-p", &port, "127.0.0.1", "-v", "-f"]);
    let words = transport.split_whitespace().chain(test.split_whitespace());
    let out = capture(client.args(words).args(["-n", &iterations.to_string()]))?;
    ucx_field(&out, unit)
}

/// Makes a source from `tieline perf` or `ucx_perftest -l`, in which one thread on processor 0 sends to itself: the mean time of a
/// message. The percentiles of `ucx_perftest -l` are half of the time of an iteration, although an iteration is one message.
pub(crate) fn to_itself(transport: Option<&str>, quick: bool) -> Outcome<f64> {
    let rate = match transport {
        None => {
            let seconds = if quick { "0.1" } else { "0.3" };
            let mut perf = command(program(), &["perf", "--json", "--cpus", "0", "--test"]);
            let out = capture(perf.args(["self_lat", "--size", "8", "--seconds", seconds]))?;
            number(out.lines().last().ok_or("tieline perf printed nothing")?, Unit::Rate.field())?
        }
        Some(transport) => {
            let times = if quick { "3000000" } else { "9000000" };
            let mut perf = command("taskset", &["-c", "0", "ucx_perftest", "-l", "-v", "-f"]);
            let _ = perf.args(transport.split_whitespace()).args(["-n", times]);
            // Without a choice, UCX sends to itself over a transport that calls the handler from the sender.
            ucx_field(&capture(perf.env("UCX_TLS", "posix"))?, Unit::Rate)?
        }
    };
    Ok(1e9 / rate)
}

/// The time of a crossing in nanoseconds above which the two processors are far from each other. A line crosses in some 30 ns
/// between processors that share a cache, and in some 200 ns between others.
const FAR: f64 = 90.0;

/// Returns whether the two processors of the measurements are far from each other at the moment; `None` if that is unknown.
pub(crate) fn is_far() -> Option<bool> {
    let mut perf = command(program(), &["perf", "--json", "--cpus", "0,1", "--test", "crossing"]);
    let out = capture(perf.args(["--iterations", "20000"])).ok()?;
    number(out.lines().last()?, Unit::Time.field()).ok().map(|time| time > FAR)
}

/// Reads the CSV of `ucx_perftest -v -f`, which has names in one line and figures in the next. UCX's megabyte has 2^20 bytes.
pub(crate) fn ucx_field(csv: &str, unit: Unit) -> Outcome<f64> {
    let mut lines = csv.lines().skip_while(|line| !line.starts_with("iterations,"));
    let names = lines.next().ok_or_else(|| format!("ucx_perftest said `{}`", csv.trim()))?;
    let figures = lines.last().unwrap_or("");
    let (name, scale) = match unit {
        Unit::Rate => ("overall_mr", 1.0),
        Unit::Bandwidth => ("overall_bw", 1_048_576.0),
        _ => ("50.0_percentile_lat", 1e3),
    };
    let column = names.split(',').position(|n| n == name);
    let figure =
        column.and_then(|at| figures.split(',').nth(at)).and_then(|f| f.trim().parse::<f64>().ok());
    figure.map(|f| f * scale).ok_or_else(|| format!("ucx_perftest has no {name} in `{figures}`"))
}

/// Waits until the kernel lists a listener on `port`: a connection attempt would count as the client.
fn listening(program: &str, port: u16, server: &mut Child) -> Outcome {
    let until = Instant::now() + Duration::from_secs(10);
    let wanted = format!(":{port:04X}");
    while Instant::now() < until {
        let there = ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            text.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                matches!(words.as_slice(), [_, local, _, "0A", ..] if local.ends_with(&wanted))
            })
        });
        if there {
            return Ok(());
        }
        if let Ok(Some(status)) = server.try_wait() {
            return Err(format!("the server of {program} ended: {status}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(format!("the server of {program} does not listen"))
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn net_pipe(bytes: u64, unit: Unit) -> Outcome<f64> {
    let dir = target().join("bench");
    make_folder(&dir)?;
    let mut args =
        vec!["--bind-to", "core", "-np", "2", "--mca", "pml", "ob1", "--mca", "btl", "self,vader"];
    if is_root() {
        args.insert(0, "--allow-run-as-root");
    }
    let size = bytes.to_string();
    args.extend(["NPopenmpi", "-l", &size, "-u", &size, "-p", "0", "-o", "netpipe.out"]);
    // NetPIPE writes its table to the working directory, and prints the measured values to stderr.
    let (ended, said) = listened(command("mpirun", &args).current_dir(&dir));
    let _ = ended?;
    net_pipe_field(&said.join("\n"), unit)
}

/// Reads a line such as `  0:       8 bytes  97342 times -->    427.36 Mbps in       0.14 usec`, where an Mbit has 2^20 bits.
fn net_pipe_field(said: &str, unit: Unit) -> Outcome<f64> {
    let line = said.lines().rfind(|line| line.contains("-->"));
    let words: Vec<&str> = line.unwrap_or("").split_whitespace().collect();
    let before = |unit: &str| {
        let at = words.iter().position(|word| *word == unit)?;
        words.get(at.checked_sub(1)?)?.parse::<f64>().ok()
    };
    let figure = match unit {
        Unit::Time => before("usec").map(|us| us * 1e3),
        _ => before("Mbps").map(|mbps| mbps * 1_048_576.0 / 8.0),
    };
    figure.ok_or_else(|| {
        format!("NetPIPE measured nothing: {}", said.lines().last().unwrap_or("no output").trim())
    })
}

/// Starts a server on processor 0 and waits until it listens; returns the server and its port.
fn server(program: &str, args: &[&str]) -> Outcome<(Ended, String)> {
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let text = port.to_string();
    let mut server = command("taskset", &["-c", "0", program]);
    let _ = server.args(args).args(["-p", &text]);
    let _ = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Ended(server.spawn().map_err(|e| format!("{program}: {e}"))?);
    listening(program, port, &mut server.0)?;
    Ok((server, text))
}

pub(crate) fn sockperf(quick: bool) -> Outcome<f64> {
    let place = ["--tcp", "-i", "127.0.0.1"];
    // The server answers without sleeping, as Tieline does.
    let (_server, port) = server("sockperf", &[&["server", "--nonblocked"], &place[..]].concat())?;
    let seconds = if quick { "1" } else { "2" };
    let mut client = command("taskset", &["-c", "1", "sockperf", "ping-pong", "--nonblocked"]);
    let out = capture(client.args(place).args(["-p", &port, "-t", seconds, "-m", "14"]))?;
    sockperf_p50(&out).ok_or_else(|| format!("sockperf said `{}`", out.trim()))
}

/// Reads a line such as `sockperf: ---> percentile 50.000 =    6.659`, in microseconds.
fn sockperf_p50(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("percentile 50.000"))?;
    Some(line.rsplit('=').next()?.trim().parse::<f64>().ok()? * 1e3)
}

pub(crate) fn iperf3(size: &str, quick: bool) -> Outcome<f64> {
    let (_server, port) = server("iperf3", &["-s", "-1"])?;
    let seconds = if quick { "1" } else { "2" };
    let mut client = command("taskset", &["-c", "1", "iperf3", "-c", "127.0.0.1", "-p", &port]);
    let out = capture(client.args(["-t", seconds, "-l", size, "-J"]))?;
    let value: serde_json::Value =
        serde_json::from_str(&out).map_err(|e| format!("iperf3's answer is not JSON: {e}"))?;
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 8.0).ok_or_else(|| format!("iperf3 said {}", value["error"]))
}

/// Returns a program of one C file, compiled once for each content of that file.
pub(crate) fn compiled(
    compiler: &str,
    source: &str,
    links: &str,
    package: &str,
) -> Outcome<PathBuf> {
    let (folder, source) = (target().join("bench"), root().join(source));
    let program = folder.join(source.file_stem().unwrap_or_default());
    let changed = |file: &Path| std::fs::metadata(file).and_then(|found| found.modified()).ok();
    let built = changed(&program);
    if built.is_none() || built < changed(&source) {
        make_folder(&folder)?;
        let mut cc = command(compiler, &["-O2", "-Wall"]);
        let _ = cc.arg(source).arg("-o").arg(&program).args(links.split_whitespace());
        let _ = capture(&mut cc).map_err(|text| format!("{package} is not installed: {text}"))?;
    }
    Ok(program)
}

pub(crate) fn bare(
    provider: &str,
    test: &str,
    bytes: u64,
    field: &str,
    quick: bool,
) -> Outcome<f64> {
    let program = compiled("cc", "xtask/src/bench/ofi/bare.c", "-lfabric", "libfabric-dev")?;
    let (bytes, seconds) = (bytes.to_string(), if quick { "0.2" } else { "0.5" });
    let mut bare = on_a_loopback_of_its_own(program);
    let out = capture(bare.args([provider, test, &bytes, seconds]))?;
    number(out.trim(), field)
}

pub(crate) fn ucp_startup() -> Outcome<f64> {
    let program = compiled("cc", "xtask/src/ucp_startup.c", "-lucp -lucs", "libucx-dev")?;
    let out = capture(&mut command(&program, &[]))?;
    out.trim().parse().map_err(|_| format!("ucp_startup said `{}`", out.trim()))
}

/// Makes a source from two processes with a ring in each direction, without a library.
pub(crate) fn ring(unit: Unit) -> Outcome<f64> {
    let program = compiled("cc", "xtask/src/bench/ring.c", "", "libc6-dev")?;
    number(capture(&mut command(&program, &[]))?.trim(), unit.field())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csv_of_ucx_perftest_is_read_by_the_names_of_its_columns() {
        let csv = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                   300000,0.121,2.529,3.288,3.02,2.0,395383,304120\n";
        assert_eq!(ucx_field(csv, Unit::Time), Ok(121.0));
        assert_eq!(ucx_field(csv, Unit::Rate), Ok(304_120.0));
        assert_eq!(ucx_field(csv, Unit::Bandwidth), Ok(2.0 * 1_048_576.0));
        assert!(ucx_field("no such transport", Unit::Time).is_err());
    }

    #[test]
    fn a_command_that_shows_nothing_or_fails_has_no_time() {
        assert!(shows("echo", &["something"]).unwrap() > 0.0);
        assert!(shows("true", &[]).unwrap_err().contains("printed nothing"));
        assert!(shows("false", &[]).is_err());
    }

    #[test]
    fn the_median_of_sockperf_is_read() {
        let said = "sockperf: ---> percentile 75.000 =    6.780\n\
                    sockperf: ---> percentile 50.000 =    6.659\n";
        assert_eq!(sockperf_p50(said), Some(6659.0));
        assert_eq!(sockperf_p50("sockperf: no server"), None);
    }

    #[test]
    fn the_last_line_of_netpipe_is_read() {
        let said = "  0:  1 bytes  1 times -->  1.00 Mbps in 9.00 usec\n  \
                    1:       8 bytes  97342 times -->    400.00 Mbps in       0.14 usec\n";
        assert_eq!(net_pipe_field(said, Unit::Time).map(f64::round), Ok(140.0));
        assert_eq!(net_pipe_field(said, Unit::Bandwidth), Ok(400.0 * 1_048_576.0 / 8.0));
        assert!(net_pipe_field("mpirun: no slots", Unit::Time).is_err());
    }
}
