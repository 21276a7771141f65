//! The implementation of the provider: each slot asks the world for its result.

use crate::calls::{Act, Call, Slot, Verdict};
use crate::connector::FakeConnector;
use crate::key::FakeKey;
use crate::network::{Kind, Op, State};
use crate::sys::{self, Piece};
use crate::world::{PATIENCE_OF_A_CALL, World};
use tieline_plugin_api::abi::{
    Atomic, EndpointLimits, Iov, KeyParams, ModuleAttr, RegisterParams, Watch, fixed,
};
use tieline_plugin_api::{
    Armed, ConfigDoc, Domain, DomainInfo, Endpoint, Events, Failure, HostHandle, Interface, ListOp,
    MemoryReport, Packer, Posted, Posting, Provider, Revoked, RmaOp, Status, caps, connects, event,
    memory_caps, op_flags, role,
};

/// The provider `fake` (0) or `other` (1).
pub struct Fake<const NUMBER: usize> {
    world: &'static World,
}

const NAMES: [&str; 2] = ["fake", "other"];
const CONFIG: [ConfigDoc; 2] = [
    ConfigDoc::text("TIELINE_FAKE_WORLD", "", "The world of the test that this provider plays in."),
    ConfigDoc::text(
        "TIELINE_OTHER_WORLD",
        "",
        "The world of the test that this provider plays in.",
    ),
];

impl<const NUMBER: usize> Provider for Fake<NUMBER> {
    type Domain = FakeDomain;

    fn open(host: HostHandle) -> Result<Self, Failure> {
        let setting = host.config(CONFIG[NUMBER].name).text;
        let world = sys::world(&setting).map_err(|why| Failure::new(Status::NoDevice, why))?;
        Ok(Fake { world })
    }

    fn config() -> &'static [ConfigDoc] {
        if NUMBER == 0 { &CONFIG[..1] } else { &CONFIG[1..] }
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        let state = self.world.state();
        let own = state.lanes.iter().filter(|lane| lane.provider == NUMBER);
        let info = |name: &str, memory: bool| DomainInfo {
            name: format!("{}:{name}", NAMES[NUMBER]),
            caps: if memory { memory_caps::REGISTER } else { 0 },
            max_key_len: 8,
            register_ns: 0.0,
            register_ns_per_byte: 0.0,
        };
        let list: Vec<DomainInfo> = own.map(|lane| info(lane.name, lane.does_memory())).collect();
        match list.is_empty() {
            true => Err(Failure::new(Status::NoDevice, "this world has no lane of this provider")),
            false => Ok(list),
        }
    }

    fn open_domain(&self, name: &str, _: [u8; 16]) -> Result<FakeDomain, Failure> {
        let (world, mut lanes) = (self.world, self.world.state().lanes.clone().into_iter());
        let lane = lanes.position(|lane| {
            lane.provider == NUMBER && name == format!("{}:{}", NAMES[NUMBER], lane.name)
        });
        let lane = lane.ok_or(Status::NoDevice)?;
        ask(world, lane, usize::MAX, Slot::OpenDomain)?;
        Ok(FakeDomain { world, lane })
    }
}

/// A lane of the world.
pub struct FakeDomain {
    world: &'static World,
    lane: usize,
}

impl Drop for FakeDomain {
    fn drop(&mut self) {
        let _ = ask(self.world, self.lane, usize::MAX, Slot::CloseDomain);
    }
}

pub(crate) fn ask(world: &World, lane: usize, interface: usize, slot: Slot) -> Result<(), Status> {
    let call = Call { slot, interface, cookie: 0, id: 0, len: 0, flags: 0, refused: false };
    let verdict = world.state().call(lane, call);
    settled(world, verdict).map(|_| ())
}

/// Refuses or panics, as the rules of the test require. The caller must hold no lock of the world.
pub(crate) fn settled(world: &World, verdict: Verdict) -> Result<Verdict, Status> {
    match verdict {
        Verdict::Act(Act::Stop) => {
            world.stop();
            Ok(Verdict::Go)
        }
        Verdict::Act(Act::AwaitStop) => {
            let _ = world.await_stop_for(PATIENCE_OF_A_CALL);
            Ok(Verdict::Go)
        }
        Verdict::Act(Act::Refuse(status)) => Err(status),
        // `resume_unwind` panics without the panic hook, which would print.
        Verdict::Act(Act::Panic) => std::panic::resume_unwind(Box::new("as the test wants it")),
        verdict => Ok(verdict),
    }
}

