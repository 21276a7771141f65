//! System packages: installed if possible, otherwise named in an error.

use crate::sh::{Outcome, command, is_root, run, which};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pairs of a probe and the Debian package that contains it. A probe is a program in PATH, or a file.
type Needs = &'static str;

/// The packages of the demo: the linker that Rust uses, and the C headers.
pub(crate) const DEMO: Needs = "cc gcc  /usr/include/stdio.h libc6-dev";

/// The packages of the checks. Slurm's plug-in for PMIx needs `libpmix.so`, which only the development package contains.
/// libfabric-dev also installs the library that the tests of the provider ofi use.
pub(crate) const TEST: Needs = "
    cc gcc  /usr/include/stdio.h libc6-dev  pkg-config pkg-config  ip iproute2  unshare util-linux
    valgrind valgrind  nft nftables  mpirun openmpi-bin  mpicc libopenmpi-dev
    fi_pingpong libfabric-bin  slurmctld slurmctld  slurmd slurmd  srun slurm-client  munged munge
    ssh openssh-client  /usr/sbin/sshd openssh-server  man man-db  python3-config python3-dev
    /usr/share/doc/libpmix-dev/copyright libpmix-dev
    /usr/include/infiniband/verbs.h libibverbs-dev  /usr/include/rdma/rdma_cma.h librdmacm-dev
    /usr/include/rdma/fabric.h libfabric-dev";

/// The packages of the comparison with headers: the headers of rdma-core, and libclang, with which rdma-sys and ofi-libfabric-sys
/// parse headers. The library of libclang is in a directory with a version in its name.
pub(crate) const YARDSTICK: Needs = "
    pkg-config pkg-config  /usr/share/doc/libclang-dev/copyright libclang-dev
    /usr/include/infiniband/verbs.h libibverbs-dev  /usr/include/rdma/rdma_cma.h librdmacm-dev";

/// The packages of the lab: its virtual machines, and the programs of others that run in them.
pub(crate) const LAB: Needs = "
    qemu-system-x86_64 qemu-system-x86  busybox busybox-static  cpio cpio  modprobe kmod  make make
    ip iproute2  setpriv util-linux  ibv_devinfo ibverbs-utils  ib_write_bw perftest
    rping rdmacm-utils  fi_info libfabric-bin";

pub(crate) const BENCH: Needs = "
    cc gcc  ucx_perftest ucx-utils  /usr/include/ucp/api/ucp.h libucx-dev  mpirun openmpi-bin
    mpicc libopenmpi-dev  taskset util-linux  NPopenmpi netpipe-openmpi  sockperf sockperf
    iperf3 iperf3";

/// The package of the program that makes a clean root.
pub(crate) const ROOTS: Needs = "mmdebstrap mmdebstrap";

/// The packages of the programs that make a clean root and packages.
pub(crate) const PACKAGE: Needs = "
    dpkg-buildpackage dpkg-dev  dh debhelper  pod2man perl  mmdebstrap mmdebstrap  lintian lintian
    rpmbuild rpm  rpmlint rpmlint  dnf dnf
    apt-ftparchive apt-utils  createrepo_c createrepo-c  gpg gpg
    aarch64-linux-gnu-strip binutils-aarch64-linux-gnu";

/// Whether no system packages may be installed on this machine.
static KEPT: AtomicBool = AtomicBool::new(false);

/// Disables installation for `--no-install`: missing packages are only named.
pub(crate) fn keep() {
    KEPT.store(true, Ordering::Relaxed);
}

/// Installs missing packages. If this is impossible, the error is the command line that installs them.
pub(crate) fn install(needs: Needs) -> Outcome {
    let missing = missing(needs);
    if missing.is_empty() {
        println!("system packages: all there");
        return Ok(());
    }
    let kept = KEPT.load(Ordering::Relaxed);
    if kept || !is_root() || which("apt-get").is_none() {
        let (sudo, packages) = (if is_root() { "" } else { "sudo " }, missing.join(" "));
        return Err(format!(
            "missing packages; install them with: {sudo}apt-get update && {sudo}apt-get install -y {packages}"
        ));
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

/// Installs missing packages if possible. Packages that remain missing are printed, and checks that need them are skipped.
pub(crate) fn install_or_say(needs: Needs) {
    if let Err(text) = install(needs) {
        println!("{text}");
    }
}

fn missing(needs: Needs) -> Vec<&'static str> {
    let words: Vec<&str> = needs.split_whitespace().collect();
    let is_there = |probe: &str| match probe.starts_with('/') {
        true => Path::new(probe).exists(),
        false => which(probe).is_some(),
    };
    let missing = words.chunks_exact(2).filter(|need| !is_there(need[0]));
    let mut packages: Vec<&str> = missing.map(|need| need[1]).collect();
    packages.dedup();
    packages
}

fn apt(args: &[&str]) -> std::process::Command {
    let mut apt = command("apt-get", args);
    let _ = apt.env("DEBIAN_FRONTEND", "noninteractive").stdout(std::process::Stdio::null());
    apt
}
