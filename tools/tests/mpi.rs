//! Tests of `tieline mpi` with launchers that only print what they were started with, and with Open MPI's if it is installed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with a provider's file and a launcher.
struct Place(PathBuf);

impl Place {
    /// Makes a directory with a launcher that prints `version`, or its process, arguments and environment.
    fn new(name: &str, launcher: &str, version: &str) -> Place {
        let folder =
            std::env::temp_dir().join(format!("tieline-mpi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = std::fs::canonicalize(folder).unwrap();
        std::fs::write(folder.join("libtieline-fi.so"), "").unwrap();
        std::fs::write(folder.join("version"), version).unwrap();
        let script = "#!/bin/sh\ncase \"$*\" in --version) cat \"$(dirname \"$0\")/version\" ;; \
                      *) echo \"process $$\"; echo \"words $*\"; env ;; esac\n";
        let file = folder.join(launcher);
        std::fs::write(&file, script).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        Place(folder)
    }

    fn command(&self, options: &[&str], launcher: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
        let _ = command.arg("mpi").arg("--provider").arg(&self.0).args(options).arg("--");
        let _ = command.arg(self.0.join(launcher)).args(["-n", "2", "./program"]);
        let own = ["FI_", "MPIR_", "OMPI_", "I_MPI_", "TIELINE_"];
        for (name, _) in std::env::vars() {
            if own.iter().any(|beginning| name.starts_with(beginning)) {
                let _ = command.env_remove(name);
            }
        }
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has(text: &str, line: &str) -> bool {
    text.lines().any(|one| one == line)
}

const MPICH: &str = "HYDRA build details:\n    Version:                 5.0.2\n    Configure options:  --with-device=ch4:ucx,ofi\n";
const INTEL: &str =
    "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929 (id: 1821d9b)\n";

#[test]
fn command_becomes_the_launcher_with_the_variables_that_it_prints() {
    for (launcher, version, name, set) in [
        ("mpiexec.hydra", MPICH, "MPICH 5.0.2", "MPIR_CVAR_CH4_NETMOD=ofi"),
        ("mpirun", "mpirun (Open MPI) 4.1.4\n", "Open MPI 4.1.4", "OMPI_MCA_mtl=ofi"),
        (
            "prterun",
            "mpirun (Open MPI) 5.0.11\n",
            "Open MPI 5.0.11",
            "OMPI_MCA_opal_common_ofi_provider_include=tieline",
        ),
        ("mpiexec", INTEL, "Intel MPI 2021.19.0", "I_MPI_FABRICS=ofi"),
    ] {
        let place = Place::new(launcher, launcher, version);
        let mut command = place.command(&[], launcher);
        let child =
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let child = child.spawn().unwrap();
        let process = child.id();
        let output = child.wait_with_output().unwrap();
        let (out, err) = (out(&output), err(&output));
        assert!(output.status.success(), "{err}");
        assert!(has(&out, &format!("process {process}")), "it is another process: {out}");
        assert!(out.contains("-n 2 ./program\n"), "{out}");
        let path = format!("FI_PROVIDER_PATH={}", place.0.display());
        for variable in ["FI_PROVIDER=tieline", &path, set] {
            assert!(has(&out, variable), "{launcher} has no {variable}: {out}");
            assert!(err.contains(variable), "{err}");
        }
        assert!(err.starts_with(&format!("tieline: {name}: sets FI_PROVIDER=tieline ")), "{err}");
    }
}

#[test]
fn users_variables_stay_and_a_contradiction_starts_nothing() {
    let place = Place::new("own", "mpiexec", MPICH);
    let mut command = place.command(&[], "mpiexec");
    let output =
        command.env("MPIR_CVAR_NOLOCAL", "0").env("FI_PROVIDER_PATH", "/opt/fi").output().unwrap();
    let (said, err) = (out(&output), err(&output));
    assert!(
        has(&said, "MPIR_CVAR_NOLOCAL=0") && err.contains("keeps MPIR_CVAR_NOLOCAL=0"),
        "{err}"
    );
    assert!(has(&said, &format!("FI_PROVIDER_PATH=/opt/fi:{}", place.0.display())), "{said}");
    let refused = place.command(&[], "mpiexec").env("FI_PROVIDER", "tcp").output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(self::err(&refused).contains("FI_PROVIDER is `tcp`"), "{}", self::err(&refused));
}

#[test]
fn unknown_launcher_is_refused_unless_its_mpi_is_named() {
    let place = Place::new("unknown", "srun", "slurm 22.05.8\n");
    let refused = place.command(&[], "srun").output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(err(&refused).contains("its name begins with none of mpiexec"), "{}", err(&refused));
    let named = place.command(&["--mpi", "mpich"], "srun").output().unwrap();
    assert!(has(&out(&named), "MPIR_CVAR_CH4_NETMOD=ofi"), "{}", err(&named));
    let other = Place::new("other", "mpirun", "LAM 7.1.4/MPI 2 C++ - Indiana University\n");
    let refused = other.command(&[], "mpirun").output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(err(&refused).contains("`--version` prints \"LAM 7.1.4"), "{}", err(&refused));
    let ucx = Place::new("ucx", "mpiexec", &MPICH.replace("ucx,ofi", "ucx"));
    let refused = ucx.command(&[], "mpiexec").output().unwrap();
    assert!(err(&refused).contains("built for ch4:ucx, without libfabric"), "{}", err(&refused));
}

#[test]
fn missing_provider_starts_nothing() {
    let place = Place::new("missing", "mpiexec", MPICH);
    std::fs::remove_file(place.0.join("libtieline-fi.so")).unwrap();
    let refused = place.command(&[], "mpiexec").output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(err(&refused).contains("there is no libtieline-fi.so"), "{}", err(&refused));
}

#[test]
fn ranks_of_the_installed_open_mpi_get_the_variables() {
    let mpirun = Path::new("/usr/bin/mpirun");
    let version = Command::new(mpirun).arg("--version").output();
    let version = version.map(|output| out(&output)).unwrap_or_default();
    if !["(Open MPI) 4", "(Open MPI) 5"].iter().any(|known| version.contains(known)) {
        return println!("skipped: /usr/bin/mpirun is not Open MPI 4 or 5 (openmpi-bin)");
    }
    let place = Place::new("installed", "none", "");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.arg("mpi").arg("--provider").arg(&place.0).arg("--").arg(mpirun);
    let _ = command.args(["--allow-run-as-root", "--oversubscribe", "-n", "2", "sh", "-c"]);
    let _ = command.arg("echo $FI_PROVIDER $FI_PROVIDER_PATH $OMPI_MCA_pml $TIELINE_LOG");
    for name in ["FI_PROVIDER", "FI_PROVIDER_PATH", "OMPI_MCA_pml"] {
        let _ = command.env_remove(name);
    }
    let output = command.env("TIELINE_LOG", "warn").output().unwrap();
    let (out, err) = (out(&output), err(&output));
    let line = format!("tieline {} cm warn", place.0.display());
    assert_eq!(out.lines().filter(|one| *one == line).count(), 2, "{out}{err}");
}