impl Domain for FakeDomain {
    type Interface = FakeInterface;
    type Connector = FakeConnector;
    type Region = FakeRegion;

    fn modules(&self) -> Vec<ModuleAttr> {
        let lane = self.world.state().lanes[self.lane].clone();
        if lane.connects {
            return vec![ModuleAttr {
                name: fixed(lane.module),
                role: role::CONNECTION_ONLY,
                connects: connects::TO_INTERFACE,
                caps: lane.caps,
                priority: lane.priority,
                max_address_len: 8,
                max_datagram: 1 << 16,
                reliable: 1,
                ..ModuleAttr::empty()
            }];
        }
        let [atomic_post32, atomic_post64, atomic_fetch32, atomic_fetch64] = lane.atomics;
        vec![ModuleAttr {
            name: fixed(lane.module),
            role: role::DATA,
            connects: if lane.to_endpoint { connects::TO_ENDPOINT } else { connects::TO_INTERFACE },
            caps: lane.caps
                | if lane.lends { caps::LENDS_BUFFERS } else { 0 }
                | if lane.max_zcopy > 0 { caps::AM_ZCOPY } else { 0 },
            priority: lane.priority,
            max_iov: lane.max_iov,
            max_short: lane.max_short,
            max_packed: lane.max_packed,
            max_zcopy: lane.max_zcopy,
            max_put: lane.max_put,
            max_get: lane.max_get,
            max_short_put: lane.max_short_put,
            notify_bits: lane.notify_bits,
            atomic_post32,
            atomic_post64,
            atomic_fetch32,
            atomic_fetch64,
            cost: lane.cost(),
            max_address_len: 16,
            max_endpoint_address_len: 16,
            max_identity_len: 1 << 20,
            ..ModuleAttr::empty()
        }]
    }

    fn open_interface(&self, _: &str, _: [u8; 16]) -> Result<FakeInterface, Failure> {
        let (world, lane) = (self.world, self.lane);
        ask(world, lane, usize::MAX, Slot::OpenInterface)?;
        let number = world.state().open_interface(lane);
        Ok(FakeInterface { world, lane, number, watch: Watch::new() })
    }

    fn open_connector(&self, _: &str, _: [u8; 16]) -> Result<FakeConnector, Failure> {
        let (world, lane) = (self.world, self.lane);
        ask(world, lane, usize::MAX, Slot::OpenConnector)?;
        FakeConnector::open(world, lane)
    }

    fn register(&self, memory: &RegisterParams) -> Result<FakeRegion, Failure> {
        let (base, len, access) = memory.host_memory()?;
        let (interface, flags) = (usize::MAX, memory.flags);
        let call =
            Call { slot: Slot::Register, interface, cookie: 0, id: 0, len, flags, refused: false };
        let verdict = self.world.state().call(self.lane, call);
        let _ = settled(self.world, verdict)?;
        let piece = Piece::registered(base, len);
        Ok(FakeRegion(self.world.state().register(self.lane, piece, access)))
    }

    fn revoke(&self, _: &FakeRegion) -> Revoked {
        let _ = ask(self.world, self.lane, usize::MAX, Slot::Revoke);
        Revoked::Quiet
    }

    fn deregister(&self, region: FakeRegion) -> Result<(), Failure> {
        self.world.state().deregister(region.0);
        Ok(ask(self.world, self.lane, usize::MAX, Slot::Deregister)?)
    }

    fn pack_key(
        &self,
        region: &FakeRegion,
        key: &KeyParams,
        out: &mut [u8],
    ) -> Result<usize, Failure> {
        key.whole()?;
        ask(self.world, self.lane, usize::MAX, Slot::PackKey)?;
        out.get_mut(..8).ok_or(Status::TooLarge)?.copy_from_slice(&region.0.to_le_bytes());
        Ok(8)
    }
}

/// A registration; the field is its number.
pub struct FakeRegion(pub(crate) u64);

/// A worker's place on a lane.
pub struct FakeInterface {
    world: &'static World,
    lane: usize,
    number: usize,
    watch: Watch,
}

impl FakeInterface {
    fn parse(&self, address: &[u8]) -> Result<usize, Failure> {
        let number: [u8; 8] = address.try_into().map_err(|_| Status::BadData)?;
        let number = usize::try_from(u64::from_le_bytes(number)).map_err(|_| Status::BadData)?;
        let state = self.world.state();
        match state.interfaces.get(number) {
            Some(interface) if interface.lane == self.lane && interface.open => Ok(number),
            _ => Err(Failure::new(Status::Unreachable, "there is no such interface")),
        }
    }
}

