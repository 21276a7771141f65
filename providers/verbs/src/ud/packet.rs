//! The packet format: a header of 32 bytes and a payload.

use tieline_plugin_api::Status;

/// The length of the header.
pub(crate) const HEADER_LEN: usize = 32;
const VERSION: u8 = 0xd1;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The packet that opens a channel: `header` is the receiver's cookie, the payload is the sender's address.
    Hello = 1,
    /// The answer to a Hello: `header` is the receiver's end of the channel.
    Welcome = 2,
    /// A message.
    Message = 3,
    /// The last message of a channel, without payload.
    Bye = 4,
    /// An acknowledgement: `sequence` is the number of the next expected message; `id` is 1 if a later message has arrived;
    /// `header` is the window that the receiver grants.
    Ack = 5,
    /// A part of the sender's identity, before all messages: `header` is its offset, `id` the total length.
    Identity = 6,
    /// A part of a message that is longer than a packet: `header` is its offset. The last part of the message is sent as a Message.
    Part = 7,
}

/// One end of a channel: its number in its interface, and a random token that only the two sides know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct End {
    pub(crate) number: u32,
    pub(crate) token: u32,
}

impl End {
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.number) | (u64::from(self.token) << 32)
    }

    pub(crate) fn from_word(word: u64) -> End {
        End { number: word as u32, token: (word >> 32) as u32 }
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    /// The end to which the packet is addressed; in a Hello, the end that sends the packet.
    pub(crate) end: End,
    pub(crate) sequence: u32,
    pub(crate) id: u32,
    pub(crate) header: u64,
}

impl Packet {
    pub(crate) fn pack(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[4..8].copy_from_slice(&self.end.number.to_le_bytes());
        out[8..12].copy_from_slice(&self.end.token.to_le_bytes());
        out[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.header.to_le_bytes());
        out[24..28].copy_from_slice(&self.id.to_le_bytes());
        out
    }

    /// Parses a packet and returns its payload.
    pub(crate) fn unpack(bytes: &[u8]) -> Result<(Packet, &[u8]), Status> {
        let (head, payload) = bytes.split_at_checked(HEADER_LEN).ok_or(Status::BadData)?;
        let kind = match head[1] {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Message,
            4 => Kind::Bye,
            5 => Kind::Ack,
            6 => Kind::Identity,
            7 => Kind::Part,
            _ => return Err(Status::BadData),
        };
        if head[0] != VERSION || head[2..4] != [0; 2] || head[28..] != [0; 4] {
            return Err(Status::BadData);
        }
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let packet = Packet {
            kind,
            end: End { number: number(4), token: number(8) },
            sequence: number(12),
            header: u64::from(number(16)) | (u64::from(number(20)) << 32),
            id: number(24),
        };
        Ok((packet, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_survives_packing_and_noise_is_refused() {
        for kind in [
            Kind::Hello,
            Kind::Welcome,
            Kind::Message,
            Kind::Bye,
            Kind::Ack,
            Kind::Identity,
            Kind::Part,
        ] {
            let end = End { number: 7, token: 0xdead_beef };
            let packet = Packet { kind, end, sequence: 9, id: 10, header: 0x1122_3344_5566_7788 };
            let mut bytes = packet.pack().to_vec();
            bytes.extend(b"payload");
            assert_eq!(Packet::unpack(&bytes), Ok((packet, b"payload".as_slice())));
            for (at, value) in [(0, 0), (1, 0), (1, 8), (2, 1), (28, 1), (31, 1)] {
                let mut noisy = bytes.clone();
                noisy[at] = value;
                assert_eq!(Packet::unpack(&noisy), Err(Status::BadData));
            }
            assert_eq!(Packet::unpack(&bytes[..31]), Err(Status::BadData));
        }
        let end = End { number: 1, token: u32::MAX };
        assert_eq!(End::from_word(end.to_word()), end);
    }
}
