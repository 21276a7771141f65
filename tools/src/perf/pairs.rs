//! `tieline perf --all-pairs`: measures messages between each two ranks of a job, one pair after the other, to find a slow host or
//! link. During a measurement the other ranks wait, with pauses between their polls.

use super::args::{Args, Memory, Test};
use super::control::Spec;
use super::disturbed::Quiet;
use super::output::{Output, Record, scaled, time};
use super::side::Side;
use super::tests;
use crate::{misuse, say, size};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Duration;
use tieline::{Error, Job, Status};

/// The interval at which a rank that waits for its turn polls.
const NAP: Duration = Duration::from_millis(1);

/// The data that every rank receives about one rank.
#[derive(Serialize, Deserialize)]
struct Rank {
    address: Vec<u8>,
    host: String,
}

/// A rank's report to rank 0: a measuring rank sends its record, a serving rank the number of its preemptions.
#[derive(Serialize, Deserialize)]
struct Part {
    run: usize,
    from: usize,
    to: usize,
    record: Option<Record>,
    preempted: u64,
}

#[derive(Serialize)]
struct Pair<'a> {
    from: usize,
    to: usize,
    from_host: &'a str,
    to_host: &'a str,
    #[serde(flatten)]
    record: &'a Record,
}

pub(super) fn measure(args: &Args) -> Result<ExitCode, Error> {
    if let Some((test, _)) = args.runs().into_iter().find(|(test, _)| !test.is_message()) {
        return Err(misuse(
            format!("cannot measure {} between all pairs", test.name()),
            "--all-pairs is for messages",
            "give --test am_lat,am_bw, or one of them",
        ));
    }
    let job = Job::from_env()?;
    if job.size() < 2 {
        return Err(misuse(
            "there is no other rank to measure with",
            "this job has one rank",
            "start it by `tieline run -n N -- tieline perf --all-pairs`",
        ));
    }
    let alive = || Ok(());
    let mut side = Side::open(args.path.as_deref(), "", &alive)?;
    let own = Rank { address: side.worker.address()?, host: host() };
    let ranks = exchange::<Rank>(&job, &own)?;
    let mut parts = Vec::new();
    for (run, &(test, size)) in args.runs().iter().enumerate() {
        for (from, to) in pairs(job.size()) {
            let spec =
                Spec { test, size, memory: Memory::Ordinary, verify: args.verify, key: Vec::new() };
            side.begin(args.verify);
            if let Some(other) = partner(job.rank(), from, to) {
                side.connect(&ranks[other].address)?;
            }
            // Neither side sends before the other side has discarded its earlier state.
            wait_for_all(&job, &side)?;
            let quiet = Quiet::begins();
            let record = match job.rank() {
                me if me == from => {
                    let longest = side.longest_message()?;
                    if size > longest {
                        return Err(too_long(size, longest));
                    }
                    let (samples, path) = tests::run_messages(&side, &spec, args.limit())?;
                    let legs = if test == Test::AmLat { 2 } else { 1 };
                    let record = Record::new(test, size, path, samples.summary(size, legs));
                    Some(record.with(quiet.ends(0), side.endpoint()?.hindrances()))
                }
                me if me == to => {
                    tests::serve_messages(&side, &spec)?;
                    None
                }
                _ => None,
            };
            if partner(job.rank(), from, to).is_some() {
                parts.push(Part { run, from, to, record, preempted: quiet.preempted() });
            }
            wait_for_all(&job, &side)?;
        }
    }
    let all: Vec<Part> = exchange::<Vec<Part>>(&job, &parts)?.into_iter().flatten().collect();
    if job.rank() == 0 {
        print(args, &ranks, &all)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn too_long(size: usize, longest: usize) -> Error {
    misuse(
        format!("cannot measure messages of {}", crate::size::show(size)),
        super::whole_messages(longest),
        "give --size with less",
    )
}

fn pairs(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).flat_map(move |from| (from + 1..size).map(move |to| (from, to)))
}

/// Returns the other rank of a pair, if this rank belongs to the pair.
fn partner(me: usize, from: usize, to: usize) -> Option<usize> {
    match me {
        me if me == from => Some(to),
        me if me == to => Some(from),
        _ => None,
    }
}

/// Exchanges values, and returns the values of all ranks in the order of the ranks.
fn exchange<T: Serialize + for<'a> Deserialize<'a>>(job: &Job, own: &T) -> Result<Vec<T>, Error> {
    let bytes = serde_json::to_vec(own).unwrap_or_default();
    let read = |bytes: &Vec<u8>| {
        serde_json::from_slice(bytes).map_err(|error| {
            let why = format!("a rank said what is none of this version: {error}");
            Error::new(
                Status::BadData,
                "the ranks do not understand each other",
                why,
                "install the same on all",
            )
        })
    };
    job.exchange(&bytes)?.iter().map(read).collect()
}

fn wait_for_all(job: &Job, side: &Side<'_>) -> Result<(), Error> {
    job.barrier_while(|| side.worker.wait(Some(NAP)).map(drop))
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

fn print(args: &Args, ranks: &[Rank], parts: &[Part]) -> Result<(), Error> {
    for (run, (test, bytes)) in args.runs().into_iter().enumerate() {
        let mut measured: Vec<(usize, usize, Record)> = Vec::new();
        for part in parts.iter().filter(|part| part.run == run) {
            let Some(record) = &part.record else { continue };
            let of_pair = |other: &&Part| {
                (other.run, other.from, other.to) == (run, part.from, part.to)
                    && other.record.is_none()
            };
            let theirs: u64 = parts.iter().filter(of_pair).map(|other| other.preempted).sum();
            let mut record = record.clone();
            record.preempted += theirs;
            measured.push((part.from, part.to, record));
        }
        measured.sort_by_key(|(from, to, _)| (*from, *to));
        if args.json {
            for (from, to, record) in &measured {
                let (from_host, to_host) = (&ranks[*from].host, &ranks[*to].host);
                let pair = Pair { from: *from, to: *to, from_host, to_host, record };
                say::line(serde_json::to_string(&pair).unwrap_or_default());
            }
            continue;
        }
        say::line(format_args!(
            "{} of {} between {} ranks",
            test.name(),
            size::show(bytes),
            ranks.len()
        ));
        for (from, to, record) in &measured {
            let hosts = format!("{} - {}", ranks[*from].host, ranks[*to].host);
            say::line(format_args!("{from:>5} - {to:<5} {hosts:<24} {}", numbers(record)));
        }
        // The comparison uses the mean, because a median ignores rare long operations.
        let slowest = measured.iter().max_by(|a, b| slowness(&a.2).total_cmp(&slowness(&b.2)));
        if let Some((from, to, record)) = slowest {
            say::line(format_args!("slowest: ranks {from} and {to}: {}", numbers(record)));
        }
    }
    Ok(())
}

fn slowness(record: &Record) -> f64 {
    match record.test {
        Test::AmLat => record.mean_ns,
        _ => -record.bytes_per_second,
    }
}

fn numbers(record: &Record) -> String {
    format!(
        "p50 {:>9} mean {:>9} {:>11}  {}",
        time(record.p50_ns),
        time(record.mean_ns),
        scaled(record.bytes_per_second, "B/s"),
        Output::way(record)
    )
}

#[cfg(test)]
mod tests_of_pairs {
    use super::*;

    #[test]
    fn each_two_ranks_meet_once_and_a_third_one_waits() {
        let all: Vec<_> = pairs(4).collect();
        assert_eq!(all, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
        assert_eq!(partner(1, 1, 3), Some(3));
        assert_eq!(partner(3, 1, 3), Some(1));
        assert_eq!(partner(2, 1, 3), None);
    }
}
