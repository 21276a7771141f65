//! Copies what a process prints, line by line, with its rank in front where `--tag` asks for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::thread::JoinHandle;

/// Copies both streams of `child` until it closes them.
pub(super) fn tag(child: &mut Child, rank: usize) -> Vec<JoinHandle<()>> {
    let out = child.stdout.take().map(|from| copy(from, std::io::stdout(), Some(rank)));
    let err = child.stderr.take().map(|from| copy(from, std::io::stderr(), Some(rank)));
    out.into_iter().chain(err).collect()
}

/// Copies one stream, in a thread.
pub(super) fn copy(
    from: impl Read + Send + 'static,
    to: impl Write + Send + 'static,
    rank: Option<usize>,
) -> JoinHandle<()> {
    std::thread::spawn(move || copy_lines(BufReader::new(from), to, rank))
}

/// Copies one stream until it ends.
pub(super) fn copy_lines(mut from: impl BufRead, mut to: impl Write, rank: Option<usize>) {
    let prefix = rank.map_or(String::new(), |rank| format!("[{rank}] "));
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend(prefix.as_bytes());
        match from.read_until(b'\n', &mut line) {
            Ok(n) if n > 0 => {}
            _ => return,
        }
        if line.last() != Some(&b'\n') && rank.is_some() {
            line.push(b'\n');
        }
        // One write per line, so that lines of several processes do not mix.
        if to.write_all(&line).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}
