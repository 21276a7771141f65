"""Writes a wheel of this module: with the library and providers in it, or for the library that is installed.

    python3 tools/wheel.py [LIBRARY [PROVIDER...]] [--native FILE] [--notices FILE] [--platform linux_x86_64] [--to FOLDER]

FILE is what `tools/native.py` has compiled. The library finds the providers beside its own file. A wheel is a zip with three lists in it (PEP 427), so
nothing has to be installed to make one; the same files give the same bytes.
"""

import argparse
import base64
import hashlib
import pathlib
import platform
import zipfile

HERE = pathlib.Path(__file__).resolve().parent.parent
EPOCH = (1980, 1, 1, 0, 0, 0)


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("library", nargs="?", type=pathlib.Path, help="libtieline.so.0, to be carried")
    asked.add_argument("provider", nargs="*", type=pathlib.Path, help="libtieline_*.so, to be carried")
    asked.add_argument("--native", type=pathlib.Path, default=HERE / "tieline" / "_native.abi3.so")
    asked.add_argument("--platform", default=f"linux_{platform.machine()}")
    asked.add_argument("--notices", type=pathlib.Path, help="the licences of what is linked into the library")
    asked.add_argument("--to", type=pathlib.Path, default=HERE / "dist")
    asked = asked.parse_args()
    lines = (HERE / "pyproject.toml").read_text().splitlines()
    fields = dict(line.split(" = ", 1) for line in lines if " = " in line)
    version, summary, python = (
        fields[name].strip('"') for name in ("version", "description", "requires-python")
    )
    tag = f"cp39-abi3-{asked.platform}"
    sources = [*sorted(HERE.glob("tieline/*.py")), *sorted(HERE.glob("tieline/*.pyi")), HERE / "tieline" / "py.typed"]
    files = {f"tieline/{path.name}": path.read_bytes() for path in sources}
    files["tieline/_native.abi3.so"] = asked.native.read_bytes()
    if asked.library:
        files["tieline/libtieline.so.0"] = asked.library.read_bytes()
    files.update((f"tieline/{path.name}", path.read_bytes()) for path in asked.provider)
    info = f"tieline-{version}.dist-info"
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/{licence}"] = (HERE.parent / licence).read_bytes()
    if asked.notices:
        files[f"{info}/NOTICES"] = asked.notices.read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: tieline\nVersion: {version}\nSummary: {summary}\nRequires-Python: {python}\n"
        "License: MIT OR Apache-2.0\nDescription-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text()
    ).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tieline\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    asked.to.mkdir(parents=True, exist_ok=True)
    path = asked.to / f"tieline-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    print(path)


def digest(data):
    sum = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={sum}"


if __name__ == "__main__":
    main()
