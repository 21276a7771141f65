//! `cargo xtask install --prefix DIR`: installs the library, its headers and pkg-config files, the providers, the provider for libfabric, the command, manual
//! pages and shell completions.

use crate::c_library::{self, SONAME};
use crate::foreign;
use crate::integrations;
use crate::sh::{
    self, Outcome, capture, cargo, command, files_of, make_folder, name_of, on, read, root, run,
    target, write,
};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The crates that make provider files, and the names of the files.
pub(crate) const PROVIDERS: [&str; 8] =
    ["ofi", "shm", "shm-cma", "shm-knem", "shm-xpmem", "tcp", "tcp-connect", "verbs"];

const USAGE: &str =
    "install --prefix DIR [--libdir DIR] [--debug] [--unstripped]; DESTDIR goes before all of them";

struct Places {
    prefix: PathBuf,
    libdir: PathBuf,
    /// The directory that precedes all paths: `/`, or the directory of a package.
    destination: PathBuf,
    profile: &'static str,
    /// Whether each file is printed when it is installed.
    tells: bool,
    /// Whether symbols that only a debugger needs are removed.
    strips: bool,
}

impl Places {
    fn of(words: &[&str]) -> Outcome<Places> {
        let (mut prefix, mut libdir, mut profile) = (None, None, "release");
        let mut strips = true;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().map(PathBuf::from).ok_or(format!("{word} DIR"));
            match *word {
                "--prefix" => prefix = Some(value()?),
                "--libdir" => libdir = Some(value()?),
                "--debug" => profile = "debug",
                "--unstripped" => strips = false,
                _ => return Err(USAGE.into()),
            }
        }
        let prefix: PathBuf = prefix.ok_or(USAGE)?;
        let libdir = libdir.unwrap_or_else(|| prefix.join("lib"));
        if !prefix.is_absolute() || !libdir.is_absolute() {
            let words = "--prefix and --libdir name where the files will be used from";
            return Err(format!("{words}: begin with /"));
        }
        let destination = std::env::var_os("DESTDIR").filter(|folder| !folder.is_empty());
        let destination = PathBuf::from(destination.unwrap_or("/".into()));
        Ok(Places { prefix, libdir, destination, profile, tells: true, strips })
    }

    fn laid(&self, path: &Path) -> PathBuf {
        self.destination.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn put(&self, from: &Path, to: &Path, mode: u32) -> Outcome {
        self.put_without("", from, to, mode)
    }

    /// Installs a file of code, without the symbols that an option of strip(1) selects.
    fn put_without(&self, symbols: &str, from: &Path, to: &Path, mode: u32) -> Outcome {
        let to = self.laid(to);
        make_folder(to.parent().unwrap_or(Path::new("/")))?;
        // A file that is in use keeps its bytes, because the new file is renamed over it.
        let new = to.with_extension("new");
        let _ = on(from, fs::copy(from, &new))?;
        if self.strips && !symbols.is_empty() {
            run(command(foreign::tool("strip"), &[symbols]).arg(&new))?;
        }
        on(&new, fs::set_permissions(&new, fs::Permissions::from_mode(mode)))?;
        on(&to, fs::rename(&new, &to))?;
        self.tell(&to.display().to_string());
        Ok(())
    }

    /// Returns a text of `packaging` with the directories of this installation.
    fn text(&self, template: &str) -> Outcome<String> {
        let text = read(root().join("packaging").join(template))?;
        let text = text.replace("@prefix@", &self.prefix.display().to_string());
        Ok(text.replace("@libdir@", &self.libdir.display().to_string()))
    }

    fn put_text(&self, text: &str, to: &Path) -> Outcome {
        let staged = c_library::folder(self.profile).join("staged");
        write(&staged, text)?;
        self.put(&staged, to, 0o644)
    }

    fn link(&self, target: &str, to: &Path) -> Outcome {
        let to = self.laid(to);
        let _ = fs::remove_file(&to);
        on(&to, symlink(target, &to))?;
        self.tell(&format!("{} -> {target}", to.display()));
        Ok(())
    }

    /// Returns the variables that a user must set so that the installation is found; empty if the system finds it without them.
    fn settings(&self) -> String {
        let is_release = self.profile == "release";
        if self.prefix == Path::new("/usr") && is_release {
            return String::new();
        }
        let providers = match abi() {
            Ok((major, _)) if !is_release => format!(
                "\n  export TIELINE_PROVIDER_PATH={}   # a library of --debug searches no directory of the prefix",
                self.providers(&major).display()
            ),
            _ => String::new(),
        };
        let (bin, lib) = (self.prefix.join("bin"), &self.libdir);
        let (bin, lib, pc) = (bin.display(), lib.display(), lib.join("pkgconfig"));
        format!(
            "\nTo use it:\n  export PATH={bin}:$PATH\n  export PKG_CONFIG_PATH={}\n  export LD_LIBRARY_PATH={lib}   # or \
             for all users: echo {lib} > /etc/ld.so.conf.d/tieline.conf && ldconfig{providers}",
            pc.display()
        )
    }

    fn providers(&self, abi_major: &str) -> PathBuf {
        self.libdir.join(format!("tieline-{abi_major}/providers"))
    }

    fn tell(&self, line: &str) {
        if self.tells {
            println!("{line}");
        }
    }
}

