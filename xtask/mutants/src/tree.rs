//! A copy of the tree with mutants compiled in, each behind its switch.

use crate::PACKAGES;
use crate::find::{Edit, Mutant};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The variable whose value is the number of the mutant that is on: none of the library's, which would be misspelt.
pub(crate) const SWITCH: &str = "MUTANT_THAT_IS_ON";

/// The variable that names a file, to which the numbers of the mutants are added that a process comes by.
pub(crate) const REACHED: &str = "MUTANTS_REACHED";

/// Added to each package: whether a mutant is on. A process finds that out once.
const FUNCTION: &str = r#"
/// Whether this mutant is on.
#[doc(hidden)]
#[inline(never)]
pub fn mutant_switch(id: u32) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static ON: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    static TELLS: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    static TOLD: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];
    if let Some(file) = TELLS.get_or_init(|| std::env::var_os("MUTANTS_REACHED")) {
        if !TOLD[id as usize].swap(true, Ordering::Relaxed) {
            let file = std::fs::OpenOptions::new().append(true).open(file);
            let _ = file.and_then(|mut file| std::io::Write::write_all(&mut file, format!("{id}\n").as_bytes()));
        }
    }
    let on = ON.get_or_init(|| {
        std::env::var("MUTANT_THAT_IS_ON").ok().and_then(|id| id.parse().ok()).unwrap_or(0)
    });
    *on == id
}
"#;

/// Copies the tree to `work/tree` and compiles in as many of the mutants, in their order, as are wanted: those that do not
/// compile are left out. The number of a mutant is its place in the result, from 1 on.
pub(crate) fn compiled_in(
    root: &Path,
    work: &Path,
    all: Vec<Mutant>,
    wanted: usize,
) -> Result<Vec<Mutant>, String> {
    let tree = work.join("tree");
    copy(root, &tree)?;
    let mut all = all.into_iter();
    let mut chosen: Vec<Mutant> = Vec::new();
    loop {
        while chosen.len() < wanted {
            let Some(mutant) = all.next() else { break };
            if !chosen.iter().any(|other| overlap(other, &mutant)) {
                chosen.push(mutant);
            }
        }
        let places = write(root, &tree, &chosen)?;
        println!("compiling {} mutants", chosen.len());
        let wrong = wrong(&tree, work, &places)?;
        if wrong.is_empty() {
            return Ok(chosen);
        }
        println!("{} of them do not compile", wrong.len());
        for (at, mutant) in chosen.iter().enumerate() {
            if mutant.is_promise && wrong.contains(&(at + 1)) {
                return Err(format!("this promise does not compile: {mutant}"));
            }
        }
        let mut number = 0;
        chosen.retain(|_| {
            number += 1;
            !wrong.contains(&number)
        });
    }
}

/// Two changes of the same bytes cannot be made at once.
fn overlap(a: &Mutant, b: &Mutant) -> bool {
    let (of_a, of_b) = (a.edit.range(), b.edit.range());
    a.file == b.file && of_a.start <= of_b.end && of_b.start <= of_a.end
}

/// What git knows and what it does not ignore; a file that has not changed keeps its time, so that cargo knows it.
fn copy(root: &Path, tree: &Path) -> Result<(), String> {
    let mut git = Command::new("git");
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = git.current_dir(root).args(args).output().map_err(|e| format!("git: {e}"))?;
    for name in String::from_utf8_lossy(&output.stdout).split('\0').filter(|name| !name.is_empty())
    {
        if let Ok(bytes) = fs::read(root.join(name)) {
            put(&tree.join(name), &bytes)?;
        }
    }
    Ok(())
}

fn put(file: &Path, bytes: &[u8]) -> Result<(), String> {
    if fs::read(file).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let said = |e: std::io::Error| format!("{}: {e}", file.display());
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(said)?;
    }
    fs::write(file, bytes).map_err(said)
}

/// Where each mutant lies: its file, its first and its last line.
type Places = Vec<(String, usize, usize)>;

