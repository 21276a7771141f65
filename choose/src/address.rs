//! A worker's address: opaque bytes that the application carries to its peers.
//!
//! The address contains the context, the process with its host and namespaces, and the worker. A candidate, of at most 64, stands
//! for a module that the worker has open: its name, priority, and the bytes that its provider understands. After the candidates,
//! the address lists the schemes by which connections can be formed, for modules that need another module's help. A context with a
//! progress thread adds the same for its service worker, which executes peers' emulated operations while the application computes.
//! Since format 1.1, the worker's promises follow, and since format 1.2 its short name, if it has one.

use crate::{Error, Status};
use std::sync::OnceLock;
use tieline_explain::is_plain;
use tieline_plugin_api::process::PerProcess;
use tieline_plugin_api::{boot_id, kernel_text};
use tieline_wireup::wire::{Format, Reader, Writer, seal};

/// The format of a worker's address.
pub const FORMAT: Format = Format { magic: *b"TLA", name: "worker address", major: 1, minor: 2 };
/// The minor version that added the worker's promises.
const PROMISES: u8 = 1;
/// The minor version that added the worker's short name.
const NAMES: u8 = 2;
/// The maximum length of a short name in an address.
const MAX_NAME: usize = 48;
/// A promise: the worker makes progress continuously.
const POLLS_OFTEN: u8 = 1;
/// The version of the library's own messages (`emulate::id`) that this worker speaks, major and minor. The address carries the
/// version, so messages do not.
pub const MESSAGES: (u8, u8) = (1, 4);
/// The minor version that added notifications of puts.
pub const NOTIFICATIONS: u8 = 1;
/// The minor version that added rendezvous messages (announcements).
pub const ANNOUNCEMENTS: u8 = 2;
/// The minor version that added key handles.
pub const HANDLES: u8 = 3;
/// The minor version that added the report of an exit with unsent operations.
pub const EXITS: u8 = 4;
/// The minor version that added messages with header bytes and acknowledged messages.
pub const HEADS: u8 = 4;
/// The minor version that added keys by numbers.
pub const NUMBERS: u8 = 4;
/// The minor version that added a worker's name for peers that were connected before it had one.
pub const NAMED: u8 = 4;
/// The first minor version whose workers read the key of an announcement without version and checksum.
pub const BARE_KEYS: u8 = 4;
/// The priority of a candidate that only forms connections: its owner does not allow data on it.
pub const CONNECTS_ONLY: i32 = i32::MIN;
const MAX_CANDIDATES: usize = 64;
const MAX_SCHEMES: usize = 64;
/// The maximum number of characters of a host name, which is only displayed: a longer name is truncated.
const MAX_HOST: usize = 63;

/// One route to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The provider's name.
    pub provider: String,
    /// The domain's name.
    pub domain: String,
    /// The module's name.
    pub module: String,
    /// The priority of the module for its owner.
    pub priority: i32,
    /// The address, which the module's provider understands.
    pub address: Vec<u8>,
}

/// One method of forming connections with a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The scheme's name, independent of the device names of either side: `tcp-connect/stream`, `verbs/ud`.
    pub name: String,
    /// The carrier of its datagrams.
    pub via: Via,
    /// The candidates whose connections the scheme can form: index of the candidate, and the scheme's rank for that candidate.
    pub serves: Vec<(u8, i32)>,
}

impl Scheme {
    /// Returns the scheme's rank for a candidate, if the scheme serves that candidate.
    pub fn rank(&self, candidate: usize) -> Option<i32> {
        let of = |(at, rank): &(u8, i32)| (usize::from(*at) == candidate).then_some(*rank);
        self.serves.iter().find_map(of)
    }
}

/// The carrier of a scheme's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// A connector with this address.
    Connector(Vec<u8>),
    /// The messages of the candidate with this index.
    Candidate(u8),
}

