//! What stands behind `cargo xtask mutants`: small changes to the source, and whether a test notices each.
//!
//! A sample of all mutants is compiled in at once, each behind a switch that an environment variable turns on: one build,
//! and then a run of the suites for each. A mutant that a test fails on is caught; one that only makes a suite hang is not,
//! since nobody can say from a hang what is wrong.

mod compiled;
mod find;
mod promises;
mod suites;
mod tree;

use find::Mutant;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;
use suites::Suites;

/// What is mutated: the packages that carry the promises, and their folders.
const PACKAGES: &[(&str, &str)] = &[
    ("tieline", "core"),
    ("tieline-config", "config"),
    ("tieline-job", "job"),
    ("tieline-plugin-api", "plugin-api"),
    ("tieline-net", "net"),
    ("tieline-memory-file", "providers/memory-file"),
    ("tieline-registration", "providers/registration"),
    ("tieline-provider-ofi", "providers/ofi"),
    ("tieline-provider-shm", "providers/shm"),
    ("tieline-provider-shm-cma", "providers/shm-cma"),
    ("tieline-provider-shm-knem", "providers/shm-knem"),
    ("tieline-provider-shm-xpmem", "providers/shm-xpmem"),
    ("tieline-provider-tcp", "providers/tcp"),
    ("tieline-provider-tcp-connect", "providers/tcp-connect"),
    ("tieline-provider-verbs", "providers/verbs"),
    ("tieline-tag", "tag"),
    ("tieline-wireup", "wireup"),
];

const HELP: &str = "\
cargo xtask mutants [FILTER...]   mutates core, config, job, plugin-api, net, tag, wireup and the providers, where `FILE:LINE KIND` has a FILTER

  --sample N     so many, chosen at random (150)
  --seed S       another choice (1)
  --promises     before them those that were chosen by hand, each of which breaks a promise (--sample 0: only those)
  --list         name them, and run nothing
  --reached      run every suite once, and name the mutants that no suite near them comes by: nobody can notice those
";

struct Wish {
    sample: usize,
    seed: u64,
    list: bool,
    reached: bool,
    promises: bool,
    filters: Vec<String>,
}

fn main() -> ExitCode {
    match wish().and_then(|wish| run(&wish)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask mutants: {text}");
            ExitCode::FAILURE
        }
    }
}

fn wish() -> Result<Wish, String> {
    let mut wish = Wish {
        sample: 150,
        seed: 1,
        list: false,
        reached: false,
        promises: false,
        filters: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse::<u64>().ok());
            value.ok_or_else(|| format!("{word} needs a number"))
        };
        match word.as_str() {
            "--sample" => wish.sample = number()? as usize,
            "--seed" => wish.seed = number()?,
            "--list" => wish.list = true,
            "--reached" => wish.reached = true,
            "--promises" => wish.promises = true,
            "--help" | "-h" => return Err(HELP.into()),
            filter if !filter.starts_with('-') => wish.filters.push(word),
            _ => return Err(HELP.into()),
        }
    }
    Ok(wish)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(wish: &Wish) -> Result<(), String> {
    let root = root().canonicalize().map_err(|e| format!("{}: {e}", root().display()))?;
    let mut all = Vec::new();
    for (package, folder) in PACKAGES {
        find::in_package(&root, package, &format!("{folder}/src"), &mut all)?;
    }
    let there = all.len();
    let is_named = |m: &Mutant| {
        let name = m.to_string();
        wish.filters.is_empty() || wish.filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    all.retain(is_named);
    let work = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => root.join(dir),
        _ => root.join("target"),
    };
    let work = work.join("mutants");
    if !wish.list {
        tree::fetched(&root)?;
    }
    if wish.reached {
        return reached(&root, &work, all);
    }
    shuffle(&mut all, wish.seed);
    let sample = wish.sample.min(all.len());
    println!("{there} mutants; a sample of {sample} with seed {}", wish.seed);
    let mut promises = if wish.promises { promises::all(&root)? } else { Vec::new() };
    promises.retain(is_named);
    let wanted = promises.len() + sample;
    promises.append(&mut all);
    let all = promises;
    if wish.list {
        all.iter().take(wanted).for_each(|mutant| println!("{mutant}"));
        return Ok(());
    }
    let chosen = tree::compiled_in(&root, &work, all, wanted)?;
    let suites = Suites::build(&work, &chosen, true)?;
    let results = Mutex::new(Vec::new());
    let began = Instant::now();
    let next = Mutex::new(chosen.iter().enumerate());
    let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            let _ = scope.spawn(|| {
                loop {
                    let one = locked(&next).next();
                    let Some((id, mutant)) = one else { return };
                    let verdict = suites.verdict(&mutant.file, id as u32 + 1);
                    println!("{verdict}: {mutant}");
                    locked(&results).push((verdict, mutant));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(verdict, mutant)| (verdict.rank(), mutant.file.clone(), mutant.line));
    println!("\nafter {} s:", began.elapsed().as_secs());
    for (verdict, mutant) in results.iter().filter(|(verdict, _)| verdict.rank() > 0) {
        println!("{verdict}: {mutant}");
    }
    told("promises", results.iter().filter(|(_, mutant)| mutant.is_promise));
    told("sample", results.iter().filter(|(_, mutant)| !mutant.is_promise));
    Ok(())
}

/// Names what no suite comes by; and by which other suites it comes, where there are some.
fn reached(root: &Path, work: &Path, all: Vec<Mutant>) -> Result<(), String> {
    let all = tree::marked(root, work, all)?;
    let suites = Suites::build(work, &all, false)?;
    let mut missed = 0;
    for (at, mutant) in all.iter().enumerate() {
        let (asked, others) = suites.reach(&mutant.file, at as u32 + 1);
        if asked {
            continue;
        }
        missed += 1;
        let others = others.join(", ");
        let others = if others.is_empty() { others } else { format!(" (only {others})") };
        println!("unreached: {mutant}{others}");
    }
    println!("{missed} of {} mutants are reached by no suite that is asked about them", all.len());
    Ok(())
}

/// The line that counts.
fn told<'a>(of: &str, results: impl Iterator<Item = &'a (suites::Verdict, &'a Mutant)>) {
    let ranks: Vec<u8> = results.map(|(verdict, _)| verdict.rank()).collect();
    if ranks.is_empty() {
        return;
    }
    let count = |rank| ranks.iter().filter(|found| **found == rank).count();
    let (caught, hang, missed) = (count(0), count(1), count(2));
    let percent = 100.0 * caught as f64 / ranks.len() as f64;
    println!(
        "{of}: {caught} caught by assertion ({percent:.0} %), {hang} by hang, {missed} missed"
    );
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Fisher and Yates, with numbers of splitmix64: the same seed is the same sample on every machine.
fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for end in (1..all.len()).rev() {
        all.swap(end, (random() % (end as u64 + 1)) as usize);
    }
}
