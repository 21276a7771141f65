//! The single-copy providers. To add a provider, add a constant to this file, a place in the order, and a test of kills that names
//! the provider.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tieline_processes::peer::DEADLINE;
use tieline_processes::{Launch, Node};

/// A provider, and the source of the number of objects that it holds.
pub(crate) struct SingleCopy {
    pub(crate) name: &'static str,
    /// The name of the lane, as keys report it.
    pub(crate) path: &'static str,
    /// Further settings of the processes that use the provider.
    pub(crate) settings: &'static str,
    /// The kernel module that the provider uses.
    module: Option<Module>,
}

/// A kernel module that counts the objects it has made and ended. The device of a module has the module's name.
struct Module {
    name: &'static str,
    made: &'static str,
    ended: &'static str,
}

pub(crate) const CMA: SingleCopy =
    SingleCopy { name: "shm-cma", path: "shm-cma/copy", settings: "", module: None };
pub(crate) const XPMEM: SingleCopy = SingleCopy {
    name: "shm-xpmem",
    path: "shm-xpmem/attach",
    settings: "",
    module: Some(Module { name: "xpmem", made: "attached", ended: "detached" }),
};
/// The provider with direct access by loads and stores, which an operator can select.
pub(crate) const DIRECT: SingleCopy = SingleCopy {
    settings: "TIELINE_SHM_XPMEM_ACCESS=direct TIELINE_SHM_XPMEM_COLD=serve",
    ..XPMEM
};
/// The provider with direct access only for memory for which it reduces the cost: windows are longer than the registered memory.
pub(crate) const COLD: SingleCopy = SingleCopy {
    settings: "TIELINE_SHM_XPMEM_ACCESS=direct TIELINE_SHM_XPMEM_WINDOW=1g TIELINE_LOG=info \
               TIELINE_ASSIST_SIZE=1g",
    ..XPMEM
};
pub(crate) const KNEM: SingleCopy = SingleCopy {
    name: "shm-knem",
    path: "shm-knem/copy",
    settings: "",
    module: Some(Module { name: "knem", made: "created", ended: "destroyed" }),
};

/// A device that accesses registered memory in the same manner as the memory of other hosts.
pub(crate) const VERBS: SingleCopy =
    SingleCopy { name: "verbs", path: "verbs:rxe0/rc", settings: "", module: None };

pub(crate) const IN_ORDER: &[&SingleCopy] = &[&CMA, &XPMEM, &KNEM];

/// Returns the reason why some of the providers cannot be tested on this machine.
pub(crate) fn one_is_missing() -> Option<String> {
    IN_ORDER.iter().find_map(|one| one.is_missing())
}

impl SingleCopy {
    pub(crate) fn is_missing(&self) -> Option<String> {
        let _ = self.module.as_ref()?;
        let device = self.device();
        let gone = !Path::new(&device).exists();
        gone.then(|| format!("there is no {device}: the lab has it"))
    }

    pub(crate) fn device(&self) -> String {
        format!("/dev/{}", self.kernel_module())
    }

    fn kernel_module(&self) -> &'static str {
        self.module.as_ref().map_or("none", |module| module.name)
    }

    /// Waits until the module holds `expected` objects: objects of dead processes end by themselves, some of them shortly after the
    /// process.
    pub(crate) fn holds_again(&self, expected: i64, when: &str) {
        let late = Instant::now() + DEADLINE;
        while self.held() != expected && Instant::now() < late {
            std::thread::yield_now();
        }
        assert_eq!(self.held(), expected, "{when}: something of the dead is held");
    }

    pub(crate) fn unload(&self) {
        ran(Command::new("rmmod").arg(self.kernel_module()));
    }

    pub(crate) fn load(&self) {
        let target = folder();
        let target = target.parent().expect("a folder above");
        let file = target.join("lab/modules").join(self.kernel_module()).with_extension("ko");
        ran(Command::new("insmod").arg(file));
        // The udev rules of the real modules set the same mode.
        mode(&self.device(), 0o666);
    }

    /// Returns the number of objects (regions, attachments) that the module holds for all processes together.
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

pub(crate) fn launch(name: &str) -> Launch {
    Launch::new(name, "node").env("TIELINE_PROVIDER_PATH", folder().display())
}

/// Starts a process with an open context. Blanks separate the settings.
pub(crate) fn open(launch: Launch, settings: &str) -> Node {
    let settings: Vec<&str> = settings.split_whitespace().collect();
    Node::open(launch, &settings)
}

/// Returns the directory of this build's shared objects, which is one level above this program.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program.ancestors().nth(2).expect("a folder above").to_path_buf()
}

// ---- Actions of an administrator ----

const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
pub(crate) fn yama(scope: u32) {
    std::fs::write(YAMA, scope.to_string()).unwrap_or_else(|e| panic!("{YAMA}: {e}"));
}

pub(crate) fn make_faults_longer(microseconds: u32) {
    let file = "/sys/module/xpmem/parameters/fault_us";
    std::fs::write(file, microseconds.to_string()).unwrap_or_else(|e| panic!("{file}: {e}"));
}

pub(crate) fn yama_scope() -> u32 {
    let text = std::fs::read_to_string(YAMA).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// A device that cannot be opened while this value exists.
pub(crate) struct Taken {
    device: String,
    unreadable: bool,
}

impl Taken {
    pub(crate) fn away(from: &SingleCopy, unreadable: bool) -> Taken {
        let device = from.device();
        if unreadable {
            mode(&device, 0);
        } else {
            std::fs::rename(&device, format!("{device}.away")).expect("the device is moved away");
        }
        Taken { device, unreadable }
    }

    pub(crate) fn why(&self) -> String {
        let device = &self.device;
        match self.unreadable {
            true => format!("{device} is not open to this user"),
            false => format!("there is no {device}"),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let device = &self.device;
        if self.unreadable {
            mode(device, 0o666);
        } else {
            std::fs::rename(format!("{device}.away"), device).expect("the device is moved back");
        }
    }
}

fn mode(device: &str, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(device, mode).expect("the device's mode is changed");
}

fn ran(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}
