//! The common beginning of all addresses of this provider: the frame version of the address's side, and the contact of its
//! listener.

use tieline_net::Contact;

use crate::frame::VERSION;

/// The longest address of an interface, in bytes.
pub(crate) const MAX_LEN: usize = 1 + Contact::MAX_LEN;

pub(crate) fn pack(contact: &Contact) -> Vec<u8> {
    [&[VERSION][..], &contact.pack()].concat()
}

/// Parses the output of [`pack`], and returns the rest. Malformed bytes are an error, because they may come from a peer.
///
/// # Errors
/// The bytes are invalid, or the peer uses another frame version.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Contact, &[u8]), String> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => Ok(Contact::parse_prefix(rest)?),
        Some((other, _)) => {
            Err(format!("the peer's tcp speaks version {other}, this one {VERSION}"))
        }
        None => Err("the address is empty".into()),
    }
}
