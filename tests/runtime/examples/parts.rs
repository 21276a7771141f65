//! Runs all parts of the runtime's tests as one job, with any number of ranks and any launcher: `tieline run -n 8 --
//! target/debug/examples/parts`. With an argument, the program requires that the path of messages to the next rank contains the
//! argument's words.

#[path = "../tests/parts/mod.rs"]
mod parts;

use std::process::ExitCode;
use tieline::Error;
use tieline_runtime::Runtime;

fn main() -> ExitCode {
    match played() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("parts: {error}");
            ExitCode::FAILURE
        }
    }
}

fn played() -> Result<(), Error> {
    let runtime = Runtime::start()?;
    if let Some(way) = std::env::args().nth(1) {
        let path = runtime.path((runtime.rank() + 1) % runtime.size())?;
        assert!(path.contains(&way), "{path} is not by {way}");
    }
    for (name, part) in parts::ALL {
        part(&runtime)?;
        runtime.barrier()?;
        if runtime.rank() == 0 {
            println!("{name} on {} ranks: ok", runtime.size());
        }
    }
    runtime.finish()
}
