//! The providers for single copy. Another one is a constant here, a place in the order, and a test of kills that names it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tieline_processes::Launch;

/// A provider, and what tells how much it holds.
pub(crate) struct SingleCopy {
    pub(crate) name: &'static str,
    /// The lane, as keys tell it.
    pub(crate) path: &'static str,
    /// The kernel module behind it.
    module: Option<Module>,
}

/// A module of the kernel's that counts what it has made and what has ended.
struct Module {
    name: &'static str,
    made: &'static str,
    ended: &'static str,
}

pub(crate) const CMA: SingleCopy =
    SingleCopy { name: "shm-cma", path: "shm-cma/copy", module: None };
pub(crate) const KNEM: SingleCopy = SingleCopy {
    name: "shm-knem",
    path: "shm-knem/copy",
    module: Some(Module { name: "knem", made: "created", ended: "destroyed" }),
};

/// All of them, in the order that they have by themselves.
pub(crate) const IN_ORDER: &[&SingleCopy] = &[&CMA, &KNEM];

impl SingleCopy {
    /// Why it cannot be tried here.
    pub(crate) fn is_missing(&self) -> Option<String> {
        let device = Path::new("/dev").join(self.module.as_ref()?.name);
        let gone = !device.exists();
        gone.then(|| format!("there is no {}: the lab has it", device.display()))
    }

    /// What its module holds for all processes together: regions, attachments.
    pub(crate) fn held(&self) -> i64 {
        let Some(module) = &self.module else { return 0 };
        let counter = |counter: &str| -> i64 {
            let file = format!("/sys/module/{}/parameters/{counter}", module.name);
            let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
            text.trim().parse().expect("a number")
        };
        counter(module.made) - counter(module.ended)
    }
}

/// A process that finds all providers of this build.
pub(crate) fn launch(name: &str) -> Launch {
    Launch::new(name, "node").env("TIELINE_PROVIDER_PATH", folder().display())
}

/// The folder of this build's shared objects: this program lies one below.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program.ancestors().nth(2).expect("a folder above").to_path_buf()
}

// ---- What an administrator does ----

const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
const DEVICE: &str = "/dev/knem";
const AWAY: &str = "/dev/knem.away";

/// Who may look into other processes from now on.
pub(crate) fn yama(scope: u32) {
    std::fs::write(YAMA, scope.to_string()).unwrap_or_else(|e| panic!("{YAMA}: {e}"));
}

pub(crate) fn yama_scope() -> u32 {
    let text = std::fs::read_to_string(YAMA).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// knem's device, while nobody can open it.
pub(crate) struct Taken {
    unreadable: bool,
}

impl Taken {
    pub(crate) fn away(unreadable: bool) -> Taken {
        if unreadable {
            mode(0);
        } else {
            std::fs::rename(DEVICE, AWAY).expect("the device is moved away");
        }
        Taken { unreadable }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.unreadable {
            mode(0o666);
        } else {
            std::fs::rename(AWAY, DEVICE).expect("the device is moved back");
        }
    }
}

fn mode(mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(DEVICE, mode).expect("the device's mode is changed");
}

pub(crate) fn unload_knem() {
    ran(Command::new("rmmod").arg("knem"));
}

pub(crate) fn load_knem() {
    let target = folder();
    let target = target.parent().expect("a folder above");
    ran(Command::new("insmod").arg(target.join("lab/modules/knem.ko")));
}

fn ran(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}
