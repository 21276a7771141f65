//! The header of every `rc` message. The immediate value beside it is the receiver's slot.

use super::credits::Grant;
use tieline_plugin_api::Status;

/// The length of the header.
pub(crate) const HEADER_LEN: usize = 16;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An active message.
    Message = 1,
    /// A hello: its arrival shows that both sides are connected.
    Hello = 2,
    /// A message that returns credits only.
    Credit = 3,
    /// The goodbye: the sender has closed its endpoint.
    Bye = 4,
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) header: u64,
    pub(crate) id: u32,
    /// The sender's update of the receiver's window.
    pub(crate) grant: Grant,
    pub(crate) kind: Kind,
}

impl Header {
    #[inline]
    pub(crate) fn pack(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..8].copy_from_slice(&self.header.to_le_bytes());
        out[8..12].copy_from_slice(&self.id.to_le_bytes());
        out[12..14].copy_from_slice(&self.grant.credits.to_le_bytes());
        out[14] = self.kind as u8;
        out[15] = self.grant.growth;
        out
    }

    /// Parses the header of a message that arrived as `bytes`.
    #[inline]
    pub(crate) fn unpack(bytes: &[u8]) -> Result<Header, Status> {
        let head: &[u8; HEADER_LEN] =
            bytes.get(..HEADER_LEN).and_then(|head| head.try_into().ok()).ok_or(Status::BadData)?;
        let kind = match head[14] {
            1 => Kind::Message,
            2 => Kind::Hello,
            3 => Kind::Credit,
            4 => Kind::Bye,
            _ => return Err(Status::BadData),
        };
        Ok(Header::read(head, kind))
    }

    /// Parses the header of an application message, and returns the payload, too. Returns `None` for another kind.
    #[inline(always)]
    pub(crate) fn parse_message(bytes: &[u8]) -> Option<(Header, &[u8])> {
        let (head, payload) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let is_message = head[14] == Kind::Message as u8;
        is_message.then(|| (Header::read(head, Kind::Message), payload))
    }

    #[inline(always)]
    fn read(head: &[u8; HEADER_LEN], kind: Kind) -> Header {
        let mut header = [0; 8];
        header.copy_from_slice(&head[..8]);
        Header {
            header: u64::from_le_bytes(header),
            id: u32::from_le_bytes([head[8], head[9], head[10], head[11]]),
            grant: Grant { credits: u16::from_le_bytes([head[12], head[13]]), growth: head[15] },
            kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_packing_and_noise_is_refused() {
        for kind in [Kind::Message, Kind::Hello, Kind::Credit, Kind::Bye] {
            let grant = Grant { credits: 513, growth: 200 };
            let header = Header { header: 0x1122_3344_5566_7788, id: 9, grant, kind };
            assert_eq!(Header::unpack(&header.pack()), Ok(header));
            let message = (kind == Kind::Message).then_some((header, &[7][..]));
            assert_eq!(Header::parse_message(&[&header.pack()[..], &[7]].concat()), message);
        }
        assert_eq!(Header::unpack(&[1; 15]), Err(Status::BadData));
        assert_eq!(Header::parse_message(&[1; 15]), None);
        for kind in [0, 5, 255] {
            let grant = Grant::default();
            let mut bytes = Header { header: 0, id: 0, grant, kind: Kind::Message }.pack();
            bytes[14] = kind;
            assert_eq!(Header::unpack(&bytes), Err(Status::BadData));
        }
    }
}
