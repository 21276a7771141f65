//! Addresses, and address vectors.
//!
//! An address has 56 bytes: the length of a worker's name, and the name. The processes that exchange addresses often provide 64
//! bytes for each. Instead of a name, an address may have a host and a port (`place`). Both kinds of vector number their addresses
//! 0, 1, 2.
//!
//! A *source* is the number of a name in a domain. The sender of a message and the entries of vectors are compared by their
//! sources, so it does not matter whether a name was inserted before its message arrived, or how often.

use crate::domain::Domain;
use crate::place::decode_place;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use tieline::WorkerName;
use tieline_libfabric_abi::FI_ADDR_NOTAVAIL;

/// The length of an address.
pub(crate) const ADDRESS_LEN: usize = 56;

/// Writes a worker's name as an address.
pub(crate) fn encode(name: &WorkerName) -> [u8; ADDRESS_LEN] {
    let bytes = name.as_bytes();
    let mut address = [0; ADDRESS_LEN];
    address[0] = bytes.len() as u8;
    address[1..=bytes.len()].copy_from_slice(bytes);
    address
}

/// Reads an address; `None` if it is malformed.
pub(crate) fn decode(address: &[u8]) -> Option<WorkerName> {
    let (len, name) = address.split_first()?;
    let len = usize::from(*len);
    if len == 0 || len > name.len() {
        return None;
    }
    WorkerName::from_bytes(&name[..len]).ok()
}

/// The number of a name in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(pub(crate) u32);

/// The names of a domain, by number.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<Vec<u8>, u32>,
    count: u32,
}

impl Names {
    /// Returns the number of a name, which is a new one at the first call.
    pub(crate) fn number(&mut self, name: &[u8]) -> Source {
        if let Some(number) = self.numbers.get(name) {
            return Source(*number);
        }
        let number = self.unnamed();
        let _ = self.numbers.insert(name.to_vec(), number.0);
        number
    }

    /// Returns a number for a peer without a name.
    pub(crate) fn unnamed(&mut self) -> Source {
        self.count += 1;
        Source(self.count)
    }
}

/// The target of an entry of an address vector.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Name(WorkerName, Source),
    /// A host and a port, where the name has to be fetched.
    Place(SocketAddr),
}

/// An address vector.
#[derive(Debug)]
pub(crate) struct Vector {
    pub(crate) domain: Rc<Domain>,
    entries: RefCell<Vec<Option<Target>>>,
    /// The numbers of the addresses by their source; `FI_ADDR_NOTAVAIL` for a source without an address.
    addresses: RefCell<Vec<u64>>,
    /// The number of endpoints that are bound to the vector.
    pub(crate) users: Cell<usize>,
}

impl Vector {
    pub(crate) fn new(domain: Rc<Domain>) -> Vector {
        let (entries, addresses) = (RefCell::default(), RefCell::default());
        Vector { domain, entries, addresses, users: Cell::new(0) }
    }

    /// Inserts an address, and returns its number. A malformed address gets a number too, under which nothing is reached.
    pub(crate) fn insert(&self, address: &[u8]) -> (u64, bool) {
        let number = self.entries.borrow().len() as u64;
        let target = match decode(address) {
            Some(name) => Some(self.named(number, name)),
            None => decode_place(address).map(Target::Place),
        };
        self.entries.borrow_mut().push(target);
        (number, target.is_some())
    }

    fn named(&self, number: u64, name: WorkerName) -> Target {
        let source = self.domain.names.borrow_mut().number(name.as_bytes());
        let mut addresses = self.addresses.borrow_mut();
        let index = source.0 as usize;
        if addresses.len() <= index {
            addresses.resize(index + 1, FI_ADDR_NOTAVAIL);
        }
        if addresses[index] == FI_ADDR_NOTAVAIL {
            addresses[index] = number;
        }
        Target::Name(name, source)
    }

    /// Notes the name that was fetched from the host and port of an entry, and returns its source.
    pub(crate) fn resolved(&self, number: u64, name: WorkerName) -> Option<Source> {
        if !matches!(self.entry(number), Some(Target::Place(_))) {
            return self.source(number);
        }
        let target = self.named(number, name);
        *self.entries.borrow_mut().get_mut(number as usize)? = Some(target);
        self.source(number)
    }

    /// Removes an address. Its number is not used again.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(number as usize) else { return false };
        if let Some(Target::Name(_, source)) = entry.take() {
            let mut addresses = self.addresses.borrow_mut();
            if let Some(address) = addresses.get_mut(source.0 as usize).filter(|it| **it == number)
            {
                // Another entry may have the same name.
                let is_same = |it: &Option<Target>| matches!(it, Some(Target::Name(_, other)) if *other == source);
                let other = entries.iter().position(is_same);
                *address = other.map_or(FI_ADDR_NOTAVAIL, |other| other as u64);
            }
        }
        true
    }

    /// Returns the target of an address.
    pub(crate) fn entry(&self, number: u64) -> Option<Target> {
        *self.entries.borrow().get(number as usize)?
    }

    /// Returns the source of an address, if its name is known.
    #[inline]
    pub(crate) fn source(&self, number: u64) -> Option<Source> {
        match self.entries.borrow().get(number as usize)?.as_ref()? {
            Target::Name(_, source) => Some(*source),
            Target::Place(_) => None,
        }
    }

    /// Returns the number of the address with this source.
    #[inline]
    pub(crate) fn address_of(&self, source: Source) -> u64 {
        self.addresses.borrow().get(source.0 as usize).copied().unwrap_or(FI_ADDR_NOTAVAIL)
    }
}

#[cfg(test)]
mod tests {
    use super::{ADDRESS_LEN, decode};

    #[test]
    fn malformed_address_is_refused() {
        assert!(decode(&[0; ADDRESS_LEN]).is_none());
        assert!(decode(&[255; ADDRESS_LEN]).is_none());
        assert!(decode(&[]).is_none());
    }
}
