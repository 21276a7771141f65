//! The format of packets: a head of 32 bytes, and a kind-specific rest.
//!
//! Every endpoint is a channel of its own, from sender to receiver. The sender sends a hello with its own address, and the receiver
//! answers with its number for the channel. Each side chooses a random token for the packets of the channel that arrive at that
//! side. A packet without the token comes from an unknown peer, or was meant for an earlier process at this address.

/// The length of a head.
pub(crate) const HEAD: usize = 32;
const VERSION: u8 = 2;
/// The channel number in packets of no channel.
pub(crate) const NOBODY: u32 = u32::MAX;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The hello that opens a channel: `token` is that of the target interface, `id` is the sender's number of the channel.
    Hello = 1,
    /// The welcome, after which the channel is open: `id` is the receiver's number of the channel.
    Welcome,
    /// The end or refusal of a channel: `id` is a status, and text follows.
    Refuse,
    Message,
    /// The acknowledgement that all messages before `sequence` have arrived, and `header` bytes have been delivered.
    Ack,
    /// The request for an `Ack`.
    Sync,
    /// The end of a channel after everything that was sent before. `to` is `NOBODY` if the sender does not know the receiver's
    /// number; then `id` and the token that follows are those of the hello.
    Bye,
    /// The revocation of the region of generation `header`: the receiver confirms when no operation targets the region.
    Revoke,
    /// The confirmation that no operation targets the region any more.
    Revoked,
}

const KINDS: [Kind; 9] = [
    Kind::Hello,
    Kind::Welcome,
    Kind::Refuse,
    Kind::Message,
    Kind::Ack,
    Kind::Sync,
    Kind::Bye,
    Kind::Revoke,
    Kind::Revoked,
];

/// The head of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// The receiver's number of the channel.
    pub(crate) to: u32,
    pub(crate) token: u64,
    pub(crate) sequence: u32,
    pub(crate) id: u32,
    pub(crate) header: u64,
}

impl Head {
    pub(crate) fn new(kind: Kind, to: u32, token: u64) -> Head {
        Head { kind, to, token, sequence: 0, id: 0, header: 0 }
    }

    #[inline]
    pub(crate) fn pack(&self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        (out[0], out[1]) = (self.kind as u8, VERSION);
        out[4..8].copy_from_slice(&self.to.to_le_bytes());
        out[8..16].copy_from_slice(&self.token.to_le_bytes());
        out[16..20].copy_from_slice(&self.sequence.to_le_bytes());
        out[20..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..].copy_from_slice(&self.header.to_le_bytes());
        out
    }

    /// Unpacks the head of a packet, and returns the rest.
    #[inline]
    pub(crate) fn unpack(packet: &[u8]) -> Option<(Head, &[u8])> {
        let (head, rest) = packet.split_first_chunk::<HEAD>()?;
        let kind = *KINDS.get(usize::from(head[0]).wrapping_sub(1))?;
        let short =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        let (to, token, sequence) = (short(4), long(8), short(16));
        let head = Head { kind, to, token, sequence, id: short(20), header: long(24) };
        (packet[1] == VERSION).then_some((head, rest))
    }
}

/// The rest of a hello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Greeting<'a> {
    /// The token for answers to the hello.
    pub(crate) token: u64,
    /// The epoch of the sender's interface.
    pub(crate) epoch: u64,
    /// The sender's name in the fabric.
    pub(crate) name: &'a [u8],
    pub(crate) identity: &'a [u8],
}

/// Packs a greeting; the token comes first.
pub(crate) fn hello(greeting: &Greeting<'_>) -> Vec<u8> {
    let Greeting { token, epoch, name, identity } = *greeting;
    let mut out = token.to_le_bytes().to_vec();
    out.extend(epoch.to_le_bytes());
    out.push(name.len() as u8);
    out.extend(name);
    out.extend(identity);
    out
}

/// Unpacks the rest of a hello, if it is valid.
pub(crate) fn greeted(rest: &[u8]) -> Option<Greeting<'_>> {
    let (token, rest) = rest.split_first_chunk::<8>()?;
    let (epoch, rest) = rest.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first()?;
    let (name, identity) = rest.split_at_checked(usize::from(*len))?;
    let (token, epoch) = (u64::from_le_bytes(*token), u64::from_le_bytes(*epoch));
    (!name.is_empty()).then_some(Greeting { token, epoch, name, identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_packing_and_noise_is_none() {
        for kind in KINDS {
            let head = Head {
                kind,
                to: 0x0102_0304,
                token: u64::MAX - 5,
                sequence: 0xffff_fffe,
                id: u32::MAX,
                header: 0x8000_0000_0000_0001,
            };
            let mut packet = head.pack().to_vec();
            packet.extend(b"rest");
            assert_eq!(Head::unpack(&packet), Some((head, b"rest".as_slice())));
            for len in 0..HEAD {
                assert_eq!(Head::unpack(&packet[..len]), None);
            }
            for (at, value) in [(0, 0), (0, 10), (0, 255), (1, 0), (1, 3)] {
                let mut noise = packet.clone();
                noise[at] = value;
                assert_eq!(Head::unpack(&noise), None, "{at}: {value}");
            }
        }
    }

    #[test]
    fn a_hello_carries_name_and_identity_and_a_cut_one_is_none() {
        let greeting = Greeting { token: 7, epoch: 8, name: b"name", identity: b"who" };
        let rest = hello(&greeting);
        assert_eq!(greeted(&rest), Some(greeting));
        for len in 0..rest.len() - 3 {
            assert_eq!(greeted(&rest[..len]), None);
        }
        let nameless = Greeting { token: 7, epoch: 8, name: b"", identity: b"who" };
        assert_eq!(greeted(&hello(&nameless)), None);
    }
}
