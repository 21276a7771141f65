//! Links `libtieline.so.0` from the static library that cargo builds from `capi/`.
//!
//! The C compiler links the library with a version script made from `capi/libtieline.symbols`: the symbols in that file are
//! exported, each with its version, and no others. [`check_exports`] compares the exports of the result with the file.

use crate::foreign;
use crate::sh::{Outcome, capture, command, make_folder, on, read, root, run, target, write};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The name under which the dynamic linker searches for the library.
pub(crate) const SONAME: &str = "libtieline.so.0";
/// The libraries that Rust's standard library needs (`--print native-static-libs`).
pub(crate) const SYSTEM: &[&str] = &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

fn symbols() -> Outcome<BTreeMap<String, String>> {
    let file = root().join("capi/libtieline.symbols");
    let text = read(&file)?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once('@') {
            Some((name, version)) => Ok((name.to_owned(), version.to_owned())),
            None => Err(format!("capi/libtieline.symbols: `{line}` is not `symbol@VERSION`")),
        })
        .collect()
}

/// Returns the version script: the versions in order, each with its symbols. All other symbols are hidden.
fn version_script(symbols: &BTreeMap<String, String>) -> String {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version) in symbols {
        versions.entry(version).or_default().push(name);
    }
    let (mut script, mut before) = (String::new(), "");
    for (version, names) in &versions {
        let local = if before.is_empty() { " local: *;" } else { "" };
        script
            .push_str(&format!("{version} {{ global: {};{local} }} {before};\n", names.join("; ")));
        before = version;
    }
    script
}

pub(crate) fn folder(profile: &str) -> PathBuf {
    target().join(foreign::folder(profile)).join("c")
}

/// Links the shared library, and copies it and the static library to the directory in which `-ltieline` finds them.
pub(crate) fn link(profile: &str) -> Outcome<PathBuf> {
    link_by(&[&foreign::compiler()], profile)
}

/// Links with the compiler of these words: `cc`, or `zig cc`, which has no `libgcc_s`.
pub(crate) fn link_by(compiler: &[&str], profile: &str) -> Outcome<PathBuf> {
    let folder = folder(profile);
    make_folder(&folder)?;
    let made = target().join(foreign::folder(profile)).join("libtieline_c.a");
    let archive = folder.join("libtieline.a");
    let _ = std::fs::remove_file(&archive);
    if std::fs::hard_link(&made, &archive).is_err() {
        let _ = on(&made, std::fs::copy(&made, &archive))?;
    }
    let (symbols, script) = (symbols()?, folder.join("libtieline.map"));
    write(&script, version_script(&symbols))?;
    let library = folder.join(SONAME);
    let mut linker = command(compiler[0], &compiler[1..]);
    let _ = linker.args(["-shared", "-o"]).arg(&library).arg(format!("-Wl,-soname,{SONAME}"));
    let _ = linker.arg(format!("-Wl,--version-script={}", script.display()));
    let _ = linker.arg("-Wl,-z,nodelete,-z,relro,-z,now,-z,defs,--gc-sections");
    let _ = linker.args(symbols.keys().map(|name| format!("-Wl,-u,{name}")));
    let unwinder = if compiler.len() > 1 { "-lunwind" } else { SYSTEM[0] };
    run(linker.arg(&archive).arg(unwinder).args(&SYSTEM[1..]))?;
    let plain = folder.join("libtieline.so");
    let _ = std::fs::remove_file(&plain);
    on(&plain, std::os::unix::fs::symlink(SONAME, &plain))?;
    Ok(folder)
}

/// Checks that the library exports the symbols of the file with their versions, has its soname, and is never unloaded.
pub(crate) fn check_exports(library: &Path) -> Outcome {
    let listed = capture(command(foreign::tool("nm"), &["-D", "--defined-only"]).arg(library))?;
    let exported: BTreeMap<String, String> = listed.lines().filter_map(exported).collect();
    let wanted = symbols()?;
    let differs = |from: &BTreeMap<String, String>, other: &BTreeMap<String, String>| {
        let only = from.iter().filter(|(name, version)| other.get(*name) != Some(*version));
        only.map(|(name, version)| format!("{name}@{version}")).collect::<Vec<_>>()
    };
    let (more, fewer) = (differs(&exported, &wanted), differs(&wanted, &exported));
    if !more.is_empty() || !fewer.is_empty() {
        let (more, fewer) = (more.join(" "), fewer.join(" "));
        let file = "capi/libtieline.symbols";
        return Err(format!("exported and not in {file}: {more}; there and not exported: {fewer}"));
    }
    let dynamic = capture(command("readelf", &["-dW"]).arg(library))?;
    for part in [format!("[{SONAME}]"), "NODELETE".to_owned()] {
        if !dynamic.contains(&part) {
            return Err(format!("{} has no {part} in its dynamic section", library.display()));
        }
    }
    Ok(())
}

/// Parses a line `0000 T name@@VERSION`; the version of a name without a version is empty. The versions themselves are listed as
/// absolute symbols.
fn exported(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace().rev();
    let (name, kind) = (words.next()?, words.next()?);
    if kind == "A" {
        return None;
    }
    let (name, version) = name.split_once('@').unwrap_or((name, ""));
    Some((name.to_owned(), version.trim_start_matches('@').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_without_its_version_is_told_from_one_that_has_it() {
        let line = "0000000000012345 T tieline_send@@TIELINE_0.1";
        assert_eq!(exported(line), Some(("tieline_send".into(), "TIELINE_0.1".into())));
        assert_eq!(
            exported("0000000000012345 T tieline_send"),
            Some(("tieline_send".into(), String::new()))
        );
        assert_eq!(exported("0000000000000000 A TIELINE_0.1"), None);
    }

    #[test]
    fn a_later_version_stands_on_the_one_before_it() {
        let symbols = [("b", "TIELINE_0.2"), ("a", "TIELINE_0.1"), ("c", "TIELINE_0.1")];
        let symbols = symbols.map(|(name, version)| (name.to_owned(), version.to_owned())).into();
        let script =
            "TIELINE_0.1 { global: a; c; local: *; } ;\nTIELINE_0.2 { global: b; } TIELINE_0.1;\n";
        assert_eq!(version_script(&symbols), script);
    }
}
