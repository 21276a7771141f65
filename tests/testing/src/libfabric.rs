//! The file of libfabric 2.x, which Debian 12 lacks, from a Python package that contains it.

use std::path::PathBuf;
use std::process::Command;

/// The pinned package with its hash. Another processor architecture needs another line.
const PACKAGE: &str = "mpich==5.0.2 \
    --hash=sha256:8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4";

/// A script that fetches the file `$1` from the package `$2`. One process at a time runs the script. The file is moved to its final
/// place when it is complete.
const FETCH: &str = r#"
    test -e "$1" && exit 0
    folder=$1.folder
    rm -rf "$folder" && mkdir -p "$folder" && cd "$folder" || exit 1
    echo "$2" > wanted
    timeout 120 python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --require-hashes --timeout 20 --retries 1 --dest . --requirement wanted &&
    python3 -m zipfile -e mpich-*.whl . &&
    mv mpich-*.data/data/lib/mpich/libfabric.so.1 "$1"
    code=$?
    cd / && rm -rf "$folder"
    exit $code
"#;

/// Returns the file of libfabric 2.5, for `TIELINE_OFI_LIBRARY`. The first test that needs the file fetches it with pip. The file
/// is kept below cargo's target directory.
///
/// # Errors
/// Returns the reason why the file is not available on this machine; the caller then skips its test.
pub fn newer() -> Result<PathBuf, String> {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return Err("no package with libfabric 2.5 is known for this processor".into());
    }
    let target = crate::built::target()?;
    let library = target.join("libfabric-2.5.1.so");
    if library.exists() {
        return Ok(library);
    }
    let mut fetch = Command::new("flock");
    let _ = fetch.args(["-w", "200"]).arg(target.join("libfabric.lock"));
    let _ = fetch.args(["sh", "-c", FETCH, "sh"]).arg(&library).arg(PACKAGE);
    let done = fetch.output().map_err(|e| format!("flock cannot be started: {e}"))?;
    if done.status.success() {
        return Ok(library);
    }
    let words = String::from_utf8_lossy(&done.stderr);
    let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("libfabric 2.5 cannot be fetched ({last})"))
}
