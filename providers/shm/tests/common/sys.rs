//! Calls the provider through its C tables, as the core does, with a host that has a given configuration.
#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub)] // the C side of the ABI, for tests and examples

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use tieline_plugin_api::abi::{
    AllocParams, Atomic, DomainOps, DomainParams, EndpointOps, EndpointParams, Event, ImportParams,
    InterfaceOps, InterfaceParams, Iov, KeyParams, MemoryRegion, MemoryUse, ProviderOps, Rma,
    played_host,
};
use tieline_plugin_api::{Status, abi::shims};

/// A status with its text.
#[derive(Debug)]
pub struct Error {
    pub status: Status,
    pub text: String,
}

pub struct Provider {
    ops: ProviderOps,
}

impl Provider {
    pub fn open(config: &[(&str, &str)]) -> Result<Provider, Error> {
        let pairs: HashMap<String, String> =
            config.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let host = Box::leak(Box::new(played_host(move |name| pairs.get(name).cloned())));
        let mut ops = ProviderOps::empty();
        // SAFETY: the host table is never freed, and `ops` is a table to fill.
        let status = unsafe { shims::entry::<tieline_provider_shm::Shm>(host, &mut ops) };
        if status != 0 {
            return Err(Error { status: Status::from_code(status), text: String::new() });
        }
        Ok(Provider { ops })
    }

    fn error(&self, code: i64) -> Error {
        let mut text = vec![0u8; 512];
        // SAFETY: the provider's function fills the buffer of this call.
        let len =
            unsafe { self.ops.last_error.unwrap()(self.ops.state, text.as_mut_ptr(), text.len()) };
        text.truncate(len.max(0) as usize);
        Error {
            status: Status::from_code(code as i32),
            text: String::from_utf8_lossy(&text).into(),
        }
    }

    pub fn domain(&self) -> Domain<'_> {
        let params = DomainParams { name: "shm".as_ptr(), name_len: 3, ..DomainParams::empty() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the provider's table is complete.
        let status = unsafe { self.ops.open_domain.unwrap()(self.ops.state, &params, &mut handle) };
        assert_eq!(status, 0);
        // SAFETY: the provider's tables live as long as the process.
        Domain { provider: self, handle, ops: unsafe { &*self.ops.domain } }
    }
}

pub struct Domain<'p> {
    provider: &'p Provider,
    handle: *mut c_void,
    ops: &'static DomainOps,
}

// SAFETY: any thread may call domain functions; the provider's table is constant.
unsafe impl Send for Domain<'_> {}
// SAFETY: any thread may call domain functions; the provider's table is constant.
unsafe impl Sync for Domain<'_> {}

impl Domain<'_> {
    pub fn interface(&self) -> Result<Interface<'_>, Error> {
        let params =
            InterfaceParams { module: "ring".as_ptr(), module_len: 4, ..InterfaceParams::empty() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the provider's table is complete.
        let status = unsafe { self.ops.open_interface.unwrap()(self.handle, &params, &mut handle) };
        if status != 0 {
            return Err(self.provider.error(i64::from(status)));
        }
        // SAFETY: the provider's tables live as long as the process.
        let (ops, ep_ops) =
            unsafe { (&*self.provider.ops.interface, &*self.provider.ops.endpoint) };
        Ok(Interface { provider: self.provider, handle, ops, ep_ops })
    }

    pub fn alloc(&self, len: usize, access: u64) -> Result<Memory, Error> {
        let mut region = MemoryRegion::empty();
        // SAFETY: the provider's table is complete.
        let status = unsafe {
            self.ops.alloc.unwrap()(self.handle, &AllocParams::new(len, access), &mut region)
        };
        if status != 0 {
            return Err(self.provider.error(i64::from(status)));
        }
        Ok(Memory { region })
    }

    pub fn deregister(&self, memory: Memory) {
        // SAFETY: the region belongs to this domain and is ended once.
        let status = unsafe { self.ops.deregister.unwrap()(self.handle, memory.region.handle) };
        assert_eq!(status, 0);
    }

    pub fn key(&self, memory: &Memory) -> Vec<u8> {
        let mut key = vec![0u8; 128];
        // SAFETY: the region belongs to this domain, and the buffer to this call.
        let len = unsafe {
            let whole = KeyParams { region: memory.region.handle, ..KeyParams::empty() };
            self.ops.pack_key.unwrap()(self.handle, &whole, key.as_mut_ptr(), key.len())
        };
        assert!(len > 0);
        key.truncate(len as usize);
        key
    }
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        // SAFETY: the lifetimes ensure that everything opened from the domain is closed.
        unsafe { self.ops.close.unwrap()(self.handle) }
    }
}

