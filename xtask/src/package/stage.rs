//! Makes the staged tree from which packages are made, with the paths of the installation.

use super::{build, notices};
use crate::foreign;
use crate::install::PROVIDERS;
use crate::sh::{
    Outcome, bytes, capture, cargo, command, make_folder, name_of, on, root, target, write,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The providers whose variables are in the packaged settings file. Variables of other providers are known only on machines with
/// their kernel modules, so including them would make the file depend on the build machine.
const CONFIGURED: [&str; 6] = ["ofi", "shm", "shm-cma", "tcp", "tcp-connect", "verbs"];

/// Builds all files for this library directory, and installs them below a directory, which is emptied before.
pub(super) fn make(libdir: &str, folder: &Path) -> Outcome<PathBuf> {
    // A program that runs from the staged tree has its own working directory, so the path must be absolute.
    let folder = on(folder, std::path::absolute(folder))?;
    build::emptied(&folder)?;
    build::installed(libdir, &folder)?;
    let tree = Tree(&folder);
    tree.development()?;
    tree.words()?;
    tree.notices()?;
    build::names_no_place(&build::files(&folder)?)?;
    readable(&folder)?;
    Ok(folder)
}

/// A directory that is filled like the root of a system.
struct Tree<'a>(&'a Path);

impl Tree<'_> {
    fn development(&self) -> Outcome {
        let source = root();
        let packaging = source.join("packaging");
        let programs = [("tieline-note", "tieline-note"), ("debhelper/dh_tieline", "dh_tieline")];
        for (file, name) in programs {
            let file = packaging.join(file);
            self.put(&file, &format!("/usr/bin/{name}"), 0o755)?;
            let page = manual(&file, name)?;
            self.write(&format!("/usr/share/man/man1/{name}.1"), page.as_bytes(), 0o644)?;
        }
        for (file, mode) in [("tieline.req", 0o755), ("tieline.prov", 0o755)] {
            self.put(&packaging.join("rpm").join(file), &format!("/usr/lib/rpm/{file}"), mode)?;
        }
        let attributes = "/usr/lib/rpm/fileattrs/tieline.attr";
        self.put(&packaging.join("rpm/tieline.attr"), attributes, 0o644)?;
        let sequence = "/usr/share/perl5/Debian/Debhelper/Sequence/tieline.pm";
        self.put(&packaging.join("debhelper/tieline.pm"), sequence, 0o644)?;
        crate_for_providers(self.0)?;
        for folder in ["docs/examples", "capi/examples"] {
            for file in build::files(&source.join(folder))? {
                if file.extension().is_some_and(|e| e == "c" || e == "h") {
                    let name = name_of(&file);
                    self.put(&file, &format!("/usr/share/doc/tieline/examples/{name}"), 0o644)?;
                }
            }
        }
        Ok(())
    }

    fn words(&self) -> Outcome {
        self.with_the_tool()?;
        for page in ["README.md", "ARCHITECTURE.md", "SECURITY.md", "LICENSE-MIT", "LICENSE-APACHE"]
        {
            self.put(&root().join(page), &format!("/usr/share/doc/tieline/{page}"), 0o644)?;
        }
        for file in build::files(&root().join("docs"))? {
            if file.extension().is_some_and(|e| e == "md") {
                let place = format!("/usr/share/doc/tieline/docs/{}", name_of(&file));
                self.put(&file, &place, 0o644)?;
            }
        }
        Ok(())
    }

    fn with_the_tool(&self) -> Outcome {
        let (tieline, providers) = match foreign::is_foreign() {
            true => {
                let built = target().join("packages/build/debug");
                (built.join("tieline"), built)
            }
            false => (self.0.join("usr/bin/tieline"), self.providers()?),
        };
        // The variables select the packaged providers, and exclude settings and providers of this machine. The environment takes
        // precedence over configuration files, and staged files are found before installed ones.
        let mut settings = command(&tieline, &["config", "--file"]);
        let settings = settings.env_clear().env("TIELINE_PROVIDER_PATH", providers);
        let settings = settings.env("TIELINE_PROVIDERS", CONFIGURED.join(","));
        let text = capture(settings.env("TIELINE_STRICT", "0"))?;
        let mut owners = owners(&text);
        owners.sort_unstable();
        if owners != CONFIGURED {
            let (has, wanted) = (owners.join(", "), CONFIGURED.join(", "));
            return Err(format!(
                "the file of settings has variables of {has}, and not of {wanted}"
            ));
        }
        self.write("/etc/tieline/tieline.toml", text.as_bytes(), 0o644)
    }

    fn providers(&self) -> Outcome<PathBuf> {
        let files = build::files(&self.0.join("usr"))?;
        let provider = files.iter().find(|file| file.ends_with("providers/libtieline_shm.so"));
        let folder = provider.and_then(|file| file.parent()).map(Path::to_path_buf);
        folder.ok_or(format!("{} has no provider shm", self.0.display()))
    }

    fn notices(&self) -> Outcome {
        let crates = ["tieline-tools", "tieline-capi", "tieline-libfabric"];
        let mut linked = crates.map(str::to_owned).to_vec();
        linked.extend(PROVIDERS.map(|provider| format!("tieline-provider-{provider}-plugin")));
        let libfabric = root().join("integrations/libfabric-abi/NOTICE");
        self.put(&libfabric, "/usr/share/doc/tieline/NOTICE.libfabric", 0o644)?;
        self.write("/usr/share/doc/tieline/NOTICES", notices::text(&linked)?.as_bytes(), 0o644)
    }

    fn put(&self, file: &Path, place: &str, mode: u32) -> Outcome {
        self.write(place, &bytes(file)?, mode)
    }

    fn write(&self, place: &str, bytes: &[u8], mode: u32) -> Outcome {
        let at = self.0.join(place.trim_start_matches('/'));
        let parent = at.parent().unwrap_or(self.0);
        make_folder(parent)?;
        write(&at, bytes)?;
        on(&at, std::fs::set_permissions(&at, PermissionsExt::from_mode(mode)))
    }
}

