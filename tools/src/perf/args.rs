//! The options of `tieline perf`.

use crate::size;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tieline::Error;

/// Measure latency and bandwidth between two processes, on this host or on two hosts
///
/// Starts a peer process, or connects to a process that was started with --listen. A latency is measured in batches of at least
/// 5 us; p50 and p99 are those of the batches, and mean is the total time divided by the number of operations.
///
///   am_lat    the latency of a message: half of a ping and its pong
///   am_bw     a stream of messages, until the receiver has acknowledged the last one
///   put_lat   as am_lat, by put: the receiver polls its memory (put_bytes if it completes inline)
///   put_bw    a stream of puts, until the last one is visible at the target: --window puts are in flight; of puts of up to 256
///             bytes, the number is only limited by the queue, since they complete locally
///   get_lat, get_bw   a single get; a stream of gets, of which --window are in flight
///   add_lat   posted 8-byte adds: the time between two of them
///   fadd_lat, swap_lat, cswap_lat   single 8-byte fetching atomics
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    allow_negative_numbers = true,
    after_help = "Examples:\n  tieline perf --test am_lat --size 1:1m --cpus 0,1\n  tieline perf --test \
                  put_bw,get_bw --size 1m --memory alloc --json\n  tieline perf --listen                                    on one host\n  tieline perf --connect nodea \
                  --test all --path tcp       on the other\n  tieline run -n 4 --hosts nodea,nodeb -- tieline perf --all-pairs --size 8"
)]
pub(crate) struct Args {
    /// Serve `--connect` of other hosts, one after another: `ADDRESS:PORT`, `PORT` (0: any free one), or every address at the usual
    /// port. Prints the address, and a secret for the other side unless TIELINE_SECRET is set
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "", conflicts_with = "connect")]
    pub(crate) listen: Option<String>,
    /// End after the first client
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,
    /// Time without a sign of life from a client after which the next client is served
    #[arg(long, value_name = "SECONDS", requires = "listen", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// Measure between this process and a process that listens
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) connect: Option<String>,
    /// Measure messages between each two ranks of a job, one pair after the other: under `tieline run -n N`, or another launcher
    #[arg(long, conflicts_with_all = ["listen", "connect", "cpus", "plot"])]
    pub(crate) all_pairs: bool,
    /// Tests to run, or `all`
    #[arg(long, value_name = "LIST", default_value = "am_lat,am_bw", value_parser = Tests::parse)]
    pub(crate) test: Tests,
    /// Sizes `8,4k,1m`, or a sweep `1:4m` in powers of two
    #[arg(long, value_name = "LIST", default_value = "8,4k,64k,1m", value_parser = Sizes::parse)]
    pub(crate) size: Sizes,
    /// Processors of the measuring process and of its peer
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Number of operations for each test and size
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    /// Seconds for each test and size
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    seconds: Duration,
    /// Number of puts or gets in flight in a stream, where they do not complete within their call
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = window)]
    pub(crate) window: usize,
    /// Force a path: names of providers, such as `shm` or `shm-cma`, or `emulated` for put, get and atomics by
    /// messages
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// Target memory of put, get and atomics: the program's own, or from the library's `alloc`
    #[arg(long, value_enum, default_value_t)]
    pub(crate) memory: Memory,
    /// Check the payload of every operation; the times then include the checks
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw latency and bandwidth over size to this SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// A list of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tests(pub(crate) Vec<Test>);

/// A list of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

/// A test of `tieline perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Test {
    AmLat,
    AmBw,
    PutLat,
    PutBw,
    GetLat,
    GetBw,
    AddLat,
    FaddLat,
    SwapLat,
    CswapLat,
    /// Messages of one thread to itself.
    SelfLat,
    /// A limit of the machine: the rate at which one thread copies.
    Memcpy,
    /// A limit of the machine: the time in which a cache line moves to another processor.
    Crossing,
}

/// The source of the target memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    #[default]
    Ordinary,
    Alloc,
}

/// The condition that ends a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Iterations(u64),
    Time(Duration),
}

/// The names of all tests. The tests after the tenth need no peer, and are not part of `all`.
const NAMES: [(&str, Test); 13] = [
    ("am_lat", Test::AmLat),
    ("am_bw", Test::AmBw),
    ("put_lat", Test::PutLat),
    ("put_bw", Test::PutBw),
    ("get_lat", Test::GetLat),
    ("get_bw", Test::GetBw),
    ("add_lat", Test::AddLat),
    ("fadd_lat", Test::FaddLat),
    ("swap_lat", Test::SwapLat),
    ("cswap_lat", Test::CswapLat),
    ("self_lat", Test::SelfLat),
    ("memcpy", Test::Memcpy),
    ("crossing", Test::Crossing),
];

