//! What is compared with what, and the aims.

use super::ranks::Counts;
use super::source::{Field, Source};

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds.
    Time,
    /// Operations per second.
    Rate,
    /// Bytes per second.
    Bandwidth,
    /// Bytes.
    Memory,
    /// Instructions in user mode.
    Instructions,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// Things that are measured in turn.
pub(crate) struct Group<S = Source> {
    pub(crate) what: &'static str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    pub(crate) sources: Vec<(&'static str, S)>,
    pub(crate) comparisons: Vec<Comparison>,
}

/// One of ours against one of theirs.
pub(crate) struct Comparison {
    pub(crate) what: Option<&'static str>,
    pub(crate) ours: &'static str,
    pub(crate) rival: &'static str,
    /// The ratio to reach; none: for information.
    pub(crate) aim: Option<f64>,
}

impl Unit {
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
            Unit::Rate => scaled(value, "/s"),
            Unit::Bandwidth => scaled(value, "B/s"),
            Unit::Memory => format!("{:.0} KiB", value / 1024.0),
            Unit::Instructions => format!("{value:.0}"),
            Unit::Time if value < 1e3 => format!("{value:.0} ns"),
            Unit::Time if value < 1e6 => format!("{:.2} us", value / 1e3),
            Unit::Time => format!("{:.2} ms", value / 1e6),
        }
    }
}

const OURS: &str = "tieline";

fn against(rival: &'static str, aim: impl Into<Option<f64>>) -> Comparison {
    Comparison { what: None, ours: OURS, rival, aim: aim.into() }
}

/// Every group, small to large.
pub(crate) fn all() -> Vec<Group> {
    let mut groups = messages();
    groups.extend(tagged());
    groups.extend(memory_operations());
    groups.extend(bulk());
    groups.extend(tcp());
    groups.extend(libfabric());
    groups.extend(process());
    groups.extend(oversubscribed());
    groups
}

fn messages() -> Vec<Group> {
    const RING: &str = "limit: a bare ring in C";
    let posix = "-x posix -d memory -t";
    vec![
        Group {
            what: "8 B message, one way",
            unit: Unit::Time,
            better: Better::Lower,
            sources: vec![
                (OURS, Source::tieline("am_lat", "8", "", Field::P50)),
                ("UCX uct posix", Source::ucx(posix, "am_lat -s 8 -D short", 300_000, Field::P50)),
                ("UCX ucp am", Source::ucx("-t", "ucp_am_lat -s 8", 300_000, Field::P50)),
                ("UCX ucp tag", Source::ucx("-t", "tag_lat -s 8", 300_000, Field::P50)),
                ("Open MPI (NetPIPE)", Source::NetPipe { bytes: 8, field: Field::P50 }),
                ("limit: a cache line crosses", Source::tieline("crossing", "8", "", Field::P50)),
                (RING, Source::Ring { field: Field::P50 }),
            ],
            comparisons: vec![
                against("UCX uct posix", 0.60),
                against("UCX ucp am", None),
                against("UCX ucp tag", None),
                against("Open MPI (NetPIPE)", None),
                against("limit: a cache line crosses", 1.5),
                against(RING, None),
            ],
        },
        Group {
            what: "8 B messages, one pair",
            unit: Unit::Rate,
            better: Better::Higher,
            sources: vec![
                (OURS, Source::tieline("am_bw", "8", "", Field::Rate)),
                (
                    "UCX uct posix",
                    Source::ucx(posix, "am_bw -s 8 -D short", 3_000_000, Field::Rate),
                ),
                ("UCX ucp am", Source::ucx("-t", "ucp_am_bw -s 8", 1_000_000, Field::Rate)),
                (RING, Source::Ring { field: Field::Rate }),
            ],
            comparisons: vec![
                against("UCX uct posix", 4.0),
                against("UCX ucp am", None),
                against(RING, 0.9),
            ],
        },
        Group {
            what: "4 KiB messages",
            unit: Unit::Bandwidth,
            better: Better::Higher,
            sources: vec![
                (OURS, Source::tieline("am_bw", "4k", "", Field::Bandwidth)),
                (
                    "UCX uct posix",
                    Source::ucx(posix, "am_bw -s 4096 -D bcopy", 500_000, Field::Bandwidth),
                ),
                ("UCX ucp am", Source::ucx("-t", "ucp_am_bw -s 4096", 200_000, Field::Bandwidth)),
            ],
            comparisons: vec![against("UCX uct posix", 1.1), against("UCX ucp am", 1.1)],
        },
        Group {
            // uct posix has no message longer than its 8 KiB segments.
            what: "64 KiB messages",
            unit: Unit::Bandwidth,
            better: Better::Higher,
            sources: vec![
                (OURS, Source::tieline("am_bw", "64k", "", Field::Bandwidth)),
                ("UCX ucp am", Source::ucx("-t", "ucp_am_bw -s 65536", 40_000, Field::Bandwidth)),
            ],
            comparisons: vec![against("UCX ucp am", 1.1)],
        },
    ]
}

