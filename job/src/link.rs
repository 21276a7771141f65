//! A process's side of the exchange: one connection to whoever serves it.

use super::stream::Stream;
use super::wire::{self, Decoder, Frame, Hello};
use super::{Deadline, Exchange, retries};
use crate::{Error, Status};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// How long the server may take to say who is missing, once the deadline has passed.
const LAST_WORD: Duration = Duration::from_secs(2);

pub(super) struct Link {
    stream: Stream,
    decoder: Decoder,
    size: usize,
    round: u64,
    broken: Option<Error>,
    /// For messages: `the launcher`, `rank 0, which serves the exchange`.
    server: &'static str,
}

impl Link {
    /// Names this process on a connection that stands.
    pub(super) fn open(
        stream: Stream,
        hello: Hello,
        server: &'static str,
        deadline: &Deadline,
    ) -> Result<Link, Error> {
        let size = hello.size as usize;
        let decoder = Decoder::new(wire::gathered_limit(size));
        let mut link = Link { stream, decoder, size, round: 0, broken: None, server };
        link.send(&Frame::Hello(hello), deadline)?;
        Ok(link)
    }

    fn send(&mut self, frame: &Frame, deadline: &Deadline) -> Result<(), Error> {
        let bytes = frame.encode();
        let mut sent = 0;
        while sent < bytes.len() {
            let Some(left) = deadline.left() else { return Err(self.late(deadline)) };
            let outcome = self.stream.set_write_timeout(Some(left));
            match outcome.and_then(|()| self.stream.write(&bytes[sent..])) {
                Ok(n) => sent += n,
                Err(e) if retries(&e) => {}
                // The server closes after its last word: that word, not the broken pipe, is the reason.
                Err(e) => {
                    return Err(match self.receive(Instant::now() + LAST_WORD) {
                        Ok(Some(frame)) => self.last_word(frame),
                        _ => self.gone(&e.to_string()),
                    });
                }
            }
        }
        Ok(())
    }

    /// The next frame; none when the time is over.
    fn receive(&mut self, until: Instant) -> Result<Option<Frame>, Error> {
        let mut buffer = [0; 64 << 10];
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => {}
                Err(why) => {
                    return Err(Error::new(
                        Status::BadData,
                        format!("{} spoke nonsense", self.server),
                        why,
                        "use the same version of the library and of `tieline` in the whole job",
                    ));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let outcome = self.stream.set_read_timeout(Some(left));
            match outcome.and_then(|()| self.stream.read(&mut buffer)) {
                Ok(0) => return Err(self.gone("")),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(e) if retries(&e) => {}
                Err(e) => return Err(self.gone(&e.to_string())),
            }
        }
    }

    fn round(&mut self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let round = self.round;
        self.send(&Frame::Contribute { round, bytes: mine.to_vec() }, deadline)?;
        let answer = match self.receive(deadline.at())? {
            Some(frame) => frame,
            None => {
                // Who is missing, the server knows.
                let waited_ms = u64::try_from(deadline.length.as_millis()).unwrap_or(u64::MAX);
                let extended = Deadline::new(LAST_WORD);
                let _ = self.send(&Frame::GiveUp { waited_ms }, &extended);
                match self.receive(extended.at())? {
                    Some(frame) => frame,
                    None => return Err(self.late(deadline)),
                }
            }
        };
        match answer {
            Frame::Gathered { round: told, parts } if told == round && parts.len() == self.size => {
                self.round += 1;
                Ok(parts)
            }
            frame => Err(self.last_word(frame)),
        }
    }

    fn last_word(&self, frame: Frame) -> Error {
        match frame {
            Frame::Lost { text } => lost(&text),
            Frame::Late { text } => late(&text),
            Frame::Refused { text } => Error::new(
                Status::Invalid,
                "cannot join the job",
                text,
                "see that the job's processes were given their ranks, their number and their job by one launcher",
            ),
            _ => Error::new(
                Status::BadData,
                format!("{} spoke out of turn", self.server),
                "its answer belongs to another exchange",
                "use the same version of the library and of `tieline` in the whole job",
            ),
        }
    }

    fn late(&self, deadline: &Deadline) -> Error {
        late(&format!("{} has not answered within {:?}", self.server, deadline.length))
    }

    fn gone(&self, why: &str) -> Error {
        let end = if why.is_empty() { String::new() } else { format!(" ({why})") };
        lost(&format!("{} is gone{end}", self.server))
    }
}

