//! The groups of comparisons, and the aims.

use super::ranks::{self, Counts};
use super::source::{self, OVER_LIBFABRIC, Setting, Source};
use Unit::{Bandwidth, Memory, Rate, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A time in nanoseconds.
    Time,
    /// A number of operations per second.
    Rate,
    /// A number of bytes per second.
    Bandwidth,
    /// A number of bytes.
    Memory,
    Instructions,
}

/// A group of figures that are measured in turn.
pub(crate) struct Group<S = Source> {
    pub(crate) what: &'static str,
    pub(crate) unit: Unit,
    pub(crate) sources: Vec<(&'static str, S)>,
    pub(crate) comparisons: Vec<Comparison>,
}

/// A comparison of a figure of Tieline with one of a rival.
pub(crate) struct Comparison {
    pub(crate) what: Option<&'static str>,
    pub(crate) ours: &'static str,
    pub(crate) rival: &'static str,
    /// The ratio to reach; `None` if the comparison has no aim.
    pub(crate) aim: Option<f64>,
}

pub(crate) const OURS: &str = "tieline";

type Rival<S = Source> = (&'static str, S, Option<f64>);

impl<S> Group<S> {
    pub(crate) fn new(what: &'static str, unit: Unit, ours: S, rivals: Vec<Rival<S>>) -> Group<S> {
        let (mut sources, mut comparisons) = (vec![(OURS, ours)], Vec::new());
        for (rival, source, aim) in rivals {
            sources.push((rival, source));
            comparisons.push(Comparison { what: None, ours: OURS, rival, aim });
        }
        Group { what, unit, sources, comparisons }
    }
}

impl Unit {
    pub(crate) fn is_better_lower(self) -> bool {
        !matches!(self, Rate | Bandwidth)
    }

    /// Returns the name of the figure in the JSON of `tieline perf`: the total operations or bytes per second, or the median time.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Rate => "messages_per_second",
            Bandwidth => "bytes_per_second",
            _ => "p50_ns",
        }
    }

    pub(crate) fn show(self, value: f64) -> String {
        let scaled = |value: f64, unit: &str| {
            let (value, letter) = match value {
                v if v >= 1e9 => (v / 1e9, "G"),
                v if v >= 1e6 => (v / 1e6, "M"),
                v if v >= 1e3 => (v / 1e3, "k"),
                v => (v, ""),
            };
            let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
            format!("{value:.digits$} {letter}{unit}")
        };
        match self {
            Rate => scaled(value, "/s"),
            Bandwidth => scaled(value, "B/s"),
            Memory => format!("{:.0} KiB", value / 1024.0),
            Unit::Instructions => format!("{value:.0}"),
            Time if value < 1e3 => format!("{value:.0} ns"),
            Time if value < 1e6 => format!("{:.2} us", value / 1e3),
            Time => format!("{:.2} ms", value / 1e6),
        }
    }
}

fn perf(test: &'static str, size: &'static str) -> Source {
    tieline(test, size, "", &[])
}

fn tieline(
    test: &'static str,
    size: &'static str,
    more: &'static str,
    settings: &'static [Setting],
) -> Source {
    let words = [test, size, more];
    Source::new(None, move |unit, quick| source::tieline(words, settings, unit, quick))
}

fn footprint(settings: &'static [Setting], field: &'static str) -> Source {
    Source::new(None, move |_, _| source::footprint(settings, field))
}

fn net_pipe(bytes: u64) -> Rival {
    let source = Source::new("NPopenmpi", move |unit, _| source::net_pipe(bytes, unit));
    ("Open MPI (NetPIPE)", source, None)
}

fn fewer(iterations: u64, quick: bool) -> u64 {
    if quick { iterations / 3 } else { iterations }
}

/// The name of a rival of UCX, and the options of `ucx_perftest` for it.
type Ucx = (&'static str, &'static str);
const POSIX: Ucx = ("UCX uct posix", "-x posix -d memory -t");
const CMA: Ucx = ("UCX uct cma", "-x cma -d memory -t");
const TCP: Ucx = ("UCX uct tcp", "-x tcp -d lo -t");
const AM: Ucx = ("UCX ucp am", "-t");
const TAG: Ucx = ("UCX ucp tag", "-t");