/// Messages that are matched by tag: the runtime of `tests/runtime` beside UCX's own matching. As many under way in both.
fn tagged() -> Vec<Group> {
    let group = |what, unit, better, ours, args, iterations, field, aim| Group {
        what,
        unit,
        better,
        sources: vec![(OURS, ours), ("UCX ucp tag", Source::ucx("-t", args, iterations, field))],
        comparisons: vec![against("UCX ucp tag", aim)],
    };
    let stream = |what, args, bytes, count| {
        let (unit, field) = (Unit::Bandwidth, Field::Bandwidth);
        let ours = Source::Tags { what: "bandwidth", bytes, count, field };
        group(what, unit, Better::Higher, ours, args, count, field, 1.3)
    };
    let lat = Source::Tags { what: "lat", bytes: 8, count: 300_000, field: Field::P50 };
    let rate = Source::Tags { what: "rate", bytes: 8, count: 1_000_000, field: Field::Rate };
    vec![
        group(
            "8 B by tag, one way",
            Unit::Time,
            Better::Lower,
            lat,
            "tag_lat -s 8",
            300_000,
            Field::P50,
            1.0,
        ),
        group(
            "8 B by tag",
            Unit::Rate,
            Better::Higher,
            rate,
            "tag_bw -s 8 -O 32",
            1_000_000,
            Field::Rate,
            2.0,
        ),
        stream("64 KiB by tag", "tag_bw -s 65536 -O 32", 64 << 10, 40_000),
        stream("512 KiB by tag", "tag_bw -s 524288 -O 32", 512 << 10, 6_000),
        stream("4 MiB by tag", "tag_bw -s 4194304 -O 32", 4 << 20, 800),
    ]
}

fn memory_operations() -> Vec<Group> {
    let posix = "-x posix -d memory -t";
    let alloc = "--memory alloc";
    let rate = |what, test, rival| Group {
        what,
        unit: Unit::Rate,
        better: Better::Higher,
        sources: vec![
            (OURS, Source::tieline(test, "8", alloc, Field::Rate)),
            ("UCX uct posix", Source::ucx(posix, rival, 3_000_000, Field::Rate)),
        ],
        comparisons: vec![against("UCX uct posix", 1.0)],
    };
    const NO_PROMISE: &str = "tieline, nothing promised";
    let ordinary = |what, test, rival| Group {
        what,
        unit: Unit::Time,
        better: Better::Lower,
        sources: vec![
            (OURS, Source::tieline_that_polls_often(test, "8")),
            (NO_PROMISE, Source::tieline(test, "8", "", Field::P50)),
            ("UCX uct cma", Source::ucx("-x cma -d memory -t", rival, 300_000, Field::P50)),
        ],
        comparisons: vec![against(NO_PROMISE, None), against("UCX uct cma", None)],
    };
    vec![
        Group {
            what: "8 B put, there and back / 2",
            unit: Unit::Time,
            better: Better::Lower,
            sources: vec![
                (OURS, Source::tieline("put_lat", "8", alloc, Field::P50)),
                ("UCX uct posix", Source::ucx(posix, "put_lat -s 8 -D short", 300_000, Field::P50)),
            ],
            comparisons: vec![against("UCX uct posix", 1.0)],
        },
        ordinary("8 B put, ordinary memory, polled", "put_lat", "put_lat -s 8 -D zcopy"),
        ordinary("8 B get, ordinary memory, polled", "get_lat", "get -s 8 -D zcopy"),
        rate("8 B add, posted", "add_lat", "add_mr -s 8 -D short"),
        rate("8 B fetch-add", "fadd_lat", "fadd -s 8 -D short"),
    ]
}

