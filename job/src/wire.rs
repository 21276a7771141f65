//! The protocol between processes and the server of their exchange. A frame has a length, a kind and a body, and every length is
//! checked.
//!
//! ```text
//! u32 length of what follows, little endian | u8 kind | body
//! Hello:      1 | u8 VERSION | u32 rank, size, pid | u32 length, host | u32 length, job | fields of later versions
//! Contribute: 2 | u64 round | bytes                Gathered: 3 | u64 round | (u32 length, bytes) for each rank
//! Lost: 4 | text       GiveUp: 5 | u64 ms          Late: 6 | text       Refused: 7 | text
//! Publish: 8 | u32 key | bytes                     Lookup: 9 | u64 id | u32 rank, key
//! Forget: 10 | u64 id  Found: 11 | u64 id | bytes  Unknown: 12 | u64 id | text
//! ```
//!
//! Versions: a connection begins with the client's `VERSION`, which applies to the whole connection. A field appended to the hello
//! needs no new version: an older server ignores it. Every other change raises `VERSION`. A server refuses every other version,
//! older or newer, with both numbers in the reason. The kind and position of the version, and of `Refused`, never change, so that
//! each side can report the mismatch.

/// The maximum number of bytes in one process's contribution to one exchange.
pub const MAX_CONTRIBUTION: usize = 1 << 20;

/// The maximum number of bytes that one process can publish during a job; [`MAX_KEYS`] limits the number of keys.
pub const MAX_PUBLISHED: usize = MAX_CONTRIBUTION;
/// The maximum number of keys that one process can publish during a job.
pub const MAX_KEYS: usize = 1024;

/// The maximum number of pending lookups of one process.
pub const MAX_LOOKUPS: usize = 1024;

/// The maximum number of processes in a job.
pub const MAX_RANKS: usize = 1 << 20;

/// The maximum length of a job's identity, in bytes.
pub const MAX_JOB: usize = 1024;

/// The maximum length of a frame that a server accepts before the hello.
pub const HELLO_LIMIT: usize = 4096;

/// The maximum length of a frame that a server accepts after the hello: one contribution.
pub const CONTRIBUTION_LIMIT: usize = MAX_CONTRIBUTION + 64;

/// The present version of this protocol.
const VERSION: u8 = 4;

/// The maximum number of characters that are kept of a host's name.
const MAX_HOST: usize = 64;
/// The maximum number of characters that are kept of an error text.
const MAX_TEXT: usize = 4096;

/// Returns the maximum length of a frame that a process in a job of `size` accepts: the contributions of all ranks.
#[must_use]
pub fn gathered_limit(size: usize) -> usize {
    size.saturating_mul(MAX_CONTRIBUTION + 4).saturating_add(4096).min(u32::MAX as usize)
}

/// The hello of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The rank of the process.
    pub rank: u32,
    /// The size of the job, as the process knows it.
    pub size: u32,
    /// The process number on its host, for error texts.
    pub pid: u32,
    /// The name of the process's host, for error texts.
    pub host: String,
    /// The job's identity, which is the same in all processes of a job: TIELINE_JOB, or the numbers of Slurm's job and step.
    pub job: String,
}

