//! `cargo xtask package crates`: the crates as they would be published, and a program outside this workspace that uses them.
//!
//! `cargo package` refuses a dependency that names only a path. `cargo publish --dry-run` also compares with the registry; it takes
//! a whole workspace since Rust 1.90. The program of the README is then built from the packaged crates alone, with the other crates
//! from a directory, and run.

use super::build::emptied;
use crate::sh::{
    Outcome, capture, cargo, command, files_of, make_folder, name_of, packages, read, root, run,
    target, write,
};
use std::path::{Path, PathBuf};

/// Makes the crates and the program, and runs the program; returns the crate files.
pub(super) fn make() -> Outcome<Vec<PathBuf>> {
    let folder = target().join("packages/crates");
    emptied(&folder)?;
    let names = published()?;
    rehearsed(&folder)?;
    let mut package = cargo(&["package", "--no-verify", "--allow-dirty", "--locked", "--quiet"]);
    for name in names {
        let _ = package.args(["-p", &name]);
    }
    run(package.arg("--target-dir").arg(&folder))?;
    let crates = files_of(folder.join("package"), "crate")?;
    let outside = folder.join("outside");
    let source = outside.join("crates");
    super::vendor(&source)?;
    crates.iter().try_for_each(|file| unpack(file, &source))?;
    program(&outside)?;
    Ok(crates)
}

/// Does everything but the upload, without compiling the crates: the program of the README compiles those of the library.
fn rehearsed(folder: &Path) -> Outcome {
    let version = capture(&mut cargo(&["--version"]))?;
    if !publishes_workspaces(&version) {
        println!("not rehearsed: this cargo publishes no whole workspace ({})", version.trim());
        return Ok(());
    }
    let args = ["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty", "--locked"];
    run(cargo(&args).arg("--quiet").arg("--target-dir").arg(folder))
}

/// Checks whether a version of cargo, as it states it, can publish a whole workspace.
fn publishes_workspaces(version: &str) -> bool {
    let minor = version.strip_prefix("cargo 1.").and_then(|rest| rest.split('.').next());
    minor.and_then(|minor| minor.parse::<u32>().ok()).is_some_and(|minor| minor >= 90)
}

/// Returns the names of the packages that may be published. Each states what a registry shows.
fn published() -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for package in packages(&["--locked", "--no-deps"])? {
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        let name = package["name"].as_str().unwrap_or_default();
        for field in
            ["description", "documentation", "license", "readme", "repository", "rust_version"]
        {
            if package[field].as_str().is_none_or(str::is_empty) {
                return Err(format!("{name} has no {field}"));
            }
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Adds a packaged crate to a directory from which cargo takes crates.
fn unpack(file: &Path, source: &Path) -> Outcome {
    let name = name_of(file).trim_end_matches(".crate").to_owned();
    let mut tar = command("tar", &["--extract", "--gzip", "--file"]);
    let _ = capture(tar.arg(file).arg("--directory").arg(source))?;
    let sum = capture(command("sha256sum", &[]).arg(file))?;
    let sum = sum.split(' ').next().unwrap_or_default();
    let sums = format!(r#"{{"files":{{}},"package":"{sum}"}}"#);
    write(source.join(name).join(".cargo-checksum.json"), sums)
}

/// Builds the program of the README in a project of its own, which knows no other crates than those of the directory, and runs it.
fn program(outside: &Path) -> Outcome {
    let readme = read(root().join("README.md"))?;
    let text = example(&readme).ok_or("README.md has no program")?;
    make_folder(outside.join("src"))?;
    make_folder(outside.join(".cargo"))?;
    let version = env!("CARGO_PKG_VERSION");
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         tieline = \"{version}\"\n\n[workspace]\n"
    );
    write(outside.join("Cargo.toml"), manifest)?;
    write(outside.join("src/main.rs"), text)?;
    let config = "[source.crates-io]\nreplace-with = \"crates\"\n[source.crates]\ndirectory = \"crates\"\n\
                  [net]\noffline = true\n";
    write(outside.join(".cargo/config.toml"), config)?;
    println!("building the program of README.md from the packaged crates");
    let mut run_it = cargo(&["run", "--quiet"]);
    let _ = run_it.env("CARGO_TARGET_DIR", outside.join("target"));
    run(run_it.current_dir(outside))
}

/// Returns the first program in Rust in a text of Markdown.
fn example(text: &str) -> Option<&str> {
    text.split("```rust\n").nth(1)?.split("```").next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registry shows the text in another place, so a relative link would lead nowhere.
    #[test]
    fn text_of_the_crates_has_absolute_links_only() {
        let text = std::fs::read_to_string(root().join("packaging/crate.md")).unwrap();
        let links: Vec<&str> = text.split("](").skip(1).collect();
        assert!(links.len() > 4 && links.iter().all(|link| link.starts_with("https://")), "{text}");
    }

    #[test]
    fn whole_workspaces_are_published_since_cargo_1_90() {
        assert!(publishes_workspaces("cargo 1.95.0 (f2d3ce0bd 2026-03-21)\n"));
        assert!(publishes_workspaces("cargo 1.90.0"));
        assert!(!publishes_workspaces("cargo 1.85.1 (d73d2caf9 2024-12-31)"));
        assert!(!publishes_workspaces("cargo"));
    }

    #[test]
    fn readme_has_a_program_and_tests_are_not_published() {
        let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
        assert!(example(&readme).unwrap().starts_with("fn main() "));
        assert_eq!(example("```c\nint main();\n```"), None);
        let names = published().unwrap();
        assert!(names.iter().any(|name| name == "tieline"), "{names:?}");
        assert!(["xtask", "tieline-testing"].iter().all(|name| !names.contains(&(*name).into())));
    }
}
