//! Tests of the suite with correct providers and with each of their known bugs.
//!
//! Run it with `cargo test -p tieline-conformance --test mutations [-- NAME]`. After a change of checks or subjects, `-- --page`
//! writes docs/checks.md again, with the checks that the table names. `-- --anew [MUTATION...]` looks for the first check that
//! finds each bug (all of them take some minutes) and writes the page with those.

#[path = "support/scratch.rs"]
mod scratch;
mod support;

use scratch::Scratch;
use std::fmt::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{Test, Verdict, program, run_all, source};
use tieline_conformance as suite;
use tieline_conformance::{LIMIT, Outcome, Plan, contents, page};

const TESTS: &[Test] = &[
    ("every_mistake_in_pairs_is_found_by_its_check", || mistakes_are_found("pairs")),
    ("every_mistake_in_rings_is_found_by_its_check", || mistakes_are_found("rings")),
    ("every_right_variant_of_pairs_passes", || right_variants_pass("pairs")),
    ("every_right_variant_of_rings_passes", || right_variants_pass("rings")),
    ("the_page_of_checks_is_fresh", page_is_fresh),
];

const SUBJECTS: [&str; 2] = ["rings", "pairs"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let written = match words.first().map(String::as_str) {
        Some("--page") => write_page(&[]),
        Some("--anew") if words.len() > 1 => write_page(&words[1..]),
        Some("--anew") => write_page(&SUBJECTS.map(all_names).concat()),
        _ => return run_all(TESTS),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

type Named = (String, String);

fn list(subject: &str, list: &str) -> Vec<Named> {
    let text = std::fs::read_to_string(file(subject)).unwrap();
    let start = format!("#define {list}(M) \\\n");
    let rest = text.split_once(&start).unwrap_or_else(|| panic!("{subject} has no {list}")).1;
    let mut found = Vec::new();
    for line in rest.lines() {
        let entry = line.trim().strip_prefix("M(").and_then(|rest| rest.split_once(", \""));
        if let Some((name, words)) = entry {
            let words = words.trim_end_matches('\\').trim_end().trim_end_matches("\")");
            found.push((name.to_string(), words.to_string()));
        }
        if !line.ends_with('\\') {
            break;
        }
    }
    assert!(found.len() > 2, "{list} of {subject} cannot be read");
    found
}

fn all_names(subject: &str) -> Vec<String> {
    list(subject, "MUTATIONS").into_iter().map(|(name, _)| format!("{subject}/{name}")).collect()
}

fn file(subject: &str) -> PathBuf {
    source().join(format!("conformance/subjects/{subject}.c"))
}

/// Compiles a subject with one additional define, and returns the path of the object.
fn compiled(scratch: &Scratch, subject: &str, name: &str, define: &str) -> Result<PathBuf, String> {
    let folder = scratch.path().join(format!("{subject}-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    let object = folder.join(format!("libtieline_{subject}.so"));
    let mut cc = Command::new("cc");
    let cc = cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-I"]);
    let cc = cc.arg(source().join("include")).arg(format!("-D{define}={name}"));
    match cc.arg("-o").arg(&object).arg(file(subject)).status() {
        Ok(status) => assert!(status.success(), "{cc:?}"),
        Err(error) => return Err(format!("no C compiler: {error}")),
    }
    Ok(object)
}

fn run(object: &Path, filter: Option<&str>, limit: Duration, until_failure: bool) -> Vec<Outcome> {
    let (path, filter) = (object.to_path_buf(), filter.map(str::to_owned));
    let plan = Plan { path, module: None, filter, program: program(), limit, until_failure };
    let mut outcomes = Vec::new();
    let ran =
        contents(&plan).and_then(|found| suite::run(&plan, &found, &mut |o| outcomes.push(o)));
    let _ = ran.unwrap_or_else(|why| panic!("{}: {why}", object.display()));
    outcomes
}

fn failed(outcome: &&Outcome) -> bool {
    matches!(outcome.verdict, suite::Verdict::Failed(_))
}

fn right_variants_pass(subject: &str) -> Verdict {
    let scratch = Scratch::new(&format!("right-{subject}"));
    let wrong = Mutex::new(String::new());
    let mut variants = vec!["NONE".to_string()];
    variants.extend(list(subject, "ODDITIES").into_iter().map(|(name, _)| name));
    for_each(&variants, |name| {
        let object = compiled(&scratch, subject, name, "ODD")?;
        for outcome in run(&object, None, 6 * LIMIT, false).iter().filter(failed) {
            let _ = writeln!(wrong.lock().unwrap(), "{name}: {outcome}");
        }
        Ok(())
    })?;
    let wrong = wrong.into_inner().map_err(|e| e.to_string())?;
    assert!(wrong.is_empty(), "what is right does not pass:\n{wrong}");
    println!("  {} variants pass", variants.len());
    Ok(())
}

/// The time limits of successive runs. A bug that shows as a hang takes the whole limit. Some bugs are races: two threads seldom
/// meet within some instructions on a busy machine.
const LIMITS: [Duration; 10] = {
    let mut limits = [LIMIT; 10];
    limits[0] = Duration::from_secs(4);
    limits[9] = Duration::from_secs(30);
    limits
};

fn mistakes_are_found(subject: &str) -> Verdict {
    let scratch = Scratch::new(&format!("mistakes-{subject}"));
    let (table, names) = (table(), list(subject, "MUTATIONS"));
    let (missed, gaps) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let add = |list: &Mutex<Vec<String>>, line| list.lock().unwrap().push(line);
    for_each(&names, |(name, words)| {
        let row = table.iter().find(|row| row.subject == subject && row.name == *name);
        let Some(Row { check, .. }) = row else {
            let how = format!("run with --anew {subject}/{name}");
            add(&missed, format!("{name} ({words}) is not in the table: {how}"));
            return Ok(());
        };
        if check == NOTHING {
            add(&gaps, name.clone());
            return Ok(());
        }
        let object = compiled(&scratch, subject, name, "MUTATION")?;
        let finds = |limit: &Duration| {
            let outcomes = run(&object, Some(check), *limit, false);
            outcomes.iter().any(|outcome| outcome.check.name == check && failed(&outcome))
        };
        if !LIMITS.iter().any(finds) {
            add(&missed, format!("{check} does not find {name}: {words}"));
        }
        Ok(())
    })?;
    remove_left_sockets();
    let lines = |list: Mutex<Vec<String>>| list.into_inner().map_err(|e| e.to_string());
    let (missed, gaps) = (lines(missed)?, lines(gaps)?);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    println!("  {} mistakes found", names.len() - gaps.len());
    if !gaps.is_empty() {
        println!("  no check finds {}", gaps.join(", "));
    }
    Ok(())
}

/// Removes the files that `FILE_LEFT_BEHIND` of rings leaves: `/tmp/rings-` and 32 digits.
fn remove_left_sockets() {
    for entry in std::fs::read_dir("/tmp").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of_rings = name.to_str().and_then(|name| name.strip_prefix("rings-"));
        let number = |name: &str| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit());
        let socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if socket && of_rings.is_some_and(number) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Runs `work` on each element, two at a time, because waiting takes no processor.
fn for_each<T: Sync>(list: &[T], work: impl Fn(&T) -> Verdict + Sync) -> Verdict {
    let next = AtomicUsize::new(0);
    let each = || {
        while let Some(one) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(one)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(each), scope.spawn(each)];
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

struct Row {
    subject: String,
    name: String,
    check: String,
}

/// The placeholder for a bug that no check finds yet.
const NOTHING: &str = "nothing yet";

const TABLE: &str = "
## The check that finds each mistake

The suite is tested with two providers, [`rings.c`](../conformance/subjects/rings.c) and [`pairs.c`](../conformance/subjects/pairs.c).
Each has build options, and each option adds one known bug. The last column names the first check that finds the bug, also on a busy machine.

| provider | built with | mistake | found by |
|---|---|---|---|
";

fn committed() -> String {
    std::fs::read_to_string(source().join("docs/checks.md")).unwrap_or_default()
}

fn table() -> Vec<Row> {
    let text = committed();
    let lines = text.split_once(TABLE).map_or("", |(_, table)| table).lines();
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let plain = |at: usize| Some((*cells.get(at)?).trim().trim_matches('`').to_string());
        Some(Row { subject: plain(0)?, name: plain(1)?, check: plain(3)? })
    };
    lines.filter_map(row).collect()
}

fn rendered(table: &[Row]) -> String {
    let mut text = page() + TABLE;
    for subject in SUBJECTS {
        for (name, words) in list(subject, "MUTATIONS") {
            let row = table.iter().find(|row| row.subject == subject && row.name == name);
            let check = row.map_or(NOTHING, |row| row.check.as_str());
            let words = words.trim_end_matches('.').replace('|', "or");
            let _ = writeln!(text, "| {subject} | `{name}` | {words} | `{check}` |");
        }
    }
    text
}

fn page_is_fresh() -> Verdict {
    let command = "cargo test -p tieline-conformance --test mutations -- --page";
    assert!(
        committed() == rendered(&table()),
        "docs/checks.md is stale: write it with `{command}`"
    );
    Ok(())
}

fn write_page(anew: &[String]) -> Verdict {
    let scratch = Scratch::new("anew");
    let found = Mutex::new(Vec::new());
    let one = |mistake: &String| -> Verdict {
        let (subject, name) = mistake.split_once('/').ok_or("a mistake is named SUBJECT/NAME")?;
        let object = compiled(&scratch, subject, name, "MUTATION")?;
        let outcomes = run(&object, None, LIMIT, true);
        let first = outcomes.iter().find(failed);
        println!("{mistake}: {}", first.map_or("NOT FOUND".to_string(), Outcome::to_string));
        let check = first.map_or(NOTHING, |outcome| outcome.check.name).to_string();
        let row = Row { subject: subject.to_string(), name: name.to_string(), check };
        found.lock().map_err(|e| e.to_string())?.push(row);
        Ok(())
    };
    for_each(anew, one)?;
    let mut rows = found.into_inner().map_err(|e| e.to_string())?;
    rows.extend(table());
    std::fs::write(source().join("docs/checks.md"), rendered(&rows)).map_err(|e| e.to_string())
}