pub struct Memory {
    pub region: MemoryRegion,
}

impl Memory {
    pub fn load(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= self.region.len);
        // SAFETY: the word is inside the region.
        unsafe { self.region.base.add(offset).cast::<u64>().read_volatile() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: the slice is the region; no thread writes to it in the tests that call this.
        unsafe { std::slice::from_raw_parts(self.region.base, self.region.len) }.to_vec()
    }
}

pub struct Interface<'p> {
    provider: &'p Provider,
    handle: *mut c_void,
    ops: &'static InterfaceOps,
    ep_ops: &'static EndpointOps,
}

impl<'p> Interface<'p> {
    pub fn address(&self) -> Vec<u8> {
        let mut out = vec![0u8; 512];
        // SAFETY: the buffer belongs to this call.
        let len = unsafe { self.ops.address.unwrap()(self.handle, out.as_mut_ptr(), out.len()) };
        out.truncate(len as usize);
        out
    }

    pub fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<Endpoint<'_>, Error> {
        let params = EndpointParams {
            address: address.as_ptr(),
            address_len: address.len(),
            identity: identity.as_ptr(),
            identity_len: identity.len(),
            cookie,
            ..EndpointParams::empty()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the provider's table is complete.
        let status = unsafe { self.ops.connect.unwrap()(self.handle, &params, &mut handle) };
        if status != 0 {
            return Err(self.provider.error(i64::from(status)));
        }
        Ok(Endpoint { provider: self.provider, handle, ops: self.ep_ops, _interface: self })
    }

    pub fn reachable(&self, address: &[u8]) -> Result<(), Error> {
        // SAFETY: the bytes belong to this call.
        let status =
            unsafe { self.ops.reachable.unwrap()(self.handle, address.as_ptr(), address.len()) };
        if status == 0 { Ok(()) } else { Err(self.provider.error(i64::from(status))) }
    }

    #[inline(always)]
    pub fn poll<'e>(&self, events: &'e mut [MaybeUninit<Event>]) -> &'e [Event] {
        // SAFETY: the array belongs to this call; the provider initialises the number of events that it returns.
        unsafe {
            let n = self.ops.poll.unwrap()(
                self.handle,
                events.as_mut_ptr().cast(),
                events.len() as u32,
            );
            assert!(n >= 0, "poll: {n}");
            std::slice::from_raw_parts(events.as_ptr().cast(), n as usize)
        }
    }

    pub fn arm(&self) -> i32 {
        // SAFETY: the provider's table is complete.
        unsafe { self.ops.arm.unwrap()(self.handle) }
    }

    pub fn event_fd(&self) -> i32 {
        // SAFETY: the provider's table is complete.
        unsafe { self.ops.event_fd.unwrap()(self.handle) }
    }

    pub fn memory(&self) -> MemoryUse {
        let mut out = MemoryUse::empty();
        // SAFETY: the provider's table is complete.
        assert_eq!(unsafe { self.ops.memory.unwrap()(self.handle, &mut out) }, 0);
        out
    }

    /// Waits until the descriptor is readable. Returns `false` after `ms` milliseconds.
    pub fn wait(&self, ms: i32) -> bool {
        let mut fd = libc::pollfd { fd: self.event_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `fd` is one record.
        unsafe { libc::poll(&mut fd, 1, ms) == 1 }
    }
}

