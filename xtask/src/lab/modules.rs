//! Builds the kernel modules of `tests/lab/modules` against the headers of the hosts' kernel, which are fetched with the kernel.
//! The modules are kept in `target/lab/modules`.

use super::kernel::{self, Kernel};
use super::{folder, scripts};
use crate::sh::{
    Outcome, capture, command, entries, listened, make_folder, name_of, on, read, which, write,
};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The prefix of the kernels for whose interface the modules are written.
const LINUX: &str = "linux-image-6.1.";

const MODULES: [&str; 2] = ["xpmem.ko", "knem.ko"];

/// Builds the modules, unless the existing ones are built from these sources for this kernel. Returns the reason if the modules
/// cannot be built on this machine. A module that does not compile is an error.
pub(super) fn missing(kernel: &Kernel) -> Outcome<Option<String>> {
    let name = name_of(&kernel.home);
    if !name.starts_with(LINUX) {
        return Ok(Some(format!("the modules are written for {LINUX}*, and {name} is booted")));
    }
    if which("make").is_none() {
        return Ok(Some("no make: apt-get install make".into()));
    }
    let headers = match headers(&kernel.home, &name) {
        Ok(headers) => headers,
        Err(text) => return Ok(Some(format!("no headers of {name}: {text}"))),
    };
    let compiler = compiler(&headers);
    if which(&compiler).is_none() {
        return Ok(Some(format!("no {compiler}, with which {name} was compiled")));
    }
    let sources = sources()?;
    let mut hasher = DefaultHasher::new();
    (&name, &sources).hash(&mut hasher);
    let stamp = format!("{:016x}", hasher.finish());
    let home = folder().join("modules");
    if fs::read_to_string(home.join("stamp")).is_ok_and(|said| said == stamp) {
        return Ok(None);
    }
    println!("building the kernel modules");
    // The kernel's build does not support a directory with a space in its path, and the tree may have such a path.
    let work = kernel.home.join(format!("modules.{}", std::process::id()));
    let outcome = compile(&work, &headers, &sources).and_then(|()| {
        let _ = fs::remove_dir_all(&home);
        make_folder(&home)?;
        for module in MODULES {
            let _ = on(&home, fs::copy(work.join(module), home.join(module)))?;
        }
        write(home.join("stamp"), stamp)
    });
    let _ = fs::remove_dir_all(&work);
    outcome.map(|()| None)
}

fn sources() -> Outcome<Vec<(String, String)>> {
    let folder = scripts().join("modules");
    let mut files = entries(folder)?;
    files.retain(|file| {
        let name = name_of(file);
        name == "Makefile" || name.ends_with(".c") || name.ends_with(".h")
    });
    files.iter().map(|file| Ok((name_of(file), read(file)?))).collect()
}

fn compile(work: &Path, headers: &Path, sources: &[(String, String)]) -> Outcome {
    make_folder(work)?;
    for (name, text) in sources {
        write(work.join(name), text)?;
    }
    // Compiler warnings are errors, as in all C files of the project.
    let mut make = command("make", &["-s", "-C"]);
    let _ = make.arg(headers).arg(format!("M={}", work.display())).arg("KCFLAGS=-Werror");
    let (made, told) = listened(make.arg("modules"));
    if !made? {
        told.iter().for_each(|line| println!("{line}"));
        return Err("the kernel modules do not compile: see above".into());
    }
    for module in MODULES {
        // A host reads the modules from this machine: without debug information their size is a tenth.
        let _ = capture(command("strip", &["--strip-debug"]).arg(work.join(module)))?;
    }
    Ok(())
}

/// Returns the directory of headers of the kernel in `home`, whose package is `image`, and fetches the headers if they are missing.
pub(super) fn headers(home: &Path, image: &str) -> Outcome<PathBuf> {
    let name = image.replacen("image", "headers", 1);
    let all = home.join("headers");
    let own = all.join("usr/src").join(&name);
    if own.join("Makefile").exists() {
        return Ok(own);
    }
    println!("fetching {name}");
    let work = home.join(format!("headers.{}", std::process::id()));
    let outcome = fetch(&work, &name).and_then(|()| on(&all, fs::rename(work.join("tree"), &all)));
    let _ = fs::remove_dir_all(&work);
    // Another run may have fetched the same headers at the same time and finished first.
    outcome.or_else(|text| if own.join("Makefile").exists() { Ok(()) } else { Err(text) })?;
    Ok(own)
}

/// Fetches the package and the packages that it includes: the headers that all flavours of this kernel share, and the tools of the
/// kernel's build.
fn fetch(work: &Path, name: &str) -> Outcome {
    let said = capture(&mut command("apt-cache", &["depends", name]))?;
    let depends = said.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let mut names = vec![name];
    names
        .extend(depends.filter(|name| {
            name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-")
        }));
    kernel::download(work, &names)?;
    // The makefile contains the path at which the other package would be installed.
    let file = work.join("tree/usr/src").join(name).join("Makefile");
    let text = read(&file)?;
    let here = "include $(dir $(lastword $(MAKEFILE_LIST)))../";
    write(&file, text.replace("include /usr/src/", here))
}

fn compiler(headers: &Path) -> String {
    compiler_in(&fs::read_to_string(headers.join(".kernelvariables")).unwrap_or_default())
}

fn compiler_in(text: &str) -> String {
    let named = text.split_whitespace().find_map(|word| Some(&word[word.find("gcc-")?..]));
    named.map_or("gcc".into(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_the_one_that_the_headers_name() {
        let text = "override ARCH = x86\nCC = $(if $(CACHED),$(CCACHE)) $(CROSS_COMPILE)gcc-12\nifneq ($(A),$(B))\n";
        assert_eq!(compiler_in(text), "gcc-12");
        assert_eq!(compiler_in(""), "gcc");
    }

    #[test]
    fn every_module_source_states_its_licence_and_is_in_the_makefile() {
        let sources = sources().unwrap();
        let makefile = &sources.iter().find(|(name, _)| name == "Makefile").unwrap().1;
        assert!(sources.len() > 5);
        for (name, text) in &sources {
            assert!(
                text.lines()
                    .next()
                    .is_some_and(|line| line.contains("SPDX-License-Identifier: GPL-2.0")),
                "{name}"
            );
            if let Some(object) = name.strip_suffix(".c") {
                assert!(makefile.contains(&format!("{object}.o")), "{name}");
            }
        }
    }
}
