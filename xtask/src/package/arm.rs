//! `cargo xtask package test arm64`: builds the packages for 64-bit Arm, and runs them and unit tests under emulation.
//!
//! The emulation shows that the code is right for Arm's instructions, records and system calls. It does not show weak ordering,
//! speed or devices: see the litmus tests (`tests/testing/src/litmus.rs`).

use super::roots::{self, Processor};
use super::test::{Given, all_inside, lint, step, steps_inside};
use super::{build, cross, emulated};
use crate::check::Count;
use crate::sh::{Outcome, capture, command, files_of, make_folder, root, target};
use std::path::{Path, PathBuf};

pub(super) const ARCHITECTURE: &str = "arm64";

/// The place of the emulator in the root with compilers. It is linked statically.
const EMULATOR: &str = "usr/bin/qemu-aarch64";

/// The packages whose unit tests run in an emulated processor. The others need devices, other programs, or hours.
const TESTED: &[&str] = &[
    "tieline-plugin-api",
    "tieline-testing",
    "tieline-explain",
    "tieline-config",
    "tieline-order",
    "tieline-tag",
    "tieline-wireup",
    "tieline-trial",
    "tieline-memory-file",
    "tieline-single-copy",
    "tieline-registration",
    "tieline-net",
    "tieline-host",
    "tieline-choose",
    "tieline-lookup",
    "tieline-job",
    "tieline-provider-shm",
    "tieline-provider-tcp",
    "tieline-provider-tcp-connect",
    "tieline",
];

/// The packages of which `cargo xtask test --all` runs the unit tests: those that contain instructions, orderings or records that
/// depend on the processor.
const SELECTED: &[&str] = &[
    "tieline-plugin-api",
    "tieline-testing",
    "tieline-explain",
    "tieline-memory-file",
    "tieline-net",
    "tieline-host",
    "tieline-provider-shm",
];

/// Builds unit tests with the compiler of Debian for the other architecture, and runs them.
const UNIT_TESTS: &str = r#"
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t sysfs sys /sys
ip link set lo up
# A random case takes up to a hundred times as long as outside the emulation.
export PROPTEST_CASES=16
cd /tree
export CARGO_TARGET_DIR=/built CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
sources="--config source.crates-io.replace-with='vendored' --config source.vendored.directory='/vendor'"
options="--locked --offline $sources --target aarch64-unknown-linux-gnu"
cargo build $options -p tieline-provider-tcp-plugin -p tieline-provider-tcp-connect-plugin
export BUILT_FOR_TESTS=/built/aarch64-unknown-linux-gnu/debug
cargo test --no-fail-fast $options --lib $PACKAGES -- --test-threads 2 $SKIPPED
"#;

/// Tests that cannot pass under the emulation, or parts of their names, with the reason.
const NOT_EMULATED: &[(&str, &str)] = &[
    (
        "pages_of_a_peers_file_are_populated_before_they_are_touched",
        "the emulator passes no advice on population to the kernel",
    ),
    (
        "a_forked_child_has_none_of_the_buffers",
        "the emulator writes /proc/self/smaps itself, without the flag that the test reads",
    ),
    (
        "when_an_answer_came_is_known_also_where_nobody_looked_for_long",
        "the emulator passes only four bytes of the kernel's record of a connection (TCP_INFO)",
    ),
    (
        "a_gigabyte_crosses_three_streams_unharmed",
        "the emulation needs more than the time limit for a gigabyte",
    ),
    ("peer_before_1_4_gets_sealed_keys_and_later_one_bare", WITHOUT_COPIES),
    ("a_module_is_found_by_all_of_its_names_together", WITHOUT_COPIES),
    ("only_interfaces_without_system_calls_are_polled_in_every_call", WITHOUT_COPIES),
];

const WITHOUT_COPIES: &str = "the emulator has no process_vm_readv, which shm-cma needs";

/// The parts of the test. Each of them runs alone if it is named.
pub(super) const PARTS: [&str; 3] = ["arm64-steps", "arm64-mixed", "arm64-units"];

