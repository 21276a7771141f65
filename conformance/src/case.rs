//! The input of a check: one opened module of one provider.

pub(crate) use crate::mailbox::Mailbox;

use crate::endpoint::{Endpoint, Key, Target};
use crate::enter::{Nothing, enter};
use crate::interface::{Interface, Received};
use crate::report::{Stop, fail, succeeds};
use crate::sys::{Domain, Memory, Provider};
use crate::watch::Patience;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tieline_plugin_api::abi::{DomainAttr, EndpointLimits, Iov, ModuleAttr, fixed_str};
use tieline_plugin_api::{Failure, Named, Status, access, caps, connects, op_flags, role};

pub(crate) const ALL_RIGHTS: u64 =
    access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;

/// One module of one domain of a provider file.
pub(crate) struct Case {
    pub(crate) path: PathBuf,
    pub(crate) provider: &'static Provider,
    pub(crate) domain_attr: DomainAttr,
    pub(crate) attr: ModuleAttr,
    pub(crate) domain: Arc<Domain>,
    /// The program to start as the peer; it takes the arguments of [`crate::peer::ARGUMENT`].
    pub(crate) peer_program: PathBuf,
}

pub(crate) fn lacking(needed: u64, has: u64) -> Option<String> {
    let missing = caps::ALL.iter().filter(|c| c.value & needed & !has != 0);
    let missing: Vec<String> = missing.map(short_name).collect();
    (!missing.is_empty()).then(|| format!("lacks capability {}", missing.join(", ")))
}

impl Case {
    /// Loads the file and opens the domain of `module`, which has the form `domain/module`.
    ///
    /// # Errors
    /// An object does not exist or could not be opened; the text names it.
    pub(crate) fn open(path: &Path, module: &str, peer_program: &Path) -> Result<Case, String> {
        let (domain_name, module_name) =
            module.rsplit_once('/').ok_or("a module is named DOMAIN/MODULE")?;
        let provider = enter(path).map_err(Nothing::text)?;
        let domain_attr = provider
            .domains()
            .map_err(|e| format!("query_domains: {e}"))?
            .into_iter()
            .find(|d| fixed_str(&d.name) == Some(domain_name))
            .ok_or_else(|| format!("there is no domain {domain_name}"))?;
        let domain = provider
            .open_domain(domain_name)
            .map_err(|e| format!("domain {domain_name} cannot be opened: {e}"))?;
        let attr = domain
            .modules()
            .map_err(|e| format!("query_modules: {e}"))?
            .into_iter()
            .find(|m| fixed_str(&m.name) == Some(module_name))
            .ok_or_else(|| format!("there is no module {module}"))?;
        let attr = ModuleAttr { caps: counting(attr.caps), ..attr };
        let (path, peer_program) = (path.to_path_buf(), peer_program.to_path_buf());
        Ok(Case { path, provider, domain_attr, attr, domain, peer_program }.limited())
    }

    /// Returns the case with the limits of its endpoints if these are lower than the module's: the core uses the lower of both.
    pub(crate) fn limited(self) -> Case {
        let attr = self.carried().unwrap_or(self.attr);
        Case { attr, ..self }
    }

    fn carried(&self) -> Option<ModuleAttr> {
        if self.is_connector() || !self.provider.tables.endpoint.has("limits") {
            return None;
        }
        let mut desk = self.desk().ok()?;
        let endpoint = desk.endpoint();
        if self.has(caps::AM_SHORT) {
            // The limits of a connection may be known only when it is established.
            desk.send(1, 1, b"").ok()?;
            let _ = desk.receive().ok()?;
        }
        let (limits, _) = desk.retry(|| endpoint.limits(size_of::<EndpointLimits>())).ok()?.ok()?;
        let lesser = |module: usize, endpoint: usize| match (module, endpoint) {
            (module, 0) => module,
            (0, endpoint) => endpoint,
            (module, endpoint) => module.min(endpoint),
        };
        let mut attr = self.attr;
        for (module, endpoint) in [
            (&mut attr.max_short, limits.max_short),
            (&mut attr.max_packed, limits.max_packed),
            (&mut attr.max_zcopy, limits.max_zcopy),
            (&mut attr.max_put, limits.max_put),
            (&mut attr.max_get, limits.max_get),
        ] {
            *module = lesser(*module, endpoint);
        }
        Some(attr)
    }

