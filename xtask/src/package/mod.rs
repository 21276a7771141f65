//! `cargo xtask package`: makes the packages for distributions.
//!
//! `deb` makes Debian packages in `target/packages/deb`, `rpm` makes rpms, and `stage` makes the tree from which both are made.
//! `source` makes the Debian source package. `test` tests packages in clean roots. docs/packaging.md describes the contents of
//! each package, with the reasons.

mod build;
mod deb;
mod notices;
mod rpm;
mod source;
mod stage;
mod test;

use crate::check::closing_line;
use crate::sh::{self, Outcome};
pub(crate) use build::{emptied, files};
pub(crate) use source::{known_to_git, vendor};
pub(crate) use stage::crate_for_providers;
use std::path::Path;
use std::time::Duration;
pub(crate) use test::unpacked as clean_root;

const USAGE: &str = "cargo xtask package deb | rpm | source | test [bookworm|trixie|rpm|source...] | stage LIBDIR FOLDER";

/// The time limit. The code is compiled for each library directory, and again from the source package, which takes hours on a busy
/// machine.
const LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// Returns an error unless these programs are installed.
fn there(programs: &str) -> Outcome {
    let missing = programs.split(' ').find(|program| sh::which(program).is_none());
    missing.map_or(Ok(()), |it| Err(format!("{it} is not installed: cargo xtask setup package")))
}

pub(crate) fn run(words: &[&str]) -> Outcome {
    sh::within(LIMIT, || obey(words))
}

fn obey(words: &[&str]) -> Outcome {
    match words {
        ["deb"] => deb::make(deb::VERSION).map(|packages| deb::show(&packages)),
        ["rpm"] => rpm::make().map(|packages| deb::show(&packages)),
        ["source"] => source::make(&source::folder()).map(|files| deb::show(&files)),
        ["stage", libdir, folder] => stage::make(libdir, Path::new(folder)).map(|tree| {
            println!("what packages are made of is in {}", tree.display());
        }),
        ["test", releases @ ..] => {
            let count = test::run(releases);
            count.failed.iter().for_each(|text| println!("FAILED: {text}"));
            count.skipped.iter().for_each(|text| println!("skipped: {text}"));
            closing_line(&count)
        }
        _ => Err(format!("usage: {USAGE}")),
    }
}