/// Installs the source of the crate for providers in Rust below a directory, as it would be published, but without the files that
/// only publishing needs.
pub(crate) fn crate_for_providers(folder: &Path) -> Outcome {
    let made = target().join("packages/crate");
    let args = ["package", "--no-verify", "--allow-dirty", "--locked", "-p", "tieline-plugin-api"];
    let _ = capture(cargo(&args).arg("--target-dir").arg(&made))?;
    let name = concat!("package/tieline-plugin-api-", env!("CARGO_PKG_VERSION"), ".crate");
    let place = folder.join("usr/share/tieline/plugin-api");
    make_folder(&place)?;
    // Some versions of cargo date a file of the crate to 1970. The files get the present time, which packages replace by that of
    // their change log.
    let mut tar = command(
        "tar",
        &["--extract", "--gzip", "--strip-components=1", "--no-same-owner", "--touch", "--file"],
    );
    let _ = capture(tar.arg(made.join(name)).arg("--directory").arg(&place))?;
    for file in build::files(&place)? {
        let name = name_of(&file);
        // Each distribution has its own place for the texts of licences.
        let other = ["Cargo.lock", "Cargo.toml.orig", ".cargo_vcs_info.json", "README.md"]
            .contains(&&*name);
        let done = match other || name.starts_with("LICENSE") {
            true => std::fs::remove_file(&file),
            false => std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)),
        };
        on(file, done)?;
    }
    Ok(())
}

fn owners(text: &str) -> Vec<&str> {
    let named = |line| str::strip_prefix(line, "# ---- Provider ")?.strip_suffix(" ----");
    text.lines().filter_map(named).collect()
}

/// Makes staged files readable by all users and writable only by their owner, regardless of the umask of this process.
fn readable(folder: &Path) -> Outcome {
    let mut chmod = command("chmod", &["--recursive", "u=rwX,go=rX"]);
    capture(chmod.arg(folder)).map(|_| ())
}

fn manual(file: &Path, name: &str) -> Outcome<String> {
    let version = concat!("tieline ", env!("CARGO_PKG_VERSION"));
    let args = ["--section=1", "--date= ", "--release", version, "--center=Tieline", "--name"];
    let mut pod: Command = command("pod2man", &args);
    capture(pod.arg(name.to_uppercase()).arg(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owners_of_a_file_of_settings_are_read_from_its_headings() {
        let text = "# ---- The core ----\n#TIELINE_A = \"\"\n# ---- Provider shm ----\n\n# ---- Provider tcp-connect ----\n";
        assert_eq!(owners(text), ["shm", "tcp-connect"]);
        assert!(CONFIGURED.is_sorted() && CONFIGURED.iter().all(|name| PROVIDERS.contains(name)));
    }

    #[test]
    fn files_are_readable_by_all_and_writable_by_the_owner_for_any_umask() {
        let folder = std::env::temp_dir().join(format!("tieline-modes-{}", std::process::id()));
        let (narrow, wide) = (folder.join("narrow"), folder.join("wide"));
        std::fs::create_dir_all(&narrow).unwrap();
        std::fs::write(&wide, "").unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        set(&narrow, 0o700);
        set(&wide, 0o666);
        readable(&folder).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&folder), mode(&narrow), mode(&wide)), (0o755, 0o755, 0o644));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
