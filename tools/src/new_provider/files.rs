//! The files of a new provider.

use super::Language;
use super::date::Date;

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

/// The texts of the licences that the written files have.
const LICENCES: [(&str, &str); 2] = [
    ("LICENSE-MIT", include_str!("../../LICENSE-MIT")),
    ("LICENSE-APACHE", include_str!("../../LICENSE-APACHE")),
];

const C_NEEDS: &str = "It needs a C compiler, make, pkg-config and libtieline-dev (libtieline-devel); for packages debhelper or rpm-build.";
const RUST_NEEDS: &str = "It needs Rust 1.85 or later (rustup.rs, where the distribution's is older: Debian 12 has 1.63), make,
pkg-config and libtieline-dev (libtieline-devel), which has the crate `tieline-plugin-api` as source; what that crate uses comes from
crates.io: `cargo vendor` it where a package is built without a network. For packages debhelper or rpm-build. With rustup no package
has cargo, and Debian's build asks for one: `make deb DEB_FLAGS=--no-check-builddeps`.";

/// Returns the files of a provider of this name, with [`author`] or another author.
pub(super) fn of(name: &str, language: Language, api: &str, author: &str) -> Vec<Written> {
    let date = Date::today();
    let rust = language == Language::Rust;
    let words = [
        ("@name@", name.to_owned()),
        ("@NAME@", name.to_uppercase().replace('-', "\\-")),
        ("@file@", name.replace('-', "_")),
        ("@VAR@", variable(name)),
        ("@rpmauthor@", author.replace('%', "%%")),
        ("@author@", author.to_owned()),
        ("@date@", date.debian()),
        ("@rpmdate@", date.rpm()),
        ("@year@", date.year.to_string()),
        ("@lang@", if rust { "rust" } else { "c" }.into()),
        ("@needs@", if rust { RUST_NEEDS } else { C_NEEDS }.into()),
        ("@debneeds@", if rust { "cargo (>= 1.85), " } else { "" }.into()),
        ("@rpmneeds@", if rust { "cargo >= 1.85, " } else { "gcc, " }.into()),
        ("@api@", api.to_owned()),
    ];
    let filled = |text: &str| replaced(text, &words);
    let mut files: Vec<(String, String)> = [
        ("README.md", template!("common/README.md")),
        ("debian/control", template!("common/control")),
        ("debian/changelog", template!("common/changelog")),
        ("debian/copyright", template!("common/copyright")),
        ("debian/docs", "LICENSE-MIT\nLICENSE-APACHE\n"),
        ("debian/rules", template!("common/rules")),
        ("debian/source/format", "3.0 (quilt)\n"),
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
    for (file, text) in LICENCES {
        files.push((file.to_owned(), text.to_owned()));
    }
    files.into_iter().map(|(name, text)| Written { name, text }).collect()
}

fn c(name: &str) -> Vec<(String, String)> {
    const COMPILED: &str = "cc -Wall -Werror -std=c11 -shared -fPIC -I include -o libtieline_loopback.so docs/examples/loopback.c";
    let words = [
        (COMPILED, "make".to_owned()),
        ("libtieline_loopback", format!("libtieline_{}", name.replace('-', "_"))),
        ("TIELINE_LOOPBACK_", format!("TIELINE_{}_", variable(name))),
        ("loopback", name.to_owned()),
    ];
    vec![("provider.c".into(), replaced(template!("c/provider.c"), &words))]
}

fn rust(name: &str) -> Vec<(String, String)> {
    let file = name.replace('-', "_");
    let words = [
        ("cargo build -p tieline-example-loopback", "cargo build --release".to_owned()),
        ("target/debug/libloopback_rust.so", format!("target/release/libtieline_{file}.so")),
        ("The same provider as `docs/examples/loopback.c`: messages", "Messages".to_owned()),
        ("TIELINE_LOOPBACK_RUST_", format!("TIELINE_{}_", variable(name))),
        ("loopback-rust", name.to_owned()),
        ("\"loopback connects", format!("\"{name} connects")),
    ];
    let changed = |text: &str| replaced(text, &words);
    let files = [
        ("src/lib.rs", template!("rust/lib.rs")),
        ("src/memory.rs", template!("rust/memory.rs")),
        ("src/sys.rs", template!("rust/sys.rs")),
    ];
    files.map(|(file, text)| (file.to_owned(), changed(text))).into()
}

/// Replaces these words in one pass: replacements are not searched again.
fn replaced(text: &str, words: &[(&str, String)]) -> String {
    let (mut whole, mut left) = (String::with_capacity(text.len()), text);
    let next = |left: &str| {
        let found = words.iter().filter_map(|(from, to)| Some((left.find(from)?, from.len(), to)));
        found.min_by_key(|(at, ..)| *at)
    };
    while let Some((at, len, to)) = next(left) {
        whole.push_str(&left[..at]);
        whole.push_str(to);
        left = &left[at + len..];
    }
    whole + left
}

fn variable(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

/// Returns the author of the package from the variables of Debian's tools, or a placeholder.
pub(super) fn author() -> String {
    let word = |name: &str| std::env::var(name).ok().filter(|word| !word.is_empty());
    named(word("DEBFULLNAME"), word("DEBEMAIL"))
}

/// Formats an author as `Name <address>`. If the address already contains a name, returns the address alone.
fn named(name: Option<String>, address: Option<String>) -> String {
    let address = address.unwrap_or_else(|| "you@example.org".into());
    let author = match address.contains('<') {
        true => address,
        false => format!("{} <{address}>", name.unwrap_or_else(|| "Your Name".into())),
    };
    // A changelog contains the author within a line, so control characters become blanks.
    author.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in_and_no_trace_of_the_example_is_left() {
        for language in [Language::C, Language::Rust] {
            let files = of("my-net", language, "\"0.1.0\"", "A <a@example.org>");
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
            assert!(names.contains(&"LICENSE-MIT") && names.contains(&"LICENSE-APACHE"));
        }
    }

    #[test]
    fn a_name_with_the_examples_in_it_is_put_in_once() {
        for language in [Language::C, Language::Rust] {
            for file in of("loopback-rust-loopback", language, "\"0.1.0\"", "A <a@example.org>") {
                let forms = ["loopback-rust-loopback", "loopback\\-rust\\-loopback"];
                let forms = forms.map(str::to_owned).into_iter();
                let forms = forms.chain(["loopback_rust_loopback".into()]);
                let forms = forms.flat_map(|form| [form.to_uppercase(), form]);
                let left = forms.fold(file.text, |text, form| text.replace(&form, ""));
                let odd = left
                    .lines()
                    .find(|line| line.contains("loopback") || line.contains("LOOPBACK"));
                assert_eq!(odd, None, "{}", file.name);
            }
        }
    }

    #[test]
    fn author_has_a_name_and_an_address_and_each_may_be_set_alone() {
        let some = |word: &str| Some(word.to_owned());
        assert_eq!(named(None, None), "Your Name <you@example.org>");
        assert_eq!(named(some("A"), some("a@example.org")), "A <a@example.org>");
        assert_eq!(named(some("A"), some("B <b@example.org>")), "B <b@example.org>");
        assert_eq!(named(some("A\n * B"), some("a@\n")), "A  * B <a@ >");
    }

    #[test]
    fn rpm_expands_nothing_of_who_writes_it() {
        let files = of("my-net", Language::C, "", "100%{_bindir} <a@example.org>");
        let lines = files.iter().flat_map(|file| file.text.lines().map(|line| (&file.name, line)));
        for (name, line) in lines.filter(|(_, line)| line.contains("a@example.org")) {
            let is_expanded = name.ends_with(".spec");
            assert_eq!(line.contains("100%%{_bindir} <a@"), is_expanded, "{name}: {line}");
        }
    }
}
