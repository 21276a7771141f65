//! `cargo xtask package test`: tests the packages in roots in which the project was never installed.
//!
//! mmdebstrap makes a root once, and an archive of it is kept in `target/packages/roots`. A test unpacks the root again, and steps
//! of `packaging/test` run in it, in order: a step is a shell script whose first line describes it.

use super::roots::{self, Root, unpacked};
use super::{arm, build, deb, nixl, rpm, source, there};
use crate::check::Count;
use crate::sh::{
    self, Outcome, bytes, command, is_root, listened, make_folder, name_of, on, root, target,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Debian releases in which packages are tested: the packages are made for bookworm, and newer releases must install them.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// The release of the root in which the source package is built: the oldest one whose compiler suffices.
const BUILDS: &str = "trixie";
const COMPILER: &str = "cargo,rustc";

/// The packages of Debian with the crates that the released packages use.
const DEBIANS_CRATES: &str = "librust-clap-dev,librust-clap-complete-dev,librust-clap-mangen-dev,librust-hmac-dev,librust-libc-dev,\
                              librust-libloading-dev,librust-once-cell-dev,librust-semver-dev,librust-serde-dev,\
                              librust-serde-json-dev,librust-sha2-dev,librust-socket2-dev,librust-toml-dev";

/// The word for tests of the packages that were made before. Each build takes the largest part of a test's time.
const MADE: &str = "--made";

/// Runs the tests, or those that are named: a release, `rpm`, or `source`.
pub(crate) fn run(words: &[&str]) -> Count {
    let (flags, named): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| **word == MADE);
    let (is_made, named) = (!flags.is_empty(), &named[..]);
    if let Err(text) = known(named) {
        return Count::one(Err(text));
    }
    let is_wanted = |what: &str| named.is_empty() || named.contains(&what);
    let releases: Vec<&str> = RELEASES.into_iter().filter(|release| is_wanted(release)).collect();
    let mut count = Count::default();
    if !releases.is_empty() {
        count.add(debian(&releases, is_made).into());
    }
    if is_wanted("rpm") {
        count.add(rpms(is_made).into());
    }
    if is_wanted("source") {
        count.add(sources(is_made).into());
    }
    if is_wanted("distribution") {
        let with = format!("{COMPILER},{DEBIANS_CRATES}");
        count.add(all_inside("distribution", unpacked(BUILDS, &with), &[], "distribution", None));
    }
    // Each of these builds everything once more, so it only runs if it is named.
    if named.contains(&"srpm") {
        count.add(source_rpm().into());
    }
    // The build and the emulation take most of an hour, so this test only runs if it is named.
    let all = named.contains(&arm::ARCHITECTURE);
    let parts: Vec<&str> =
        arm::PARTS.into_iter().filter(|part| all || named.contains(part)).collect();
    if !parts.is_empty() {
        count.add(arm::test(is_made, &parts).into());
    }
    count
}

fn known(named: &[&str]) -> Outcome {
    let all =
        [&RELEASES[..], &["rpm", "source", "srpm", "distribution", arm::ARCHITECTURE], &arm::PARTS]
            .concat();
    match named.iter().find(|name| !all.contains(name)) {
        Some(name) => Err(format!("`{name}` cannot be tried: {} can", all.join(", "))),
        None => Ok(()),
    }
}

fn debian(releases: &[&str], is_made: bool) -> Outcome<Count> {
    if let Err(text) = there(deb::NEEDS) {
        return Ok(Count::skip(format!("Debian's packages: {text}")));
    }
    if !is_made {
        let _ = deb::make(deb::VERSION)?;
    }
    // The first directory contains the packages, and the second those of the next version.
    let (now, next) = (target().join("packages/deb"), target().join("packages/deb-next"));
    deb::again(deb::NEXT, &next)?;
    let mut total = same_bytes("deb", &now, |folder| deb::again(deb::VERSION, folder));
    total.add(all_outside("deb", "deb").into());
    let mut given = vec![(now, "packages", &["deb"][..]), (next, "next", &["deb"])];
    let backend = target().join("packages/nixl-deb");
    match nixl::package(&target().join("packages/stage-deb"), &backend)? {
        Ok(_) => given.push((backend, "packages", &["deb"])),
        Err(reason) => total.add(Count::skip(format!("the backend for NIXL: {reason}"))),
    }
    for release in releases {
        total.add(all_inside(release, unpacked(release, ""), &given, "", None));
    }
    Ok(total)
}

fn all_outside(place: &str, kind: &str) -> Outcome<Count> {
    let scripts = files_of(&root().join("packaging/test").join(kind), "sh")?;
    Ok(each(place, &scripts, |name| outside(kind, name)))
}