    pub(crate) fn name(&self) -> String {
        let text = |name| fixed_str(name).unwrap_or("?").to_string();
        format!("{}/{}", text(&self.domain_attr.name), text(&self.attr.name))
    }

    pub(crate) fn is_connector(&self) -> bool {
        self.attr.role == role::CONNECTION_ONLY
    }

    pub(crate) fn has(&self, capability: u64) -> bool {
        self.attr.caps & capability == capability
    }

    /// Skips the check if the module states that peers may crash when an owner removes memory, as an operator can configure it.
    pub(crate) fn survives_the_owner(&self) -> Result<(), Stop> {
        match self.has(caps::DIES_WITH_OWNER) {
            true => Err(Stop::Skip("the module claims CAP_DIES_WITH_OWNER".to_string())),
            false => Ok(()),
        }
    }

    pub(crate) fn connects_to_endpoint(&self) -> bool {
        self.attr.connects & connects::TO_ENDPOINT != 0
    }

    /// Skips the check unless the module has all of `capabilities`.
    pub(crate) fn needs(&self, capabilities: u64) -> Result<(), Stop> {
        lacking(capabilities, self.attr.caps).map_or(Ok(()), |why| Err(Stop::Skip(why)))
    }

    pub(crate) fn interface(&self) -> Result<Interface, Stop> {
        let module = fixed_str(&self.attr.name).unwrap_or("");
        succeeds("open_interface", self.domain.open_interface(module))
    }

    pub(crate) fn address_of(&self, interface: &Interface) -> Result<Vec<u8>, Stop> {
        succeeds("the interface's address", interface.address(self.attr.max_address_len as usize))
    }

    pub(crate) fn memory(&self, len: usize, rights: u64) -> Result<Memory, Stop> {
        let register = if self.has(caps::OWN_MEMORY_ONLY) { 0 } else { self.domain_attr.caps };
        let mut memory = succeeds("register or alloc", self.domain.memory(register, len, rights))?;
        memory.named = self.has(caps::TAKES_REGIONS) && !self.has(caps::SYNCHRONOUS);
        Ok(memory)
    }

    pub(crate) fn key_of(&self, memory: &Memory) -> Result<Vec<u8>, Stop> {
        succeeds("pack_key", memory.key(self.domain_attr.max_key_len as usize))
    }

    pub(crate) fn identity(&self) -> Vec<u8> {
        let len = (self.attr.max_identity_len as usize).min(32);
        (0..len).map(|i| 0xc0 ^ i as u8).collect()
    }

    /// Returns an interface connected to itself. If the module connects endpoints, returns two interfaces: with such a module no
    /// endpoint leads to its own interface.
    pub(crate) fn self_desk(&self) -> Result<Desk, Stop> {
        let interface = self.interface()?;
        if self.connects_to_endpoint() {
            return self.join(interface, self.interface()?);
        }
        self.join(interface.clone(), interface)
    }

    /// Returns two connected interfaces of the domain, or one connected to itself if the module reaches no other.
    pub(crate) fn desk(&self) -> Result<Desk, Stop> {
        let (near, far) = (self.interface()?, self.interface()?);
        let reach = |address| near.reachable(address).is_ok();
        if !self.connects_to_endpoint() && !reach(&self.address_of(&far)?) {
            return self.join(near.clone(), near);
        }
        self.join(near, far)
    }

