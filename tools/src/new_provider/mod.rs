//! `tieline new-provider NAME --lang c|rust` writes a provider that builds, passes `tieline check` and makes its own packages.

mod date;
mod files;

use crate::{misuse, system_error};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use tieline::Error;

/// Write a new provider: source, packages, man page
///
/// The new provider builds unchanged, passes `tieline check`, and makes a Debian package and an rpm. The packages' dependency on
/// the ABI is read from the provider file. The new provider moves data from an interface to itself: replace this with your
/// transport.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tieline new-provider mynet --lang c && make -C tieline-provider-mynet check"
)]
pub(crate) struct Args {
    /// The name of the provider, as in TIELINE_PROVIDERS: a-z, 0-9 and `-`, at most 31
    name: String,
    /// The language of the provider
    #[arg(long, value_enum)]
    lang: Language,
    /// The directory to create; it must not exist. Default: tieline-provider-NAME
    #[arg(long)]
    directory: Option<PathBuf>,
    /// For Rust, the directory of the crate tieline-plugin-api [default: that of libtieline-dev, else the registry]
    #[arg(long)]
    plugin_api: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    C,
    Rust,
}

/// The folder of the crate in the development package.
const INSTALLED_API: &str = "/usr/share/tieline/plugin-api";

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    check_name(&args.name)?;
    let folder = format!("tieline-provider-{}", args.name);
    let directory = args.directory.clone().unwrap_or_else(|| folder.into());
    let failed = |e: std::io::Error| {
        let fix = "name a directory that is not there yet, where you may write: --directory";
        system_error(format!("cannot write {}", directory.display()), &e, fix)
    };
    std::fs::create_dir(&directory).map_err(failed)?;
    let api = api(args.plugin_api.clone());
    for file in files::of(&args.name, args.lang, &api, &files::author()) {
        let path = directory.join(&file.name);
        let parent = path.parent().unwrap_or(&directory);
        std::fs::create_dir_all(parent).map_err(failed)?;
        std::fs::write(&path, file.text).map_err(failed)?;
        let mode = if file.name == "debian/rules" { 0o755 } else { 0o644 };
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).map_err(failed)?;
    }
    crate::info::print(&format!(
        "{} is written: `make check` in it, and read its README.md\n",
        directory.display()
    ))
}

/// Returns the dependency on the crate in the form of `Cargo.toml`.
fn api(given: Option<PathBuf>) -> String {
    let installed = || Some(PathBuf::from(INSTALLED_API)).filter(|path| path.exists());
    match given.or_else(installed) {
        Some(path) => {
            let path = std::fs::canonicalize(&path).unwrap_or(path);
            format!("{{ path = {} }}", quoted(&path.display().to_string()))
        }
        None => format!("{:?}", crate::VERSION),
    }
}

/// Returns a string in TOML syntax, for any content.
fn quoted(text: &str) -> String {
    let mut whole = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => whole.extend(['\\', c]),
            c if c.is_control() => whole += &format!("\\u{:04x}", u32::from(c)),
            c => whole.push(c),
        }
    }
    whole + "\""
}

fn check_name(name: &str) -> Result<(), Error> {
    const RULE: &str = "a name begins with a letter and has a-z, 0-9 and `-`, at most 31 of them";
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_lowercase());
    let rest = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !first || !rest || name.len() > 31 || name.ends_with('-') {
        return Err(misuse(format!("`{name}` is no name for a provider"), RULE, "choose another"));
    }
    // The names that a provider must not have: `core` and `oob` have another meaning, `TIELINE_CONNECT_...` and
    // `TIELINE_PRIORITY_...` belong to the core, and two providers must not have the same name.
    const TAKEN: [&str; 13] = [
        "connect",
        "core",
        "oob",
        "ofi",
        "priority",
        "rdmacm",
        "shm",
        "shm-cma",
        "shm-knem",
        "shm-xpmem",
        "tcp",
        "tcp-connect",
        "verbs",
    ];
    if TAKEN.contains(&name) {
        let why = "Tieline itself has one of that name";
        return Err(misuse(format!("`{name}` is taken"), why, "choose another"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_a_note_and_a_file_name_can_have() {
        for good in ["mine", "my-net2", "a"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "Mine",
            "2net",
            "my_net",
            "my-",
            "shm",
            "oob",
            "connect",
            "priority",
            &"a".repeat(32),
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_crate_is_named_by_where_it_is_and_else_by_its_version() {
        assert_eq!(api(Some("/nowhere/api".into())), "{ path = \"/nowhere/api\" }");
        // A path may contain a quote, a backslash, a combining accent or a line break.
        let odd = "/a \"b\"\\c/e\u{301}\n\u{7f}";
        let said = "{ path = \"/a \\\"b\\\"\\\\c/e\u{301}\\u000a\\u007f\" }";
        assert_eq!(api(Some(odd.into())), said);
        if !std::path::Path::new(INSTALLED_API).exists() {
            assert_eq!(api(None), format!("\"{}\"", crate::VERSION));
        }
    }
}
