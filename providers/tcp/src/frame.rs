//! The format of a stream: frames of a head and a payload. Every byte of a head is checked when it is read.
//!
//! ```text
//!  0    1      2      4        8      12     16       20      24     32        40    48      52     56      64
//!  kind flags  magic  length   seq    ack    number   sum     word | domain    tag   index   sum    total |
//!  `------------------------- every frame ------------------------' `------- PUT and GET: the key ---------'
//! ```
//!
//! The sums do not protect against forgers. A head with a wrong sum ends its stream immediately. Without the sums, a changed
//! length, kind or number could let a peer wait for ever. Payloads have no sums: TCP's and the link's own checksums protect them.

use tieline_plugin_api::Status;

/// The flag in the word of an acknowledgement that requests an acknowledgement in return, on the same stream.
pub(crate) const ANSWER: u64 = 1;
/// The length of a head, in bytes.
pub(crate) const HEAD: usize = 32;
/// The length of a head with a key.
pub(crate) const LONG_HEAD: usize = 64;
/// The longest payload of a message.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;
/// The longest payload of a piece of a put or get.
pub(crate) const MAX_FRAGMENT: usize = 256 << 10;

/// A constant in every head, which detects bytes that are no head.
const MAGIC: u16 = 0x7e00 | VERSION as u16;
/// The version of the format, incremented with every change that an older peer would misunderstand. Addresses contain the version,
/// because they are read before anything is sent.
pub(crate) const VERSION: u8 = 0x1d;
const FLAG_LAST: u8 = 1;