/// The time limit of a release build, which optimizes all code again when it links, and is slow on a busy machine.
const BUILD: Duration = Duration::from_secs(2 * 60 * 60);

pub(crate) fn install(words: &[&str]) -> Outcome {
    let places = Places::of(words)?;
    if places.strips && sh::which("strip").is_none() {
        return Err("there is no strip (binutils): install it, or say --unstripped".into());
    }
    sh::within(BUILD, || build(&places))?;
    lay(&places)?;
    places.tell(&places.settings());
    Ok(())
}

/// Installs the files of the development profile, without building.
pub(crate) fn lay_what_is_built(prefix: &Path) -> Outcome {
    let (prefix, destination) = (prefix.to_path_buf(), "/".into());
    let (libdir, profile) = (prefix.join("lib"), "debug");
    lay(&Places { libdir, prefix, destination, profile, tells: false, strips: false })
}

fn build(places: &Places) -> Outcome {
    let mut cargo = cargo(&["build", "--locked", "-p", "tieline-capi", "-p", "tieline-tools"]);
    let _ = cargo.args(["-p", "tieline-libfabric"]);
    for provider in PROVIDERS {
        let _ = cargo.args(["-p", &format!("tieline-provider-{provider}-plugin")]);
    }
    // An installed library searches for providers below this directory. A program uses the providers of the build directory only
    // with TIELINE_PROVIDER_PATH.
    if places.profile == "release" {
        let _ = cargo.arg("--release").env("TIELINE_LIBDIR", &places.libdir);
    }
    foreign::aim(&mut cargo);
    run(&mut cargo)?;
    if foreign::is_foreign() { run(&mut own_programs()) } else { Ok(()) }
}

/// Builds the program that writes files of the installation, with the providers whose settings it lists, for this machine.
fn own_programs() -> Command {
    let mut cargo = cargo(&["build", "--locked", "-p", "tieline-tools"]);
    for provider in PROVIDERS {
        let _ = cargo.args(["-p", &format!("tieline-provider-{provider}-plugin")]);
    }
    cargo
}

/// Returns the folder of programs that this machine can run, for a build of this profile.
pub(crate) fn runnable(profile: &str) -> PathBuf {
    target().join(if foreign::is_foreign() { "debug" } else { profile })
}