/// Builds the packages from source unless they were made before, and runs these parts of the test.
pub(super) fn test(is_made: bool, parts: &[&str]) -> Outcome<Count> {
    if let Err(text) = emulated::check() {
        return Ok(Count::skip(format!("{ARCHITECTURE}: {text}")));
    }
    let folder = match cross::compilers(ARCHITECTURE)? {
        Ok(folder) => folder,
        Err(reason) => return Ok(Count::skip(format!("{ARCHITECTURE}: {reason}"))),
    };
    let mut total = Count::default();
    if !is_made && parts.iter().any(|part| *part != "arm64-units") {
        total.add(Count::one(cross::make_in(&folder, ARCHITECTURE)));
        total.add(Count::one(cross::rpms_in(&folder, ARCHITECTURE).map(drop)));
    }
    if total.failed.is_empty() {
        let emulator = folder.join(EMULATOR);
        for part in parts {
            total.add(match *part {
                "arm64-steps" => steps(&emulator),
                "arm64-mixed" => mixed(&folder, &emulator),
                _ => unit_tests(&folder, TESTED),
            });
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(total)
}

/// Lints the packages, and runs the steps of all packages in an emulated root.
fn steps(emulator: &Path) -> Count {
    let mut given = vec![
        (cross::packages(ARCHITECTURE), "packages", &["deb"][..]),
        (cross::next(ARCHITECTURE), "next", &["deb"]),
    ];
    let mut total: Count = lint(ARCHITECTURE, &cross::packages(ARCHITECTURE)).into();
    match backend() {
        Ok(folder) => given.push((folder, "packages", &["deb"])),
        Err(text) => total.add(Count::one(Err(format!("{ARCHITECTURE}: {text}")))),
    }
    // A step whose packages were not made reports that it is skipped.
    for (made, place, ending) in [
        ("rpm-arm64", "rpms", &["rpm"][..]),
        ("wheel-arm64", "wheels", &["whl"]),
        ("nixl-arm64", "wheels", &["whl"]),
    ] {
        let made = target().join("packages").join(made);
        if files_of(&made, ending[0]).is_ok_and(|files| !files.is_empty()) {
            given.push((made, place, ending));
        }
    }
    for steps in ["", "arm64"] {
        let more = "python3-dev,procps";
        let emulated = roots::root("trixie", more, Processor::Emulated(emulator));
        total.add(all_inside(ARCHITECTURE, emulated, &given, steps, Some(emulator)));
    }
    total
}

/// Makes the package of the backend for NIXL, over the packaged library. Returns its folder.
fn backend() -> Outcome<PathBuf> {
    let (library, made) = ("packages/library-arm64", "packages/nixl-deb-arm64");
    let (library, made) = (target().join(library), target().join(made));
    build::emptied(&library)?;
    let packages = files_of(cross::packages(ARCHITECTURE), "deb")?;
    let is_library = |file: &&PathBuf| crate::sh::name_of(file).starts_with("libtieline0_");
    let package = packages.iter().find(is_library).ok_or("there is no package libtieline0")?;
    let _ = capture(command("dpkg-deb", &["--extract"]).arg(package).arg(&library))?;
    let (from, to) = (library.to_string_lossy(), made.to_string_lossy());
    cross::aimed(ARCHITECTURE, &["nixl", "--over", &from, &to])?;
    Ok(made)
}

/// Lets a process of this machine's processor talk with an emulated one.
fn mixed(folder: &Path, emulator: &Path) -> Count {
    let own = target().join("packages/deb");
    if !own.exists() {
        return Count::skip("two processors: cargo xtask package deb has made no packages");
    }
    let given: [Given<'_>; 2] =
        [(own, "own", &["deb"]), (cross::packages(ARCHITECTURE), "packages", &["deb"])];
    steps_inside("two processors", folder, &given, "mixed", Some(emulator))
}

/// Runs the unit tests that `cargo xtask test --all` runs.
pub(crate) fn selected() -> Count {
    if let Err(text) = emulated::check() {
        return Count::skip(format!("{ARCHITECTURE}: {text}"));
    }
    let folder = match cross::compilers(ARCHITECTURE) {
        Ok(Ok(folder)) => folder,
        Ok(Err(reason)) => return Count::skip(format!("{ARCHITECTURE}: {reason}")),
        Err(text) => return Count::one(Err(text)),
    };
    let count = unit_tests(&folder, SELECTED);
    let _ = std::fs::remove_dir_all(&folder);
    count
}

/// Runs the unit tests of these packages in a root with compilers.
fn unit_tests(folder: &Path, packages: &[&str]) -> Count {
    let prepared = super::vendor(&folder.join("vendor"))
        .and_then(|()| make_folder(folder.join("tree")))
        .and_then(|()| make_folder(folder.join("built")));
    if let Err(text) = prepared {
        return Count::one(Err(text));
    }
    let emulator = folder.join(EMULATOR);
    let mut script = roots::script_with_tree(folder, Some(&emulator), &root(), UNIT_TESTS);
    let packages: Vec<String> = packages.iter().map(|name| format!("-p {name}")).collect();
    let skipped: Vec<String> =
        NOT_EMULATED.iter().map(|(name, _)| format!("--skip {name}")).collect();
    let _ = script.env("PACKAGES", packages.join(" ")).env("SKIPPED", skipped.join(" "));
    let (count, said) = step(&mut script);
    let ran = said.iter().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok"));
    println!("{ARCHITECTURE}: {} unit tests ran under emulation", ran.count());
    NOT_EMULATED
        .iter()
        .for_each(|(name, reason)| println!("not under emulation: {name}: {reason}"));
    if !count.failed.is_empty() {
        said.iter()
            .filter(|line| line.contains("FAILED") || line.contains("panicked"))
            .for_each(|line| println!("    {line}"));
    }
    count
}
