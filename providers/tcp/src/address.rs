//! What every address of this provider begins with: the version of the frames that its side speaks, and where it listens.

use tieline_net::Contact;

use crate::frame::VERSION;

/// The longest address of an interface.
pub(crate) const MAX_LEN: usize = 1 + Contact::MAX_LEN;

pub(crate) fn pack(contact: &Contact) -> Vec<u8> {
    [&[VERSION][..], &contact.pack()].concat()
}

/// Reads what [`pack`] wrote, and returns what follows it. The bytes come from a peer: every one is checked.
///
/// # Errors
/// What does not make sense, or that its side speaks another version.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Contact, &[u8]), String> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => Ok(Contact::parse_prefix(rest)?),
        Some((other, _)) => {
            Err(format!("the peer's tcp speaks version {other}, this one {VERSION}"))
        }
        None => Err("the address is empty".into()),
    }
}