fn bulk() -> Vec<Group> {
    let cma = "-x cma -d memory -t";
    let copied = |what, test, rival| Group {
        what,
        unit: Unit::Bandwidth,
        better: Better::Higher,
        sources: vec![
            (OURS, Source::tieline(test, "1m", "", Field::Bandwidth)),
            ("tieline, one end copies", Source::tieline_with_one_copier(test, "1m")),
            ("UCX uct cma", Source::ucx(cma, rival, 4_000, Field::Bandwidth)),
        ],
        comparisons: vec![
            Comparison {
                what: None,
                ours: "tieline, one end copies",
                rival: "UCX uct cma",
                aim: Some(1.0),
            },
            Comparison {
                what: Some(if test == "put_bw" {
                    "1 MiB put, ordinary memory, both ends copy"
                } else {
                    "1 MiB get, ordinary memory, both ends copy"
                }),
                ours: OURS,
                rival: "UCX uct cma",
                aim: Some(1.5),
            },
        ],
    };
    vec![
        copied("1 MiB put, ordinary memory", "put_bw", "put_bw -s 1048576 -D zcopy"),
        copied("1 MiB get, ordinary memory", "get_bw", "get -s 1048576 -D zcopy"),
        Group {
            what: "1 MiB put into memory of Context::alloc",
            unit: Unit::Bandwidth,
            better: Better::Higher,
            sources: vec![
                (OURS, Source::tieline("put_bw", "1m", "--memory alloc", Field::Bandwidth)),
                ("limit: memcpy", Source::tieline("memcpy", "1m", "", Field::Bandwidth)),
            ],
            comparisons: vec![against("limit: memcpy", 0.95)],
        },
        Group {
            what: "4 MiB there and back, ordinary memory",
            unit: Unit::Bandwidth,
            better: Better::Higher,
            sources: vec![
                (OURS, Source::tieline("put_lat", "4m", "", Field::Bandwidth)),
                ("Open MPI (NetPIPE)", Source::NetPipe { bytes: 4 << 20, field: Field::Bandwidth }),
            ],
            comparisons: vec![against("Open MPI (NetPIPE)", None)],
        },
    ]
}

fn tcp() -> Vec<Group> {
    let ours = "--path tcp,tcp-connect";
    let lo = "-x tcp -d lo -t";
    let put = |what, size| Group {
        what,
        unit: Unit::Bandwidth,
        better: Better::Higher,
        sources: vec![
            (OURS, Source::tieline("put_bw", size, ours, Field::Bandwidth)),
            ("limit: iperf3, one stream", Source::Iperf3 { size }),
        ],
        comparisons: vec![against("limit: iperf3, one stream", 0.95)],
    };
    vec![
        Group {
            what: "8 B message over tcp, loopback",
            unit: Unit::Time,
            better: Better::Lower,
            sources: vec![
                (OURS, Source::tieline("am_lat", "8", ours, Field::P50)),
                ("UCX uct tcp", Source::ucx(lo, "am_lat -s 8 -D short", 30_000, Field::P50)),
                ("limit: sockperf", Source::SockPerf),
            ],
            comparisons: vec![against("UCX uct tcp", 1.0), against("limit: sockperf", None)],
        },
        Group {
            what: "8 KiB messages over tcp, loopback",
            unit: Unit::Bandwidth,
            better: Better::Higher,
            sources: vec![
                (OURS, Source::tieline("am_bw", "8k", ours, Field::Bandwidth)),
                (
                    "UCX uct tcp",
                    Source::ucx(lo, "am_bw -s 8192 -D bcopy", 100_000, Field::Bandwidth),
                ),
            ],
            comparisons: vec![against("UCX uct tcp", 1.0)],
        },
        put("64 KiB put over tcp, loopback", "64k"),
        put("1 MiB put over tcp, loopback", "1m"),
    ]
}