impl Drop for FakeInterface {
    fn drop(&mut self) {
        self.world.state().close_interface(self.number);
        let _ = ask(self.world, self.lane, self.number, Slot::CloseInterface);
    }
}

impl Interface for FakeInterface {
    type Endpoint = FakeEndpoint;

    fn address(&self) -> Vec<u8> {
        if ask(self.world, self.lane, self.number, Slot::Address).is_err() {
            return Vec::new();
        }
        (self.number as u64).to_le_bytes().to_vec()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        ask(self.world, self.lane, self.number, Slot::Reachable)?;
        // If another channel connects the endpoint, the endpoint learns later that its peer does not exist.
        let late = self.world.state().lanes[self.lane].to_endpoint;
        self.parse(address).map(|_| ()).or_else(|gone| if late { Ok(()) } else { Err(gone) })
    }

    fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<FakeEndpoint, Failure> {
        ask(self.world, self.lane, self.number, Slot::Connect)?;
        let to = match address {
            [] => None,
            address => Some(self.parse(address)?),
        };
        let number = match to {
            Some(to) => self.world.state().connect(self.number, to, cookie, identity),
            None => self.world.state().begin(self.number, cookie),
        };
        let (world, lane, interface) = (self.world, self.lane, self.number);
        Ok(FakeEndpoint { world, lane, interface, number })
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        ask(self.world, self.lane, self.number, Slot::Poll)?;
        let meanwhile = self.world.state().meanwhile;
        if let Some(call) = meanwhile {
            call();
        }
        self.world.state().poll(self.number, events);
        self.world.polled(&self.watch, events.len());
        Ok(())
    }

    fn watch(&self) -> Option<&Watch> {
        self.world.state().lanes[self.lane].lists.then_some(&self.watch)
    }

    fn hang_up(&self, peer: u64) -> Result<(), Status> {
        ask(self.world, self.lane, self.number, Slot::HangUp)?;
        self.world.state().hang_up(self.number, peer);
        Ok(())
    }

    fn import_key(&self, bytes: &[u8]) -> Result<FakeKey, Failure> {
        ask(self.world, self.lane, self.number, Slot::ImportShared)?;
        FakeKey::new(self.world, self.lane, self.number, None, bytes)
    }

    fn flush(&self, cookie: u64) -> Posted {
        let interface = self.number;
        let slot = Slot::FlushAll;
        let call = Call { slot, interface, cookie, id: 0, len: 0, flags: 0, refused: false };
        let verdict = self.world.state().call(self.lane, call);
        let verdict = settled(self.world, verdict)?;
        self.world.state().flush_all(self.number, cookie, verdict)
    }

    fn arm(&self) -> Result<Armed, Status> {
        ask(self.world, self.lane, self.number, Slot::Arm)?;
        if self.world.state().lanes[self.lane].sleeps {
            return Ok(Armed::Sleep);
        }
        Err(Status::Unsupported)
    }

    fn event_fd(&self) -> Option<i32> {
        let _ = ask(self.world, self.lane, self.number, Slot::EventFd);
        None
    }

    fn memory(&self) -> MemoryReport {
        let _ = ask(self.world, self.lane, self.number, Slot::Memory);
        MemoryReport { base_bytes: 4096, peer_bytes: 512, peers: 2, ..MemoryReport::default() }
    }

    fn release(&self, token: u64) {
        self.world.state().release(token);
        let _ = ask(self.world, self.lane, self.number, Slot::Release);
    }
}

/// A connection from one interface to another.
pub struct FakeEndpoint {
    pub(crate) world: &'static World,
    lane: usize,
    pub(crate) interface: usize,
    pub(crate) number: usize,
}

impl Drop for FakeEndpoint {
    fn drop(&mut self) {
        self.world.state().close_endpoint(self.number);
        let _ = ask(self.world, self.lane, self.interface, Slot::CloseEndpoint);
    }
}

impl FakeEndpoint {
    pub(crate) fn call(
        &self,
        slot: Slot,
        cookie: u64,
        id: u32,
        len: usize,
        flags: u64,
    ) -> Result<Verdict, Status> {
        let interface = self.interface;
        let call = Call { slot, interface, cookie, id, len, flags, refused: false };
        let verdict = self.world.state().call(self.lane, call);
        settled(self.world, verdict)
    }