/// The routes to a worker, without its process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WorkerEntry {
    /// The worker's id.
    pub worker: [u8; 16],
    /// The modules that reach the worker.
    pub candidates: Vec<Candidate>,
    /// The methods by which connections are formed.
    pub schemes: Vec<Scheme>,
}

/// The host and process of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Location {
    /// The id of the host since its last start.
    pub boot_id: [u8; 16],
    /// The namespace of process ids.
    pub pid_namespace: u64,
    /// The network namespace.
    pub net_namespace: u64,
    /// The process id in its namespace.
    pub pid: u32,
    /// The name of the host.
    pub host: String,
}

/// A parsed worker address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerAddress {
    /// The id of the worker's context.
    pub context: [u8; 16],
    /// The version of the internal messages that the worker speaks. The major version equals that of this library, otherwise
    /// parsing would have failed.
    pub messages: (u8, u8),
    /// The host and process.
    pub location: Location,
    /// The routes to the worker.
    pub entry: WorkerEntry,
    /// The service worker, if the context has a progress thread.
    pub service: Option<WorkerEntry>,
    /// Whether the worker promises to make progress continuously. An address without this field promises nothing.
    pub polls_often: bool,
    /// The bytes of the worker's short name (`tieline_lookup::WorkerName`); empty for a worker without a name, and for an address
    /// without this field.
    pub name: Box<[u8]>,
}

impl WorkerAddress {
    /// Packs the address for a peer. Candidates and schemes beyond 64 are omitted.
    ///
    /// # Errors
    /// `TooLarge` for an address of a module or connector of 64 KiB or more.
    pub fn pack(&self) -> Result<Vec<u8>, Error> {
        let mut w = FORMAT.begin();
        let location = &self.location;
        let _ = w.raw(&self.context).u8(self.messages.0).u8(self.messages.1).raw(&location.boot_id);
        let _ = w.u64(location.pid_namespace).u64(location.net_namespace).u32(location.pid);
        let _ = w.name(&location.host);
        self.entry.pack(&mut w)?;
        match &self.service {
            None => {
                let _ = w.u8(0);
            }
            Some(entry) => {
                let _ = w.u8(1);
                entry.pack(&mut w)?;
            }
        }
        let _ = w.u8(if self.polls_often { POLLS_OFTEN } else { 0 });
        let name = Some(&self.name[..]).filter(|name| name.len() <= MAX_NAME).unwrap_or_default();
        let _ = w.u8(name.len() as u8).raw(name);
        Ok(seal(w))
    }

    /// Parses a peer's bytes. Every length is checked.
    ///
    /// # Errors
    /// `BadData` for bytes that are no address, `Unsupported` for another major version of the format or of the core's messages.
    pub fn parse(bytes: &[u8]) -> Result<WorkerAddress, Error> {
        let address = FORMAT.unseal(bytes, Self::parse_fields).map_err(|no| {
            Error::new(
                no.status,
                "this is no worker address",
                format!("{} ({} bytes)", no.why, bytes.len()),
                "pass what the peer's worker gave as its address, unchanged, between compatible versions of Tieline",
            )
        })?;
        let ((major, minor), (ours, _)) = (address.messages, MESSAGES);
        if major == ours {
            return Ok(address);
        }
        Err(Error::new(
            Status::Unsupported,
            format!("{} speaks another version of Tieline's own messages", address.label()),
            format!("it speaks version {major}.{minor}, and this library {ours}.x"),
            "use compatible versions of Tieline on both sides",
        ))
    }

