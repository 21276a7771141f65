//! The program of `cargo xtask header [--check]`. The program is separate, so that other commands do not wait until the generator
//! is compiled.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] => xtask_header::write().map_err(|e| format!("include: {e}")),
        ["--check"] => xtask_header::check(),
        _ => Err("the only argument is --check".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask header: {text}");
            ExitCode::FAILURE
        }
    }
}