    pub(crate) fn post(
        &self,
        state: &mut State,
        key: &FakeKey,
        op: Op,
        verdict: Verdict,
        out: &mut u64,
    ) -> Posted {
        if key.endpoint.is_some_and(|own| own != self.number) || key.interface != self.interface {
            state.fault("a key was used on another endpoint than its own");
            return Err(Status::KeyRejected);
        }
        state.post(self.number, op, verdict, out)
    }

    pub(crate) fn rma(
        &self,
        slot: Slot,
        key: &FakeKey,
        op: &RmaOp<'_>,
        word: Option<u32>,
    ) -> Posted {
        let verdict = self.call(slot, op.cookie, 0, op.len, op.flags)?;
        let mut state = self.world.state();
        let kind = self.checked(&mut state, slot, op, word)?;
        let op = Op::new(kind, op.cookie, (key.region, op.offset, op.len), op.flags);
        self.post(&mut state, key, op, verdict, &mut 0)
    }

    /// Checks a put or get, and returns its kind.
    pub(crate) fn checked(
        &self,
        state: &mut State,
        slot: Slot,
        op: &RmaOp<'_>,
        word: Option<u32>,
    ) -> Result<Kind, Status> {
        let pieces: Vec<Piece> = op.iov.iter().map(Piece::local).collect();
        for (iov, piece) in op.iov.iter().zip(&pieces) {
            state.named_as(self.lane, sys::region(iov), *piece);
        }
        let lane = &state.lanes[self.lane];
        let many = pieces.len() > lane.max_iov as usize;
        let wide = word.is_some_and(|word| u64::from(word) >> lane.notify_bits != 0);
        let most = match slot {
            Slot::Get => state.most(self.number, |lane| lane.max_get, |own| own.max_get),
            _ => state.most(self.number, |lane| lane.max_put, |own| own.max_put),
        };
        if most != 0 && op.len > most {
            return Err(Status::TooLarge);
        }
        if many {
            state.fault("an operation has more pieces than max_iov");
        }
        if wide {
            state.fault("a word has more bits than notify_bits");
        }
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() != op.len {
            state.fault("the pieces of an operation are not as long as it");
        }
        Ok(match slot {
            Slot::Get => Kind::Get { to: pieces },
            _ => {
                let bytes = pieces.iter().flat_map(|piece| piece.read()).collect();
                Kind::Put { from: pieces, bytes, word }
            }
        })
    }
}

