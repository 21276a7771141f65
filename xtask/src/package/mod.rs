//! `cargo xtask package`: what distributions install, cut from one staged tree.
//!
//! `deb` makes Debian's packages in `target/packages/deb`, `rpm` those of others, `stage` the tree that they are cut from. docs/packaging.md has what
//! is in which, and why.

mod build;
mod deb;
mod notices;
mod rpm;
mod stage;
mod test;

use crate::sh::Outcome;
use std::path::Path;

const USAGE: &str =
    "cargo xtask package deb | rpm | test [bookworm|trixie|rpm...] | stage LIBDIR FOLDER";

/// Lays the crate that providers in Rust are made with below a folder, as the development package has it.
pub(crate) fn crate_for_providers(folder: &Path) -> Outcome {
    stage::Tree::there(folder).crate_for_providers()
}

/// The command.
pub(crate) fn run(words: &[&str]) -> Outcome {
    match words {
        ["deb"] => deb::make(deb::VERSION).map(|packages| deb::show(&packages)),
        ["rpm"] => rpm::make().map(|packages| deb::show(&packages)),
        ["stage", libdir, folder] => stage::make(libdir, Path::new(folder)).map(|tree| {
            println!("what packages are made of is in {}", tree.folder.display());
        }),
        ["test", releases @ ..] => {
            let count = test::run(releases);
            count.failed.iter().for_each(|text| println!("FAILED: {text}"));
            count.skipped.iter().for_each(|text| println!("skipped: {text}"));
            println!(
                "{} passed, {} failed, {} skipped",
                count.passed,
                count.failed.len(),
                count.skipped.len()
            );
            if count.failed.is_empty() { Ok(()) } else { Err("packages do not work".into()) }
        }
        _ => Err(format!("usage: {USAGE}")),
    }
}