impl Test {
    pub(crate) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, test)| *test == self).map_or("", |(name, _)| name)
    }

    /// Checks whether the test always moves 8 bytes, for any requested size.
    pub(crate) fn has_fixed_size(self) -> bool {
        matches!(
            self,
            Test::AddLat | Test::FaddLat | Test::SwapLat | Test::CswapLat | Test::Crossing
        )
    }

    /// Checks whether the test measures messages: put, get and atomics need a remote key.
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Test::AmLat | Test::AmBw)
    }

    /// Checks whether the test needs no peer.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, Test::SelfLat | Test::Memcpy | Test::Crossing)
    }

    /// Checks whether the test measures the time of one operation.
    pub(crate) fn is_latency(self) -> bool {
        !matches!(self, Test::AmBw | Test::PutBw | Test::GetBw | Test::Memcpy)
    }
}

/// The maximum duration of the measurement of one test and size, in seconds.
const A_DAY: f64 = 86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= A_DAY);
    let time = number.and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|t| !t.is_zero());
    time.ok_or(format!("`{text}` is no number of seconds above 0 and up to {A_DAY}"))
}

fn window(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=1 << 16).contains(n))
        .ok_or(format!("`{text}` is no number from 1 to 65536"))
}

impl Tests {
    fn parse(text: &str) -> Result<Tests, String> {
        let mut tests = Vec::new();
        for name in text.split(',') {
            match NAMES.iter().find(|(known, _)| *known == name) {
                Some((_, test)) => tests.push(*test),
                None if name == "all" => tests.extend(NAMES[..10].iter().map(|(_, test)| *test)),
                None => {
                    let known: Vec<&str> = NAMES[..10].iter().map(|(name, _)| *name).collect();
                    return Err(format!("`{name}` is none of {}, all", known.join(", ")));
                }
            }
        }
        Ok(Tests(tests))
    }
}

impl Sizes {
    fn parse(text: &str) -> Result<Sizes, String> {
        let sizes = size::parse_list(text)?;
        if sizes.contains(&0) {
            return Err("a size of 0 has nothing to measure".into());
        }
        Ok(Sizes(sizes))
    }
}

impl Args {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }

    pub(crate) fn limit(&self) -> Limit {
        self.iterations.map_or(Limit::Time(self.seconds), Limit::Iterations)
    }

    /// Returns every test with every size that the test supports.
    pub(crate) fn runs(&self) -> Vec<(Test, usize)> {
        let mut runs = Vec::new();
        for &test in &self.test.0 {
            let fixed = [8];
            let sizes = if test.has_fixed_size() { &fixed[..] } else { &self.size.0 };
            runs.extend(sizes.iter().map(|&size| (test, size)));
        }
        runs
    }
}

/// The maximum number of buffers of one size that the two sides of a test hold together.
const BUFFERS: usize = 10;

/// Checks whether the memory of this host suffices for the buffers of a test.
///
/// # Errors
/// Returns an error with the reason if the memory does not suffice.
pub(crate) fn check_size(size: usize) -> Result<(), Error> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    let available = available.map_or(isize::MAX as usize, |kb: usize| kb.saturating_mul(1024));
    if size.checked_mul(BUFFERS).is_some_and(|bytes| bytes <= available) {
        return Ok(());
    }
    Err(crate::misuse(
        format!("cannot measure with a size of {}", size::show(size)),
        format!(
            "that takes {BUFFERS} buffers of it, and {} KiB of memory are free",
            available >> 10
        ),
        "give --size less",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_means_the_ten_tests_between_processes() {
        let names: Vec<_> = Tests::parse("all").unwrap().0.iter().map(|test| test.name()).collect();
        assert_eq!(
            names.join(" "),
            "am_lat am_bw put_lat put_bw get_lat get_bw add_lat fadd_lat swap_lat cswap_lat"
        );
    }

    #[test]
    fn a_test_that_is_not_there_is_refused_with_those_that_are() {
        let error = Tests::parse("am_lat,am_rate").unwrap_err();
        assert!(error.contains("`am_rate` is none of am_lat, am_bw"), "{error}");
    }

    #[test]
    fn a_measurement_takes_a_time_above_nothing_and_up_to_a_day() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("86400"), Ok(Duration::from_secs(86_400)));
        for text in ["0", "-0", "-1", "1e-12", "86401", "inf", "NaN", "", "1s"] {
            let said = seconds(text).unwrap_err();
            assert!(said.starts_with(&format!("`{text}` is no number of seconds")), "{said}");
        }
    }

    #[test]
    fn every_name_reads_back() {
        for (name, test) in NAMES {
            assert_eq!(Tests::parse(name).unwrap().0, [test]);
            assert_eq!(test.name(), name);
            assert_eq!(serde_json::to_value(test).unwrap(), name);
        }
    }
}
