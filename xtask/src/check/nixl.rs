//! Tests the plug-in for NIXL (integrations/nixl) with an unmodified wheel of NIXL.

use super::{Count, told};
use crate::nixl::build;
use crate::sh::{Outcome, capture, command, listened, root, target, which};
use std::path::PathBuf;

const INSTALL: [&str; 7] =
    ["-m", "pip", "install", "--quiet", "--no-deps", "nixl-cu12==1.5.1", "numpy"];

pub(super) fn check() -> Count {
    if let Some(missing) = ["c++", "python3", "readelf"].iter().find(|name| which(name).is_none()) {
        return Count::skip(format!("{missing} is not installed"));
    }
    let python = match interpreter() {
        Ok(python) => python,
        Err(text) => return Count::skip(format!("the wheel of NIXL cannot be installed: {text}")),
    };
    let plugin = match build("debug") {
        Ok(plugin) => plugin,
        Err(text) => return Count::one(Err(text)),
    };
    let mut tests = command(python, &[]);
    let _ = tests.arg(root().join("integrations/nixl/test.py")).arg(plugin);
    let _ = tests.env("TIELINE_PROVIDER_PATH", target().join("debug"));
    let (outcome, said) = listened(tests.env("PYTHONDONTWRITEBYTECODE", "1"));
    Count::one(told(outcome, &said))
}

/// Returns a Python interpreter that has the wheel: the one that is named, or one below the build directory.
fn interpreter() -> Outcome<PathBuf> {
    if let Some(named) = std::env::var_os("TIELINE_NIXL_PYTHON") {
        return Ok(named.into());
    }
    let folder = target().join("nixl/venv");
    let python = folder.join("bin/python3");
    if capture(&mut command(&python, &["-c", "import nixl_cu12"])).is_err() {
        let _ = capture(command("python3", &["-m", "venv"]).arg(&folder))?;
        let mut install = command(&python, &INSTALL);
        let _ = capture(install.env("PIP_RETRIES", "0").env("PIP_DEFAULT_TIMEOUT", "10"))?;
    }
    Ok(python)
}