fn write(root: &Path, tree: &Path, chosen: &[Mutant]) -> Result<Places, String> {
    let mut of_files: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (at, mutant) in chosen.iter().enumerate() {
        of_files.entry(&mutant.file).or_default().push((at, mutant));
    }
    let mut places = vec![(String::new(), 0, 0); chosen.len()];
    let mut sources: Vec<String> = of_files.keys().map(|file| (*file).to_owned()).collect();
    sources.extend(PACKAGES.iter().map(|(_, folder)| format!("{folder}/src/lib.rs")));
    // Files whose mutants have all been left out become what they were.
    sources.extend(
        fs::read_to_string(tree.join("mutated")).unwrap_or_default().lines().map(Into::into),
    );
    sources.sort();
    sources.dedup();
    for file in &sources {
        let text = fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
        let mut mutants = of_files.remove(file.as_str()).unwrap_or_default();
        mutants.sort_by_key(|(_, mutant)| mutant.edit.range().start);
        let (mut new, mut end) = (String::new(), 0);
        for (at, mutant) in mutants {
            let range = mutant.edit.range();
            new.push_str(&text[end..range.start]);
            let first = new.matches('\n').count() + 1;
            let (id, old) = (at + 1, &text[range.clone()]);
            new.push_str(&match &mutant.edit {
                Edit::Replace(_, other) => {
                    format!("(if crate::mutant_switch({id}) {{ {other} }} else {{ {old} }})")
                }
                Edit::Leave(_) => format!("if !crate::mutant_switch({id}) {{ {old} }}"),
                Edit::Return(_, value) => {
                    format!(" if crate::mutant_switch({id}) {{ return {value}; }}")
                }
            });
            end = range.end;
            places[at] = (file.clone(), first, new.matches('\n').count() + 1);
        }
        new.push_str(&text[end..]);
        if file.ends_with("src/lib.rs") {
            new.push_str(FUNCTION);
        }
        put(&tree.join(file), new.as_bytes())?;
    }
    put(&tree.join("mutated"), sources.join("\n").as_bytes())?;
    Ok(places)
}

/// Cargo in the copy. Lints are not for mutants.
pub(crate) fn cargo(tree: &Path, work: &Path, args: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let _ = cargo
        .current_dir(tree)
        .args(args)
        .args(["--offline", "--message-format", "json"])
        .env("CARGO_TARGET_DIR", work.join("build"))
        .env("RUSTFLAGS", "--cap-lints allow")
        .stderr(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST")
        }) {
            let _ = cargo.env_remove(name);
        }
    }
    cargo
}

/// The numbers of the mutants in whose lines the compiler found errors.
fn wrong(tree: &Path, work: &Path, places: &Places) -> Result<HashSet<usize>, String> {
    let mut check = cargo(tree, work, &["check", "--lib", "--keep-going"]);
    for (package, _) in PACKAGES {
        let _ = check.args(["-p", package]);
    }
    let output = check.output().map_err(|e| format!("cargo: {e}"))?;
    let (mut wrong, mut other) = (HashSet::new(), Vec::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(said) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if said["message"]["level"] != "error" {
            continue;
        }
        let spans = said["message"]["spans"].as_array().cloned().unwrap_or_default();
        let mut known = spans.is_empty();
        for span in spans {
            let number = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
            let (first, last) = (number("line_start"), number("line_end"));
            let file = span["file_name"].as_str().unwrap_or("");
            for (at, place) in places.iter().enumerate() {
                if place.0 == file && place.1 <= last && first <= place.2 {
                    known = wrong.insert(at + 1) || known || wrong.contains(&(at + 1));
                }
            }
        }
        if !known {
            other.push(said["message"]["rendered"].as_str().unwrap_or("").to_owned());
        }
    }
    if wrong.is_empty() && !output.status.success() {
        return Err(format!("the copy does not compile: {}", other.join("\n")));
    }
    Ok(wrong)
}