impl Exchange for Link {
    fn allgather(&mut self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let outcome = self.round(mine, deadline);
        self.broken = outcome.as_ref().err().cloned();
        outcome
    }
}

fn lost(why: &str) -> Error {
    Error::new(Status::PeerFailed, "the exchange failed", why, "see that rank's own output")
}

pub(super) fn late(why: &str) -> Error {
    Error::new(
        Status::TimedOut,
        "the exchange did not end in time",
        why,
        "see that every rank was started, and that all call exchange and barrier equally often; \
         TIELINE_RENDEZVOUS_TIMEOUT or Job::set_deadline gives them longer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;
    use std::os::unix::net::UnixStream;

    fn link() -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let hello = host::hello(0, 2, "");
        let link = Link::open(Stream::Unix(ours), hello, "the launcher", &long()).unwrap();
        (link, theirs)
    }

    fn long() -> Deadline {
        Deadline::new(Duration::from_secs(100))
    }

    fn gathered(round: u64, count: u8) -> Frame {
        Frame::Gathered { round, parts: (0..count).map(|n| vec![n]).collect() }
    }

    #[test]
    fn an_answer_is_of_its_own_exchange_and_has_something_of_everybody() {
        let (mut link, mut theirs) = link();
        for round in 0..3 {
            theirs.write_all(&gathered(round, 2).encode()).unwrap();
            assert_eq!(link.allgather(b"me", &long()).unwrap(), [[0], [1]]);
        }
        for (round, count) in [(1, 2), (0, 1), (0, 3)] {
            let (mut link, mut theirs) = self::link();
            theirs.write_all(&gathered(round, count).encode()).unwrap();
            let error = link.allgather(b"me", &long()).unwrap_err();
            assert_eq!(error.status(), Status::BadData, "{round}, {count}");
            assert!(error.to_string().contains("the launcher spoke out of turn"), "{error}");
            // What failed once stays failed, whatever comes.
            theirs.write_all(&gathered(0, 2).encode()).unwrap();
            let again = link.allgather(b"me", &long()).unwrap_err();
            assert_eq!(again.to_string(), error.to_string());
        }
    }

    #[test]
    fn the_last_word_of_who_serves_the_exchange_is_the_reason_for_its_end() {
        let text = || "rank 1 has something".to_owned();
        for (frame, status) in [
            (Frame::Lost { text: text() }, Status::PeerFailed),
            (Frame::Late { text: text() }, Status::TimedOut),
            (Frame::Refused { text: text() }, Status::Invalid),
        ] {
            let (mut link, mut theirs) = link();
            theirs.write_all(&frame.encode()).unwrap();
            drop(theirs);
            let error = link.allgather(b"me", &long()).unwrap_err();
            assert_eq!(error.status(), status);
            assert!(error.to_string().contains(&text()), "{error}");
        }
        let (mut link, theirs) = link();
        drop(theirs);
        let error = link.allgather(b"me", &long()).unwrap_err();
        assert_eq!(error.status(), Status::PeerFailed);
        assert!(error.to_string().contains("the launcher is gone"), "{error}");
        let (mut link, mut theirs) = self::link();
        theirs.write_all(&[0xff; 64]).unwrap();
        let error = link.allgather(b"me", &long()).unwrap_err();
        assert_eq!(error.status(), Status::BadData);
        assert!(error.to_string().contains("the launcher spoke nonsense"), "{error}");
    }

    #[test]
    fn who_waited_long_enough_asks_who_is_missing_and_is_told() {
        let (mut link, mut theirs) = link();
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let (mut decoder, mut heard) = (Decoder::new(4096), Vec::new());
                let mut buffer = [0; 4096];
                while !matches!(heard.last(), Some(Frame::GiveUp { .. })) {
                    match decoder.next().unwrap() {
                        Some(frame) => heard.push(frame),
                        None => {
                            let count = theirs.read(&mut buffer).unwrap();
                            decoder.push(&buffer[..count]);
                        }
                    }
                }
                let text = "rank 1 has not come".to_owned();
                theirs.write_all(&Frame::Late { text }.encode()).unwrap();
                heard.pop()
            });
            let brief = Deadline::new(Duration::from_millis(20));
            let error = link.allgather(b"me", &brief).unwrap_err();
            assert_eq!(error.status(), Status::TimedOut);
            assert!(error.to_string().contains("rank 1 has not come"), "{error}");
            let asked = server.join().unwrap();
            assert!(matches!(asked, Some(Frame::GiveUp { waited_ms: 20 })), "{asked:?}");
        });
    }
}
