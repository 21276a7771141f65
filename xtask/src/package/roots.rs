//! Clean roots of Debian releases, in which the project was never installed.
//!
//! mmdebstrap makes a root once, and an archive of it is kept in `target/packages/roots`. Each use unpacks the archive again.

use super::{build, emulated};
use crate::sh::{self, Outcome, command, is_root, make_folder, on, target, which};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that the steps need in a root: the tools of a provider's author, and programs that inspect files or use
/// libfabric.
const INCLUDE: &str = "build-essential,debhelper,pkg-config,iproute2,rpm,libfabric-bin";

const ARCHIVE: &str = "http://deb.debian.org/debian";

/// The path of an unpacked root, or the reason why there is none on this machine.
pub(crate) type Root = Result<PathBuf, String>;

/// Makes a root of this machine's processor, with more packages than the steps need.
pub(crate) fn unpacked(release: &str, more: &str) -> Outcome<Root> {
    root(release, more, Processor::Own)
}

/// The processors whose programs a root contains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Processor<'a> {
    Own,
    /// Programs of this machine, and libraries of another architecture of Debian.
    With(&'a str),
    /// Programs of 64-bit Arm, which run under this emulator.
    Emulated(&'a Path),
}

pub(super) fn root(release: &str, more: &str, processor: Processor<'_>) -> Outcome<Root> {
    let skipped = |reason: String| Ok(Err(reason));
    if !is_root() {
        return skipped("a clean root needs root's rights here".into());
    }
    for program in ["unshare", "chroot", "tar"] {
        if which(program).is_none() {
            return skipped(format!("there is no {program}"));
        }
    }
    let roots = target().join("packages/roots");
    let mut name = if more.is_empty() { release.to_owned() } else { format!("{release}-{more}") };
    // A file name has at most 255 bytes.
    if name.len() > 100 {
        name = format!("{release}-{:x}", hash(&name));
    }
    match processor {
        Processor::Own => {}
        Processor::With(other) => name = format!("{release}-cross-{other}"),
        Processor::Emulated(_) => name = format!("{release}-arm64"),
    }
    let archive = roots.join(format!("{name}.tar"));
    make_folder(&roots)?;
    if !archive.exists() {
        if which("mmdebstrap").is_none() {
            return skipped("there is no mmdebstrap".into());
        }
        println!("making a clean {name}: a minute or two, once");
        let part = roots.join(format!("{name}.part.tar"));
        // A failure before any file was unpacked means that the package archive cannot be reached; a later failure is an error.
        let begun = roots.join(format!("{name}.begun"));
        let _ = std::fs::remove_file(&begun);
        let mut make = match processor {
            Processor::Emulated(emulator) => {
                let mut make = emulated::command(emulator);
                let _ = make.args(["mmdebstrap", "--skip=check/qemu", "--architectures=arm64"]);
                make
            }
            _ => command("mmdebstrap", &[]),
        };
        let _ = make.args(["--quiet", "--variant=minbase"]);
        if let Processor::With(other) = processor {
            let own = sh::capture(&mut command("dpkg", &["--print-architecture"]))?;
            let _ = make.arg(format!("--architectures={},{other}", own.trim()));
        }
        let _ = make.arg(format!("--include={INCLUDE}"));
        if !more.is_empty() {
            let _ = make.arg(format!("--include={more}"));
        }
        let _ = make.arg(release).arg(&part).arg(ARCHIVE);
        let _ = make.arg("--extract-hook=touch \"$TIELINE_BEGUN\"").env("TIELINE_BEGUN", &begun);
        if let Err(text) = sh::run(&mut make) {
            let _ = std::fs::remove_file(&part);
            return match begun.exists() {
                true => Err(format!("its root came about by half: {text}")),
                false => skipped(format!("the archive gives no clean root: {text}")),
            };
        }
        let _ = std::fs::remove_file(&begun);
        on(&archive, std::fs::rename(&part, &archive))?;
    }
    let folder = roots.join(format!("{name}.root"));
    build::emptied(&folder)?;
    let mut tar = command("tar", &["--extract", "--numeric-owner", "--file"]);
    sh::run(tar.arg(&archive).arg("--directory").arg(&folder))?;
    Ok(Ok(folder))
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Returns a command that runs a script in a root, in namespaces of its own for processes, mounts, networks and messages. With an
/// emulator, programs of 64-bit Arm run in it, too.
pub(super) fn script(folder: &Path, emulator: Option<&Path>, text: &str) -> Command {
    let mut run = alone(folder, emulator);
    let _ = run.arg("chroot").arg(folder).args(["bash", "-eu", "-c"]).arg(text);
    run
}

/// Like [`script`]; the root contains this tree at `/tree`, and cannot write to it.
pub(super) fn script_with_tree(
    folder: &Path,
    emulator: Option<&Path>,
    tree: &Path,
    text: &str,
) -> Command {
    const MOUNT: &str = r#"mount --bind -o ro "$1" "$2/tree"; exec chroot "$2" bash -eu -c "$3""#;
    let mut run = alone(folder, emulator);
    let _ = run.args(["bash", "-eu", "-c", MOUNT, "bash"]).arg(tree).arg(folder).arg(text);
    run
}

fn alone(folder: &Path, emulator: Option<&Path>) -> Command {
    let proc = format!("--mount-proc={}", folder.join("proc").display());
    let mut run = match emulator {
        Some(emulator) => {
            let mut run = emulated::command(emulator);
            let _ = run.arg("unshare");
            run
        }
        None => {
            let mut run = command("unshare", &[]);
            let _ = run.env_clear();
            run
        }
    };
    let _ = run.args(["--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", &proc]);
    let _ = run.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    let _ = run.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    // The caller may shorten a trial's builds by another profile.
    let of_profile = |name: &OsStr| name.as_bytes().starts_with(b"CARGO_PROFILE_");
    let _ = run.envs(std::env::vars_os().filter(|(name, _)| of_profile(name)));
    run
}
