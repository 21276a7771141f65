//! A complete Tieline provider in Rust: an interface that is connected to itself.
//!
//! ```text
//! cargo build -p tieline-example-loopback
//! tieline check target/debug/libloopback_rust.so
//! ```
//!
//! The same provider as `docs/examples/loopback.c`: messages wait in a ring until poll delivers them; put and
//! get copy through a table of registered regions, so a revoked or forged key is an error.

mod memory;
mod sys;

use memory::{Key, Registered, Table};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_plugin_api::abi::{Cost, Event, Iov, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, ConfigDoc, Domain, DomainInfo, Endpoint, Events, Failure, HostHandle, Interface,
    Packer, Posted, Posting, Provider, RmaOp, Status, access, caps, connects, cost_class, event,
    export_provider, memory_caps, role,
};

export_provider!(Loopback, name = "loopback-rust", version = env!("CARGO_PKG_VERSION"));

const DOMAIN: &str = "loopback-rust";
const MODULE: &str = "self";
const SLOTS: usize = 256;
const PAYLOAD: usize = 4096;
const IDENTITY: usize = PAYLOAD; // 4096 is the minimum

/// Returns a number that is unique in this process.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The variables that an operator may set: `tieline config` lists them.
const VARIABLES: &[ConfigDoc] = &[ConfigDoc::count(
    ROOM,
    "256",
    "The number of messages that may wait for their receiver before sends return AGAIN.",
)
.between(64, SLOTS as u64)];
const ROOM: &str = "TIELINE_LOOPBACK_RUST_ROOM";

struct Loopback {
    room: usize,
}

impl Provider for Loopback {
    type Domain = LoopbackDomain;

    fn config() -> &'static [ConfigDoc] {
        VARIABLES
    }

    fn open(host: HostHandle) -> Result<Loopback, Failure> {
        Ok(Loopback { room: host.config(ROOM).size() })
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        Ok(vec![DomainInfo {
            name: DOMAIN.to_string(),
            caps: memory_caps::REGISTER,
            max_key_len: memory::KEY_LEN as u32,
            register_ns: 50.0,
            register_ns_per_byte: 0.0,
        }])
    }

    fn open_domain(&self, name: &str, _: [u8; 16]) -> Result<LoopbackDomain, Failure> {
        if name != DOMAIN {
            return Err(Failure::new(Status::NoDevice, format!("there is no domain `{name}`")));
        }
        Ok(LoopbackDomain { room: self.room, table: Arc::new(Table::default()) })
    }
}

struct LoopbackDomain {
    room: usize,
    table: Arc<Table>,
}

impl Domain for LoopbackDomain {
    type Interface = LoopbackInterface;
    type Connector = Absent;
    type Region = Registered;

    fn modules(&self) -> Vec<ModuleAttr> {
        let mut attr = ModuleAttr {
            name: fixed(MODULE),
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps: caps::AM_SHORT
                | caps::AM_PACKED
                | caps::AM_ZCOPY
                | caps::PUT
                | caps::GET
                | caps::REMOTE_COMPLETION
                | caps::PASSIVE_TARGET
                | caps::NEEDS_POLL
                | caps::LOCAL_ONLY
                | caps::CHECKS_KEYS
                | caps::CONNECTED_SEND
                | caps::SYNCHRONOUS,
            priority: 1,
            max_iov: 64,
            max_short: PAYLOAD,
            max_packed: PAYLOAD,
            max_zcopy: PAYLOAD,
            max_address_len: 16,
            max_identity_len: IDENTITY as u32,
            ..ModuleAttr::empty()
        };
        let message = Cost { overhead_ns: 50.0, latency_ns: 50.0, bytes_per_second: 5e9 };
        let rma = Cost { overhead_ns: 50.0, latency_ns: 0.0, bytes_per_second: 10e9 };
        attr.cost[cost_class::SMALL_MESSAGE] = message;
        attr.cost[cost_class::BULK_MESSAGE] = message;
        attr.cost[cost_class::SMALL_RMA] = rma;
        attr.cost[cost_class::BULK_RMA] = rma;
        vec![attr]
    }

    fn open_interface(&self, module: &str, _: [u8; 16]) -> Result<LoopbackInterface, Failure> {
        if module != MODULE {
            return Err(Failure::new(Status::NoDevice, format!("there is no module `{module}`")));
        }
        let mut address = [0; 16];
        address[..8].copy_from_slice(&u64::from(std::process::id()).to_ne_bytes());
        address[8..].copy_from_slice(&next_number().to_ne_bytes());
        let ring = Rc::new(RefCell::new(Ring { room: self.room, ..Ring::default() }));
        Ok(LoopbackInterface { table: self.table.clone(), address, ring })
    }

    fn register(&self, memory: &RegisterParams) -> Result<Registered, Failure> {
        let (base, len, access) = memory.host_memory()?;
        Ok(self.table.register(base, len, access))
    }

    fn deregister(&self, region: Registered) -> Result<(), Failure> {
        self.table.deregister(region);
        Ok(())
    }

    fn pack_key(
        &self,
        region: &Registered,
        key: &KeyParams,
        out: &mut [u8],
    ) -> Result<usize, Failure> {
        key.whole()?;
        region.pack(out)
    }
}

/// A slot of the ring, with a message or an arrival.
struct Slot {
    kind: u32,
    id: u32,
    peer: u64,
    header: u64,
    len: usize,
    data: Box<[u8; PAYLOAD]>,
}

