//! Builds the plug-in for NIXL (integrations/nixl).

use crate::c_library;
use crate::sh::{Outcome, cargo, command, files_of, root, run, target};
use std::path::PathBuf;

pub(crate) const FLAGS: &str = "-std=c++20 -O2 -g -fPIC -shared -pthread -fvisibility=hidden -fvisibility-inlines-hidden \
                     -Wall -Wextra -Werror -Wl,-z,nodelete,-z,relro,-z,now,-z,defs";

pub(crate) fn integrations() -> Outcome {
    run(&mut cargo(&["build", "--release", "--locked", "--package", "tieline-capi"]))?;
    println!("{}", build("release")?.display());
    Ok(())
}

/// Compiles the plug-in over the C library of a profile. It finds the library also through a symbolic link from elsewhere.
pub(crate) fn build(profile: &str) -> Outcome<PathBuf> {
    let (home, libraries) = (root().join("integrations/nixl"), c_library::link(profile)?);
    let plugin = target().join(profile).join("libplugin_TIELINE.so");
    let mut compiler = command("c++", &FLAGS.split_whitespace().collect::<Vec<_>>());
    let _ = compiler.arg(concat!("-DTIELINE_NIXL_VERSION=\"", env!("CARGO_PKG_VERSION"), "\""));
    let _ = compiler.arg("-I").arg(root().join("include"));
    let _ = compiler.args(files_of(home.join("src"), "cpp")?);
    let _ = compiler.arg(format!("-Wl,--version-script={}", home.join("exports.map").display()));
    let _ = compiler.arg("-L").arg(&libraries).arg("-ltieline");
    let _ = compiler.arg(format!(
        "-Wl,-rpath,$ORIGIN:$ORIGIN/c:$ORIGIN/../../tieline_nixl:{}",
        libraries.display()
    ));
    run(compiler.arg("-o").arg(&plugin))?;
    Ok(plugin)
}
