//! Copies the output of processes, with their rank before each line if `--tag` is set. Output is usually written in whole lines. An
//! incomplete line (a prompt, a growing bar) is written after a short time, or when it becomes long.

use crate::sys;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time to wait for the end of a line.
const MOMENT: Duration = Duration::from_millis(100);

/// The maximum number of bytes of a line that are kept until the end of the line arrives.
const LONG: usize = 64 << 10;

/// The maximum number of bytes that are read from a pipe after its process has ended. Further bytes come from processes that it
/// left behind, and these may write without end.
const LAST: usize = 1 << 20;

/// One of the launcher's outputs, which all copying threads share.
#[derive(Clone)]
pub(super) struct Sink(Arc<Mutex<To>>);

struct To {
    out: Box<dyn Write + Send>,
    middle: Option<usize>,
}

impl Sink {
    pub(super) fn new(out: impl Write + Send + 'static) -> Sink {
        Sink(Arc::new(Mutex::new(To { out: Box::new(out), middle: None })))
    }
}

/// The output of a process that is copied to a [`Sink`].
pub(super) struct Copy {
    sink: Sink,
    tag: Option<usize>,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
}

impl Copy {
    pub(super) fn new(sink: Sink, tag: Option<usize>) -> Copy {
        Copy { sink, tag, line: Vec::new() }
    }

    fn write(&mut self, upto: usize) {
        let rest = self.line.split_off(upto);
        let bytes = std::mem::replace(&mut self.line, rest);
        let mut to = self.sink.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tagged = Vec::new();
        let out = match self.tag {
            None => &bytes,
            Some(rank) => {
                for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                    if to.middle != Some(rank) {
                        let end = if to.middle.is_some() { "\n" } else { "" };
                        tagged.extend(format!("{end}[{rank}] ").as_bytes());
                    }
                    tagged.extend(line);
                    to.middle = (!line.ends_with(b"\n")).then_some(rank);
                }
                &tagged
            }
        };
        // If the reader has closed the output, the process still runs to its end and reports its own status.
        let _ = to.out.write_all(out).and_then(|()| to.out.flush());
    }
}

/// The destination of bytes read from a pipe.
pub(super) trait Take {
    /// Handles received bytes.
    fn take(&mut self, bytes: &[u8]);
    /// Handles the end of the time that `waits` returned, if no bytes arrived.
    fn idle(&mut self);
    /// Returns the time to wait for more bytes; `None` means without limit.
    fn waits(&self) -> Option<Duration>;
    fn finish(&mut self);
}

impl Take for Copy {
    fn take(&mut self, bytes: &[u8]) {
        self.line.extend(bytes);
        let whole = self.line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let long = if self.line.len() - whole >= LONG { self.line.len() } else { whole };
        if long > 0 {
            self.write(long);
        }
    }

    fn idle(&mut self) {
        if !self.line.is_empty() {
            self.write(self.line.len());
        }
    }

    fn waits(&self) -> Option<Duration> {
        (!self.line.is_empty()).then_some(MOMENT)
    }

    fn finish(&mut self) {
        self.idle();
        let mut to = self.sink.0.lock().unwrap_or_else(PoisonError::into_inner);
        if to.middle.is_some() && to.middle == self.tag {
            to.middle = None;
            let _ = to.out.write_all(b"\n").and_then(|()| to.out.flush());
        }
    }
}

/// The threads that copy, and the sockets by which the threads and the launcher wake each other.
pub(super) struct Copying {
    left: Arc<AtomicUsize>,
    wake: Arc<UnixStream>,
    woken: UnixStream,
}

/// The mark of a running process, which exists until the process ends. Afterwards the process's pipes are read until they are
/// empty, up to a bound, even if other processes keep them open.
pub(super) struct Running(#[allow(dead_code)] UnixStream);

#[derive(Clone)]
pub(super) struct Ended(Arc<OwnedFd>);

pub(super) fn life() -> std::io::Result<(Running, Ended)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((Running(ours), Ended(Arc::new(theirs.into()))))
}