    fn parse_fields(r: &mut Reader<'_>, minor: u8) -> Result<WorkerAddress, Status> {
        let context = r.id()?;
        let messages = (r.u8()?, r.u8()?);
        let location = Location {
            boot_id: r.id()?,
            pid_namespace: r.u64()?,
            net_namespace: r.u64()?,
            pid: r.u32()?,
            host: words(r)?,
        };
        let entry = WorkerEntry::parse(r)?;
        let service = match r.u8()? {
            0 => None,
            1 => Some(WorkerEntry::parse(r)?),
            _ => return Err(Status::BadData),
        };
        let promises = if minor >= PROMISES { r.u8()? } else { 0 };
        let polls_often = promises & POLLS_OFTEN != 0;
        let name = match minor {
            ..NAMES => Box::default(),
            NAMES => name(r)?,
            // The address is usable without the name of a later version.
            _ => name(r).unwrap_or_default(),
        };
        Ok(WorkerAddress { context, messages, location, entry, service, polls_often, name })
    }

    /// Returns the address of the service worker alone, without promises and without a name; `None` if there is no service worker.
    pub fn service_address(&self) -> Option<WorkerAddress> {
        Some(WorkerAddress {
            context: self.context,
            messages: self.messages,
            location: self.location.clone(),
            entry: self.service.clone()?,
            service: None,
            polls_often: false,
            name: Box::default(),
        })
    }

    /// Returns the peer's name for display: `process 4711`, with the host's name, if it is known, for a peer on another host.
    pub fn label(&self) -> String {
        static HERE: PerProcess<OnceLock<[u8; 16]>> = PerProcess::new();
        let Location { pid, host, boot_id, .. } = &self.location;
        if host.is_empty() || boot_id == HERE.get_or_init(tieline_plugin_api::boot_id) {
            format!("process {pid}")
        } else {
            format!("process {pid} on {host}")
        }
    }
}

impl WorkerEntry {
    fn pack(&self, w: &mut Writer) -> Result<(), Error> {
        let _ = w.raw(&self.worker);
        let count = self.candidates.len().min(MAX_CANDIDATES);
        let _ = w.u8(count as u8);
        for c in &self.candidates[..count] {
            let _ = w.name(&c.provider).name(&c.domain).name(&c.module).i32(c.priority);
            let _ = w.blob(&c.address)?;
        }
        let count = self.schemes.len().min(MAX_SCHEMES);
        let _ = w.u8(count as u8);
        for scheme in &self.schemes[..count] {
            let _ = w.name(&scheme.name);
            match &scheme.via {
                Via::Connector(address) => {
                    let _ = w.u8(0).blob(address)?;
                }
                Via::Candidate(index) => {
                    let _ = w.u8(1).u8(*index);
                }
            }
            let count = scheme.serves.len().min(MAX_CANDIDATES);
            let _ = w.u8(count as u8);
            for (candidate, rank) in &scheme.serves[..count] {
                let _ = w.u8(*candidate).i32(*rank);
            }
        }
        Ok(())
    }

    fn parse(r: &mut Reader<'_>) -> Result<WorkerEntry, Status> {
        let worker = r.id()?;
        let count = usize::from(r.u8()?);
        if count > MAX_CANDIDATES {
            return Err(Status::BadData);
        }
        let mut candidates = Vec::with_capacity(count);
        for _ in 0..count {
            candidates.push(Candidate {
                provider: words(r)?,
                domain: words(r)?,
                module: words(r)?,
                priority: r.i32()?,
                address: r.blob()?.to_vec(),
            });
        }
        let count = usize::from(r.u8()?);
        if count > MAX_SCHEMES {
            return Err(Status::BadData);
        }
        let mut schemes = Vec::with_capacity(count);
        for _ in 0..count {
            let known = |index: u8| match usize::from(index) < candidates.len() {
                true => Ok(index),
                false => Err(Status::BadData),
            };
            let name = words(r)?;
            let via = match r.u8()? {
                0 => Via::Connector(r.blob()?.to_vec()),
                1 => Via::Candidate(known(r.u8()?)?),
                _ => return Err(Status::BadData),
            };
            let count = usize::from(r.u8()?);
            if count > MAX_CANDIDATES {
                return Err(Status::BadData);
            }
            let mut serves = Vec::with_capacity(count);
            for _ in 0..count {
                serves.push((known(r.u8()?)?, r.i32()?));
            }
            schemes.push(Scheme { name, via, serves });
        }
        Ok(WorkerEntry { worker, candidates, schemes })
    }
}