fn lay(places: &Places) -> Outcome {
    let built = target().join(foreign::folder(places.profile));
    let libraries = c_library::link(places.profile)?;
    c_library::check_exports(&libraries.join(SONAME))?;
    let Places { prefix, libdir, .. } = places;
    let version = env!("CARGO_PKG_VERSION");
    let file = format!("libtieline.so.{version}");
    let (of_debuggers, unneeded) = ("--strip-debug", "--strip-unneeded");
    places.put_without(unneeded, &libraries.join(SONAME), &libdir.join(&file), 0o644)?;
    places.link(&file, &libdir.join(SONAME))?;
    places.link(SONAME, &libdir.join("libtieline.so"))?;
    let archive = "libtieline.a";
    places.put_without(of_debuggers, &libraries.join(archive), &libdir.join(archive), 0o644)?;
    for header in ["tieline.h", "tieline_provider.h"] {
        let file = Path::new("include").join(header);
        places.put(&root().join(&file), &prefix.join(&file), 0o644)?;
    }
    let (major, minor) = abi()?;
    for name in ["tieline.pc", "tieline-provider.pc"] {
        let text = places.text(&format!("{name}.in"))?;
        let text = text.replace("@includedir@", &prefix.join("include").display().to_string());
        let text = text.replace("@version@", version);
        let text = text.replace("@abi_major@", &major).replace("@abi_minor@", &minor);
        places.put_text(&text, &libdir.join("pkgconfig").join(name))?;
    }
    for provider in PROVIDERS {
        let file = format!("libtieline_{}.so", provider.replace('-', "_"));
        let to = places.providers(&major).join(&file);
        places.put_without(unneeded, &built.join(&file), &to, 0o644)?;
    }
    let (provider, folder) = (built.join(integrations::BUILT), libdir.join(integrations::FOLDER));
    places.put_without(unneeded, &provider, &folder.join(integrations::FILE), 0o644)?;
    let environment = places.text("libfabric-environment.sh.in")?;
    places.put_text(&environment, &prefix.join("share/tieline-libfabric/environment.sh"))?;
    let program = built.join("tieline");
    places.put_without(unneeded, &program, &prefix.join("bin/tieline"), 0o755)?;
    let written = built.join("c/completions");
    make_folder(&written)?;
    let writer = runnable(places.profile).join("tieline");
    let _ = capture(command(writer, &["completions"]).arg(&written))?;
    // The directory differs between a distribution's packages and other installations.
    let zsh = if prefix == Path::new("/usr") { "vendor-completions" } else { "site-functions" };
    for (file, place) in [
        ("tieline", "bash-completion/completions"),
        ("_tieline", &format!("zsh/{zsh}")),
        ("tieline.fish", "fish/vendor_completions.d"),
    ] {
        let to = prefix.join("share").join(place).join(file);
        places.put(&written.join(file), &to, 0o644)?;
    }
    for section in ["1", "7"] {
        let manual = prefix.join(format!("share/man/man{section}"));
        for page in files_of(root().join("packaging/man"), section)? {
            places.put(&page, &manual.join(name_of(&page)), 0o644)?;
        }
    }
    Ok(())
}

fn abi() -> Outcome<(String, String)> {
    let header = root().join("include/tieline_provider.h");
    let text = read(&header)?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        line.map(str::to_owned).ok_or(format!("{} has no {name}", header.display()))
    };
    Ok((number("TIELINE_ABI_MAJOR")?, number("TIELINE_ABI_MINOR")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_absolute_and_a_package_lies_below_its_folder() {
        assert!(Places::of(&["--prefix", "usr"]).is_err());
        assert!(Places::of(&[]).is_err() && Places::of(&["--prefix"]).is_err());
        let mut places = Places::of(&["--prefix", "/usr", "--libdir", "/usr/lib64"]).unwrap();
        places.destination = "/tmp/package".into();
        assert_eq!(places.laid(&places.libdir), Path::new("/tmp/package/usr/lib64"));
        places.destination = "/".into();
        assert_eq!(places.laid(&places.libdir), Path::new("/usr/lib64"));
    }

    #[test]
    fn the_lines_to_set_name_the_program_the_library_and_pkg_config() {
        let places = Places::of(&["--prefix", "/opt/t", "--libdir", "/opt/t/lib64"]).unwrap();
        let said = places.settings();
        for line in [
            "export PATH=/opt/t/bin:$PATH\n",
            "export PKG_CONFIG_PATH=/opt/t/lib64/pkgconfig\n",
            "export LD_LIBRARY_PATH=/opt/t/lib64 ",
        ] {
            assert!(said.contains(line), "{said}");
        }
        assert_eq!(Places::of(&["--prefix", "/usr"]).unwrap().settings(), "");
        assert!(!said.contains("TIELINE_PROVIDER_PATH"), "the library finds them: {said}");
    }

    #[test]
    fn debug_installation_names_directory_of_its_providers() {
        for prefix in ["/usr", "/opt/t"] {
            let said = Places::of(&["--prefix", prefix, "--debug"]).unwrap().settings();
            let line = format!("export TIELINE_PROVIDER_PATH={prefix}/lib/tieline-1/providers ");
            assert!(said.contains(&line), "{said}");
        }
    }

    #[test]
    fn the_numbers_of_the_provider_abi_are_found() {
        let (major, minor) = abi().unwrap();
        assert!(major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok());
    }
}
