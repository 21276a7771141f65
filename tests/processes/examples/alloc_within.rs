//! `alloc_within LIMIT`: allocates memory in a control group with a limit of LIMIT bytes, which a test of the lab sets. A request
//! beyond the limit must return an error text, and writing to granted memory must not lead to an out-of-memory kill.

use std::process::ExitCode;
use tieline::{Context, OpenError, Region};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Allocates memory of this length, and writes every page; or returns the error text.
fn written(context: &Context, len: usize) -> Result<Region, String> {
    let region = match context.alloc(len) {
        Ok(region) => region,
        Err(OpenError::Release(error)) => return Err(error.to_string()),
        Err(other) => panic!("{len} bytes: {other}"),
    };
    for at in (0..len).step_by(PAGE) {
        region.write(at, &[1]).expect("a byte inside");
    }
    Ok(region)
}

/// Allocates pieces of this length until an allocation fails. Returns the pieces and the error text.
fn filled(context: &Context, piece: usize) -> (Vec<Region>, String) {
    let mut all = Vec::new();
    loop {
        match written(context, piece) {
            Ok(region) => all.push(region),
            Err(words) => return (all, words),
        }
    }
}

fn main() -> ExitCode {
    let limit = std::env::args().nth(1).and_then(|word| word.parse::<usize>().ok());
    let limit = limit.expect("the limit in bytes");
    let context = Context::open().expect("a context");
    let named = format!("with a limit of {limit} bytes");
    for len in [limit, limit + 1, 16 * limit, 1 << 46, usize::MAX / 2, usize::MAX] {
        let words = written(&context, len).expect_err("more than there may be");
        println!("{len} bytes: {words}");
        let is_told = words.contains(&named) && words.contains("the control group");
        assert!(is_told || len > limit * 16, "{len} bytes: {words}");
    }
    // Smaller pieces could use up the last pages, which contain the program itself. The kernel would then read the program from its
    // file repeatedly.
    for piece in [64 * MIB, 16 * MIB, 5 * MIB, MIB, MIB / 2, MIB / 16] {
        let (all, words) = filled(&context, piece);
        let sum = all.len() * piece;
        println!("{} pieces of {piece} bytes, and then: {words}", all.len());
        assert!(words.contains(&named), "{words}");
        assert!(
            sum + limit / 16 <= limit,
            "{sum} bytes in pieces of {piece}: nothing is left for what runs"
        );
        assert!(sum <= limit && sum + piece >= limit / 2, "{sum} bytes in pieces of {piece}");
        for region in all {
            region.close().expect("nobody uses it");
        }
    }
    println!("what was given back is there again");
    ExitCode::SUCCESS
}
