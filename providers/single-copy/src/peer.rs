//! The owner's published state, and the check of a peer.

use std::sync::Arc;

use tieline_memory_file::{
    Accessor, Announcements, Facts, Nonce, PeerRegistrations, Process, Registrations, random,
};
use tieline_plugin_api::{Failure, Revoked, Status};

use tieline_memory_file::Place;

use crate::address::Address;

/// The state that the registrations of one domain share. `W` is the number of the mechanism's words in an entry of the table.
#[derive(Debug)]
pub struct Shared<const W: usize> {
    /// The random number that identifies the domain.
    pub nonce: Nonce,
    /// The table of live registrations, which peers read.
    pub table: Registrations<W>,
    /// The file on which peers announce their accesses.
    pub announcements: Announcements,
}

impl<const W: usize> Shared<W> {
    /// Makes the files.
    ///
    /// # Errors
    /// The random number or a file cannot be made: memory files may be forbidden in this process, or memory or descriptors
    /// exhausted.
    pub fn new() -> Result<Shared<W>, Failure> {
        let nonce = random()?;
        let (table, announcements) = (Registrations::new(&nonce)?, Announcements::new(&nonce)?);
        Ok(Shared { nonce, table, announcements })
    }

    /// Returns the address of the domain's interfaces.
    #[must_use]
    pub fn address(&self, card: u64) -> Address<2> {
        let files = [self.table.descriptor(), self.announcements.descriptor()];
        Address { facts: Facts::current_process(), nonce: self.nonce, card, files }
    }

    /// Invalidates all keys of a registration. Returns whether an access that passed the check is still in progress.
    pub fn revoke(&self, place: Place) -> Revoked {
        self.table.revoke(place);
        match self.announcements.is_inside(place.generation) {
            true => Revoked::Busy,
            false => Revoked::Quiet,
        }
    }
}

/// A reachable peer with a table of registrations.
#[derive(Debug)]
pub struct TablePeer<const W: usize> {
    /// The random number that identifies the peer's domain.
    pub nonce: Nonce,
    /// The peer's process.
    pub process: Process,
    /// The peer's table.
    pub table: Arc<PeerRegistrations<W>>,
    /// This side's slot among the peer's accessors.
    pub accessor: Accessor,
}

/// The causes of a failed read of a peer's card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The card does not exist.
    Gone,
    /// The kernel refuses the access.
    Refused,
    /// Any other cause, in words.
    Other(String),
}

/// The words of a kernel module for the errors of [`Wording::reach`].
#[derive(Clone, Copy, Debug)]
pub struct Wording {
    /// The name of the kernel module.
    pub module: &'static str,
    /// The verb for an access.
    pub verb: &'static str,
    /// The refused access, in the words before `process` and its number.
    pub refused: &'static str,
    /// The missing object and the possible reasons.
    pub gone: &'static str,
}

impl Wording {
    /// Checks the peer's card, maps its key table, and takes a slot among the peer's accessors. `look` reads the nonce on the card.
    ///
    /// # Errors
    /// The peer cannot be reached; the text names the cause.
    pub fn reach<const W: usize>(
        &self,
        me: &Facts,
        peer: &Address<2>,
        look: impl FnOnce() -> Result<Nonce, Miss>,
    ) -> Result<TablePeer<W>, Failure> {
        let them = &peer.facts;
        me.may_name(them)?;
        // The process is opened before the card is read. Only the peer can provide a card with its nonce. If the nonce matches, the
        // process is therefore the peer's, and not a later process with the same number.
        let process = Process::open(them.pid);
        match look() {
            Ok(nonce) if nonce == peer.nonce => {}
            Ok(_) | Err(Miss::Gone) => {
                let why = self.why_gone(them, process.is_alive());
                return Err(Failure::new(Status::PeerFailed, why));
            }
            Err(Miss::Refused) => {
                return Err(Failure::new(Status::Permission, self.why_refused(me, them)));
            }
            Err(Miss::Other(text)) => return Err(Failure::new(Status::Unreachable, text)),
        }
        let lost = |failure: Failure| match failure.status {
            Status::PeerFailed | Status::NoMemory => failure,
            _ => Failure::new(
                Status::Unreachable,
                format!(
                    "{} would {}, but revocation needs a file of the peer's: {}",
                    self.module, self.verb, failure.text
                ),
            ),
        };
        let [table, announcements] = peer.files;
        let table = Arc::new(PeerRegistrations::open(them.pid, table, &peer.nonce).map_err(lost)?);
        let accessor = Accessor::open(them.pid, announcements, &peer.nonce).map_err(lost)?;
        Ok(TablePeer { nonce: peer.nonce, process, table, accessor })
    }

    fn why_refused(&self, me: &Facts, peer: &Facts) -> String {
        let why = other_user(me, peer).map_or_else(
            || format!(", though both run as user {}: their user namespaces may differ", me.uid),
            |why| format!(": {why}"),
        );
        let Wording { module, refused, .. } = self;
        format!("{module} does not let this process {refused} process {}{why}", peer.pid)
    }

    fn why_gone(&self, peer: &Facts, alive: bool) -> String {
        let pid = peer.pid;
        if !alive {
            return format!("process {pid} has ended");
        }
        reused(peer).unwrap_or_else(|| format!("process {pid} has {}", self.gone))
    }
}

/// Returns the error text for a peer of another user; `None` if both have the same.
#[must_use]
pub fn other_user(me: &Facts, peer: &Facts) -> Option<String> {
    let (there, here) = (peer.uid, me.uid);
    (here != there).then(|| {
        format!("it runs as user {there}, this process as user {here}; run both as the same user")
    })
}

/// Returns the error text for a peer whose process number now belongs to another process; `None` if it does not.
#[must_use]
pub fn reused(peer: &Facts) -> Option<String> {
    peer.was_reused().then(|| {
        format!(
            "the peer has ended and its number was reused: process {} was started at another time",
            peer.pid
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDING: Wording = Wording {
        module: "xyz",
        verb: "copy",
        refused: "copy from and to",
        gone: "no such region: it has closed the domain",
    };

    #[test]
    fn vanished_peer_is_distinguished_from_a_reused_number() {
        let own = Facts::current_process();
        assert!(WORDING.why_gone(&own, false).ends_with("has ended"));
        assert!(WORDING.why_gone(&own, true).contains("has closed the domain"));
        let earlier = Facts { start_time: own.start_time.wrapping_sub(1), ..own };
        assert!(WORDING.why_gone(&earlier, true).contains("its number was reused"));
    }

    #[test]
    fn every_failed_look_at_the_card_has_its_status() {
        let shared = Shared::<3>::new().unwrap();
        let (address, me) = (shared.address(5), Facts::current_process());
        let reach = |look| WORDING.reach::<3>(&me, &address, || look).map(drop);
        assert_eq!(reach(Ok(shared.nonce)), Ok(()));
        let failed = |look| reach(look).map_err(|failure| failure.status);
        assert_eq!(failed(Ok([0; 16])), Err(Status::PeerFailed));
        assert_eq!(failed(Err(Miss::Gone)), Err(Status::PeerFailed));
        assert_eq!(failed(Err(Miss::Other("copying".into()))), Err(Status::Unreachable));
        let refused = reach(Err(Miss::Refused)).unwrap_err();
        assert_eq!(refused.status, Status::Permission);
        let start = "xyz does not let this process copy from and to process ";
        assert!(refused.text.starts_with(start), "{refused}");
        drop(shared);
        let refused = WORDING.reach::<3>(&me, &address, || Ok(address.nonce)).unwrap_err();
        assert!(refused.text.contains("descriptor"), "{refused}");
    }
}