    fn join(&self, near: Interface, far: Interface) -> Result<Desk, Stop> {
        let to_self = near.same(&far);
        let mut boxes = vec![Mailbox::new(near)];
        if !to_self {
            boxes.push(Mailbox::new(far));
        }
        let synchronous = self.has(caps::SYNCHRONOUS);
        let far_ends = Vec::new();
        let mut desk = Desk { boxes, endpoint: None, back: None, far_ends, synchronous };
        desk.connect_ends(self)?;
        Ok(desk)
    }
}

/// Returns the capabilities that the checks use. Without remote completion these exclude puts, gets, atomics and key pointers.
pub(crate) fn counting(claimed: u64) -> u64 {
    let memory = caps::PUT | caps::GET | caps::ATOMICS | caps::PUT_NOTIFY | caps::KEY_POINTER;
    match claimed & caps::REMOTE_COMPLETION {
        0 => claimed & !memory,
        _ => claimed,
    }
}

/// The cookie of the endpoint that [`Case::desk`] makes: all of its 64 bits belong to the core.
pub(crate) const NEAR_COOKIE: u64 = 0xe0e1_e2e3_0000_00e0;

/// Returns the short name of a capability: `put` for `TIELINE_CAP_PUT`.
pub(crate) fn short_name(named: &Named) -> String {
    named.c_name.trim_start_matches("TIELINE_CAP_").to_lowercase()
}

/// Two ends (or one that is both) and the endpoint from the near end to the far one.
pub(crate) struct Desk {
    pub(crate) boxes: Vec<Mailbox>,
    pub(crate) endpoint: Option<Endpoint>,
    back: Option<Endpoint>,
    /// The far endpoints of the connections that [`Desk::second`] has made.
    far_ends: Vec<Endpoint>,
    synchronous: bool,
}

impl Desk {
    pub(crate) fn of(case: &Case, mailbox: Mailbox) -> Desk {
        Desk {
            boxes: vec![mailbox],
            endpoint: None,
            back: None,
            far_ends: Vec::new(),
            synchronous: case.has(caps::SYNCHRONOUS),
        }
    }

    pub(crate) fn far(&mut self) -> &mut Mailbox {
        let last = self.boxes.len() - 1;
        &mut self.boxes[last]
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint.clone().expect("a check uses the endpoint only after it has connected")
    }

    pub(crate) fn connect_ends(&mut self, case: &Case) -> Result<(), Stop> {
        if !case.connects_to_endpoint() {
            let address = case.address_of(&self.far().interface)?;
            if let Err(why) = self.boxes[0].interface.reachable(&address) {
                return Err(Stop::Skip(format!("its own process is not reachable: {why}")));
            }
            return self.connect_as(&address, &case.identity(), NEAR_COOKIE);
        }
        let endpoint = self.connect(0, &[], &case.identity(), NEAR_COOKIE)?;
        let capacity = case.attr.max_endpoint_address_len as usize;
        let here = succeeds("the endpoint's address", endpoint.address(capacity))?;
        if self.boxes.len() < 2 {
            succeeds("connecting an endpoint to itself", endpoint.connect(&here))?;
        } else {
            let back = self.connect(1, &[], &case.identity(), NEAR_COOKIE + 1)?;
            let there = succeeds("the endpoint's address", back.address(capacity))?;
            succeeds("connecting to the endpoint", endpoint.connect(&there))?;
            succeeds("connecting to the endpoint", back.connect(&here))?;
            self.back = Some(back);
        }
        self.endpoint = Some(endpoint);
        Ok(())
    }

    pub(crate) fn forget(&mut self) {
        for mailbox in &mut self.boxes {
            mailbox.forget();
        }
    }

    /// Orders later operations after earlier ones. Skips the check if the lane leaves this order to the core.
    pub(crate) fn fence(&mut self) -> Result<(), Stop> {
        let endpoint = self.endpoint();
        match self.retry(|| endpoint.fence())? {
            Err(Status::Unsupported) => {
                let why = "fence returns UNSUPPORTED: the core waits for a flush instead";
                Err(Stop::Skip(why.to_string()))
            }
            said => crate::report::equal("fence", Ok(0), said),
        }
    }