macro_rules! kinds {
    ($( $(#[$doc:meta])* $name:ident = $value:literal; )*) => {
        /// The kind of a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind { $( $(#[$doc])* $name = $value, )* }

        impl Kind {
            fn from_byte(byte: u8) -> Option<Kind> {
                match byte { $( $value => Some(Kind::$name), )* _ => None }
            }

            #[cfg(test)]
            pub(crate) const ALL: &'static [Kind] = &[ $( Kind::$name, )* ];
        }
    };
}

kinds! {
    /// An active message: `number` is its id, `word` its header.
    Message = 1;
    /// A piece of put `number`, for offset `word` of the keyed region.
    Put = 2;
    /// The end of every put up to `number`, successful unless a `PutFailed` came before.
    PutDone = 3;
    /// The refusal of put `number`: `word` is the status.
    PutFailed = 4;
    /// The request for `total` bytes from offset `word` of the keyed region.
    Get = 5;
    /// A piece of the data for get `number`, at offset `word` of the get.
    GetData = 6;
    /// The end of get `number`: `word` is the status.
    GetDone = 7;
    /// The request for a `FlushDone` of the same `number` when all earlier operations have completed.
    Flush = 8;
    /// The answer to every flush up to `number`.
    FlushDone = 9;
    /// An acknowledgement: `ack`, and in `number` the sequence number after the highest one seen. The frame itself has no sequence
    /// number.
    Ack = 10;
    /// The last frame: the endpoint was closed in an orderly way.
    Goodbye = 11;
    /// The first frame on a stream, from the side with the lower address: this connection is the chosen one. `word` counts the
    /// connections that this stream has had. The frame has no sequence number.
    Start = 12;
    /// The answer instead of `Start` if the dialled endpoint does not exist, or is not connected to the dialler. The frame has no
    /// sequence number.
    Gone = 13;
    /// The notification `word` of put `number`, after the put's last piece and before a later put; ignored if the put was refused.
    Notified = 14;
}

impl Kind {
    /// Checks whether a frame of this kind has a sequence number.
    pub(crate) fn is_sequenced(self) -> bool {
        !matches!(self, Kind::Ack | Kind::Start | Kind::Gone)
    }

    fn has_key(self) -> bool {
        matches!(self, Kind::Put | Kind::Get)
    }

    fn longest(self) -> usize {
        match self {
            Kind::Message => MAX_MESSAGE,
            Kind::Put | Kind::GetData => MAX_FRAGMENT,
            _ => 0,
        }
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// Whether this is the last piece of a put.
    pub(crate) last: bool,
    /// The length of the payload.
    pub(crate) len: u32,
    pub(crate) seq: u32,
    /// The sequence number before which the sender of this frame has delivered all frames; unused in a session that does not
    /// retain.
    pub(crate) ack: u32,
    pub(crate) number: u32,
    pub(crate) word: u64,
}

/// The key of a put or get, and its total length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyPart {
    pub(crate) domain: u64,
    pub(crate) tag: u64,
    pub(crate) index: u32,
    /// The length of the whole operation.
    pub(crate) total: u64,
}

/// The reason why bytes are no valid frame, for failure texts.
pub(crate) type Malformed = &'static str;

impl Head {
    /// Returns a frame without payload.
    pub(crate) fn bare(kind: Kind, number: u32, word: u64) -> Head {
        Head { kind, last: false, len: 0, seq: 0, ack: 0, number, word }
    }

    /// Returns the notification of a put.
    pub(crate) fn notified(number: u32, word: u32) -> Head {
        Head::bare(Kind::Notified, number, u64::from(word))
    }

    #[inline]
    pub(crate) fn pack(&self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        out[0] = self.kind as u8;
        out[1] = if self.last { FLAG_LAST } else { 0 };
        out[2..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..12].copy_from_slice(&self.seq.to_le_bytes());
        out[12..16].copy_from_slice(&self.ack.to_le_bytes());
        out[16..20].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.word.to_le_bytes());
        seal(&mut out);
        out
    }

    pub(crate) fn pack_with(&self, key: &KeyPart) -> [u8; LONG_HEAD] {
        let mut out = [0; LONG_HEAD];
        out[..HEAD].copy_from_slice(&self.pack());
        out[HEAD..].copy_from_slice(&key.pack());
        out
    }

    #[inline]
    pub(crate) fn parse(bytes: &[u8; HEAD]) -> Result<Head, Malformed> {
        let kind = Kind::from_byte(bytes[0]).ok_or("a frame of a kind that does not exist")?;
        if bytes[1] & !FLAG_LAST != 0 || u16_at(bytes, 2) != MAGIC || !is_sealed(bytes) {
            return Err("bytes that are no frame");
        }
        let head = Head {
            kind,
            last: bytes[1] & FLAG_LAST != 0,
            len: u32_at(bytes, 4),
            seq: u32_at(bytes, 8),
            ack: u32_at(bytes, 12),
            number: u32_at(bytes, 16),
            word: u64_at(bytes, 24),
        };
        if head.len as usize > kind.longest() {
            return Err("a frame that is longer than any may be");
        }
        if head.last && kind != Kind::Put {
            return Err("a flag on a frame that has none");
        }
        Ok(head)
    }

    /// Returns the length of the head with its key.
    #[inline]
    pub(crate) fn head_len(&self) -> usize {
        if self.kind.has_key() { LONG_HEAD } else { HEAD }
    }
}

impl KeyPart {
    fn pack(&self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        out[..8].copy_from_slice(&self.domain.to_le_bytes());
        out[8..16].copy_from_slice(&self.tag.to_le_bytes());
        out[16..20].copy_from_slice(&self.index.to_le_bytes());
        out[24..].copy_from_slice(&self.total.to_le_bytes());
        seal(&mut out);
        out
    }

    pub(crate) fn parse(bytes: &[u8; HEAD]) -> Result<KeyPart, Malformed> {
        if !is_sealed(bytes) {
            return Err("bytes that are no key");
        }
        Ok(KeyPart {
            domain: u64_at(bytes, 0),
            tag: u64_at(bytes, 8),
            index: u32_at(bytes, 16),
            total: u64_at(bytes, 24),
        })
    }
}

/// The reason why a target refused a put or a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    For(Status),
    /// The offset of the first byte in the region that could not be accessed.
    Fault(u64),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused::For(status)
    }
}