impl Copying {
    pub(super) fn new() -> std::io::Result<Copying> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Copying { left: Arc::default(), wake: Arc::new(wake), woken })
    }

    /// Starts a thread that reads this pipe until its end, or, after the end of its process, until the pipe is empty or a bound is
    /// reached.
    pub(super) fn start(
        &self,
        from: impl Read + AsRawFd + Send + 'static,
        ended: &Ended,
        mut to: impl Take + Send + 'static,
    ) -> std::io::Result<()> {
        let (left, wake, ended) = (self.left.clone(), self.wake.clone(), ended.clone());
        let copy = move || {
            pump(from, &ended, &mut to);
            to.finish();
            let _ = left.fetch_sub(1, Ordering::Release);
            let _ = (&*wake).write(&[0]);
        };
        let _ = self.left.fetch_add(1, Ordering::Relaxed);
        std::thread::Builder::new().name("tieline-output".into()).spawn(copy).map(drop).inspect_err(
            |_| {
                let _ = self.left.fetch_sub(1, Ordering::Release);
            },
        )
    }

    /// Returns the socket that wakes the thread that waits for [`Copying::woken`]; the copying threads use it.
    pub(super) fn waker(&self) -> Arc<UnixStream> {
        self.wake.clone()
    }

    /// Returns a descriptor that is readable when a thread has ended or needs attention.
    pub(super) fn woken(&self) -> i32 {
        self.woken.as_raw_fd()
    }

    /// Makes the descriptor unreadable again. Returns whether it was readable.
    pub(super) fn look(&self) -> bool {
        let mut buffer = [0; 256];
        let mut was = false;
        while (&self.woken).read(&mut buffer).is_ok_and(|n| n > 0) {
            was = true;
        }
        was
    }

    pub(super) fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

fn pump(mut from: impl Read + AsRawFd, ended: &Ended, to: &mut impl Take) {
    let mut buffer = vec![0; 64 << 10];
    let fds = [from.as_raw_fd(), ended.0.as_raw_fd()];
    let mut last = LAST;
    loop {
        let timeout = to.waits().map_or(-1, |t| i32::try_from(t.as_millis()).unwrap_or(i32::MAX));
        let Ok(ready) = sys::wait_readable(&fds, timeout) else { return };
        match (ready[0], ready[1]) {
            (true, over) => match from.read(&mut buffer) {
                Ok(n) if n > 0 => {
                    to.take(&buffer[..n]);
                    last = last.saturating_sub(if over { n } else { 0 });
                    if last == 0 {
                        return;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                _ => return,
            },
            (false, true) => return,
            (false, false) => to.idle(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn two() -> (Page, Copy, Copy) {
        let page = Page::default();
        let sink = Sink::new(page.clone());
        (page, Copy::new(sink.clone(), Some(0)), Copy::new(sink, Some(1)))
    }

    fn shown(page: &Page) -> String {
        String::from_utf8(page.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_that_waits_for_its_end_is_not_mixed_with_another_ranks() {
        let (page, mut zero, mut one) = two();
        zero.take(b"name? ");
        assert_eq!(shown(&page), "");
        zero.idle();
        one.take(b"x\ny");
        zero.take(b"thanks\n");
        one.take(b"z\n");
        zero.finish();
        one.finish();
        assert_eq!(shown(&page), "[0] name? \n[1] x\n[0] thanks\n[1] yz\n");
    }

    #[test]
    fn a_line_without_an_end_is_kept_up_to_a_length_only() {
        let (page, mut zero, _) = two();
        for _ in 0..100 {
            zero.take(&[b'x'; 4096]);
            assert!(zero.line.len() < LONG);
        }
        zero.finish();
        assert_eq!(shown(&page), format!("[0] {}\n", "x".repeat(409_600)));
    }
}
