//! The wire format: the interface's address, and the records on a channel's socket.
//!
//! Messages and bulk data use shared memory. The socket carries descriptors, first contact, refusals, wake-ups, key requests and
//! goodbyes. Every parser accepts arbitrary bytes and returns an error for invalid ones.

use tieline_plugin_api::{Failure, Status};

/// The version of the format, incremented whenever a record or the layout of a channel changes.
pub(crate) const VERSION: u8 = 3;
/// The longest identity that a connection carries.
pub(crate) const MAX_IDENTITY: usize = 4096;
/// The length of a buffer for the longest record.
pub(crate) const MAX_RECORD: usize = MAX_IDENTITY + 128;
/// The maximum length of an address.
pub(crate) const MAX_ADDRESS: usize = 256;

/// A random number of 128 bits.
pub(crate) type Id = [u8; 16];

/// Reads the fields of a record from its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        if len > self.0.len() {
            return None;
        }
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// The information by which a peer reaches an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The cookie that every connecting peer must present.
    pub(crate) cookie: Id,
    /// The identity of the kernel and its boot; all zero if unknown.
    pub(crate) boot: Id,
    /// The inode of the network namespace; 0 if unknown.
    pub(crate) network: u64,
    /// The inode of the mount namespace; 0 if unknown.
    pub(crate) mount: u32,
    /// The process id of the interface's process in its own namespace; 0 if not given.
    pub(crate) process: u32,
    /// The domain of the interface, for remote keys.
    pub(crate) domain: Id,
    /// The socket's `sun_path`; with a leading zero it is an abstract name.
    pub(crate) socket: Vec<u8>,
}

impl Address {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.cookie);
        out.extend(self.boot);
        out.extend(self.network.to_le_bytes());
        out.extend(self.mount.to_le_bytes());
        out.extend(self.process.to_le_bytes());
        out.extend(self.domain);
        out.push(self.socket.len() as u8);
        out.extend(&self.socket);
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Address, Failure> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(v) => {
                return Err(Failure::new(
                    Status::Unreachable,
                    format!("the peer's shm speaks version {v}, this one {VERSION}"),
                ));
            }
            None => return Err(Failure::new(Status::BadData, "an empty shm address")),
        }
        let fields = |mut r: Reader<'_>| {
            let address = Address {
                cookie: r.array()?,
                boot: r.array()?,
                network: r.u64()?,
                mount: r.u32()?,
                process: r.u32()?,
                domain: r.array()?,
                socket: {
                    let len = r.u8()?;
                    r.bytes(len as usize)?.to_vec()
                },
            };
            r.end()?;
            (!address.socket.is_empty() && address.socket.len() < 108).then_some(address)
        };
        fields(Reader(&bytes[1..]))
            .ok_or_else(|| Failure::new(Status::BadData, "a malformed shm address"))
    }
}

/// The reason why the receiving side closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    Cookie = 1,
    Version = 2,
    User = 3,
    Malformed = 4,
    Resources = 5,
    BadChannel = 6,
    Closing = 7,
    Unanswered = 8,
}

impl Refusal {
    fn from_byte(byte: u8) -> Option<Refusal> {
        use Refusal::*;
        [Cookie, Version, User, Malformed, Resources, BadChannel, Closing, Unanswered]
            .into_iter()
            .find(|&r| r as u8 == byte)
    }

    /// Returns the text that the refused side reports.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Refusal::Cookie => "the peer refused the connection: the address is forged or stale",
            Refusal::Version => "the peer refused the connection: it speaks another version of shm",
            Refusal::User => "the peer refused the connection: it belongs to another user",
            Refusal::Malformed => {
                "the peer refused the connection: it did not understand the greeting"
            }
            Refusal::Resources => {
                "the peer refused the connection: it lacks something that receiving needs, for example memory or descriptors (ulimit -n); its report says what"
            }
            Refusal::BadChannel => "the peer abandoned the channel: it found invalid bytes in it",
            Refusal::Closing => "the peer closed its interface",
            Refusal::Unanswered => {
                "the peer disconnected: it could not send all the answers that it owed this process"
            }
        }
    }
}