impl Refused {
    pub(crate) fn status(self) -> Status {
        match self {
            Refused::For(status) => status,
            Refused::Fault(_) => Status::Permission,
        }
    }

    /// Returns the details beyond the status.
    pub(crate) fn words(self) -> String {
        match self {
            Refused::For(_) => String::new(),
            Refused::Fault(at) => {
                format!("the target's memory is missing or protected at offset {at} of the region")
            }
        }
    }
}

/// The flag of a `word` whose rest is an offset and no status. Versions without this flag interpret the word as an input/output
/// error.
const FAULT: u64 = 1 << 63;

/// Encodes a result for `word`; 0 is success.
pub(crate) fn status_word(result: Result<(), Refused>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(Refused::For(status)) => u64::from((status as i32).unsigned_abs()),
        Err(Refused::Fault(at)) => FAULT | at,
    }
}

/// Decodes a result. An unknown status is an error, too.
pub(crate) fn word_status(word: u64) -> Result<(), Refused> {
    match i32::try_from(word) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Status::from_code(-code).into()),
        Err(_) if word & FAULT != 0 => Err(Refused::Fault(word & !FAULT)),
        Err(_) => Err(Status::Io.into()),
    }
}

/// The position of the sum in a head or key.
const SUM: core::ops::Range<usize> = 20..24;

/// Returns the sum of all bytes except the sum itself.
#[inline]
fn sum(bytes: &[u8; HEAD]) -> u32 {
    let word = |at: usize| u64_at(bytes, at);
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    // The constants are odd and have bits throughout. The halves are independent, so the processor can compute them in parallel.
    let first = fold(word(0) ^ 0x9e37_79b9_7f4a_7c15, word(8) ^ 0xc2b2_ae3d_27d4_eb4f);
    let second = fold(
        u64::from(u32_at(bytes, 16)) ^ 0x1656_67b1_9e37_79f9,
        word(24) ^ 0x27d4_eb2f_1656_67c5,
    );
    let all = fold(first ^ 0x8564_2a7d_9b1c_e3f7, second ^ 0xd6e8_feb8_6659_fd93);
    (all ^ all >> 32) as u32
}

#[inline]
fn seal(bytes: &mut [u8; HEAD]) {
    let sum = sum(bytes);
    bytes[SUM].copy_from_slice(&sum.to_le_bytes());
}

#[inline]
fn is_sealed(bytes: &[u8; HEAD]) -> bool {
    u32_at(bytes, SUM.start) == sum(bytes)
}

