//! A copy of the tree with mutants compiled in, each behind its switch.

use crate::PACKAGES;
use crate::find::{Edit, Mutant};
use std::collections::{BTreeMap, BTreeSet, HashSet};
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
    static TOLD: [AtomicBool; 1 << 16] = [const { AtomicBool::new(false) }; 1 << 16];
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

/// Copies the tree to `work/tree` and marks the place of every mutant: a process that comes by one notes it and nothing
/// changes, so that all fit at once, one within another. The number of a mutant is its place in the result, from 1 on;
/// those beside which a mark does not compile are left out.
pub(crate) fn marked(
    root: &Path,
    work: &Path,
    mut all: Vec<Mutant>,
) -> Result<Vec<Mutant>, String> {
    let tree = work.join("tree");
    copy(root, &tree)?;
    loop {
        let mut of_files: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
        for (at, mutant) in all.iter().enumerate() {
            of_files.entry(&mutant.file).or_default().push((at + 1, mutant));
        }
        let sources = sources(&tree, of_files.keys().copied());
        for file in &sources {
            let text = fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
            let new = with_marks(&text, &of_files.remove(file.as_str()).unwrap_or_default());
            put_source(&tree, file, new)?;
        }
        put(&tree.join("mutated"), sources.join("\n").as_bytes())?;
        println!("compiling the marks of {} mutants", all.len());
        // Marks change no line's number.
        let places = all.iter().map(|m| (m.file.clone(), m.line, m.line)).collect();
        let wrong = wrong(&tree, work, &places)?;
        if wrong.is_empty() {
            return Ok(all);
        }
        let mut number = 0;
        all.retain(|mutant| {
            number += 1;
            let stays = !wrong.contains(&number);
            if !stays {
                println!("not looked at: {mutant}");
            }
            stays
        });
    }
}

/// An expression becomes a pair of the mark and of itself: what it borrows lives as long as without.
fn with_marks(text: &str, mutants: &[(usize, &Mutant)]) -> String {
    // What begins at the same place: the longer one is around the shorter.
    let mut opened: Vec<(usize, usize, String)> = Vec::new();
    let mut closed: Vec<usize> = Vec::new();
    for (id, mutant) in mutants {
        let range = mutant.edit.range();
        let call = format!("crate::mutant_switch({id})");
        match &mutant.edit {
            Edit::Replace(..) => {
                closed.push(range.end);
                opened.push((range.start, range.end, format!("({call}, ")));
            }
            Edit::Leave(_) => opened.push((range.start, usize::MAX, format!("{call}; "))),
            Edit::Return(..) => opened.push((range.start, usize::MAX, format!(" {call};"))),
        }
    }
    opened.sort_by_key(|(start, end, _)| (*start, std::cmp::Reverse(*end)));
    closed.sort_unstable();
    let (mut opened, mut closed) = (opened.into_iter().peekable(), closed.into_iter().peekable());
    let mut new = String::new();
    for (at, letter) in text.char_indices() {
        while closed.next_if_eq(&at).is_some() {
            new.push_str(").1");
        }
        while let Some((_, _, mark)) = opened.next_if(|(start, _, _)| *start == at) {
            new.push_str(&mark);
        }
        new.push(letter);
    }
    new
}

/// The files that are written: those of the mutants, those that hold the switch, and those that were written before, which
/// become what they were.
fn sources<'a>(tree: &Path, files: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut sources: Vec<String> = files.map(str::to_owned).collect();
    sources.extend(PACKAGES.iter().map(|(_, folder)| format!("{folder}/src/lib.rs")));
    sources.extend(
        fs::read_to_string(tree.join("mutated")).unwrap_or_default().lines().map(Into::into),
    );
    sources.sort();
    sources.dedup();
    sources
}

fn put_source(tree: &Path, file: &str, mut text: String) -> Result<(), String> {
    if file.ends_with("src/lib.rs") {
        text.push_str(FUNCTION);
    }
    put(&tree.join(file), text.as_bytes())
}

/// Two changes of the same bytes cannot be made at once.
fn overlap(a: &Mutant, b: &Mutant) -> bool {
    let (of_a, of_b) = (a.edit.range(), b.edit.range());
    a.file == b.file && of_a.start <= of_b.end && of_b.start <= of_a.end
}

/// What git knows and what it does not ignore; a file that has not changed keeps its time, so that cargo knows it. What the
/// tree had when it was copied last and has not now goes.
fn copy(root: &Path, tree: &Path) -> Result<(), String> {
    let mut git = Command::new("git");
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = git.current_dir(root).args(args).output().map_err(|e| format!("git: {e}"))?;
    let names = String::from_utf8_lossy(&output.stdout);
    let names: BTreeSet<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
    let list = tree.join("copied");
    let before = fs::read_to_string(&list).unwrap_or_default();
    for gone in before.lines().filter(|name| !names.contains(name)) {
        let _ = fs::remove_file(tree.join(gone));
    }
    for name in &names {
        if let Ok(bytes) = fs::read(root.join(name)) {
            put(&tree.join(name), &bytes)?;
        }
    }
    put(&list, names.into_iter().collect::<Vec<_>>().join("\n").as_bytes())
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
    let sources = sources(tree, of_files.keys().copied());
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
        put_source(tree, file, new)?;
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

/// Has cargo fetch what the tests need: everything behind it is offline.
pub(crate) fn fetched(root: &Path) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let fetch = cargo.current_dir(root).args(["fetch", "--quiet", "--locked"]).output();
    let fetch = fetch.map_err(|e| format!("cargo: {e}"))?;
    if fetch.status.success() {
        return Ok(());
    }
    Err(format!("cargo fetch: {}", String::from_utf8_lossy(&fetch.stderr).trim()))
}

/// The numbers of the mutants in whose lines the compiler found errors: in the libraries as they are, or as their own
/// tests have them, where some of what they use is played.
fn wrong(tree: &Path, work: &Path, places: &Places) -> Result<HashSet<usize>, String> {
    let found = wrong_in(tree, work, places, &["check", "--lib", "--keep-going"])?;
    if !found.is_empty() {
        return Ok(found);
    }
    wrong_in(tree, work, places, &["check", "--lib", "--keep-going", "--profile", "test"])
}

fn wrong_in(
    tree: &Path,
    work: &Path,
    places: &Places,
    args: &[&str],
) -> Result<HashSet<usize>, String> {
    let mut check = cargo(tree, work, args);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_within_each_other_and_change_nothing() {
        let text = "fn f() { if !a(b + c) { d(); } }";
        let at = |what: &str| {
            let start = text.find(what).unwrap();
            start..start + what.len()
        };
        let edits = [
            Edit::Return(8, String::new()),
            Edit::Replace(at("!a(b + c)"), String::new()),
            Edit::Replace(at("b + c"), String::new()),
            Edit::Replace(at("!a(b + c)"), String::new()),
            Edit::Leave(at("d();")),
        ];
        let mutant = |edit| Mutant {
            package: "p",
            file: String::new(),
            line: 1,
            what: String::new(),
            edit,
            is_promise: false,
        };
        let mutants: Vec<Mutant> = edits.map(mutant).into();
        let mutants: Vec<(usize, &Mutant)> = (1..).zip(&mutants).collect();
        let new = with_marks(text, &mutants).replace("crate::mutant_switch", "m");
        assert_eq!(
            new,
            "fn f() { m(1); if (m(2), (m(4), !a((m(3), b + c).1)).1).1 { m(5); d(); } }"
        );
    }
}
