//! A worker's address: opaque bytes that the application carries to its peers.
//!
//! It names the host and its namespaces (for the reachability report), the worker, and one candidate for
//! every module that the worker has open: which module, and the bytes that this module's provider
//! understands. A context with a progress thread adds the address of its service worker, which executes
//! what peers ask of memory while the application computes.

use crate::Error;
use crate::wire::{Reader, Writer, checksum};
use tieline_plugin_api::Status;

const MAGIC: &[u8; 4] = b"TLA1";
const MAX_CANDIDATES: usize = 64;

/// One way to reach a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) provider: String,
    pub(crate) domain: String,
    pub(crate) module: String,
    pub(crate) priority: i32,
    pub(crate) address: Vec<u8>,
}

/// Where a worker runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) boot_id: [u8; 16],
    pub(crate) pid_namespace: u64,
    pub(crate) net_namespace: u64,
    pub(crate) pid: u32,
}

/// A worker's address, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerAddress {
    pub(crate) context: [u8; 16],
    pub(crate) worker: [u8; 16],
    pub(crate) place: Place,
    pub(crate) candidates: Vec<Candidate>,
    /// The service worker's number and candidates, when the context has a progress thread.
    pub(crate) service: Option<([u8; 16], Vec<Candidate>)>,
}

impl WorkerAddress {
    /// The bytes for a peer.
    pub(crate) fn pack(&self) -> Result<Vec<u8>, Error> {
        let mut w = Writer::default();
        let _ = w.raw(MAGIC).raw(&self.context).raw(&self.worker).raw(&self.place.boot_id);
        let _ = w.u64(self.place.pid_namespace).u64(self.place.net_namespace).u32(self.place.pid);
        pack_candidates(&mut w, &self.candidates)?;
        match &self.service {
            None => {
                let _ = w.u8(0);
            }
            Some((worker, candidates)) => {
                let _ = w.u8(1).raw(worker);
                pack_candidates(&mut w, candidates)?;
            }
        }
        let sum = checksum(&w.bytes);
        let _ = w.u32(sum);
        Ok(w.bytes)
    }

    /// Takes a peer's bytes apart; every length is checked.
    pub(crate) fn parse(bytes: &[u8]) -> Result<WorkerAddress, Error> {
        Self::parse_fields(bytes).map_err(|why| {
            Error::new(
                Status::BadData,
                "this is no worker address",
                format!("{why} ({} bytes)", bytes.len()),
                "pass the bytes of Worker::address() unchanged, from the same version of Tieline",
            )
        })
    }

    fn parse_fields(bytes: &[u8]) -> Result<WorkerAddress, &'static str> {
        let body = bytes.len().checked_sub(4).ok_or("it is too short")?;
        let (body, sum) = bytes.split_at(body);
        if !body.starts_with(MAGIC) {
            return Err("it does not begin with TLA1");
        }
        if sum != checksum(body).to_le_bytes() {
            return Err("its checksum is wrong");
        }
        let short = |_| "a field is cut off or malformed";
        let mut r = Reader::new(&body[MAGIC.len()..]);
        let context = r.id().map_err(short)?;
        let worker = r.id().map_err(short)?;
        let place = Place {
            boot_id: r.id().map_err(short)?,
            pid_namespace: r.u64().map_err(short)?,
            net_namespace: r.u64().map_err(short)?,
            pid: r.u32().map_err(short)?,
        };
        let candidates = parse_candidates(&mut r).map_err(short)?;
        let service = match r.u8().map_err(short)? {
            0 => None,
            1 => {
                let worker = r.id().map_err(short)?;
                Some((worker, parse_candidates(&mut r).map_err(short)?))
            }
            _ => return Err("a flag has an unknown value"),
        };
        if !r.rest().is_empty() {
            return Err("there are bytes after its end");
        }
        Ok(WorkerAddress { context, worker, place, candidates, service })
    }

    /// The address of the service worker by itself.
    pub(crate) fn service_address(&self) -> Option<WorkerAddress> {
        let (worker, candidates) = self.service.clone()?;
        Some(WorkerAddress {
            context: self.context,
            worker,
            place: self.place.clone(),
            candidates,
            service: None,
        })
    }

    /// What a person calls this peer: `process 4711`.
    pub(crate) fn label(&self) -> String {
        format!("process {}", self.place.pid)
    }
}

fn pack_candidates(w: &mut Writer, candidates: &[Candidate]) -> Result<(), Error> {
    let count = candidates.len().min(MAX_CANDIDATES);
    let _ = w.u8(count as u8);
    for c in &candidates[..count] {
        let _ = w.name(&c.provider).name(&c.domain).name(&c.module).i32(c.priority);
        let _ = w.blob(&c.address)?;
    }
    Ok(())
}

fn parse_candidates(r: &mut Reader<'_>) -> Result<Vec<Candidate>, Status> {
    let count = usize::from(r.u8()?);
    if count > MAX_CANDIDATES {
        return Err(Status::BadData);
    }
    (0..count)
        .map(|_| {
            Ok(Candidate {
                provider: r.name()?.to_string(),
                domain: r.name()?.to_string(),
                module: r.name()?.to_string(),
                priority: r.i32()?,
                address: r.blob()?.to_vec(),
            })
        })
        .collect()
}

impl Place {
    /// Where this process runs. What cannot be read stays zero and equals nothing.
    pub(crate) fn here() -> Place {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut boot_id = [0; 16];
        let digits: Vec<u8> = boot.bytes().filter(u8::is_ascii_hexdigit).collect();
        for (byte, pair) in boot_id.iter_mut().zip(digits.chunks_exact(2)) {
            let text = std::str::from_utf8(pair).unwrap_or("0");
            *byte = u8::from_str_radix(text, 16).unwrap_or(0);
        }
        let inode = |name: &str| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |m| m.ino())
        };
        Place {
            boot_id,
            pid_namespace: inode("pid"),
            net_namespace: inode("net"),
            pid: crate::sys::process_id(),
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
        WorkerAddress {
            context: [1; 16],
            worker: [2; 16],
            place: Place::here(),
            candidates: vec![candidate.clone()],
            service: Some(([3; 16], vec![candidate])),
        }
    }

    #[test]
    fn an_address_survives_its_bytes() {
        let address = example();
        assert_eq!(WorkerAddress::parse(&address.pack().unwrap()).unwrap(), address);
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

    proptest! {
        #[test]
        fn any_bytes_with_a_right_checksum_are_parsed_or_refused(
            mut body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = MAGIC.to_vec();
            bytes.append(&mut body);
            bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
            let _ = WorkerAddress::parse(&bytes);
        }
    }
}