/// What this library costs over libfabric, whatever that costs: the same operations in a bare loop.
fn libfabric() -> Vec<Group> {
    const BARE: &str = "limit: bare libfabric";
    let row = |what, unit, test, (size, bytes), rival, field, aim| Group {
        what,
        unit,
        better: if unit == Unit::Time { Better::Lower } else { Better::Higher },
        sources: vec![
            (OURS, Source::tieline_over_libfabric(test, size, field)),
            (BARE, Source::Bare { provider: "tcp;ofi_rxm", test: rival, bytes, field }),
        ],
        comparisons: vec![against(BARE, Some(aim))],
    };
    let memory = |what, ours, theirs| Group {
        what,
        unit: Unit::Memory,
        better: Better::Lower,
        sources: vec![
            (OURS, Source::footprint_over_libfabric(ours)),
            (BARE, Source::BareMemory { provider: "tcp;ofi_rxm", field: theirs }),
        ],
        comparisons: vec![against(BARE, None)],
    };
    let (word, middle, large) = (("8", 8), ("64k", 64 << 10), ("1m", 1 << 20));
    let (time, half) = (Unit::Time, Field::P50);
    // There and back at 0.98 of the bandwidth takes 1.02 of the time.
    vec![
        row("libfabric: 8 B message", time, "am_lat", word, "send_lat", half, 1.10),
        row("libfabric: 8 B put", time, "put_lat", word, "put_lat", half, 1.10),
        row("libfabric: 8 B puts", Unit::Rate, "put_bw", word, "put_bw", Field::Rate, 0.9),
        row("libfabric: 64 KiB put", time, "put_lat", middle, "put_lat", half, 1.02),
        row("libfabric: 64 KiB get", time, "get_lat", middle, "get_lat", half, 1.02),
        row("libfabric: 1 MiB put", time, "put_lat", large, "put_lat", half, 1.02),
        row("libfabric: 1 MiB get", time, "get_lat", large, "get_lat", half, 1.02),
        memory("libfabric: memory of an interface", "idle_bytes", "endpoint_bytes"),
        memory("libfabric: memory for a peer", "grown_peer_bytes", "peer_bytes"),
    ]
}

/// More ranks than processors: what waiting costs. An Open MPI that yields when it is idle is the rival.
fn oversubscribed() -> Vec<Group> {
    const RIVAL: &str = "Open MPI, yielding";
    let row = |what, name, ranks, size, counts, aim| Group {
        what,
        unit: Unit::Time,
        better: Better::Lower,
        sources: vec![
            (OURS, Source::Ranks(name, ranks, size, counts)),
            (RIVAL, Source::MpiRanks(name, ranks, size, counts)),
        ],
        comparisons: vec![against(RIVAL, Some(aim))],
    };
    vec![
        row("oversubscribed: halo step, 16 ranks", "halo", 16, 2000, Counts::Loop, 1.5),
        row("oversubscribed: counter, 16 ranks", "counter", 16, 100_000, Counts::Loop, 1.5),
        row("oversubscribed: halo, 64 ranks, all of it", "halo", 64, 50, Counts::Everything, 1.0),
    ]
}

fn process() -> Vec<Group> {
    let memory = |what, field, budget: f64, rival: &'static str| Group {
        what,
        unit: Unit::Memory,
        better: Better::Lower,
        sources: vec![(OURS, Source::Footprint(&[], field)), (rival, Source::Given(budget))],
        comparisons: vec![against(rival, 1.0)],
    };
    vec![
        Group {
            what: "open a context and a worker",
            unit: Unit::Time,
            better: Better::Lower,
            sources: vec![
                (OURS, Source::Footprint(&[], "open_ns")),
                ("UCX ucp_init + worker", Source::UcpStartup),
            ],
            comparisons: vec![against("UCX ucp_init + worker", 1.0)],
        },
        Group {
            what: "tieline info: all that is here",
            unit: Unit::Time,
            better: Better::Lower,
            sources: vec![
                (OURS, Source::Shows("tieline", &["info", "--why"])),
                ("UCX ucx_info -d", Source::Shows("ucx_info", &["-d"])),
            ],
            comparisons: vec![against("UCX ucx_info -d", 1.0)],
        },
        memory("memory of an idle context", "idle_bytes", 1024.0 * 1024.0, "budget: 1 MiB"),
        memory("per local peer, before it talks", "quiet_peer_bytes", 16384.0, "budget: 16 KiB"),
        memory("per local peer that talks", "talking_peer_bytes", 65536.0, "budget: 64 KiB"),
    ]
}