impl Endpoint for FakeEndpoint {
    type Key = FakeKey;

    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        let _ = self.call(Slot::Short, header, id, payload.len(), 0)?;
        let mut state = self.world.state();
        state.connected(self.number)?;
        if payload.len() > state.most(self.number, |lane| lane.max_short, |own| own.max_short) {
            state.fault("a short message was longer than max_short");
            return Err(Status::TooLarge);
        }
        state.send(self.number, event::MESSAGE, id, header, payload);
        Ok(Posting::Done)
    }

    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        let _ = self.call(Slot::Packed, header, id, max, 0)?;
        let most = {
            let mut state = self.world.state();
            state.connected(self.number)?;
            state.most(self.number, |lane| lane.max_packed, |own| own.max_packed)
        };
        if max > most {
            self.world.state().fault("a packed message was longer than max_packed");
            return Err(Status::TooLarge);
        }
        // No lock is held while the application's packer runs.
        let mut buffer = vec![0; max];
        self.world.state().endpoints[self.number].packing += 1;
        let packed = packer.pack(&mut buffer);
        self.world.state().endpoints[self.number].packing -= 1;
        let len = packed?;
        self.world.state().send(self.number, event::MESSAGE, id, header, &buffer[..len]);
        Ok(len)
    }

    fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], cookie: u64) -> Posted {
        let from: Vec<Piece> = iov.iter().map(Piece::local).collect();
        let bytes: Vec<u8> = from.iter().flat_map(|piece| piece.read()).collect();
        let verdict = self.call(Slot::Zcopy, cookie, id, bytes.len(), 0)?;
        let mut state = self.world.state();
        for (iov, piece) in iov.iter().zip(&from) {
            state.named_as(self.lane, sys::region(iov), *piece);
        }
        if iov.len() > state.lanes[self.lane].max_iov as usize {
            state.fault("a message has more pieces than max_iov");
        }
        if bytes.len() > state.most(self.number, |lane| lane.max_zcopy, |own| own.max_zcopy) {
            state.fault("a gathered message was longer than max_zcopy");
            return Err(Status::TooLarge);
        }
        state.connected(self.number)?;
        let sent = !matches!(verdict, Verdict::Act(Act::FailLater(_)));
        let message = Op::new(
            Kind::Message { from, bytes: bytes.clone() },
            cookie,
            (0, 0, bytes.len()),
            op_flags::REMOTE_COMPLETION,
        );
        let posted = state.post(self.number, message, verdict, &mut 0)?;
        if sent {
            state.send(self.number, event::MESSAGE, id, header, &bytes);
        }
        Ok(posted)
    }

    fn put(&self, key: &FakeKey, op: &RmaOp<'_>) -> Posted {
        self.rma(Slot::Put, key, op, None)
    }

    fn put_notify(&self, key: &FakeKey, op: &RmaOp<'_>, word: u32) -> Posted {
        self.rma(Slot::PutNotify, key, op, Some(word))
    }

    fn get(&self, key: &FakeKey, op: &RmaOp<'_>) -> Posted {
        self.rma(Slot::Get, key, op, None)
    }

    fn rma_list(&self, list: &ListOp<'_, FakeKey>, taken: &mut usize) -> Posted {
        let synchronous = self.world.state().lanes[self.lane].caps & caps::SYNCHRONOUS != 0;
        if synchronous { self.list_now(list, taken) } else { self.list_later(list, taken) }
    }

    fn atomic(&self, key: &FakeKey, op: &Atomic, result: &mut u64) -> Posted {
        let verdict = self.call(Slot::Atomic, op.cookie, op.op, op.width as usize, op.flags)?;
        let kind = Kind::Atomic { op: op.op, operand: op.operand, compare: op.compare };
        let target = (key.region, op.offset, op.width as usize);
        let op = Op::new(kind, op.cookie, target, op.flags);
        self.post(&mut self.world.state(), key, op, verdict, result)
    }

    fn flush(&self, cookie: u64) -> Posted {
        let verdict = self.call(Slot::Flush, cookie, 0, 0, 0)?;
        let op = Op::new(Kind::Flush, cookie, (0, 0, 0), 0);
        let mut state = self.world.state();
        if state.nothing_to_flush(self.number) && !matches!(verdict, Verdict::Act(_)) {
            return Ok(Posting::Done);
        }
        state.post(self.number, op, verdict, &mut 0)
    }

    fn fence(&self) -> Result<(), Status> {
        let _ = self.call(Slot::Fence, 0, 0, 0, 0)?;
        self.world.state().fence(self.number)
    }

    fn import_key(&self, bytes: &[u8]) -> Result<FakeKey, Failure> {
        let _ = self.call(Slot::ImportKey, 0, 0, bytes.len(), 0)?;
        FakeKey::new(self.world, self.lane, self.interface, Some(self.number), bytes)
    }

    fn key_pointer(&self, key: &FakeKey, offset: u64, len: u64) -> Result<*mut u8, Failure> {
        let _ = self.call(Slot::Pointer, 0, 0, len as usize, 0)?;
        let state = self.world.state();
        let memory = state.memory.get(&key.region).ok_or(Status::KeyRejected)?;
        Ok(memory.piece.part(offset, len as usize)?.address())
    }

    fn cancel(&self, cookie: u64) -> Result<(), Status> {
        let _ = self.call(Slot::Cancel, cookie, 0, 0, 0)?;
        self.world.state().cancel(self.number, cookie)
    }

    fn limits(&self) -> EndpointLimits {
        let knows = self.call(Slot::Limits, 0, 0, 0, 0).is_ok();
        let mut state = self.world.state();
        let limits = if knows { state.lanes[self.lane].limits } else { EndpointLimits::empty() };
        state.endpoints[self.number].limits = limits;
        limits
    }

    fn address(&self) -> Vec<u8> {
        (self.number as u64).to_le_bytes().to_vec()
    }

    fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        ask(self.world, self.lane, self.interface, Slot::Bind)?;
        let to: [u8; 8] = address.try_into().map_err(|_| Status::BadData)?;
        let to = usize::try_from(u64::from_le_bytes(to)).map_err(|_| Status::BadData)?;
        Ok(self.world.state().bind(self.number, to)?)
    }
}