fn ucx(by: Ucx, test: &'static str, iterations: u64, aim: impl Into<Option<f64>>) -> Rival {
    let source = Source::new("ucx_perftest", move |unit, quick| {
        source::ucx(by.1, test, fewer(iterations, quick), unit)
    });
    (by.0, source, aim.into())
}

pub(crate) fn all() -> Vec<Group> {
    let groups =
        [messages(), tagged(), memory_operations(), bulk(), tcp(), libfabric(), process(), ranks()];
    groups.into_iter().flatten().collect()
}

fn messages() -> Vec<Group> {
    let crossing = ("limit: a cache line crosses", perf("crossing", "8"), Some(1.5));
    let ring =
        |aim| ("limit: a bare ring in C", Source::new("cc", |unit, _| source::ring(unit)), aim);
    let latency = vec![
        ucx(POSIX, "am_lat -s 8 -D short", 300_000, 0.60),
        ucx(AM, "ucp_am_lat -s 8", 300_000, None),
        ucx(TAG, "tag_lat -s 8", 300_000, None),
        net_pipe(8),
        crossing,
        ring(None),
    ];
    let rate = vec![
        ucx(POSIX, "am_bw -s 8 -D short", 3_000_000, 4.0),
        ucx(AM, "ucp_am_bw -s 8", 1_000_000, None),
        ring(Some(0.9)),
    ];
    let middle = vec![
        ucx(POSIX, "am_bw -s 4096 -D bcopy", 500_000, 1.1),
        ucx(AM, "ucp_am_bw -s 4096", 200_000, 1.1),
    ];
    let alone = |name, transport| {
        let source =
            Source::new("ucx_perftest", move |_, quick| source::to_itself(Some(transport), quick));
        (name, source, None)
    };
    let itself = Source::new(None, |_, quick| source::to_itself(None, quick));
    let others = vec![
        alone(POSIX.0, "-x posix -d memory -t am_lat -s 8 -D short"),
        alone(AM.0, "-t ucp_am_lat -s 8"),
    ];
    // uct posix supports no message that is longer than its segments of 8 KiB.
    let large = vec![ucx(AM, "ucp_am_bw -s 65536", 40_000, 1.1)];
    vec![
        Group::new("8 B message, one way", Time, perf("am_lat", "8"), latency),
        Group::new("8 B message, one thread to itself", Time, itself, others),
        Group::new("8 B messages, one pair", Rate, perf("am_bw", "8"), rate),
        Group::new("4 KiB messages", Bandwidth, perf("am_bw", "4k"), middle),
        Group::new("64 KiB messages", Bandwidth, perf("am_bw", "64k"), large),
    ]
}

/// Returns the groups of tagged messages: the runtime of `tests/runtime` and UCX's own matching. Both have the same number of
/// messages in flight.
fn tagged() -> Vec<Group> {
    let group = |what, unit, (test, bytes), args, count, aim| {
        let ours = Source::new("taskset", move |unit, quick| {
            source::tags(test, bytes, fewer(count, quick), unit)
        });
        Group::new(what, unit, ours, vec![ucx(TAG, args, count, Some(aim))])
    };
    let stream =
        |what, args, bytes, count| group(what, Bandwidth, ("bandwidth", bytes), args, count, 1.3);
    vec![
        group("8 B by tag, one way", Time, ("lat", 8), "tag_lat -s 8", 300_000, 1.0),
        group("8 B by tag", Rate, ("rate", 8), "tag_bw -s 8 -O 32", 1_000_000, 2.0),
        stream("64 KiB by tag", "tag_bw -s 65536 -O 32", 64 << 10, 40_000),
        stream("512 KiB by tag", "tag_bw -s 524288 -O 32", 512 << 10, 6_000),
        stream("4 MiB by tag", "tag_bw -s 4194304 -O 32", 4 << 20, 800),
    ]
}