/// The first record of a connection, with the channel's memory file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) cookie: Id,
    /// Whether the sender is registered with the kernel for membarrier.
    pub(crate) asymmetric: bool,
    /// The size of the fast box, in bytes.
    pub(crate) fastbox: u32,
    pub(crate) identity: Vec<u8>,
}

/// The records on a channel's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Hello(Hello),
    /// The admission of the sender, with the doorbell page and the sender's bit.
    Ack {
        asymmetric: bool,
        bell: u32,
    },
    /// The reason for closing the channel, sent to the sender.
    Refused(Refusal),
    /// The request to check the rings.
    Wake,
    /// A pool segment with its descriptor, sent to the receiver.
    Segment {
        number: u32,
        len: u64,
    },
    /// The goodbye to the receiver: no more messages follow.
    Bye,
    /// The request to the receiver for the segment of a remote key.
    KeyRequest {
        segment: u64,
    },
    /// The answer to the sender: the descriptors of the segment and of the key table; without descriptors, there is no such
    /// segment, or the descriptors were lost.
    KeyReply {
        segment: u64,
        len: u64,
        table_len: u64,
        writable: bool,
    },
}

impl Record {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Record::Hello(hello) => {
                out.extend([1, VERSION]);
                out.extend(hello.cookie);
                out.push(u8::from(hello.asymmetric));
                out.extend(hello.fastbox.to_le_bytes());
                out.extend((hello.identity.len() as u32).to_le_bytes());
                out.extend(&hello.identity);
            }
            Record::Ack { asymmetric, bell } => {
                out.extend([2, u8::from(*asymmetric)]);
                out.extend(bell.to_le_bytes());
            }
            Record::Refused(refusal) => out.extend([3, *refusal as u8]),
            Record::Wake => out.push(4),
            Record::Segment { number, len } => {
                out.push(5);
                out.extend(number.to_le_bytes());
                out.extend(len.to_le_bytes());
            }
            Record::Bye => out.push(6),
            Record::KeyRequest { segment } => {
                out.push(7);
                out.extend(segment.to_le_bytes());
            }
            Record::KeyReply { segment, len, table_len, writable } => {
                out.push(8);
                out.extend(segment.to_le_bytes());
                out.extend(len.to_le_bytes());
                out.extend(table_len.to_le_bytes());
                out.push(u8::from(*writable));
            }
        }
        out
    }

    /// Parses a record. The error is the refusal for the sender of these bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Record, Refusal> {
        let mut r = Reader(bytes);
        let kind = r.u8().ok_or(Refusal::Malformed)?;
        if kind == 1 && bytes.get(1).is_some_and(|&v| v != VERSION) {
            return Err(Refusal::Version);
        }
        Record::fields(kind, r).ok_or(Refusal::Malformed)
    }

    fn fields(kind: u8, mut r: Reader<'_>) -> Option<Record> {
        let record = match kind {
            1 => {
                let _version = r.u8()?;
                let (cookie, asymmetric, fastbox) = (r.array()?, r.u8()? == 1, r.u32()?);
                let len = r.u32()? as usize;
                if len > MAX_IDENTITY {
                    return None;
                }
                Record::Hello(Hello {
                    cookie,
                    asymmetric,
                    fastbox,
                    identity: r.bytes(len)?.to_vec(),
                })
            }
            2 => Record::Ack { asymmetric: r.u8()? == 1, bell: r.u32()? },
            3 => Record::Refused(Refusal::from_byte(r.u8()?)?),
            4 => Record::Wake,
            5 => Record::Segment { number: r.u32()?, len: r.u64()? },
            6 => Record::Bye,
            7 => Record::KeyRequest { segment: r.u64()? },
            8 => Record::KeyReply {
                segment: r.u64()?,
                len: r.u64()?,
                table_len: r.u64()?,
                writable: r.u8()? == 1,
            },
            _ => return None,
        };
        r.end()?;
        Some(record)
    }
}