#[inline]
fn u16_at(bytes: &[u8; HEAD], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at(bytes: &[u8; HEAD], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn u64_at(bytes: &[u8; HEAD], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn a_head() -> impl Strategy<Value = Head> {
        (prop::sample::select(Kind::ALL), any::<bool>(), any::<[u32; 5]>(), any::<u64>()).prop_map(
            |(kind, last, [len, seq, ack, number, _], word)| Head {
                kind,
                last: last && kind == Kind::Put,
                len: len % (kind.longest() as u32 + 1),
                seq,
                ack,
                number,
                word,
            },
        )
    }

    proptest! {
        #[test]
        fn packed_frame_round_trips(head in a_head(), key: [u64; 3], index: u32) {
            prop_assert_eq!(Head::parse(&head.pack()), Ok(head));
            let part = KeyPart { domain: key[0], tag: key[1], index, total: key[2] };
            let long = head.pack_with(&part);
            let (first, second) = long.split_first_chunk::<HEAD>().unwrap();
            prop_assert_eq!(Head::parse(first), Ok(head));
            prop_assert_eq!(KeyPart::parse(second.first_chunk().unwrap()), Ok(part));
        }

        #[test]
        fn no_bytes_harm(bytes: [u8; HEAD]) {
            if let Ok(head) = Head::parse(&bytes) {
                prop_assert_eq!(head.pack(), bytes);
            }
            let _ = KeyPart::parse(&bytes);
        }

        #[test]
        fn a_head_or_key_with_a_byte_changed_is_none(head in a_head(), key: [u64; 3], at in 0..HEAD, by in 1u8..) {
            let mut bytes = head.pack();
            bytes[at] ^= by;
            prop_assert!(Head::parse(&bytes).is_err());
            let mut bytes = KeyPart { domain: key[0], tag: key[1], index: key[2] as u32, total: key[2] }.pack();
            bytes[at] ^= by;
            prop_assert!(KeyPart::parse(&bytes).is_err());
        }
    }

    #[test]
    fn a_sealed_head_that_is_longer_than_any_may_be_is_refused() {
        for &kind in Kind::ALL {
            let mut head = Head::bare(kind, 0, 0);
            head.len = kind.longest() as u32;
            assert_eq!(Head::parse(&head.pack()), Ok(head));
            head.len += 1;
            assert!(Head::parse(&head.pack()).is_err(), "{kind:?}");
            (head.len, head.last) = (0, true);
            assert_eq!(Head::parse(&head.pack()).is_ok(), kind == Kind::Put);
        }
    }

    #[test]
    fn every_status_survives_the_way() {
        for &status in Status::ALL {
            assert_eq!(word_status(status_word(Err(status.into()))), Err(status.into()));
        }
        for at in [0, 1, 4096, FAULT - 1] {
            let fault = Err(Refused::Fault(at));
            assert_eq!(word_status(status_word(fault)), fault);
            assert!(i32::try_from(status_word(fault)).is_err(), "older versions read a status");
        }
        assert_eq!(word_status(status_word(Ok(()))), Ok(()));
        assert!(word_status(u64::MAX).is_err());
    }

    /// A frame and its key, computed by a separate program.
    const RECORDED: &str = "02011d7e05000000040302011413121124232221a8aa9bd63837363534333231\
                            48474645444342415857565554535251646362612c0e7ac57877767574737271";

    #[test]
    fn recorded_frame_of_another_processor_is_read_and_written() {
        let byte = |at| u8::from_str_radix(&RECORDED[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..RECORDED.len()).step_by(2).map(byte).collect();
        let key = KeyPart {
            domain: 0x4142_4344_4546_4748,
            tag: 0x5152_5354_5556_5758,
            index: 0x6162_6364,
            total: 0x7172_7374_7576_7778,
        };
        let head = Head {
            kind: Kind::Put,
            last: true,
            len: 5,
            seq: 0x0102_0304,
            ack: 0x1112_1314,
            number: 0x2122_2324,
            word: 0x3132_3334_3536_3738,
        };
        assert_eq!(head.pack_with(&key)[..], bytes);
        let (first, second) = bytes.split_first_chunk::<HEAD>().unwrap();
        assert_eq!(Head::parse(first), Ok(head));
        assert_eq!(KeyPart::parse(second.first_chunk().unwrap()), Ok(key));
    }

    #[test]
    fn frame_with_an_integer_in_the_other_byte_order_is_refused() {
        let byte = |at| u8::from_str_radix(&RECORDED[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..RECORDED.len()).step_by(2).map(byte).collect();
        let reversed = |from: usize, field: core::ops::Range<usize>| {
            let mut part = *bytes[from..].first_chunk::<HEAD>().unwrap();
            part[field].reverse();
            part
        };
        for field in [2..4, 4..8, 8..12, 12..16, 16..20, SUM, 24..32] {
            assert!(Head::parse(&reversed(0, field.clone())).is_err(), "{field:?}");
        }
        for field in [0..8, 8..16, 16..20, SUM, 24..32] {
            assert!(KeyPart::parse(&reversed(HEAD, field.clone())).is_err(), "{field:?}");
        }
        // A frame that a peer of the other byte order has written and summed as a whole begins with another constant.
        let mut all = reversed(0, 0..0);
        for field in [2..4, 4..8, 8..12, 12..16, 16..20, 24..32] {
            all[field].reverse();
        }
        seal(&mut all);
        assert!(Head::parse(&all).is_err());
    }
}