/// The ring of messages. Slots `head..tail` (modulo the number of slots) are full; the core holds the first `shown` slots until the
/// next poll.
#[derive(Default)]
struct Ring {
    slots: Vec<Slot>,
    head: usize,
    tail: usize,
    shown: usize,
    peers: u64,
    /// The number of messages that are being packed, for which slots are reserved.
    reserved: usize,
    /// The maximum number of waiting messages.
    room: usize,
}

impl Ring {
    fn is_full(&self) -> bool {
        self.tail + self.reserved - self.head >= self.room
    }

    fn reserve(&mut self) -> Result<(), Status> {
        if self.is_full() {
            return Err(Status::Again);
        }
        self.reserved += 1;
        Ok(())
    }

    /// Sends the message that `fill` writes. If the ring is full, the call returns AGAIN, so that a flood of messages cannot
    /// exhaust memory.
    fn send(
        &mut self,
        kind: u32,
        (id, peer, header): (u32, u64, u64),
        fill: impl FnOnce(&mut [u8; PAYLOAD]) -> Result<usize, Status>,
    ) -> Result<usize, Status> {
        if self.is_full() {
            return Err(Status::Again);
        }
        let at = self.tail % SLOTS;
        if at == self.slots.len() {
            let data = Box::new([0; PAYLOAD]);
            self.slots.push(Slot { kind, id, peer, header, len: 0, data });
        }
        let slot = &mut self.slots[at];
        (slot.kind, slot.id, slot.peer, slot.header) = (kind, id, peer, header);
        slot.len = fill(&mut slot.data)?;
        let len = slot.len;
        // The message becomes visible only here, so an error above has no effect.
        self.tail += 1;
        Ok(len)
    }
}

struct LoopbackInterface {
    table: Arc<Table>,
    address: [u8; 16],
    ring: Rc<RefCell<Ring>>,
}

impl Interface for LoopbackInterface {
    type Endpoint = LoopbackEndpoint;

    fn address(&self) -> Vec<u8> {
        self.address.to_vec()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        if address == self.address {
            return Ok(());
        }
        Err(Failure::new(Status::Unreachable, "loopback connects an interface only to itself"))
    }

    fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        _: u64,
    ) -> Result<LoopbackEndpoint, Failure> {
        self.reachable(address)?;
        if identity.len() > IDENTITY {
            return Err(Failure::new(Status::TooLarge, "the identity is longer than 4096 bytes"));
        }
        let mut ring = self.ring.borrow_mut();
        let peer = ring.peers;
        let _ = ring.send(event::PEER_ARRIVED, (0, peer, 0), |data| gather(data, &[identity]))?;
        ring.peers += 1;
        Ok(LoopbackEndpoint { table: self.table.clone(), ring: self.ring.clone(), peer })
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        let mut ring = self.ring.borrow_mut();
        ring.head += ring.shown;
        ring.shown = 0;
        while events.room() > 0 && ring.head + ring.shown < ring.tail {
            let slot = &ring.slots[(ring.head + ring.shown) % SLOTS];
            let _ = events.push(Event {
                kind: slot.kind,
                id: slot.id,
                peer: slot.peer,
                header: slot.header,
                data: slot.data.as_ptr(),
                len: slot.len,
                ..Event::empty()
            });
            ring.shown += 1;
        }
        Ok(())
    }
}

struct LoopbackEndpoint {
    table: Arc<Table>,
    ring: Rc<RefCell<Ring>>,
    peer: u64,
}

impl LoopbackEndpoint {
    fn send(
        &self,
        id: u32,
        header: u64,
        fill: impl FnOnce(&mut [u8; PAYLOAD]) -> Result<usize, Status>,
    ) -> Result<usize, Status> {
        self.ring.borrow_mut().send(event::MESSAGE, (id, self.peer, header), fill)
    }
}

/// Concatenates the pieces.
fn gather(out: &mut [u8; PAYLOAD], pieces: &[&[u8]]) -> Result<usize, Status> {
    let mut len = 0;
    for piece in pieces {
        let end = len + piece.len();
        out.get_mut(len..end).ok_or(Status::TooLarge)?.copy_from_slice(piece);
        len = end;
    }
    Ok(len)
}

impl Endpoint for LoopbackEndpoint {
    type Key = Key;

    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        self.send(id, header, |data| gather(data, &[payload])).map(|_| Posting::Done)
    }

    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        if max > PAYLOAD {
            return Err(Status::TooLarge);
        }
        // The packer may send while it runs, so the ring is not borrowed during the call, and a slot is reserved for this message.
        self.ring.borrow_mut().reserve()?;
        let mut packed = [0; PAYLOAD];
        let len = packer.pack(&mut packed[..max]);
        self.ring.borrow_mut().reserved -= 1;
        self.send(id, header, |data| gather(data, &[&packed[..len?]]))
    }

    fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], _: u64) -> Posted {
        let pieces: Vec<&[u8]> = iov.iter().map(sys::piece).collect();
        self.send(id, header, |data| gather(data, &pieces)).map(|_| Posting::Done)
    }

    fn put(&self, key: &Key, op: &RmaOp<'_>) -> Posted {
        self.table.with(key, op, access::REMOTE_WRITE, sys::scatter)
    }

    fn get(&self, key: &Key, op: &RmaOp<'_>) -> Posted {
        self.table.with(key, op, access::REMOTE_READ, sys::gather)
    }

    fn import_key(&self, bytes: &[u8]) -> Result<Key, Failure> {
        self.table.import(bytes)
    }
}