/// Lints packages that another root has made.
pub(super) fn lint(place: &str, packages: &Path) -> Outcome<Count> {
    let scripts = files_of(&root().join("packaging/test/deb/other"), "sh")?;
    Ok(each(place, &scripts, |name| {
        let mut bash = outside("deb/other", name);
        let _ = bash.env("DEBS", packages);
        bash
    }))
}

/// Files of directories, selected by their endings, and the directories of a root to which they are copied.
pub(super) type Given<'a> = (PathBuf, &'a str, &'a [&'a str]);

/// Runs the steps of a directory in a root to which these files are copied, and removes the root. `emulator`: that of the root's
/// programs.
pub(super) fn all_inside(
    place: &str,
    root_of: Outcome<Root>,
    given: &[Given<'_>],
    steps: &str,
    emulator: Option<&Path>,
) -> Count {
    let folder = match root_of {
        Ok(Ok(folder)) => folder,
        Ok(Err(reason)) => return Count::skip(format!("{place}: {reason}")),
        Err(text) => return Count::one(Err(format!("{place}: {text}"))),
    };
    let count = steps_inside(place, &folder, given, steps, emulator);
    // The root contains devices and files of other users, so it is removed here.
    let _ = std::fs::remove_dir_all(&folder);
    count
}

/// Runs the steps of a directory in an unpacked root.
pub(super) fn steps_inside(
    place: &str,
    folder: &Path,
    given: &[Given<'_>],
    steps: &str,
    emulator: Option<&Path>,
) -> Count {
    let laid = given_to(folder, given)
        .and_then(|()| make_folder(folder.join("tree")))
        .and_then(|()| laid(folder, &root().join("packaging/test").join(steps)))
        .map_err(|text| format!("{place}: {text}"));
    laid.map(|scripts| each(place, &scripts, |name| inside(folder, name, emulator))).into()
}

/// Tests a release: in clean roots, the package managers of systems install from it.
pub(super) fn release(folder: &Path) -> Count {
    let mut count = Count::default();
    for name in RELEASES {
        let filled = unpacked(name, "").and_then(|root_of| match root_of {
            Ok(root) => build::copied(folder, &root.join("release")).map(|()| Ok(root)),
            skipped => Ok(skipped),
        });
        count.add(all_inside(name, filled, &[], "release", None));
    }
    let debian = unpacked(RELEASES[0], "");
    let root_of = debian.as_ref().ok().and_then(|root| root.as_deref().ok());
    let steps = files_of(&root().join("packaging/test/release/outside"), "sh");
    let tried = steps.map(|scripts| {
        each("rpm", &scripts, |name| {
            let mut bash = outside("release/outside", name);
            let _ = bash.env("RELEASE", folder);
            let _ = bash.env("DEBIAN", root_of.unwrap_or(Path::new("")));
            bash
        })
    });
    let _ = root_of.map(std::fs::remove_dir_all);
    count.add(tried.into());
    count.add(debian.map(|_| Count::default()).into());
    count
}

/// Tests the source package: a second build has the same bytes, the linters report nothing, and it builds without a network.
fn sources(is_made: bool) -> Outcome<Count> {
    if let Err(text) = there(source::NEEDS).and_then(|()| there(deb::NEEDS)) {
        return Ok(Count::skip(format!("the source package: {text}")));
    }
    if !is_made {
        let _ = deb::make(deb::VERSION)?;
    }
    let _ = source::make(&source::folder())?;
    let mut total = same_bytes("dsc", &source::folder(), |folder| source::make(folder).map(|_| ()));
    total.add(all_outside("source", "source/outside").into());
    let given = [
        (source::folder(), "packages", &["dsc", "xz"][..]),
        (target().join("packages/deb"), "debs", &["deb"]),
    ];
    let with = format!("{COMPILER},python3-dev");
    total.add(all_inside("source", unpacked(BUILDS, &with), &given, "source", None));
    Ok(total)
}

/// Tests the source rpm: a second one has the same bytes, and it builds without a network.
fn source_rpm() -> Outcome<Count> {
    if let Err(text) = there(source::NEEDS).and_then(|()| there(rpm::NEEDS)) {
        return Ok(Count::skip(format!("the source rpm: {text}")));
    }
    let _ = rpm::source(&rpm::sources())?;
    let mut total = same_bytes("rpm", &rpm::sources(), |folder| rpm::source(folder).map(|_| ()));
    let given = [(rpm::sources().join("SRPMS"), "packages", &["rpm"][..])];
    let with = format!("{COMPILER},{}", rpm::TOOLS);
    total.add(all_inside("srpm", unpacked(BUILDS, &with), &given, "srpm", None));
    Ok(total)
}

fn each(place: &str, scripts: &[PathBuf], run: impl Fn(&str) -> Command) -> Count {
    let mut total = Count::default();
    for script in scripts {
        let name = name_of(script);
        let text = std::fs::read_to_string(script).unwrap_or_default();
        let what = title(&text).unwrap_or(&name).to_owned();
        let (count, said) = step(&mut run(&name));
        let named = |text: &String| format!("{place}: {name}: {text}");
        let verdict = match (count.failed.first(), count.skipped.first()) {
            (Some(text), _) => ("FAILED", Count::one(Err(named(text)))),
            (_, Some(reason)) => ("skipped", Count::skip(named(reason))),
            _ => ("ok", count),
        };
        println!("{place}: {what} {}", verdict.0);
        if verdict.0 == "FAILED" {
            said.iter().for_each(|line| println!("    {line}"));
        }
        total.add(verdict.1);
    }
    total
}

/// Tests the rpms: with the solver of rpm, and in a Debian root, since an rpm root has no C library on this machine.
fn rpms(is_made: bool) -> Outcome<Count> {
    if let Err(text) = there(rpm::NEEDS) {
        return Ok(Count::skip(format!("rpms: {text}")));
    }
    if !is_root() {
        return Ok(Count::skip("rpms: a root of their own needs root's rights here"));
    }
    if !is_made {
        let _ = rpm::make()?;
    }
    let scripts = files_of(&root().join("packaging/test/rpm"), "sh")?;
    let mut count = same_bytes("rpm", &target().join("packages/rpm"), rpm::again);
    let debian = unpacked(RELEASES[0], "");
    // If there is no root, the step that needs one reports that it is skipped.
    let folder = debian.as_ref().ok().and_then(|root| root.as_deref().ok());
    count.add(each("rpm", &scripts, |name| {
        let mut bash = outside("rpm", name);
        let _ = bash.env("DEBIAN", folder.unwrap_or(Path::new("")));
        bash
    }));
    let _ = folder.map(std::fs::remove_dir_all);
    count.add(debian.map(|_| Count::default()).into());
    Ok(count)
}

/// The beginning of each step's script: it makes a temporary directory for the step, which is removed afterwards. Without that
/// directory the step does not run.
const SCRATCH: &str = "own_at=$(mktemp -d); trap 'cd /; rm -rf \"$own_at\"' EXIT; cd \"$own_at\"";

fn outside(kind: &str, name: &str) -> Command {
    let packaging = root().join("packaging");
    let words = format!(". \"$PACKAGING/test/prelude\"; {SCRATCH}; . \"$PACKAGING/test/$STEP\"");
    let mut bash = command("bash", &["-eu", "-c", &words]);
    let _ = bash.env("STEP", format!("{kind}/{name}"));
    let _ = bash.env("RPMS", target().join("packages/rpm/RPMS"));
    let _ = bash.env("DEBS", target().join("packages/deb"));
    let _ = bash.env("SOURCES", source::folder());
    let _ = bash.env("PACKAGING", packaging).env("SOURCE", root()).env("LC_ALL", "C.UTF-8");
    bash
}

/// Makes the packages of a directory again from the same tree, and checks that the bytes are the same.
fn same_bytes(kind: &str, first: &Path, again: impl FnOnce(&Path) -> Outcome) -> Count {
    let second = first.with_file_name(format!("{}-again", name_of(first)));
    let compared = again(&second).and_then(|()| {
        let mut files = build::files(first)?;
        files.retain(|file| file.extension().is_some_and(|e| e == kind || e == "xz"));
        for file in &files {
            let name = file.strip_prefix(first).unwrap_or(file);
            if bytes(file)? != bytes(second.join(name))? {
                return Err(format!("{} is another file when it is made again", name.display()));
            }
        }
        println!("{kind}: {} packages, made again, are the same bytes", files.len());
        on(&second, std::fs::remove_dir_all(&second))
    });
    Count::one(compared)
}

fn title(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("# ")
}

fn given_to(root: &Path, given: &[Given<'_>]) -> Outcome {
    for (from, to, endings) in given {
        for ending in *endings {
            copied(&files_of(from, ending)?, &root.join(to))?;
        }
    }
    Ok(())
}

/// Copies the steps of a directory into a root; returns them in order.
fn laid(folder: &Path, steps: &Path) -> Outcome<Vec<PathBuf>> {
    build::emptied(&folder.join("scratch"))?;
    let scripts = files_of(steps, "sh")?;
    copied(&scripts, &folder.join("steps"))?;
    copied(&[root().join("packaging/test/prelude")], &folder.join("steps"))?;
    Ok(scripts)
}

fn copied(files: &[PathBuf], to: &Path) -> Outcome {
    let mut files = files.iter();
    files.try_for_each(|file| build::copy(file, &to.join(name_of(file))))
}

fn files_of(folder: &Path, ending: &str) -> Outcome<Vec<PathBuf>> {
    let files = sh::files_of(folder, ending)?;
    match files.is_empty() {
        true => Err(format!("{} has no .{ending}", folder.display())),
        false => Ok(files),
    }
}

/// Returns the command of one step, with separate namespaces for processes, mounts and networks, so that nothing remains of it.
/// The step finds this tree at `/tree`.
fn inside(folder: &Path, name: &str, emulator: Option<&Path>) -> Command {
    let words = format!(
        "mount -t tmpfs shm /dev/shm; mount -t tmpfs run /run; mount -t sysfs sys /sys; ip link set lo up; \
         . /steps/prelude; {SCRATCH}; . \"/steps/$STEP\""
    );
    let mut run = roots::script_with_tree(folder, emulator, &root(), &words);
    let _ = run.env("STEP", name);
    run
}

/// Runs a step; returns its result and its output.
pub(super) fn step(command: &mut Command) -> (Count, Vec<String>) {
    let (outcome, said) = listened(command);
    let skipped = said.last().and_then(|line| line.strip_prefix("skipped: "));
    let count = match (outcome, skipped) {
        (Ok(true), _) => Count::one(Ok(())),
        (Ok(false), Some(reason)) => Count::skip(reason),
        (Ok(false), None) => Count::one(Err(said.last().cloned().unwrap_or("no word".into()))),
        (Err(text), _) => Count::one(Err(text)),
    };
    (count, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_fails_unless_it_ends_well_or_says_why_it_cannot_run() {
        let step = |words: &str| step(&mut command("bash", &["-eu", "-c", words])).0;
        assert_eq!(step("true").passed, 1);
        assert_eq!(step("echo 'skipped: no net'; exit 1").skipped, ["no net"]);
        assert_eq!(step("echo 'skipped: no net'; echo more; false").failed, ["more"]);
        assert_eq!(step("echo here; false; echo there").failed, ["here"]);
    }

    #[test]
    fn step_runs_in_its_own_directory_which_is_removed_or_not_at_all() {
        let words = format!("{SCRATCH}; pwd; false");
        let (count, said) = step(&mut command("bash", &["-eu", "-c", &words]));
        assert_eq!(count.failed.len(), 1);
        let at = Path::new(&said[0]);
        assert!(at.is_absolute() && at != root() && !at.exists(), "{said:?}");
        let words = format!("{SCRATCH}; echo went on");
        let mut nowhere = command("bash", &["-eu", "-c", &words]);
        let (count, said) = step(nowhere.env("TMPDIR", "/nowhere/at/all"));
        assert!(count.failed.len() == 1 && !said.contains(&"went on".to_owned()), "{said:?}");
    }

    #[test]
    fn misspelt_name_is_refused_with_all_names_and_half_a_root_is_a_failure() {
        assert_eq!(known(&["bookworm", "rpm"]), Ok(()));
        let slip = run(&["bookwrm"]);
        assert_eq!(
            slip.failed,
            [
                "`bookwrm` cannot be tried: bookworm, trixie, rpm, source, srpm, distribution, arm64, \
                 arm64-steps, arm64-mixed, arm64-units can"
            ]
        );
        assert_eq!(run(&[MADE, "bookwrm"]).failed, slip.failed);
        let inside = |root_of| all_inside("trixie", root_of, &[], "", None);
        assert_eq!(inside(Err("no disk".into())).failed, ["trixie: no disk"]);
        assert_eq!(inside(Ok(Err("no tar".into()))).skipped, ["trixie: no tar"]);
    }

    #[test]
    fn every_step_says_what_it_shows_and_none_hopes_that_a_negation_ends_it() {
        let folder = root().join("packaging/test");
        let mut scripts = files_of(&folder, "sh").unwrap();
        for more in [
            "deb",
            "deb/other",
            "rpm",
            "source",
            "source/outside",
            "srpm",
            "arm64",
            "mixed",
            "distribution",
            "release",
            "release/outside",
        ] {
            scripts.extend(files_of(&folder.join(more), "sh").unwrap());
        }
        assert!(scripts.len() > 12, "{scripts:?}");
        for script in scripts {
            let text = std::fs::read_to_string(&script).unwrap();
            assert!(title(&text).is_some_and(|title| title.ends_with('.')), "{}", script.display());
            let negation = text.lines().find(|line| line.trim_start().starts_with("! "));
            assert_eq!(negation, None, "{}", script.display());
        }
    }
}