/// Reads a text with a one-byte length. Control characters and invisible characters become `?`.
fn words(r: &mut Reader<'_>) -> Result<String, Status> {
    Ok(r.name()?.replace(|c: char| !is_plain(c), "?"))
}

/// Reads a short name: a length of one byte, and bytes.
fn name(r: &mut Reader<'_>) -> Result<Box<[u8]>, Status> {
    let len = usize::from(r.u8()?);
    if len > MAX_NAME {
        return Err(Status::BadData);
    }
    (0..len).map(|_| r.u8()).collect()
}

impl Location {
    /// Returns the location of this process. A field that cannot be read is zero or empty.
    pub fn here() -> Location {
        let inode = |name: &str| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |m| m.ino())
        };
        let host = kernel_text("/proc/sys/kernel/hostname");
        Location {
            boot_id: boot_id(),
            pid_namespace: inode("pid"),
            net_namespace: inode("net"),
            pid: std::process::id(),
            host: host.chars().take(MAX_HOST).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> WorkerAddress {
        let candidate = Candidate {
            provider: "shm".into(),
            domain: "shm".into(),
            module: "ring".into(),
            priority: 50,
            address: vec![1, 2, 3],
        };
        let scheme = |name: &str, via| Scheme { name: name.into(), via, serves: vec![(0, 3)] };
        let schemes = vec![
            scheme("tcp-connect/stream", Via::Connector(vec![4])),
            scheme("shm/ring", Via::Candidate(0)),
        ];
        let entry = |n| WorkerEntry {
            worker: [n; 16],
            candidates: vec![candidate.clone()],
            schemes: schemes.clone(),
        };
        WorkerAddress {
            context: [1; 16],
            messages: MESSAGES,
            location: Location::here(),
            entry: entry(2),
            service: Some(entry(3)),
            polls_often: true,
            name: vec![1; MAX_NAME].into(),
        }
    }

    #[test]
    fn an_address_survives_its_bytes() {
        let address = example();
        assert_eq!(WorkerAddress::parse(&address.pack().unwrap()).unwrap(), address);
    }

    #[test]
    fn names_from_peer_addresses_become_one_visible_line() {
        let mut address = example();
        address.location.host = "a\nwarning: \u{202e}b".into();
        address.entry.candidates[0].module = "ri\u{200b}ng\r".into();
        let parsed = WorkerAddress::parse(&address.pack().unwrap()).unwrap();
        assert_eq!(parsed.location.host, "a?warning: ?b");
        assert_eq!(parsed.entry.candidates[0].module, "ri?ng?");
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_refused() {
        let bytes = example().pack().unwrap();
        for end in 0..bytes.len() {
            assert!(WorkerAddress::parse(&bytes[..end]).is_err());
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(WorkerAddress::parse(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_peer_on_another_host_is_named_with_it() {
        let mut address = example();
        address.location.pid = 7;
        assert_eq!(address.label(), "process 7");
        address.location.boot_id = [9; 16];
        address.location.host = "node3".into();
        assert_eq!(address.label(), "process 7 on node3");
    }

    #[test]
    fn a_scheme_over_a_candidate_that_is_not_there_is_refused() {
        let mut address = example();
        address.entry.schemes[1].via = Via::Candidate(1);
        assert!(WorkerAddress::parse(&address.pack().unwrap()).is_err());
    }

    #[test]
    fn a_scheme_for_a_candidate_that_is_not_there_is_refused() {
        let mut address = example();
        address.entry.schemes[0].serves = vec![(0, 3), (1, 3)];
        assert!(WorkerAddress::parse(&address.pack().unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_with_a_right_checksum_are_parsed_or_refused(
            body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut w = FORMAT.begin();
            let _ = w.raw(&body);
            let _ = WorkerAddress::parse(&seal(w));
        }
    }

    /// Makes an address with these numbers of candidates, schemes, and candidates per scheme.
    fn address_with_counts(
        candidates: u8,
        schemes: u8,
        serves: u8,
    ) -> Result<WorkerAddress, Error> {
        let mut w = FORMAT.begin();
        let _ = w.raw(&[1; 16]).u8(MESSAGES.0).u8(MESSAGES.1).raw(&[2; 16]);
        let _ = w.u64(3).u64(4).u32(5).name("host").raw(&[6; 16]).u8(candidates);
        for _ in 0..candidates {
            let _ = w.name("shm").name("shm").name("ring").i32(1).blob(&[7]).unwrap();
        }
        let _ = w.u8(schemes);
        for _ in 0..schemes {
            let _ = w.name("shm/ring").u8(0).blob(&[8]).unwrap().u8(serves);
            (0..serves).for_each(|_| _ = w.u8(0).i32(9));
        }
        let _ = w.u8(0).u8(0).u8(0);
        WorkerAddress::parse(&seal(w))
    }

    #[test]
    fn an_address_has_so_many_of_each_list_and_no_more() {
        let address = address_with_counts(64, 64, 64).unwrap();
        assert_eq!((address.entry.candidates.len(), address.entry.schemes.len()), (64, 64));
        assert!(address.entry.schemes.iter().all(|scheme| scheme.serves.len() == 64));
        for (candidates, schemes, serves) in [(65, 1, 1), (1, 65, 1), (1, 1, 65)] {
            let error = address_with_counts(candidates, schemes, serves).unwrap_err();
            assert_eq!(error.status(), Status::BadData, "{error}");
        }
        // Packing omits the entries beyond the maximum.
        let mut more = example();
        let entry = &mut more.entry;
        entry.candidates = vec![entry.candidates[0].clone(); 65];
        entry.schemes = vec![entry.schemes[0].clone(); 65];
        entry.schemes[0].serves = vec![(63, 1); 65];
        let read = WorkerAddress::parse(&more.pack().unwrap()).unwrap().entry;
        let lens = (read.candidates.len(), read.schemes.len(), read.schemes[0].serves.len());
        assert_eq!(lens, (64, 64, 64));
    }

    #[test]
    fn a_scheme_says_its_rank_for_what_it_serves_and_for_nothing_else() {
        let serves = vec![(0, 3), (2, -4)];
        let scheme = Scheme { name: "a/b".into(), via: Via::Candidate(0), serves };
        assert_eq!([0, 1, 2].map(|at| scheme.rank(at)), [Some(3), None, Some(-4)]);
    }

    #[test]
    fn the_service_worker_has_an_address_of_its_own_that_promises_nothing() {
        let address = example();
        let service = address.service_address().unwrap();
        assert_eq!(Some(&service.entry), address.service.as_ref());
        assert_eq!((service.location, service.context), (address.location, address.context));
        assert!(service.service.is_none() && !service.polls_often);
        let alone = WorkerAddress { service: None, ..example() };
        assert!(alone.service_address().is_none());
    }

    #[test]
    fn incompatible_message_version_is_refused_by_name() {
        let mut other = example();
        (other.messages, other.location.pid) = ((MESSAGES.0 + 1, 7), 42);
        let error = WorkerAddress::parse(&other.pack().unwrap()).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert_eq!(error.what(), "process 42 speaks another version of Tieline's own messages");
        let why =
            format!("it speaks version {}.7, and this library {}.x", MESSAGES.0 + 1, MESSAGES.0);
        assert_eq!(error.why(), why);
        other.messages = (MESSAGES.0, MESSAGES.1 + 1);
        assert!(WorkerAddress::parse(&other.pack().unwrap()).is_ok());
    }
}