impl Drop for Interface<'_> {
    fn drop(&mut self) {
        // SAFETY: the lifetimes ensure that the interface's endpoints are closed.
        unsafe { self.ops.close.unwrap()(self.handle) }
    }
}

pub struct Endpoint<'i> {
    provider: &'i Provider,
    handle: *mut c_void,
    ops: &'static EndpointOps,
    _interface: &'i Interface<'i>,
}

fn status(code: i64) -> Result<u64, Status> {
    if code < 0 { Err(Status::from_code(code as i32)) } else { Ok(code as u64) }
}

unsafe extern "C" fn pack(argument: *mut c_void, at: *mut u8, capacity: usize) -> i64 {
    // SAFETY: the argument is the slice that `packed` was given.
    unsafe {
        let bytes = &*argument.cast::<&[u8]>();
        assert!(bytes.len() <= capacity);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        bytes.len() as i64
    }
}

impl Endpoint<'_> {
    #[inline(always)]
    pub fn short(&self, id: u32, header: u64, payload: &[u8]) -> Result<u64, Status> {
        // SAFETY: the payload is borrowed for the call.
        let code = unsafe {
            self.ops.am_short.unwrap()(self.handle, id, header, payload.as_ptr(), payload.len())
        };
        status(i64::from(code))
    }

    #[inline(always)]
    pub fn packed(
        &self,
        id: u32,
        header: u64,
        mut payload: &[u8],
        max: usize,
    ) -> Result<u64, Status> {
        // SAFETY: the callback gets the slice back.
        let code = unsafe {
            let argument = (&raw mut payload).cast();
            self.ops.am_packed.unwrap()(self.handle, id, header, Some(pack), argument, max)
        };
        status(code)
    }

    /// Sends a packed message whose packer is a closure that returns a length or a status.
    pub fn packed_by<F: FnMut(usize) -> i64>(
        &self,
        id: u32,
        header: u64,
        max: usize,
        mut packer: F,
    ) -> Result<u64, Status> {
        unsafe extern "C" fn call<F: FnMut(usize) -> i64>(
            argument: *mut c_void,
            at: *mut u8,
            capacity: usize,
        ) -> i64 {
            // SAFETY: the argument is the closure, and the provider's buffer has this length.
            unsafe {
                at.write_bytes(7, capacity);
                (*argument.cast::<F>())(capacity)
            }
        }
        let argument = (&raw mut packer).cast();
        // SAFETY: the closure lives through the call.
        let code = unsafe {
            self.ops.am_packed.unwrap()(self.handle, id, header, Some(call::<F>), argument, max)
        };
        status(code)
    }

    #[inline(always)]
    pub fn gathered(&self, id: u32, header: u64, pieces: &[&[u8]]) -> Result<u64, Status> {
        let iov: Vec<Iov> =
            pieces.iter().map(|p| Iov::new(p.as_ptr().cast_mut(), p.len())).collect();
        // SAFETY: the pieces are borrowed for the call, and the provider is done when it returns.
        let code = unsafe {
            self.ops.am_zcopy.unwrap()(self.handle, id, header, iov.as_ptr(), iov.len(), 0)
        };
        status(i64::from(code))
    }

    pub fn import(&self, key: &[u8]) -> Result<Key, Error> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the bytes are borrowed for the call.
        let code = unsafe {
            let params =
                ImportParams { bytes: key.as_ptr(), len: key.len(), ..ImportParams::empty() };
            self.ops.import_key.unwrap()(self.handle, &params, &mut handle)
        };
        if code != 0 {
            return Err(self.provider.error(i64::from(code)));
        }
        Ok(Key { handle })
    }

    pub fn drop_key(&self, key: Key) {
        // SAFETY: the key belongs to this endpoint and is dropped once.
        unsafe { self.ops.drop_key.unwrap()(self.handle, key.handle) }
    }

    fn rma(&self, key: &Key, base: *mut u8, len: usize, offset: u64) -> (Rma, Box<Iov>) {
        let iov = Box::new(Iov::new(base, len));
        let rma = Rma {
            iov: &*iov,
            iov_count: 1,
            len,
            key: key.handle,
            offset,
            cookie: 0,
            flags: 0,
            reserved: 0,
        };
        (rma, iov)
    }

    pub fn put(&self, key: &Key, offset: u64, bytes: &[u8]) -> Result<u64, Status> {
        let (rma, _iov) = self.rma(key, bytes.as_ptr().cast_mut(), bytes.len(), offset);
        // SAFETY: the pieces are borrowed for the call.
        status(i64::from(unsafe { self.ops.put.unwrap()(self.handle, &rma) }))
    }

    pub fn put_notify(
        &self,
        key: &Key,
        offset: u64,
        bytes: &[u8],
        word: u32,
    ) -> Result<u64, Status> {
        let (rma, _iov) = self.rma(key, bytes.as_ptr().cast_mut(), bytes.len(), offset);
        // SAFETY: the pieces are borrowed for the call.
        status(i64::from(unsafe { self.ops.put_notify.unwrap()(self.handle, &rma, word) }))
    }

    pub fn get(&self, key: &Key, offset: u64, bytes: &mut [u8]) -> Result<u64, Status> {
        let (rma, _iov) = self.rma(key, bytes.as_mut_ptr(), bytes.len(), offset);
        // SAFETY: the pieces are borrowed for the call.
        status(i64::from(unsafe { self.ops.get.unwrap()(self.handle, &rma) }))
    }

    pub fn atomic(
        &self,
        key: &Key,
        (op, width): (u32, u32),
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<u64, Status> {
        let mut result = 0u64;
        let record = Atomic {
            op,
            width,
            key: key.handle,
            offset,
            operand,
            compare,
            result: &mut result,
            cookie: 0,
            flags: 1,
        };
        // SAFETY: the record is borrowed for the call.
        let _ = status(i64::from(unsafe { self.ops.atomic.unwrap()(self.handle, &record) }))?;
        Ok(result)
    }
}

