"""Compiles `tieline._native` for the stable ABI of Python 3.9 and later: `python3 tools/native.py [FILE]`.

FILE is `tieline/_native.abi3.so` if it is not given. The C compiler is `$CC`, or `cc`. The headers of any Python from 3.9 on will do.
"""

import os
import pathlib
import shlex
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
FILE = HERE / "tieline" / "_native.abi3.so"
OPTIONS = ["-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]


def main():
    file = sys.argv[1] if len(sys.argv) > 1 else FILE
    headers = pathlib.Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        sys.exit(f"{headers}/Python.h does not exist: install python3-dev")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    places = [f"-I{HERE.parent / 'include'}", "-isystem", headers]
    with tempfile.TemporaryDirectory() as folder:
        other = os.environ.get("TIELINE_TARGET", "").replace("-unknown", "", 1)
        if other and "/pyconfig.h>" in (headers / "pyconfig.h").read_text():
            borrow(headers, pathlib.Path(folder) / other / headers.name)
            places += ["-isystem", folder]
        subprocess.run([*compiler, *OPTIONS, *places, HERE / "native" / "native.c", "-o", file], check=True)
    print(file)


def borrow(headers, folder):
    """
    Gives a build for another processor the configuration of this one. Debian's headers include a file per processor. What the stable
    ABI uses of it is the same on all 64-bit systems of Linux.
    """
    own = sysconfig.get_config_var("MULTIARCH")
    folder.mkdir(parents=True)
    (folder / "pyconfig.h").write_bytes((headers.parent / own / headers.name / "pyconfig.h").read_bytes())


if __name__ == "__main__":
    main()