fn memory_operations() -> Vec<Group> {
    let allocated = |what, unit, test, rival, iterations| {
        let ours = tieline(test, "8", "--memory alloc", &[]);
        Group::new(what, unit, ours, vec![ucx(POSIX, rival, iterations, 1.0)])
    };
    let ordinary = |what, test, rival| {
        let no_promise = ("tieline, nothing promised", perf(test, "8"), None);
        // Both ends promise each other that they make progress continuously, as `tieline perf` does.
        let ours = tieline(test, "8", "", &[("TIELINE_POLLS_OFTEN", "on")]);
        Group::new(what, Time, ours, vec![no_promise, ucx(CMA, rival, 300_000, None)])
    };
    let (put, rate) = ("put_lat -s 8 -D short", 3_000_000);
    vec![
        allocated("8 B put, there and back / 2", Time, "put_lat", put, 300_000),
        ordinary("8 B put, ordinary memory, polled", "put_lat", "put_lat -s 8 -D zcopy"),
        ordinary("8 B get, ordinary memory, polled", "get_lat", "get -s 8 -D zcopy"),
        allocated("8 B add, posted", Rate, "add_lat", "add_mr -s 8 -D short", rate),
        allocated("8 B fetch-add", Rate, "fadd_lat", "fadd -s 8 -D short", rate),
    ]
}

fn bulk() -> Vec<Group> {
    const ONE_END: &str = "tieline, one end copies";
    const FOUR: &str = "4 MiB there and back, ordinary memory";
    let copied = |what, both, test, rival| {
        let one_end = tieline(test, "1m", "", &[("TIELINE_ASSIST_SIZE", "inf")]);
        let rivals = vec![(ONE_END, one_end, None), ucx(CMA, rival, 4_000, None)];
        let compared = |what, ours, aim| Comparison { what, ours, rival: CMA.0, aim: Some(aim) };
        let comparisons = vec![compared(None, ONE_END, 1.0), compared(Some(both), OURS, 1.5)];
        Group { comparisons, ..Group::new(what, Bandwidth, perf(test, "1m"), rivals) }
    };
    let memcpy = vec![("limit: memcpy", perf("memcpy", "1m"), Some(0.95))];
    let into_own = tieline("put_bw", "1m", "--memory alloc", &[]);
    vec![
        copied(
            "1 MiB put, ordinary memory",
            "1 MiB put, ordinary memory, both ends copy",
            "put_bw",
            "put_bw -s 1048576 -D zcopy",
        ),
        copied(
            "1 MiB get, ordinary memory",
            "1 MiB get, ordinary memory, both ends copy",
            "get_bw",
            "get -s 1048576 -D zcopy",
        ),
        Group::new("1 MiB put into memory of Context::alloc", Bandwidth, into_own, memcpy),
        Group::new(FOUR, Bandwidth, perf("put_lat", "4m"), vec![net_pipe(4 << 20)]),
    ]
}

fn tcp() -> Vec<Group> {
    let ours = |test, size| tieline(test, size, "--path tcp,tcp-connect", &[]);
    let put = |what, size| {
        let iperf3 = Source::new("iperf3", move |_, quick| source::iperf3(size, quick));
        let rivals = vec![("limit: iperf3, one stream", iperf3, Some(0.95))];
        Group::new(what, Bandwidth, ours("put_bw", size), rivals)
    };
    let sockperf = Source::new("sockperf", |_, quick| source::sockperf(quick));
    let ucx_word = ucx(TCP, "am_lat -s 8 -D short", 30_000, 1.0);
    let word = vec![ucx_word, ("limit: sockperf", sockperf, None)];
    let middle = vec![ucx(TCP, "am_bw -s 8192 -D bcopy", 100_000, 1.0)];
    vec![
        Group::new("8 B message over tcp, loopback", Time, ours("am_lat", "8"), word),
        Group::new("8 KiB messages over tcp, loopback", Bandwidth, ours("am_bw", "8k"), middle),
        put("64 KiB put over tcp, loopback", "64k"),
        put("1 MiB put over tcp, loopback", "1m"),
    ]
}

