//! System packages: installed where that is possible, named where it is not.

use crate::sh::{Outcome, command, is_root, run, which};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that a Debian package brings.
pub(crate) struct Need {
    /// A program in PATH, or a file.
    probe: &'static str,
    package: &'static str,
}

const fn need(probe: &'static str, package: &'static str) -> Need {
    Need { probe, package }
}

/// Rust's own linker.
pub(crate) const DEMO: &[Need] = &[need("cc", "gcc"), need("/usr/include/stdio.h", "libc6-dev")];

/// What the checks run.
pub(crate) const TEST: &[Need] = &[
    need("cc", "gcc"),
    need("/usr/include/stdio.h", "libc6-dev"),
    need("pkg-config", "pkg-config"),
    need("ip", "iproute2"),
    need("unshare", "util-linux"),
    need("valgrind", "valgrind"),
    need("nft", "nftables"),
    need("mpirun", "openmpi-bin"),
    need("mpicc", "libopenmpi-dev"),
    need("fi_pingpong", "libfabric-bin"),
    need("slurmctld", "slurmctld"),
    need("slurmd", "slurmd"),
    need("srun", "slurm-client"),
    need("munged", "munge"),
    need("ssh", "openssh-client"),
    need("/usr/sbin/sshd", "openssh-server"),
    need("man", "man-db"),
    // Slurm's plug-in for PMIx asks the loader for `libpmix.so`, which only the development files bring.
    need("/usr/share/doc/libpmix-dev/copyright", "libpmix-dev"),
    need("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    need("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    // It brings the library, too, over which the provider ofi is tried.
    need("/usr/include/rdma/fabric.h", "libfabric-dev"),
];

/// The headers of rdma-core, and libclang, by which rdma-sys and ofi-libfabric-sys read headers.
pub(crate) const YARDSTICK: &[Need] = &[
    need("pkg-config", "pkg-config"),
    need("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    need("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    // The library lies in a folder with a version in its name.
    need("/usr/share/doc/libclang-dev/copyright", "libclang-dev"),
];

/// The lab's virtual machines, and what runs in them beside the project itself.
pub(crate) const LAB: &[Need] = &[
    need("qemu-system-x86_64", "qemu-system-x86"),
    need("busybox", "busybox-static"),
    need("cpio", "cpio"),
    need("modprobe", "kmod"),
    need("make", "make"),
    need("ip", "iproute2"),
    need("setpriv", "util-linux"),
    need("ibv_devinfo", "ibverbs-utils"),
    need("ib_write_bw", "perftest"),
    need("rping", "rdmacm-utils"),
    need("fi_info", "libfabric-bin"),
];

/// The rivals.
pub(crate) const BENCH: &[Need] = &[
    need("cc", "gcc"),
    need("ucx_perftest", "ucx-utils"),
    need("/usr/include/ucp/api/ucp.h", "libucx-dev"),
    need("mpirun", "openmpi-bin"),
    need("mpicc", "libopenmpi-dev"),
    need("taskset", "util-linux"),
    need("NPopenmpi", "netpipe-openmpi"),
    need("sockperf", "sockperf"),
    need("iperf3", "iperf3"),
];

/// What a clean root is made with.
pub(crate) const ROOTS: &[Need] = &[need("mmdebstrap", "mmdebstrap")];

/// What a clean root is made with, and packages.
pub(crate) const PACKAGE: &[Need] = &[
    need("dpkg-buildpackage", "dpkg-dev"),
    need("dh", "debhelper"),
    need("pod2man", "perl"),
    need("mmdebstrap", "mmdebstrap"),
    need("lintian", "lintian"),
    need("rpmbuild", "rpm"),
    need("rpmlint", "rpmlint"),
    need("dnf", "dnf"),
];

/// Whether this machine is to be left as it is.
static KEPT: AtomicBool = AtomicBool::new(false);

/// From now on nothing is installed: what is missing is named. `--no-install`.
pub(crate) fn keep() {
    KEPT.store(true, Ordering::Relaxed);
}

/// Installs what is missing; where that cannot be done, the error is the one line that does it.
pub(crate) fn install(needs: &[Need]) -> Outcome {
    let missing = missing(needs);
    if missing.is_empty() {
        println!("system packages: all there");
        return Ok(());
    }
    let kept = KEPT.load(Ordering::Relaxed);
    if kept || !is_root() || which("apt-get").is_none() {
        return Err(format!("missing packages; install them with: {}", line(&missing)));
    }
    println!("installing {}", missing.join(" "));
    static UPDATED: AtomicBool = AtomicBool::new(false);
    if !UPDATED.swap(true, Ordering::Relaxed) {
        run(&mut apt(&["update", "-qq"]))?;
    }
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(&missing);
    run(&mut apt(&args))
}

/// Installs what can be installed; what remains missing is said, and whoever needs it says `skipped`.
pub(crate) fn install_or_say(needs: &[Need]) {
    if let Err(text) = install(needs) {
        println!("{text}");
    }
}

/// The packages of what is not there.
fn missing(needs: &[Need]) -> Vec<&'static str> {
    let there = |need: &&Need| {
        if need.probe.starts_with('/') {
            Path::new(need.probe).exists()
        } else {
            which(need.probe).is_some()
        }
    };
    let mut packages: Vec<&str> =
        needs.iter().filter(|need| !there(need)).map(|need| need.package).collect();
    packages.dedup();
    packages
}

fn line(packages: &[&str]) -> String {
    let sudo = if is_root() { "" } else { "sudo " };
    format!("{sudo}apt-get update && {sudo}apt-get install -y {}", packages.join(" "))
}

fn apt(args: &[&str]) -> std::process::Command {
    let mut apt = command("apt-get", args);
    let _ = apt.env("DEBIAN_FRONTEND", "noninteractive").stdout(std::process::Stdio::null());
    apt
}