    pub(crate) fn revoke(&mut self, memory: &mut Memory) -> Result<Result<(), Failure>, Stop> {
        let mut patience = None;
        loop {
            match memory.revoke() {
                Err(failure) if failure.status == Status::Again => {
                    self.turn_again("deregister", &mut patience)?;
                }
                other => return Ok(other),
            }
        }
    }

    /// Connects to a peer's address with this cookie; the address is empty for a module that connects endpoints.
    pub(crate) fn connect_as(
        &mut self,
        address: &[u8],
        who: &[u8],
        cookie: u64,
    ) -> Result<(), Stop> {
        self.endpoint = Some(self.connect(0, address, who, cookie)?);
        Ok(())
    }

    /// Makes another endpoint to the far end. Returns `None` if the module connects endpoints and the desk has only one interface.
    pub(crate) fn second(&mut self, case: &Case) -> Result<Option<Endpoint>, Stop> {
        if case.connects_to_endpoint() {
            return match self.boxes.len() {
                2 => self.second_pair(case).map(Some),
                _ => Ok(None),
            };
        }
        let address = case.address_of(&self.far().interface)?;
        self.connect(0, &address, &case.identity(), NEAR_COOKIE + 2).map(Some)
    }

    /// Makes another connection of the same two interfaces. Its far end stays open until the desk closes its endpoints.
    fn second_pair(&mut self, case: &Case) -> Result<Endpoint, Stop> {
        let cookie = NEAR_COOKIE + 16 + 2 * self.far_ends.len() as u64;
        let near = self.connect(0, &[], &case.identity(), cookie)?;
        let far = self.connect(1, &[], &case.identity(), cookie + 1)?;
        let capacity = case.attr.max_endpoint_address_len as usize;
        for (from, to) in [(&near, &far), (&far, &near)] {
            let there = succeeds("the endpoint's address", to.address(capacity))?;
            succeeds("connecting to the endpoint", from.connect(&there))?;
        }
        self.far_ends.push(far);
        Ok(near)
    }

    pub(crate) fn close_endpoints(&mut self) {
        self.endpoint = None;
        self.back = None;
        self.far_ends.clear();
    }

    /// Closes the far endpoints and, if the desk has two interfaces, the far interface.
    pub(crate) fn far_leaves(&mut self) {
        self.back = None;
        self.far_ends.clear();
        self.boxes.truncate(1);
    }

    /// Closes all endpoints and, if the desk has two interfaces, the near interface.
    pub(crate) fn near_leaves(&mut self) {
        self.close_endpoints();
        if self.boxes.len() > 1 {
            drop(self.boxes.remove(0));
        }
    }

