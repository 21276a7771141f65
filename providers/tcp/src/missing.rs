//! Application memory that is missing while a payload arrives: the payload's operation fails, and the connection continues.

use crate::conn::ConnectionState;
use crate::frame::Refused;
use crate::stream::{Destination, Landing};
use crate::sys::{self, Piece};
use tieline_plugin_api::Status;

impl ConnectionState {
    /// Fails the operation of a payload whose memory is missing `behind` bytes after the next byte to be stored, and discards the rest
    /// of the payload.
    #[cold]
    pub(crate) fn lands_nowhere(&mut self, number: usize, behind: usize) {
        let stream = self.links.get_mut(number).and_then(|link| link.stream.as_mut());
        let landing = stream.and_then(|stream| stream.landing.take());
        let Some(mut landing) = landing else { return };
        self.give_up_place(&mut landing, behind);
        if let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) {
            stream.landing = Some(landing);
        }
    }

    #[cold]
    pub(crate) fn give_up_place(&mut self, landing: &mut Landing, behind: usize) {
        let place = std::mem::replace(&mut landing.destination, Destination::Nowhere);
        match place {
            Destination::Region(region, offset) => {
                let at = offset + (landing.at + behind) as u64;
                landing.result = Err(Refused::Fault(at));
                self.shared.regions.note_fault(&region, at);
            }
            Destination::Get => {
                let number = landing.head.number;
                let get = self.ops().gets.iter_mut().find(|get| get.number == number);
                if let Some(get) = get {
                    get.missing = Some(Status::Invalid);
                }
            }
            Destination::Nowhere => {}
        }
    }
}

/// Checks whether a system call hit missing memory.
pub(crate) fn is_fault(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

/// Returns the number of bytes of these pieces before the first byte that cannot be written; 0 if the memory has reappeared.
#[cold]
pub(crate) fn first_missing(pieces: &[Piece]) -> usize {
    let mut before = 0;
    for piece in pieces {
        if let Some(at) = sys::first_unwritable(*piece) {
            return before + at;
        }
        before += piece.len();
    }
    0
}