/// A frame of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The frame by which a process joins.
    Hello(Hello),
    /// The contribution of a process to exchange number `round`.
    Contribute {
        /// The number of the exchange, counted from 0.
        round: u64,
        /// The contributed bytes.
        bytes: Vec<u8>,
    },
    /// The frame of a process that has waited until its deadline and gives up.
    GiveUp {
        /// The length of the deadline, in milliseconds.
        waited_ms: u64,
    },
    /// The answer to an exchange, for all processes.
    Gathered {
        /// The number of the exchange, counted from 0.
        round: u64,
        /// The contributions, one per rank.
        parts: Vec<Vec<u8>>,
    },
    /// A final frame with the reason why all later exchanges fail.
    Lost {
        /// The text of the error.
        text: String,
    },
    /// A final frame that names the ranks that did not arrive before the deadline.
    Late {
        /// The text of the error.
        text: String,
    },
    /// A final frame with the reason of a refusal, caused by the receiver or by the job.
    Refused {
        /// The text of the error.
        text: String,
    },
    /// Bytes that a process publishes for lookups.
    Publish {
        /// The key of the published bytes.
        key: u32,
        /// The published bytes.
        bytes: Vec<u8>,
    },
    /// A request for bytes that a process has published, or will publish.
    Lookup {
        /// The number that the requester gave to the lookup.
        id: u64,
        /// The rank that publishes the bytes.
        rank: u32,
        /// The key of the published bytes.
        key: u32,
    },
    /// A frame by which the requester ends a lookup.
    Forget {
        /// The number of the lookup.
        id: u64,
    },
    /// The answer to a lookup.
    Found {
        /// The number of the lookup.
        id: u64,
        /// The published bytes.
        bytes: Vec<u8>,
    },
    /// The answer to a lookup that has failed, or that was forgotten before the key was published.
    Unknown {
        /// The number of the lookup.
        id: u64,
        /// The text of the error.
        text: String,
    },
}

/// Makes the first bytes of a [`Frame::Found`] with `len` bytes. The server sends the payload separately, so that it need not copy
/// the payload for each requester.
pub(super) fn found_head(id: u64, len: usize) -> [u8; 13] {
    let mut head = [0; 13];
    head[..4].copy_from_slice(&((len + 9) as u32).to_le_bytes());
    head[4] = 11;
    head[5..].copy_from_slice(&id.to_le_bytes());
    head
}

impl Frame {
    /// Encodes the frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        match self {
            Frame::Hello(hello) => {
                out.extend([1, VERSION]);
                for number in [hello.rank, hello.size, hello.pid] {
                    out.extend(number.to_le_bytes());
                }
                for text in [&hello.host, &hello.job] {
                    out.extend((text.len() as u32).to_le_bytes());
                    out.extend(text.as_bytes());
                }
            }
            Frame::Contribute { round, bytes } => {
                out.push(2);
                out.extend(round.to_le_bytes());
                out.extend(bytes);
            }
            Frame::Gathered { round, parts } => {
                out.push(3);
                out.extend(round.to_le_bytes());
                for part in parts {
                    out.extend((part.len() as u32).to_le_bytes());
                    out.extend(part);
                }
            }
            Frame::Lost { text } => last_word(&mut out, 4, text),
            Frame::GiveUp { waited_ms } => {
                out.push(5);
                out.extend(waited_ms.to_le_bytes());
            }
            Frame::Late { text } => last_word(&mut out, 6, text),
            Frame::Refused { text } => last_word(&mut out, 7, text),
            Frame::Publish { key, bytes } => {
                out.push(8);
                out.extend(key.to_le_bytes());
                out.extend(bytes);
            }
            Frame::Lookup { id, rank, key } => {
                out.push(9);
                out.extend(id.to_le_bytes());
                out.extend(rank.to_le_bytes());
                out.extend(key.to_le_bytes());
            }
            Frame::Forget { id } => {
                out.push(10);
                out.extend(id.to_le_bytes());
            }
            Frame::Found { id, bytes } => {
                out = found_head(*id, bytes.len()).to_vec();
                out.extend(bytes);
            }
            Frame::Unknown { id, text } => {
                out.push(12);
                out.extend(id.to_le_bytes());
                out.extend(text.as_bytes());
            }
        }
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_le_bytes());
        out
    }

    fn decode(frame: &[u8]) -> Option<Frame> {
        let (&kind, mut body) = frame.split_first()?;
        let text = |body: &[u8]| plain(&String::from_utf8_lossy(body), MAX_TEXT);
        let frame = match kind {
            1 => Frame::Hello(Hello::decode(body)?),
            2 => {
                let round = u64::from_le_bytes(take(&mut body)?);
                Frame::Contribute { round, bytes: body.to_vec() }
            }
            3 => {
                let round = u64::from_le_bytes(take(&mut body)?);
                let mut parts = Vec::new();
                while !body.is_empty() {
                    let length = u32::from_le_bytes(take(&mut body)?) as usize;
                    let (part, rest) = body.split_at_checked(length)?;
                    parts.push(part.to_vec());
                    body = rest;
                }
                Frame::Gathered { round, parts }
            }
            4 => Frame::Lost { text: text(body) },
            5 => Frame::GiveUp { waited_ms: u64::from_le_bytes(body.try_into().ok()?) },
            6 => Frame::Late { text: text(body) },
            7 => Frame::Refused { text: text(body) },
            8 => {
                let key = u32::from_le_bytes(take(&mut body)?);
                Frame::Publish { key, bytes: body.to_vec() }
            }
            9 => {
                let id = u64::from_le_bytes(take(&mut body)?);
                let rank = u32::from_le_bytes(take(&mut body)?);
                Frame::Lookup { id, rank, key: u32::from_le_bytes(body.try_into().ok()?) }
            }
            10 => Frame::Forget { id: u64::from_le_bytes(body.try_into().ok()?) },
            11 => {
                let id = u64::from_le_bytes(take(&mut body)?);
                Frame::Found { id, bytes: body.to_vec() }
            }
            12 => {
                let id = u64::from_le_bytes(take(&mut body)?);
                Frame::Unknown { id, text: text(body) }
            }
            _ => return None,
        };
        Some(frame)
    }
}

