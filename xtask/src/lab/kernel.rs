//! The kernel of the hosts: Debian's package, fetched once and kept in the user's cache, with an initramfs that contains the
//! modules and the script that start a host.

use super::{modules, scripts};
use crate::sh::{
    Outcome, bytes, capture, command, files_of, is_root, make_folder, name_of, on, run, write,
};
use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The modules, in the order in which they are loaded: each follows the modules that it needs. rdma_rxe requests "crc32" by name.
const MODULES: &str = "9p 9pnet_virtio virtio_pci virtio_console virtio_net overlay crc32_generic crc32_pclmul \
                       rdma_rxe rdma_ucm sch_netem veth";

pub(super) struct Kernel {
    pub(super) image: PathBuf,
    pub(super) initramfs: PathBuf,
    /// The directory of the cache that contains the kernel; its name is that of the package.
    pub(super) home: PathBuf,
}

/// Returns the kernel, and fetches it if it is missing; the error is the reason why there is no kernel.
pub(super) fn prepared() -> Outcome<Kernel> {
    let cache = cache()?;
    let kept = || kept(&cache);
    let home = match newest_name() {
        Some(name) if is_complete(&cache.join(&name)) => cache.join(name),
        Some(name) => match fetch(&cache, &name) {
            Ok(home) => home,
            Err(text) => kept().ok_or(text)?,
        },
        None => kept().ok_or("apt knows no linux-image-amd64, and no kernel is kept")?,
    };
    Ok(Kernel { image: home.join("kernel"), initramfs: initramfs(&home)?, home })
}

/// Returns `$XDG_CACHE_HOME/tieline-lab`, which is outside the tree, so that it survives `cargo clean`.
pub(super) fn cache() -> Outcome<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    Ok(base.ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("tieline-lab"))
}

fn newest_name() -> Option<String> {
    let said = capture(&mut command("apt-cache", &["depends", "linux-image-amd64"])).ok()?;
    said.lines().find_map(|line| {
        let name = line.trim().strip_prefix("Depends: ")?;
        name.starts_with("linux-image-").then(|| name.to_owned())
    })
}

fn is_complete(home: &Path) -> bool {
    fs::read_to_string(home.join("complete")).is_ok_and(|said| said == contents())
}

fn contents() -> String {
    format!("kernel unpacked\n{}", MODULES.replace(' ', "\n"))
}

/// Returns the newest kernel in the cache, for a machine without a network.
fn kept(cache: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(cache).ok()?;
    let homes = entries.flatten().map(|entry| entry.path()).filter(|home| is_complete(home));
    homes.max_by_key(|home| fs::metadata(home).and_then(|m| m.modified()).ok())
}

/// Fetches the package and keeps the files that a host needs: about ten MB. The headers are fetched at the same time if they are
/// available, because headers that are fetched later belong to another kernel.
fn fetch(cache: &Path, name: &str) -> Outcome<PathBuf> {
    println!("fetching {name}");
    let work = cache.join(format!("{name}.{}", std::process::id()));
    let outcome = make_folder(work.join("home/modules"))
        .and_then(|()| download(&work, &[name]))
        .and_then(|()| keep(&work, name));
    if outcome.is_ok() {
        // A caller that needs the headers fetches them again, and reports the reason if there are none.
        let _ = modules::headers(&work.join("home"), name);
    }
    let home = cache.join(name);
    let outcome = outcome.and_then(|()| {
        let _ = fs::remove_dir_all(&home);
        on(&home, fs::rename(work.join("home"), &home))
    });
    let _ = fs::remove_dir_all(&work);
    // Another run may have fetched the same package at the same time and finished first.
    outcome.or_else(|text| if is_complete(&home) { Ok(()) } else { Err(text) }).map(|()| home)
}

pub(super) fn download(work: &Path, names: &[&str]) -> Outcome {
    make_folder(work)?;
    let download =
        || capture(command("apt-get", &["-q", "download"]).args(names).current_dir(work));
    if let Err(text) = download() {
        if !is_root() {
            return Err(text);
        }
        // Package lists that are older than the archive refer to files that no longer exist.
        run(&mut command("apt-get", &["update", "-qq"]))?;
        let _ = download()?;
    }
    let packages = files_of(work, "deb")?;
    if packages.len() != names.len() {
        let (names, left) = (names.join(" "), packages.len());
        return Err(format!("apt-get download {names} left {left} packages"));
    }
    packages.iter().try_for_each(|package| {
        run(command("dpkg-deb", &["-x"]).arg(package).arg(work.join("tree")))
    })
}

