#!/usr/bin/env python3
"""
Writes the wheel tieline-nixl: the plug-in, the C library and the provider files of a build. `cargo xtask package nixl` calls this program.

    wheel.py PLUGIN LIBRARY [PROVIDER...] [--notices FILE] [--platform linux_x86_64] [--to FOLDER]

The platform's tag has to state the oldest C library that the files run with: a build on a new distribution does not become
`manylinux` by its name.
"""

import argparse
import base64
import hashlib
import pathlib
import platform
import re
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EPOCH = (1980, 1, 1, 0, 0, 0)


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plugin", type=pathlib.Path)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("provider", nargs="*", type=pathlib.Path)
    parser.add_argument("--notices", type=pathlib.Path, help="the licences of what is linked into the library")
    parser.add_argument("--to", type=pathlib.Path, default=HERE / "dist")
    parser.add_argument("--platform", default=f"linux_{platform.machine()}")
    asked = parser.parse_args()
    module = HERE / "tieline_nixl"
    version = re.search(r'__version__ = "(.*)"', (module / "__init__.py").read_text())[1]
    files = {f"tieline_nixl/{path.name}": path.read_bytes() for path in sorted(module.glob("*.py"))}
    # The last directory in which a plug-in of a build on this machine searches for the library is that of the build.
    plugin = re.sub(rb":/[^:\0]*/c\0", lambda found: bytes(len(found[0])), asked.plugin.read_bytes())
    files["tieline_nixl/libplugin_TIELINE.so"] = plugin
    files["tieline_nixl/libtieline.so.0"] = asked.library.read_bytes()
    files.update((f"tieline_nixl/tieline-1/providers/{path.name}", path.read_bytes()) for path in asked.provider)
    info = f"tieline_nixl-{version}.dist-info"
    for licence in (ROOT / "LICENSE-APACHE", ROOT / "LICENSE-MIT", HERE / "NOTICE"):
        files[f"{info}/{licence.name}"] = licence.read_bytes()
    if asked.notices:
        files[f"{info}/NOTICES"] = asked.notices.read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: tieline-nixl\nVersion: {version}\nSummary: A backend for NIXL over Tieline, for host memory\n"
        "Requires-Python: >=3.9\nLicense: MIT OR Apache-2.0\n"
    ).encode()
    tag = f"py3-none-{asked.platform}"
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tieline\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    asked.to.mkdir(parents=True, exist_ok=True)
    path = asked.to / f"tieline_nixl-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    main()