/// Returns the groups for the cost of Tieline over libfabric: the same operations in a loop without Tieline.
fn libfabric() -> Vec<Group> {
    const BARE: &str = "limit: bare libfabric";
    let provider = "tcp;ofi_rxm";
    let row = |what, unit, test, (size, bytes), rival, aim| {
        let ours = tieline(test, size, "--path ofi", &OVER_LIBFABRIC[..2]);
        let bare = Source::new("cc", move |unit, quick| {
            source::bare(provider, rival, bytes, unit.field(), quick)
        });
        Group::new(what, unit, ours, vec![(BARE, bare, Some(aim))])
    };
    let memory = |what, ours, field| {
        let bare =
            Source::new("cc", move |_, quick| source::bare(provider, "memory", 8, field, quick));
        Group::new(what, Memory, footprint(OVER_LIBFABRIC, ours), vec![(BARE, bare, None)])
    };
    let (word, middle, large) = (("8", 8), ("64k", 64 << 10), ("1m", 1 << 20));
    // A ratio of 0.98 in bandwidth corresponds to a ratio of 1.02 in time.
    vec![
        row("libfabric: 8 B message", Time, "am_lat", word, "send_lat", 1.10),
        row("libfabric: 8 B put", Time, "put_lat", word, "put_lat", 1.10),
        row("libfabric: 8 B puts", Rate, "put_bw", word, "put_bw", 0.9),
        row("libfabric: 64 KiB put", Time, "put_lat", middle, "put_lat", 1.02),
        row("libfabric: 64 KiB get", Time, "get_lat", middle, "get_lat", 1.02),
        row("libfabric: 1 MiB put", Time, "put_lat", large, "put_lat", 1.02),
        row("libfabric: 1 MiB get", Time, "get_lat", large, "get_lat", 1.02),
        memory("libfabric: memory of an interface", "idle_bytes", "endpoint_bytes"),
        memory("libfabric: memory for a peer", "grown_peer_bytes", "peer_bytes"),
    ]
}

/// Returns the groups with more ranks than processors, which measure the cost of waiting. The rival is an Open MPI that yields when
/// it is idle.
fn ranks() -> Vec<Group> {
    let row = |what, name, ranks, size, counts, aim| {
        let ours = Source::new("taskset", move |_, _| ranks::ours(name, ranks, size, counts));
        let rival = Source::new("mpicc", move |_, _| ranks::open_mpi(name, ranks, size, counts));
        Group::new(what, Time, ours, vec![("Open MPI, yielding", rival, Some(aim))])
    };
    vec![
        row("oversubscribed: halo step, 16 ranks", "halo", 16, 2000, Counts::Loop, 1.5),
        row("oversubscribed: counter, 16 ranks", "counter", 16, 100_000, Counts::Loop, 1.5),
        row("oversubscribed: halo, 64 ranks, all of it", "halo", 64, 50, Counts::Everything, 1.0),
    ]
}

fn process() -> Vec<Group> {
    let memory = |what, field, budget: f64, rival| {
        let budget = vec![(rival, Source::new(None, move |_, _| Ok(budget)), Some(1.0))];
        Group::new(what, Memory, footprint(&[], field), budget)
    };
    let open = footprint(&[], "open_ns");
    let show = Source::new(None, |_, _| source::shows("tieline", &["info", "--why"]));
    let ucp = Source::new("cc", |_, _| source::ucp_startup());
    let ucp = vec![("UCX ucp_init + worker", ucp, Some(1.0))];
    let ucx_info = Source::new("ucx_info", |_, _| source::shows("ucx_info", &["-d"]));
    let ucx_info = vec![("UCX ucx_info -d", ucx_info, Some(1.0))];
    vec![
        Group::new("open a context and a worker", Time, open, ucp),
        Group::new("tieline info: all that is here", Time, show, ucx_info),
        memory("memory of an idle context", "idle_bytes", 1024.0 * 1024.0, "budget: 1 MiB"),
        memory("per local peer, before it talks", "quiet_peer_bytes", 16384.0, "budget: 16 KiB"),
        memory("per local peer that talks", "talking_peer_bytes", 65536.0, "budget: 64 KiB"),
    ]
}
