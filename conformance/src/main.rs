//! `tieline-conformance PATH.so [FILTER]`: `tieline check` without the rest of `tieline`.

use std::path::PathBuf;
use std::process::ExitCode;
use tieline_conformance::{LIMIT, Plan, child, contents, run};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = child(&words) {
        return code;
    }
    let file = words.first().map(PathBuf::from).unwrap_or_default().canonicalize();
    let (Ok(path), Ok(program)) = (file, std::env::current_exe()) else {
        eprintln!("usage: tieline-conformance PATH.so [FILTER]");
        return ExitCode::from(2);
    };
    let filter = words.get(1).map(|word| word.to_string_lossy().into_owned());
    let plan = Plan { path, module: None, filter, program, limit: LIMIT, until_failure: false };
    let tally = contents(&plan).and_then(|contents| {
        run(&plan, &contents, &mut |outcome| println!("{outcome} ({:?})", outcome.took))
    });
    match tally {
        Ok(tally) => {
            println!("{tally}");
            ExitCode::from(u8::from(tally.failed > 0))
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