impl Hello {
    fn decode(mut body: &[u8]) -> Option<Hello> {
        let [VERSION] = take::<1>(&mut body)? else { return None };
        let mut number = || Some(u32::from_le_bytes(take(&mut body)?));
        let (rank, size, pid) = (number()?, number()?, number()?);
        let mut text = || {
            let length = u32::from_le_bytes(take(&mut body)?) as usize;
            let (text, rest) = body.split_at_checked(length)?;
            body = rest;
            std::str::from_utf8(text).ok()
        };
        let (host, job) = (plain(text()?, MAX_HOST), text()?.to_owned());
        Some(Hello { rank, size, pid, host, job })
    }
}

/// Makes text of another process safe to show: keeps at most `most` characters, and replaces characters that a terminal interprets
/// or that change the direction of the text by escape sequences.
#[must_use]
pub fn plain(text: &str, most: usize) -> String {
    let (mut shown, mut count) = (String::new(), 0);
    for c in text.chars() {
        let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
        let word: String =
            if c.is_control() || turns { c.escape_default().collect() } else { c.into() };
        count += word.chars().count();
        if count > most {
            shown.push_str("...");
            break;
        }
        shown += &word;
    }
    shown
}

fn last_word(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    out.extend(text.as_bytes());
}

fn take<const N: usize>(body: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = body.split_at_checked(N)?;
    *body = rest;
    head.try_into().ok()
}

/// A decoder that splits a stream of bytes into frames.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// The number of bytes that were consumed.
    at: usize,
    limit: usize,
}

/// The capacity up to which a decoder without pending bytes keeps its buffer, in bytes.
const ROOM: usize = 64 << 10;

impl Decoder {
    /// Makes a decoder that refuses frames longer than `limit`.
    #[must_use]
    pub fn new(limit: usize) -> Decoder {
        Decoder { bytes: Vec::new(), at: 0, limit }
    }

