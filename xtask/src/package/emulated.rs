//! Namespaces in which programs of 64-bit Arm run on this machine under qemu's user-mode emulation.
//!
//! A user namespace of its own has its own list of binary formats (`binfmt_misc`, since Linux 6.7). The emulator is registered only
//! there, so other programs of this machine notice nothing, and nothing remains.
//!
//! The emulation translates each access to one of this processor, and therefore shows neither the weak ordering of Arm nor its
//! speed.

use crate::sh::{Outcome, is_root, which};
use std::path::Path;
use std::process::Command;

/// The formats that the emulator runs: executable files and shared objects of 64-bit Arm.
const FORMAT: &str = r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff";

/// Starts a process in new namespaces, gives it all users, and enters the namespaces with a command. The process ends with this
/// script, and with it the namespaces.
const ENTER: &str = r#"
unshare --user --mount --pid --fork --kill-child sleep infinity & first=$!
trap 'kill -KILL $first' EXIT
inside=
while [ -z "$inside" ]; do
    kill -0 $first
    read -r inside < /proc/$first/task/$first/children || true
done
until [ "$(readlink /proc/$inside/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do :; done
echo '0 0 4294967295' > /proc/$inside/uid_map
echo '0 0 4294967295' > /proc/$inside/gid_map
nsenter --target $inside --user --mount --pid --setuid 0 --setgid 0 -- bash -euc '
    mount -t proc proc /proc
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    printf "%s" "$FORMAT:$EMULATOR:F" > /proc/sys/fs/binfmt_misc/register
    unset FORMAT EMULATOR
    exec "$@"' bash "$@"
"#;

/// Returns a command for which programs of 64-bit Arm run under this emulator; its arguments follow. Of the environment, only the
/// proxies are kept.
pub(super) fn command(emulator: &Path) -> Command {
    let mut bash = crate::sh::command("bash", &["-euc", ENTER, "bash"]);
    let kept = ["http_proxy", "https_proxy", "no_proxy"];
    let kept = kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let _ = bash.env_clear().envs(kept).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let _ = bash.env("FORMAT", FORMAT).env("EMULATOR", emulator);
    bash
}

/// Returns the reason why no emulation is possible on this machine.
pub(super) fn check() -> Outcome {
    if !is_root() {
        return Err("a namespace with all users needs root's rights here".into());
    }
    match ["bash", "unshare", "nsenter"].iter().find(|program| which(program).is_none()) {
        Some(program) => Err(format!("there is no {program}")),
        None => Ok(()),
    }
}
