//! `cargo xtask package`: makes the packages for distributions.
//!
//! `deb` makes Debian packages in `target/packages/deb`, `rpm` makes rpms, and `stage` makes the tree from which both are made.
//! `source` makes the Debian source package, `srpm` the source rpm, `wheel` the Python module with the library, and `nixl` the backend for NIXL. `test`
//! tests packages in clean roots, with `--made` those that were made before. docs/packaging.md describes the contents of each package, with the reasons.

mod arm;
mod build;
mod crates;
mod cross;
mod deb;
mod emulated;
mod nixl;
mod notices;
mod release;
mod roots;
mod rpm;
mod source;
mod stage;
mod test;
mod wheel;

use crate::check::closing_line;
use crate::sh::{self, Outcome};
pub(crate) use arm::selected as emulated_unit_tests;
pub(crate) use build::{emptied, files};
pub(crate) use roots::unpacked as clean_root;
pub(crate) use source::{known_to_git, vendor};
pub(crate) use stage::crate_for_providers;
use std::path::Path;
use std::time::Duration;

const USAGE: &str = "cargo xtask package deb|rpm|wheel|nixl [--arch ARCHITECTURE] | source | srpm | crates | \
                     test [--made] [bookworm|trixie|rpm|source|srpm|distribution|arm64|arm64-steps|arm64-mixed|arm64-units...] | stage LIBDIR FOLDER";

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

/// Lays out a release (`cargo xtask release`).
pub(crate) fn release(words: &[&str]) -> Outcome {
    sh::within(LIMIT, || release::run(words))
}

fn obey(words: &[&str]) -> Outcome {
    match words {
        ["deb"] => deb::make(deb::VERSION).map(|packages| deb::show(&packages)),
        ["deb", "--arch", architecture] => {
            cross::make(architecture).map(|packages| deb::show(&packages))
        }
        ["rpm", "--arch", architecture] => {
            cross::rpms(architecture).map(|packages| deb::show(&packages))
        }
        [what @ ("wheel" | "nixl"), "--arch", architecture] => cross::aimed(architecture, &[what]),
        ["rpm"] => rpm::make().map(|packages| deb::show(&packages)),
        ["source"] => source::make(&source::folder()).map(|files| deb::show(&files)),
        ["srpm"] => rpm::source(&rpm::sources()).map(|file| deb::show(&[file])),
        ["wheel"] => wheel::make(),
        ["nixl"] => nixl::make(),
        ["nixl", "--over", staged, folder] => nixl::package(Path::new(staged), Path::new(folder))?
            .map(|package| println!("{}", package.display())),
        ["crates"] => crates::make().map(|crates| deb::show(&crates)),
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
