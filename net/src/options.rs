//! The ports that users allow, the size of the job, and the options of connections.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::sys;

/// The ports that a listener may take: `0` (the kernel's choice), `20000` or `20000-20100`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Parses a range; an empty text means `0`.
    ///
    /// # Errors
    /// The reason why the range is invalid, as text.
    pub fn parse(text: &str) -> Result<Ports, String> {
        let text = text.trim();
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>();
        match (port(first), port(last)) {
            _ if text.is_empty() => Ok(Ports::default()),
            (Ok(0), Ok(0)) => Ok(Ports::default()),
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports { first, last }),
            _ => Err(format!("`{text}` is no range of ports: write 0 for any, or 20000-20100")),
        }
    }

    /// Returns the number of ports in the range; `None` if any free port is allowed.
    #[must_use]
    pub fn count(self) -> Option<usize> {
        (self.first != 0).then(|| usize::from(self.last - self.first) + 1)
    }

    /// Returns every port to try, beginning at one that `start` selects; only 0 if any port is allowed.
    pub(crate) fn each(self, start: u32) -> impl Iterator<Item = u16> {
        let count = u32::from(self.last - self.first) + 1;
        (0..count).map(move |n| self.first + ((start % count + n) % count) as u16)
    }

    /// Returns the range as a user would write it.
    pub(crate) fn text(self) -> String {
        if self.first == self.last {
            self.first.to_string()
        } else {
            format!("{}-{}", self.first, self.last)
        }
    }
}

/// The variables in which launchers pass the number of processes of a job.
const SIZES: [&str; 5] =
    ["TIELINE_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"];

/// The largest accepted number of processes. Larger values are ignored.
const LARGEST: usize = 1 << 20;

/// Returns the number of processes in this process's job according to its launcher; 0 if no launcher states one, or more than
/// [`LARGEST`].
pub(crate) fn processes_of_job() -> usize {
    let size = |name: &&str| std::env::var(name).ok()?.trim().parse().ok();
    SIZES.iter().find_map(size).filter(|size| *size <= LARGEST).unwrap_or(0)
}

/// Configures a connection: small messages are sent immediately. A peer that is silent for about `silence`, at least a few seconds
/// (power failure, cut cable), breaks the connection, whether or not data is in flight. A peer that reads nothing for that time
/// while the buffers are full breaks it, too.
pub fn tune(stream: &TcpStream, silence: Duration) {
    tune_for_streams(stream, silence);
    let silence = silence.clamp(Duration::from_secs(1), Duration::from_secs(1 << 21));
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(silence));
}

/// Configures a connection like [`tune`], but the sender must check acknowledgements itself: a peer that reads nothing for long
/// does not break the connection.
pub fn tune_for_streams(stream: &TcpStream, silence: Duration) {
    let socket = SockRef::from(stream);
    let silence = silence.max(Duration::from_secs(1));
    // The kernel counts in seconds, and a single lost probe means nothing.
    let probe = Duration::from_secs((silence / 8).as_secs().max(1));
    let idle = Duration::from_secs((silence / 2).as_secs().max(1));
    let probes = ((silence - idle).as_secs_f32() / probe.as_secs_f32()).ceil().max(2.0) as u32;
    // If a socket refuses one of these options, failures are only detected later.
    let _ = socket.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(probe).with_retries(probes);
    let _ = socket.set_tcp_keepalive(&keepalive);
    // A peer that returns is reached soon, and not only after twice the time of its absence.
    sys::limit_retransmission_pauses(stream.as_fd(), (silence / 8).max(Duration::from_secs(1)));
}

/// Makes the close of a connection send a reset, which leaves no state in the kernel.
pub fn reset(stream: &impl AsFd) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Ends a listener in every process that has a copy of it. A forked child may hold one.
pub fn stop_listening(listener: &impl AsFd) {
    let _ = SockRef::from(listener).shutdown(std::net::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_number_or_a_range() {
        assert_eq!(Ports::parse(""), Ok(Ports::default()));
        assert_eq!(Ports::parse("0"), Ok(Ports::default()));
        assert_eq!(Ports::default().each(5).collect::<Vec<_>>(), [0]);
        assert_eq!(Ports::default().count(), None);
        let range = Ports::parse("20000-20002").expect("a range");
        assert_eq!(range.count(), Some(3));
        assert_eq!(range.each(1).collect::<Vec<_>>(), [20001, 20002, 20000]);
        assert_eq!(Ports::parse("65535").expect("a port").each(9).collect::<Vec<_>>(), [65535]);
        for wrong in ["-", "2-1", "0-5", "70000", "1-", "a", "1-2-3"] {
            assert!(Ports::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tuned_connection_notices_silence() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).expect("listening");
        tune(&stream, Duration::from_secs(20));
        let socket = SockRef::from(&stream);
        assert!(socket.nodelay().expect("an option"));
        assert!(socket.keepalive().expect("an option"));
        assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(Duration::from_secs(20)));
        // The cases: the requested time, the time before the first probe, and the time without an answer to any probe. The last two
        // together are the requested time, if it is at least 3 s.
        for (silence, first, then) in [(20, 10, 10), (8, 4, 4), (3, 1, 2), (2, 1, 2), (0, 1, 2)] {
            tune_for_streams(&stream, Duration::from_secs(silence));
            let every = socket.keepalive_interval().expect("an option");
            let probes = socket.keepalive_retries().expect("an option");
            assert_eq!(socket.keepalive_time().expect("an option").as_secs(), first);
            assert_eq!((every * probes).as_secs(), then, "for {silence} s");
        }
    }

    #[test]
    fn ports_are_said_as_they_are_written() {
        for text in ["0", "20000", "20000-20002", "1-65535"] {
            assert_eq!(Ports::parse(text).map(Ports::text).as_deref(), Ok(text));
        }
        assert_eq!(Ports::parse(" 7 - 9 ").map(Ports::text).as_deref(), Ok("7-9"));
        assert_eq!(Ports::parse("5-5").map(Ports::text).as_deref(), Ok("5"));
        let words = "`0-5` is no range of ports: write 0 for any, or 20000-20100";
        assert_eq!(Ports::parse("0-5"), Err(words.into()));
        let range = Ports::parse("20000-20002").expect("a range");
        // Every start returns the same ports, in another order.
        for start in [2, 3, u32::MAX] {
            let mut each: Vec<u16> = range.each(start).collect();
            assert_eq!(each[0], 20000 + (start % 3) as u16);
            each.sort_unstable();
            assert_eq!(each, [20000, 20001, 20002]);
        }
    }
}
