//! What a new provider consists of.

use super::Language;
use super::date::Date;

/// A file to write.
pub(super) struct Written {
    pub(super) name: String,
    pub(super) text: String,
}

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!("../../templates/", $file))
    };
}

const MAKEFILE_TAIL: &str = template!("common/Makefile.tail");

const C_NEEDS: &str = "It needs a C compiler, make, pkg-config and libtieline-dev (libtieline-devel); for packages debhelper or rpm-build.";
const RUST_NEEDS: &str = "It needs Rust 1.85 or later (rustup.rs, where the distribution's is older: Debian 12 has 1.63), make,
pkg-config and libtieline-dev (libtieline-devel), which has the crate `tieline-plugin-api` as source; what that crate uses comes from
crates.io: `cargo vendor` it where a package is built without a network. For packages debhelper or rpm-build.";

/// The files of a provider of this name.
pub(super) fn of(name: &str, language: Language, api: &str) -> Vec<Written> {
    let date = Date::today();
    let author = author();
    let rust = language == Language::Rust;
    let words = [
        ("@name@", name.to_owned()),
        ("@NAME@", name.to_uppercase().replace('-', "\\-")),
        ("@file@", name.replace('-', "_")),
        ("@VAR@", variable(name)),
        ("@author@", author),
        ("@date@", date.debian()),
        ("@rpmdate@", date.rpm()),
        ("@year@", date.year.to_string()),
        ("@lang@", if rust { "rust" } else { "c" }.into()),
        ("@needs@", if rust { RUST_NEEDS } else { C_NEEDS }.into()),
        ("@debneeds@", if rust { "cargo (>= 1.85), " } else { "" }.into()),
        ("@rpmneeds@", if rust { "cargo >= 1.85, " } else { "gcc, " }.into()),
        ("@api@", api.to_owned()),
    ];
    let filled = |text: &str| {
        words.iter().fold(text.to_owned(), |text, (mark, word)| text.replace(mark, word))
    };
    let mut files: Vec<(String, String)> = [
        ("README.md", template!("common/README.md")),
        ("debian/control", template!("common/control")),
        ("debian/changelog", template!("common/changelog")),
        ("debian/copyright", template!("common/copyright")),
        ("debian/rules", template!("common/rules")),
        ("debian/source/format", "3.0 (native)\n"),
    ]
    .map(|(file, text)| (file.to_owned(), filled(text)))
    .into();
    files
        .push((format!("tieline-provider-{name}.spec"), filled(template!("common/provider.spec"))));
    files.push((format!("tieline-provider-{name}.7"), filled(template!("common/page.7"))));
    let makefile = if rust { template!("rust/Makefile") } else { template!("c/Makefile") };
    files.push(("Makefile".into(), filled(&format!("{makefile}{MAKEFILE_TAIL}"))));
    let source = match language {
        Language::C => c(name),
        Language::Rust => {
            files.push(("Cargo.toml".into(), filled(template!("rust/Cargo.toml.in"))));
            self::rust(name)
        }
    };
    files.extend(source);
    files.into_iter().map(|(name, text)| Written { name, text }).collect()
}

/// The example in C, under another name.
fn c(name: &str) -> Vec<(String, String)> {
    let text = template!("c/provider.c")
        .replace(
            "cc -Wall -Werror -std=c11 -shared -fPIC -I include -o libtieline_loopback.so docs/examples/loopback.c",
            "make",
        )
        .replace("libtieline_loopback", &format!("libtieline_{}", name.replace('-', "_")))
        .replace("TIELINE_LOOPBACK_", &format!("TIELINE_{}_", variable(name)))
        .replace("loopback", name);
    vec![("provider.c".into(), text)]
}

/// The example in Rust, under another name.
fn rust(name: &str) -> Vec<(String, String)> {
    let file = name.replace('-', "_");
    let changed = |text: &str| {
        text.replace("cargo build -p tieline-example-loopback", "cargo build --release")
            .replace(
                "target/debug/libloopback_rust.so",
                &format!("target/release/libtieline_{file}.so"),
            )
            .replace("The same provider as `docs/examples/loopback.c`: messages", "Messages")
            .replace("TIELINE_LOOPBACK_", &format!("TIELINE_{}_", variable(name)))
            .replace("loopback-rust", name)
            .replace("\"loopback connects", &format!("\"{name} connects"))
    };
    let files = [
        ("src/lib.rs", template!("rust/lib.rs")),
        ("src/memory.rs", template!("rust/memory.rs")),
        ("src/sys.rs", template!("rust/sys.rs")),
    ];
    files.map(|(file, text)| (file.to_owned(), changed(text))).into()
}

/// As in the names of its variables.
fn variable(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

/// Who writes it, where Debian's tools have been told that.
fn author() -> String {
    let word = |name: &str| std::env::var(name).ok().filter(|word| !word.is_empty());
    let name = word("DEBFULLNAME").unwrap_or_else(|| "Your Name".into());
    let address = word("DEBEMAIL").unwrap_or_else(|| "you@example.org".into());
    format!("{name} <{address}>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in_and_no_trace_of_the_example_is_left() {
        for language in [Language::C, Language::Rust] {
            let files = of("my-net", language, "\"0.1.0\"");
            for file in &files {
                let odd = file.text.lines().find(|line| {
                    line.contains("loopback") || line.contains("LOOPBACK") || line.contains("docs/")
                });
                assert_eq!(odd, None, "{}", file.name);
                let marks = ["@name@", "@NAME@", "@file@", "@VAR@", "@author@", "@api@", "@needs@"];
                assert!(!marks.iter().any(|mark| file.text.contains(mark)), "{}", file.name);
            }
            let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
            assert!(names.contains(&"tieline-provider-my-net.spec"), "{names:?}");
        }
    }
}