/// Compares secrets in constant time.
pub(crate) fn same_secret(a: &Id, b: &Id) -> bool {
    a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records() -> Vec<Record> {
        vec![
            Record::Hello(Hello {
                cookie: [7; 16],
                asymmetric: true,
                fastbox: 4096,
                identity: b"me".to_vec(),
            }),
            Record::Ack { asymmetric: false, bell: 77 },
            Record::Refused(Refusal::User),
            Record::Wake,
            Record::Segment { number: 3, len: 1 << 20 },
            Record::Bye,
            Record::KeyRequest { segment: 9 },
            Record::KeyReply { segment: 9, len: 4096, table_len: 4096, writable: true },
        ]
    }

    fn address() -> Address {
        Address {
            cookie: [1; 16],
            boot: [2; 16],
            network: 3,
            mount: 6,
            process: 5,
            domain: [4; 16],
            socket: b"\0tieline-x".to_vec(),
        }
    }

    #[test]
    fn every_record_survives_the_wire() {
        for record in records() {
            assert_eq!(Record::parse(&record.pack()), Ok(record.clone()));
            assert!(record.pack().len() <= MAX_RECORD);
        }
        assert_eq!(Address::parse(&address().pack()), Ok(address()));
        assert!(address().pack().len() <= MAX_ADDRESS);
    }

    #[test]
    fn a_record_that_is_cut_or_too_long_is_malformed() {
        for record in records() {
            let mut bytes = record.pack();
            bytes.push(0);
            assert_eq!(Record::parse(&bytes), Err(Refusal::Malformed), "{record:?}");
            for cut in 0..bytes.len() - 1 {
                assert_ne!(Record::parse(&bytes[..cut]), Ok(record.clone()));
            }
        }
        let bytes = address().pack();
        for cut in 0..bytes.len() {
            assert!(Address::parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn another_version_is_told_apart_from_nonsense() {
        let mut bytes = records()[0].pack();
        bytes[1] = VERSION + 1;
        assert_eq!(Record::parse(&bytes), Err(Refusal::Version));
        let mut bytes = address().pack();
        bytes[0] = VERSION + 1;
        assert_eq!(Address::parse(&bytes).unwrap_err().status, Status::Unreachable);
    }

    #[test]
    fn names_and_identities_are_as_long_as_they_may_be_and_no_longer() {
        for (len, good) in [(0, false), (1, true), (107, true), (108, false)] {
            let address = Address { socket: vec![b'x'; len], ..address() };
            let read = Address::parse(&address.pack()).map_err(|failure| failure.text);
            assert_eq!(read, good.then_some(address).ok_or("a malformed shm address".into()));
        }
        for (len, good) in [(0, true), (MAX_IDENTITY, true), (MAX_IDENTITY + 1, false)] {
            let Record::Hello(hello) = records().remove(0) else { panic!("a greeting") };
            let hello = Record::Hello(Hello { identity: vec![7; len], ..hello });
            let read = Record::parse(&hello.pack());
            assert_eq!(read, good.then_some(hello).ok_or(Refusal::Malformed), "{len}");
        }
        assert_eq!(Address::parse(&[]).unwrap_err().text, "an empty shm address");
    }

    #[test]
    fn a_secret_is_the_same_only_where_every_bit_is() {
        let secret: Id = core::array::from_fn(|at| at as u8 * 17);
        assert!(same_secret(&secret, &secret));
        for bit in 0..128 {
            let mut other = secret;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!same_secret(&secret, &other), "{bit}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_a_parser(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Record::parse(&bytes);
            let _ = Address::parse(&bytes);
        }

        #[test]
        fn a_damaged_record_is_refused_or_another_record(
            which in 0usize..8, at in 0usize..64, value in any::<u8>()
        ) {
            let mut bytes = records()[which].pack();
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(record) = Record::parse(&bytes) {
                prop_assert!(Record::parse(&record.pack()).is_ok());
            }
        }
    }
}