    /// Sets a new limit for the length of frames.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let _ = self.bytes.drain(..std::mem::take(&mut self.at));
        if self.bytes.is_empty() {
            self.bytes.shrink_to(ROOM);
        }
        self.bytes.extend(bytes);
    }

    /// Returns the next complete frame; `None` while the frame has not fully arrived.
    ///
    /// # Errors
    /// Returns a description of the error in the bytes.
    #[allow(clippy::should_implement_trait)] // an iterator would end at None, and this continues after it
    pub fn next(&mut self) -> Result<Option<Frame>, String> {
        let bytes = &self.bytes[self.at..];
        let Some(head) = bytes.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        // For a hello of another version the length is ignored, because such a hello may be longer than the limit.
        if let Some([1, version]) = bytes[4..].first_chunk::<2>() {
            if length > 1 && *version != VERSION {
                return Err(format!(
                    "it speaks version {version} of the exchange, and this side version {VERSION}: one version of \
                     the library is needed in the whole job"
                ));
            }
        }
        if length > self.limit {
            return Err(format!(
                "a frame of {length} bytes, and at most {} are allowed",
                self.limit
            ));
        }
        let Some(frame) = bytes.get(4..4 + length) else { return Ok(None) };
        let frame =
            Frame::decode(frame).ok_or_else(|| format!("a malformed frame of {length} bytes"))?;
        self.at += 4 + length;
        if self.at == self.bytes.len() {
            (self.bytes, self.at) = (Vec::new(), 0);
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let hello = Hello { rank: 7, size: 8, pid: 99, host: "a".into(), job: "c0ffee".into() };
        vec![
            Frame::Hello(hello),
            Frame::Hello(Hello::default()),
            Frame::Contribute { round: 1, bytes: vec![] },
            Frame::Contribute { round: u64::MAX, bytes: vec![1, 2, 3] },
            Frame::GiveUp { waited_ms: 120_000 },
            Frame::Gathered { round: 0, parts: vec![vec![], vec![9; 300], vec![1]] },
            Frame::Lost { text: "rank 1 was ended by signal 9 (SIGKILL)".into() },
            Frame::Late { text: "rank 3 has not come".into() },
            Frame::Refused { text: "there is no rank 9".into() },
            Frame::Publish { key: 0, bytes: vec![] },
            Frame::Publish { key: u32::MAX, bytes: vec![4; 70] },
            Frame::Lookup { id: 1, rank: 99_999, key: 3 },
            Frame::Forget { id: u64::MAX },
            Frame::Found { id: 2, bytes: vec![] },
            Frame::Found { id: u64::MAX, bytes: vec![5; 700] },
            Frame::Unknown { id: 3, text: "rank 5 has left".into() },
        ]
    }

    #[test]
    fn every_frame_survives_any_cut_of_the_stream() {
        let stream: Vec<u8> = frames().iter().flat_map(Frame::encode).collect();
        for piece in [1, 2, 3, 7, 64, stream.len()] {
            let mut decoder = Decoder::new(1024);
            let mut seen = Vec::new();
            for bytes in stream.chunks(piece) {
                decoder.push(bytes);
                while let Some(frame) = decoder.next().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, frames());
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_before_it_is_kept() {
        let mut decoder = Decoder::new(16);
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(decoder.next().unwrap_err().contains("at most 16"));
    }

    #[test]
    fn a_part_or_a_name_longer_than_its_frame_is_refused() {
        let gathered = Frame::Gathered { round: 0, parts: vec![vec![1, 2]] };
        let hello = || Frame::Hello(Hello::default());
        for (frame, length_at) in [(gathered, 13), (hello(), 18), (hello(), 22)] {
            let mut bytes = frame.encode();
            bytes[length_at] = 200;
            let mut decoder = Decoder::new(1024);
            decoder.push(&bytes);
            assert!(decoder.next().is_err());
        }
    }

    #[test]
    fn every_cut_of_a_frame_is_refused_or_another_frame_and_never_a_panic() {
        for frame in frames() {
            let bytes = frame.encode();
            for end in 4..bytes.len() {
                let mut cut = bytes[..end].to_vec();
                cut[..4].copy_from_slice(&((end - 4) as u32).to_le_bytes());
                let mut decoder = Decoder::new(1024);
                decoder.push(&cut);
                assert_ne!(decoder.next().ok().flatten(), Some(frame.clone()));
            }
        }
    }

    #[test]
    fn an_unknown_kind_and_an_empty_frame_are_refused() {
        for bytes in [&[1, 0, 0, 0, 99][..], &[0, 0, 0, 0]] {
            let mut decoder = Decoder::new(1024);
            decoder.push(bytes);
            assert!(decoder.next().is_err());
        }
    }

    #[test]
    fn other_version_is_refused_and_appended_field_is_ignored() {
        let hello = Hello { rank: 1, size: 2, pid: 3, host: "a".into(), job: "j".into() };
        for version in [0, VERSION - 1, VERSION + 1, 255] {
            let mut bytes = Frame::Hello(hello.clone()).encode();
            bytes[5] = version;
            let mut decoder = Decoder::new(1024);
            decoder.push(&bytes);
            let said = decoder.next().unwrap_err();
            assert!(said.contains(&format!("version {version} ")), "{said}");
            assert!(said.contains(&format!("version {VERSION}:")), "{said}");
        }
        // A hello of another version may be longer than the limit, and need not have arrived completely.
        for length in [3, HELLO_LIMIT as u32 + 1, u32::MAX] {
            let mut decoder = Decoder::new(HELLO_LIMIT);
            decoder.push(&[&length.to_le_bytes()[..], &[1, 9]].concat());
            let said = decoder.next().unwrap_err();
            assert!(said.contains("version 9 ") && said.contains(&format!("{VERSION}:")), "{said}");
        }
        let mut bytes = Frame::Hello(hello.clone()).encode();
        bytes.extend([7; 9]);
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let mut decoder = Decoder::new(1024);
        decoder.push(&bytes);
        assert_eq!(decoder.next(), Ok(Some(Frame::Hello(hello))));
    }

    #[test]
    fn words_of_others_are_bounded_and_cannot_move_a_terminal() {
        assert_eq!(plain("it's fine: ü", 64), "it's fine: ü");
        assert_eq!(plain("\x1b[2J\nx\u{202e}", 64), "\\u{1b}[2J\\nx\\u{202e}");
        assert_eq!(plain(&"x".repeat(100), 10), format!("{}...", "x".repeat(10)));
    }

    #[test]
    fn limits_are_the_last_lengths_that_pass() {
        let frame = Frame::Contribute { round: 0, bytes: vec![7; 7] };
        for (limit, passes) in [(15, false), (16, true)] {
            let mut decoder = Decoder::new(limit);
            decoder.push(&frame.encode());
            assert_eq!(decoder.next().is_ok(), passes, "{limit}");
        }
        assert_eq!(plain(&"x".repeat(10), 10), "x".repeat(10));
        assert_eq!(plain(&"x".repeat(11), 10), format!("{}...", "x".repeat(10)));
        // An escape sequence is shown completely or not at all.
        assert_eq!(plain("abc\n", 5), "abc\\n");
        assert_eq!(plain("abc\n", 4), "abc...");
        for turns in ['\u{202a}', '\u{2066}', '\u{2069}', '\u{200e}', '\u{200f}'] {
            assert_eq!(plain(&turns.to_string(), 64), turns.escape_default().to_string());
        }
        assert_eq!(gathered_limit(2), 2 * (MAX_CONTRIBUTION + 4) + 4096);
        assert_eq!(gathered_limit(usize::MAX), u32::MAX as usize);
    }

    /// The byte after a hello of one byte belongs to the next frame.
    #[test]
    fn hello_of_one_byte_has_no_version() {
        let mut decoder = Decoder::new(1024);
        decoder.push(&[1, 0, 0, 0, 1, 9, 0, 0, 0]);
        assert_eq!(decoder.next(), Err("a malformed frame of 1 bytes".into()));
    }
}