    pub(crate) fn turn(&mut self) -> Result<(), Stop> {
        let mut any = false;
        for mailbox in &mut self.boxes {
            any |= mailbox.turn()?;
        }
        if !any {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Repeats a call, with progress in between, until its result is not AGAIN. Fails the check if that takes too long.
    pub(crate) fn retry<T>(
        &mut self,
        mut call: impl FnMut() -> Result<T, Status>,
    ) -> Result<Result<T, Status>, Stop> {
        let mut patience = None;
        loop {
            match call() {
                Err(Status::Again) => self.turn_again("a data call", &mut patience)?,
                other => return Ok(other),
            }
        }
    }

    /// Makes a turn after AGAIN, which must not be the permanent result.
    fn turn_again(&mut self, what: &str, patience: &mut Option<Patience>) -> Result<(), Stop> {
        self.turn()?;
        let patience = patience.get_or_insert_with(Patience::new);
        patience.still(
            what,
            "that it finds room while both ends are polled,",
            "AGAIN for ever: what a peer has polled makes room again",
        )
    }

    fn connect(
        &mut self,
        end: usize,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<Endpoint, Stop> {
        let interface = self.boxes[end].interface.clone();
        if address.is_empty() {
            self.boxes[end].cookies.push(cookie);
        }
        let mut patience = None;
        loop {
            match interface.connect(address, identity, cookie) {
                Err(failure) if failure.status == Status::Again => {
                    self.turn_again("connect", &mut patience)?;
                }
                other => return succeeds("connect", other),
            }
        }
    }

    pub(crate) fn send(&mut self, id: u32, header: u64, data: &[u8]) -> Result<(), Stop> {
        let endpoint = self.endpoint();
        let code = self.retry(|| endpoint.am_short(id, header, data))?;
        let code = succeeds(format!("am_short of {} bytes", data.len()), code)?;
        crate::report::equal("what am_short returns", 0, code)
    }

    pub(crate) fn receive(&mut self) -> Result<Received, Stop> {
        let mut patience = None;
        loop {
            if let Some(message) = self.far().messages.pop_front() {
                return Ok(message);
            }
            self.turn()?;
            let patience = patience.get_or_insert_with(Patience::new);
            patience.still("a message that was sent", "its arrival", "nothing")?;
        }
    }

    /// Makes progress until the operation whose call returned `code` has completed. Returns the fetched value, or the error.
    pub(crate) fn complete(
        &mut self,
        code: Result<i64, Status>,
        cookie: u64,
    ) -> Result<Result<u64, Status>, Stop> {
        let patience = Patience::new();
        match code {
            Ok(0) => Ok(Ok(0)),
            Ok(1) => loop {
                let done = &mut self.boxes[0].completions;
                if let Some(at) = done.iter().position(|c| c.cookie == cookie) {
                    let completion = done.remove(at);
                    return Ok(match completion.status {
                        0 => Ok(completion.header),
                        status => Err(Status::from_code(status)),
                    });
                }
                self.turn()?;
                let what = "an operation that is PENDING";
                patience.still(what, "its COMPLETION", "none with its cookie")?;
            },
            Ok(other) => Err(fail("what a data call returns", "0, 1 or a negative status", other)),
            Err(status) => Ok(Err(status)),
        }
    }

    pub(crate) fn import(&mut self, packed: &[u8]) -> Result<Result<Key, Failure>, Stop> {
        let endpoint = self.endpoint();
        let mut patience = None;
        loop {
            match endpoint.import(packed) {
                Err(failure) if failure.status == Status::Again => {
                    self.turn_again("import_key", &mut patience)?;
                }
                other => return Ok(other),
            }
        }
    }

    pub(crate) fn synchronous(&self, code: Result<i64, Status>, verb: &str) -> Result<(), Stop> {
        if self.synchronous && code == Ok(1) {
            return Err(fail(
                format!("a {verb} of a synchronous module"),
                "0 or an error",
                "PENDING",
            ));
        }
        Ok(())
    }

    pub(crate) fn rma(
        &mut self,
        put: bool,
        iov: &[Iov],
        key: &Key,
        offset: u64,
    ) -> Result<Result<(), Status>, Stop> {
        self.rma_with(put, iov, key, offset, op_flags::REMOTE_COMPLETION)
    }

    pub(crate) fn rma_with(
        &mut self,
        put: bool,
        iov: &[Iov],
        key: &Key,
        offset: u64,
        flags: u64,
    ) -> Result<Result<(), Status>, Stop> {
        const COOKIE: u64 = 0x0f0f_1234;
        let endpoint = self.endpoint();
        let target = Target { key, offset, cookie: COOKIE, flags };
        let code = self.retry(|| endpoint.rma(put, iov, target))?;
        self.synchronous(code, if put { "put" } else { "get" })?;
        Ok(self.complete(code, COOKIE)?.map(|_| ()))
    }
}