/// Copies the kernel and the modules; a module's file name is its position in the order.
fn keep(work: &Path, name: &str) -> Outcome {
    let (tree, home) = (work.join("tree"), work.join("home"));
    let version = name.trim_start_matches("linux-image-");
    let copy = |from: &Path, to: PathBuf| on(from, fs::copy(from, &to).map(|_| ()));
    let image = tree.join(format!("boot/vmlinuz-{version}"));
    // An emulated processor needs more time to unpack a kernel than to boot it.
    if unpack(&image, &home.join("kernel")).is_none() {
        copy(&image, home.join("kernel"))?;
    }
    let _ = capture(command("depmod", &["-b"]).arg(&tree).arg(version))?;
    let (mut order, mut seen) = (String::new(), HashSet::new());
    for module in MODULES.split(' ') {
        let mut modprobe = command("modprobe", &["-S", version, "--show-depends", module]);
        let said = capture(modprobe.arg("-d").arg(&tree))?;
        for file in said.lines().filter_map(|line| line.trim().strip_prefix("insmod ")) {
            let file = Path::new(file.trim());
            let name = name_of(file);
            if seen.insert(name.clone()) {
                copy(file, home.join("modules").join(&name))?;
                order += &(name + "\n");
            }
        }
    }
    write(home.join("modules/order"), &order)?;
    write(home.join("complete"), contents())
}

/// Unpacks a kernel as the boot protocol describes it. The compressed kernel follows the sectors of the set-up code, at an offset
/// that the header names. The unpacked kernel is an ELF file that qemu boots directly.
fn unpack(image: &Path, to: &Path) -> Option<()> {
    let bytes = fs::read(image).ok()?;
    let number = |at: usize| {
        let field = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(field.try_into().ok()?) as usize)
    };
    let code = (usize::from(*bytes.get(0x1f1)?) + 1) * 512;
    let (start, len) = (code + number(0x248)?, number(0x24c)?);
    let packed = bytes.get(start..start.checked_add(len)?)?;
    let tool = match packed {
        [0xfd, b'7', b'z', ..] => "xz -dc --single-stream",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd -dcq",
        [0x1f, 0x8b, ..] => "gzip -dcq",
        _ => return None,
    };
    let file = to.with_extension("packed");
    fs::write(&file, packed).ok()?;
    // Some of these tools report an error because of the size that follows the data, so the code checks their output instead of
    // their status.
    let script = format!("{tool} \"$1\" > \"$2\"");
    let _ = capture(command("sh", &["-c", &script, "sh"]).arg(&file).arg(to));
    let _ = fs::remove_file(&file);
    let size = packed.get(len.checked_sub(4)?..)?;
    let size = u64::from(u32::from_le_bytes(size.try_into().ok()?));
    fs::metadata(to).is_ok_and(|m| m.len() == size).then_some(())
}

/// Makes the initramfs, unless it exists and its script has not changed.
fn initramfs(home: &Path) -> Outcome<PathBuf> {
    let init = scripts().join("init");
    let text = bytes(&init)?;
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let packed = home.join(format!("initramfs-{:016x}", hasher.finish()));
    if packed.exists() {
        return Ok(packed);
    }
    let work = home.join(format!("initramfs.{}", std::process::id()));
    let script = r#"
        mkdir -p "$1/bin" "$1/proc" "$1/sys" "$1/dev" &&
        cp -r "$2/modules" "$1/modules" &&
        cp "$(command -v busybox)" "$1/bin/busybox" &&
        ln -s busybox "$1/bin/sh" &&
        cp "$3" "$1/init" && chmod 755 "$1/init" &&
        (cd "$1" && find . | cpio --quiet -o -H newc) > "$1.packed" &&
        mv "$1.packed" "$4"
    "#;
    let outcome =
        run(command("sh", &["-c", script, "sh"]).arg(&work).arg(home).arg(&init).arg(&packed));
    let _ = fs::remove_dir_all(&work);
    outcome.map(|()| packed)
}
