//! `tieline demo FILE`, the program of `cargo xtask demo`: two ranks of a job move a file by message, by put and by get, and
//! contend for a counter. Rank 0 reads the file, and prints each step.

mod atomics;
mod hash;
mod moves;
mod pair;
mod show;

use crate::system_error;
use pair::Pair;
use show::Show;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tieline::{Error, Job, Status};

/// Two processes move a file: `tieline run -n 2 -- tieline demo FILE`.
#[derive(clap::Args)]
pub(crate) struct Args {
    file: PathBuf,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    let job = Job::from_env()?;
    if job.size() != 2 {
        return Err(crate::misuse(
            format!("the demo has two processes, and this job has {}", job.size()),
            "each end of a move is one",
            "start it with `tieline run -n 2 -- tieline demo FILE`",
        ));
    }
    let file = if job.rank() == 0 { read(args)? } else { Vec::new() };
    let pair = Pair::connect(&job)?;
    let show = Show::new(job.rank() == 0);
    show.line(&format!(
        "{}: {} between process {} and process {}",
        args.file.display(),
        show::bytes(pair.agree(file.len() as u64)?.0),
        std::process::id(),
        pair.agree(u64::from(std::process::id()))?.1
    ));
    let began = Instant::now();
    moves::by_message(&pair, &show, &file)?;
    moves::by_put(&pair, &show, &file)?;
    moves::by_get(&pair, &show, &file)?;
    atomics::contend(&pair, &show)?;
    let _ = pair.agree(0)?; // nobody leaves while the other still reads its memory
    show.line(&format!("all of it took {:.2} s", began.elapsed().as_secs_f64()));
    Ok(ExitCode::SUCCESS)
}

/// The maximum number of bytes that are moved of a file, or of an input that is not a file and may have no end.
const MOST: u64 = 4 << 30;
const MOST_OF_A_STREAM: u64 = 256 << 20;

fn read(args: &Args) -> Result<Vec<u8>, Error> {
    let name = args.file.display();
    let failed =
        |e| system_error(format!("cannot read {name}"), &e, "name a file that you may read");
    let file = std::fs::File::open(&args.file).map_err(failed)?;
    let is_file = file.metadata().map_err(failed)?.is_file();
    let most = if is_file { MOST } else { MOST_OF_A_STREAM };
    let mut bytes = Vec::new();
    let _ = file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.is_empty() {
        _ if bytes.len() as u64 > most => Err(crate::misuse(
            format!("cannot move {name}"),
            format!("it has more than {} MiB, or does not end", most >> 20),
            "name a smaller file",
        )),
        true => Err(crate::misuse("nothing to move", "the file is empty", "name another one")),
        false => Ok(bytes),
    }
}

/// Makes the error for data that differs after the transfer.
fn differs(what: &str, sent: u64, arrived: u64) -> Error {
    Error::new(
        Status::BadData,
        format!("{what}: the data differs"),
        format!("{sent:#018x} was sent and {arrived:#018x} arrived"),
        "please report it with the output of `tieline info --json`",
    )
}
