//! Tests of `packaging/tieline-note`: the dependencies that package managers derive from the ELF notes of providers and of the
//! core.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tieline_testing::built;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the parser's result for a file; `None` if there is no Perl.
fn read(what: &str, file: &Path) -> Option<Output> {
    let output = Command::new("perl")
        .arg(source().join("packaging/tieline-note"))
        .arg(what)
        .arg(file)
        .output();
    output.ok().or_else(|| {
        println!("skipped: there is no perl");
        None
    })
}

fn said(what: &str, file: &Path) -> Option<String> {
    let output = read(what, file)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn refusal(file: &Path) -> Option<String> {
    let output = read("deb-depends", file)?;
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    Some(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())
}

/// A directory that belongs to this test and is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("{name}-{}", std::process::id());
        let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }

    /// Compiles a provider in C with this note; returns `None` without a compiler.
    fn provider(&self, name: &str, note: &str) -> Option<PathBuf> {
        let (text, file) = (self.0.join("note.c"), self.0.join(name));
        std::fs::write(&text, format!("#include <tieline_provider.h>\n{note};\n")).unwrap();
        let mut cc = Command::new("cc");
        let _ = cc.args(["-std=c11", "-shared", "-fPIC", "-I"]).arg(source().join("include"));
        let Ok(status) = cc.arg("-o").arg(&file).arg(&text).status() else {
            println!("skipped: there is no C compiler");
            return None;
        };
        assert!(status.success(), "{cc:?}");
        Some(file)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn provider_built_here_requires_the_least_core_and_identifies_itself() {
    let made = ("tieline-provider-shm-cma-plugin", "libtieline_shm_cma.so");
    let folder = built::folder(&[made]).unwrap_or_else(|reason| panic!("{reason}"));
    let file = folder.join(made.1);
    let version = env!("CARGO_PKG_VERSION");
    let Some(depends) = said("deb-depends", &file) else { return };
    assert_eq!(depends, "tieline-abi-1 (>= 0)");
    assert_eq!(
        said("deb-provides", &file).unwrap(),
        format!("tieline-provider-1-shm-cma (= {version})")
    );
    assert_eq!(said("rpm-requires", &file).unwrap(), "tieline-abi(1)(64bit) >= 0");
    assert_eq!(
        said("rpm-provides", &file).unwrap(),
        format!("tieline-provider(1)(shm-cma)(64bit) = {version}")
    );
}

#[test]
fn file_that_links_a_core_provides_the_abi_of_that_core() {
    let tieline = Path::new(env!("CARGO_BIN_EXE_tieline"));
    let Some(provides) = said("deb-provides", tieline) else { return };
    let spoken = Command::new(tieline).arg("info").output().unwrap();
    let spoken = String::from_utf8_lossy(&spoken.stdout).into_owned();
    let minor = provides.strip_prefix("tieline-abi-1 (= ").and_then(|s| s.strip_suffix(')'));
    let minor = minor.unwrap_or_else(|| panic!("{provides}"));
    assert!(spoken.contains(&format!("provider ABI 1.{minor}\n")), "{minor}: {spoken}");
    assert_eq!(said("rpm-provides", tieline).unwrap(), format!("tieline-abi(1)(64bit) = {minor}"));
    assert_eq!(said("deb-depends", tieline).unwrap(), "");
}

#[test]
fn provider_requires_its_least_minor_and_not_the_minor_it_was_built_for() {
    let folder = Folder::new("notes-least");
    // The replaced definition is that of a header of minor 5.
    let later = "#undef TIELINE_ABI_MINOR\n#define TIELINE_ABI_MINOR 5\nTIELINE_PROVIDER_NOTE_FOR(\"later\", \"2.0.0-rc.1\", 0, 3)";
    let Some(file) = folder.provider("libtieline_later.so", later) else { return };
    let Some(depends) = said("deb-depends", &file) else { return };
    assert_eq!(depends, "tieline-abi-1 (>= 3)");
    // A pre-release sorts before its release.
    assert_eq!(said("deb-provides", &file).unwrap(), "tieline-provider-1-later (= 2.0.0~rc.1)");
    let major = later.replace(
        "ABI_MINOR 5",
        "ABI_MINOR 5\n#undef TIELINE_ABI_MAJOR\n#define TIELINE_ABI_MAJOR 2",
    );
    let file = folder.provider("libtieline_later.so", &major).unwrap();
    assert_eq!(said("deb-depends", &file).unwrap(), "tieline-abi-2 (>= 3)");
}

#[test]
fn a_file_that_would_not_be_loaded_is_refused_with_the_reason() {
    let folder = Folder::new("notes-refused");
    let note = "TIELINE_PROVIDER_NOTE(\"mine\", \"1.0.0\", 0)";
    let Some(good) = folder.provider("libtieline_mine.so", note) else { return };
    let Some(depends) = said("deb-depends", &good) else { return };
    assert_eq!(depends, "tieline-abi-1 (>= 0)");
    let bytes = std::fs::read(&good).unwrap();
    let other = folder.0.join("libtieline_other.so");
    std::fs::write(&other, &bytes).unwrap();
    let cut = folder.0.join("libtieline_cut.so");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let directory = folder.0.join("tieline-2/providers");
    std::fs::create_dir_all(&directory).unwrap();
    let misplaced = directory.join("libtieline_mine.so");
    std::fs::write(&misplaced, &bytes).unwrap();
    for (file, words) in [
        (other, "the note names `mine`: the file would be libtieline_mine.so"),
        (cut, "is cut short"),
        (misplaced, "the ABI is 1.1: it belongs into tieline-1/providers"),
        (folder.0.join("note.c"), "is no ELF file"),
        (folder.provider("libtieline_none.so", "int none").unwrap(), "it is no provider"),
        (
            folder
                .provider("libtieline_odd.so", "TIELINE_PROVIDER_NOTE(\"odd\", \"first\", 0)")
                .unwrap(),
            "the version `first` in the note",
        ),
        (
            folder
                .provider(
                    "libtieline_ahead.so",
                    "TIELINE_PROVIDER_NOTE_FOR(\"ahead\", \"1.0.0\", 0, 7)",
                )
                .unwrap(),
            "needs a core of 1.7 and was built for 1.1",
        ),
    ] {
        let why = refusal(&file).unwrap();
        assert!(why.contains(words), "{why}");
        assert_eq!(why.lines().count(), 1, "{why}");
    }
}

#[test]
fn damaged_file_never_yields_a_dependency_that_the_whole_file_lacks() {
    let folder = Folder::new("notes-changed");
    let note = "TIELINE_PROVIDER_NOTE(\"mine\", \"1.0.0\", 0)";
    let Some(good) = folder.provider("libtieline_mine.so", note) else { return };
    let bytes = std::fs::read(&good).unwrap();
    let at = folder.0.join("changed");
    std::fs::create_dir_all(&at).unwrap();
    let file = at.join("libtieline_mine.so");
    for cut in (0..bytes.len()).step_by(bytes.len() / 40) {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        if refusal(&file).is_none() {
            return;
        }
    }
    // The bytes are those of the header that state the position of the sections.
    for place in (40..48).chain(58..64) {
        let mut changed = bytes.clone();
        changed[place] ^= 0xff;
        std::fs::write(&file, &changed).unwrap();
        let _ = refusal(&file);
    }
}

/// The build identifier of a core file, as C source.
const CORE: &str = "static const struct { uint32_t owner, len, type; char name[8]; uint16_t core[4]; } core_note \
                    __attribute__((section(\".note.tieline.core\"), used, aligned(4))) = { 8, 8, 2, \"tieline\", { 8, 1, 1, 7 } };";

#[test]
fn file_among_the_providers_needs_a_core_and_is_none_for_any_note() {
    let folder = Folder::new("notes-both");
    let directory = folder.0.join("tieline-1/providers");
    std::fs::create_dir_all(&directory).unwrap();
    let both = format!("{CORE}\nTIELINE_PROVIDER_NOTE(\"mine\", \"1.0.0\", 0)");
    let name = "tieline-1/providers/libtieline_mine.so";
    let Some(file) = folder.provider(name, &both) else { return };
    let Some(depends) = said("deb-depends", &file) else { return };
    assert_eq!(depends, "tieline-abi-1 (>= 0)");
    assert_eq!(said("deb-provides", &file).unwrap(), "tieline-provider-1-mine (= 1.0.0)");
    let alone = folder.provider(name, CORE.trim_end_matches(';')).unwrap();
    assert!(refusal(&alone).unwrap().contains("it is no provider"));
    // In another directory the same file is treated as its note states: as a core.
    let elsewhere = folder.0.join("libtieline.so.0");
    let _ = std::fs::copy(&alone, &elsewhere).unwrap();
    assert_eq!(said("deb-provides", &elsewhere).unwrap(), "tieline-abi-1 (= 7)");
}

#[test]
fn names_and_versions_are_those_the_library_accepts_without_newlines() {
    let folder = Folder::new("notes-words");
    let file = "libtieline_mine.so";
    let note = |name: &str, version: &str| {
        folder.provider(file, &format!("TIELINE_PROVIDER_NOTE(\"{name}\", \"{version}\", 0)"))
    };
    let Some(good) = note("mine", "1.2.3-rc.1-x+b-1.01") else { return };
    let Some(provides) = said("deb-provides", &good) else { return };
    assert_eq!(provides, "tieline-provider-1-mine (= 1.2.3~rc.1.x+b.1.01)");
    for name in ["mine\\n", "mine\\0x", "Mine", "oob", ""] {
        let why = refusal(&note(name, "1.0.0").unwrap()).unwrap();
        assert!(why.contains("the name `") && why.lines().count() == 1, "{why}");
    }
    // A zero must follow either text. A text of 32 bytes compiles, but the library refuses the file.
    for (name, version) in [
        ("mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm", "1.0.0"),
        ("mine", "1.0.0-rc.1+build.20261128.abcdef"),
    ] {
        let why = refusal(&note(name, version).unwrap()).unwrap();
        assert!(why.contains("longer than 31 bytes") && why.lines().count() == 1, "{why}");
    }
    for version in ["1.0.0\\n", "01.0.0", "1.0", "1.0.0-", "1.0.0-01", "1.0.0-a..b", "1.0.0+", ""] {
        let why = refusal(&note("mine", version).unwrap()).unwrap();
        assert!(why.contains("the version `") && why.lines().count() == 1, "{why}");
    }
}

#[test]
fn a_record_is_as_long_as_it_says_or_longer() {
    let folder = Folder::new("notes-length");
    let note = "TIELINE_PROVIDER_NOTE(\"mine\", \"1.0.0\", 0)";
    let Some(file) = folder.provider("libtieline_mine.so", note) else { return };
    let mut bytes = std::fs::read(&file).unwrap();
    let name = [&b"mine"[..], &[0; 28], b"1.0.0\0"].concat();
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() - 12;
    for len in [76_u16, 77, 331, 332] {
        bytes[at..at + 2].copy_from_slice(&len.to_le_bytes());
        std::fs::write(&file, &bytes).unwrap();
        let Some(depends) = said("deb-depends", &file) else { return };
        assert_eq!(depends, "tieline-abi-1 (>= 0)", "{len}");
    }
    for len in [0_u16, 75, 333, u16::MAX] {
        bytes[at..at + 2].copy_from_slice(&len.to_le_bytes());
        std::fs::write(&file, &bytes).unwrap();
        let Some(why) = refusal(&file) else { return };
        assert!(why.contains(&format!("says {len} bytes in a note of 332")), "{why}");
    }
}

#[test]
fn paths_in_a_note_are_shown_and_refused_as_by_the_library() {
    let folder = Folder::new("notes-paths");
    let note = |paths: &str, reason: &str| {
        let note = format!(
            "TIELINE_PROVIDER_NOTE_NEEDING(\"mine\", \"1.0.0\", 0, 1, \"{paths}\", \"{reason}\")"
        );
        folder.provider("libtieline_mine.so", &note)
    };
    let Some(good) = note("/dev/mine0:/dev/mine1", "there is no /dev/mine0 or /dev/mine1") else {
        return;
    };
    let Some(shown) = said("show", &good) else { return };
    let plain = "provider mine 1.0.0, ABI 1.1, needs a core of 1.1 or later";
    assert_eq!(shown, format!("{plain} and /dev/mine0 or /dev/mine1"));
    for (what, line) in [
        ("deb-depends", "tieline-abi-1 (>= 1)"),
        ("deb-provides", "tieline-provider-1-mine (= 1.0.0)"),
        ("rpm-requires", "tieline-abi(1)(64bit) >= 1"),
    ] {
        assert_eq!(said(what, &good).unwrap(), line);
    }
    assert_eq!(
        said("show", &note("", "none").unwrap()).unwrap(),
        plain,
        "a reason alone has no effect"
    );
    let long = |len: usize| "/".repeat(len);
    for paths in
        ["dev/mine", ":/a", "/a:", "/a\\0/b", "/a\\n", "/\\xff", "/\\xe2\\x80\\xae", &long(64)]
    {
        let why = refusal(&note(paths, "none").unwrap()).unwrap();
        assert!(why.contains("the paths `") && why.lines().count() == 1, "{why}");
    }
    for reason in ["", "  ", "a\\033[2J", "a\\0b", "\\xff", &"x".repeat(192)] {
        let why = refusal(&note("/a", reason).unwrap()).unwrap();
        assert!(why.contains("the reason `") && why.lines().count() == 1, "{why}");
    }
    assert!(said("show", &note(&long(63), &"x".repeat(191)).unwrap()).is_some());
}
