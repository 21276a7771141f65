//! An owner and an accessor of its memory in one process, over the module double.

use std::sync::Arc;

use tieline_plugin_api::abi::{Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Failure, Interface, RmaOp, access};

use crate::device::Lease;
use crate::double::Played;
use crate::keys::Registration;
use crate::settings::{Reach, Settings};
use crate::{MODULE, RemoteKey, XpmemDomain, XpmemEndpoint, XpmemInterface};

pub(crate) const BOTH: u64 = access::REMOTE_READ | access::REMOTE_WRITE;
pub(crate) const PAGE: usize = 4096;

pub(crate) struct Pair {
    pub(crate) played: Arc<Played>,
    pub(crate) owner: XpmemDomain,
    pub(crate) interface: XpmemInterface,
    pub(crate) endpoint: XpmemEndpoint,
    pub(crate) memory: Vec<u8>,
}

/// Returns settings for windows of four pages, and two registrations with a segment of their own.
pub(crate) fn settings() -> Settings {
    let (cache, attachments, window, segments) = (1 << 30, 100, 4 * PAGE as u64, 2);
    let (reach, declines, page) = (Reach::Copy, false, PAGE as u64);
    Settings { reach, declines, cache, attachments, window, segments, page }
}

impl Pair {
    /// Makes a pair whose owner has `len` bytes, each with its own number modulo 256 as the value.
    pub(crate) fn new(len: usize) -> Pair {
        Pair::with(len, &settings())
    }

    pub(crate) fn with(len: usize, settings: &Settings) -> Pair {
        let played = Arc::new(Played::with_pages(settings.page));
        let domain = || {
            let lease = Lease::played(played.clone(), settings.clone());
            XpmemDomain::new((lease, settings.clone(), None)).unwrap()
        };
        let (owner, here) = (domain(), domain());
        let address = owner.open_interface(MODULE, [1; 16]).unwrap().address();
        let interface = here.open_interface(MODULE, [2; 16]).unwrap();
        interface.reachable(&address).unwrap();
        let endpoint = interface.connect(&address, b"", 0).unwrap();
        let memory = (0..len).map(|n| n as u8).collect();
        Pair { played, owner, interface, endpoint, memory }
    }

    pub(crate) fn register(&mut self, rights: u64) -> Result<Registration, Failure> {
        let (base, len) = (self.memory.as_mut_ptr(), self.memory.len());
        self.owner.register(&RegisterParams::new(base, len, rights))
    }

    pub(crate) fn packed(&self, region: &Registration) -> [u8; 40] {
        let mut key = [0; 40];
        assert_eq!(self.owner.pack_key(region, &KeyParams::empty(), &mut key), Ok(40));
        key
    }

    /// Returns a registration of all bytes of the owner, and its key.
    pub(crate) fn offered(&mut self, rights: u64) -> (Registration, RemoteKey) {
        let region = self.register(rights).unwrap();
        let key = self.endpoint.import_key(&self.packed(&region)).unwrap();
        (region, key)
    }

    pub(crate) fn attached(&self) -> usize {
        self.played.there().attached
    }
}

pub(crate) fn op(iov: &[Iov], offset: u64) -> RmaOp<'_> {
    let len = iov.iter().map(|piece| piece.len).sum();
    RmaOp { iov, len, offset, cookie: 1, flags: 0 }
}