impl Drop for Endpoint<'_> {
    fn drop(&mut self) {
        // SAFETY: the object is closed once.
        unsafe { self.ops.close.unwrap()(self.handle) }
    }
}

pub struct Key {
    handle: *mut c_void,
}

/// Returns an array for events.
pub fn events<const N: usize>() -> [MaybeUninit<Event>; N] {
    [const { MaybeUninit::uninit() }; N]
}

/// Returns the bytes that an event points to.
pub fn data(event: &Event) -> &[u8] {
    if event.data.is_null() || event.len == 0 {
        return &[];
    }
    // SAFETY: the bytes are valid until the next poll, which the callers await.
    unsafe { std::slice::from_raw_parts(event.data, event.len) }
}

/// Puts this process on one CPU.
pub fn pin(cpu: usize) {
    // SAFETY: zeros are an empty set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        let _ = libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Sends a signal to a process that the caller started.
pub fn kill(pid: u32, signal: i32) {
    // SAFETY: the call takes numbers only.
    let _ = unsafe { libc::kill(pid as i32, signal) };
}

/// Becomes another user permanently; needs root.
pub fn become_user(uid: u32) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::setgid(uid) == 0 && libc::setuid(uid) == 0 }
}

pub fn is_root() -> bool {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Sets the limit on descriptors.
pub fn limit_files(most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the record is initialised.
    let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}

/// Returns the error with which the system refuses to connect to the socket in an address; 0 if it does not.
pub fn connect_error(address: &[u8]) -> i32 {
    let name = &address[1 + 16 + 16 + 8 + 4 + 4 + 16 + 1..];
    // SAFETY: the records are plain, and the buffers belong to this function.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0);
        let mut to: libc::sockaddr_un = std::mem::zeroed();
        to.sun_family = libc::AF_UNIX as u16;
        for (place, &byte) in to.sun_path.iter_mut().zip(name) {
            *place = byte as libc::c_char;
        }
        let len = 2 + name.len() + usize::from(name[0] != 0);
        let done = libc::connect(fd, (&raw const to).cast(), len as u32);
        if done == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
    }
}
