//! `--tag`: copies what a process prints, line by line, with its rank in front.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::thread::JoinHandle;

/// Copies both streams of `child` until it closes them.
pub(super) fn tag(child: &mut Child, rank: usize) -> Vec<JoinHandle<()>> {
    let out = child.stdout.take().map(|from| copy(from, std::io::stdout(), rank));
    let err = child.stderr.take().map(|from| copy(from, std::io::stderr(), rank));
    out.into_iter().chain(err).collect()
}

fn copy(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    rank: usize,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            line.extend(format!("[{rank}] ").as_bytes());
            let prefix = line.len();
            match from.read_until(b'\n', &mut line) {
                Ok(n) if n > 0 => {}
                _ => return,
            }
            if line.len() > prefix && line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // One write per line, so that lines of several processes do not mix.
            if to.write_all(&line).and_then(|()| to.flush()).is_err() {
                return;
            }
        }
    })
}
