//! Owned objects of the connection manager: event channels, and identifiers ("ids"), which correspond to sockets.
//!
//! No call waits for another host: the channel's descriptor is non-blocking, and longer operations end in an event.

#![allow(unsafe_code)]

use super::abi::*;
use super::load::{Library, library};
use crate::abi::{ibv_device, ibv_qp_attr};
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::{self, NonNull};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::rc::Rc;
use tieline_plugin_api::Failure;

fn check(code: c_int, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::last_os_error(&what())) }
}

/// The event channel of several ids.
pub(super) struct Channel {
    api: &'static Library,
    raw: NonNull<rdma_event_channel>,
}

/// An event of an id.
pub(super) struct CmEvent {
    /// The id's [`Id::key`]; for a request, the listener's.
    pub(super) key: usize,
    /// The kind of event, `RDMA_CM_EVENT_*`.
    pub(super) kind: c_uint,
    /// The error number of the event, or the reason of a rejection.
    pub(super) status: i32,
    /// The private data of a request, a response or a rejection, padded with zeros to the maximum length; otherwise empty.
    pub(super) private: Vec<u8>,
    /// The id of a connection request.
    pub(super) request: Option<Id>,
}

impl Channel {
    pub(super) fn new() -> Result<Rc<Channel>, Failure> {
        let api = library()?;
        // SAFETY: the function takes no argument; the library sets itself up at its first call.
        let raw = unsafe { (api.rdma_create_event_channel)() };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Failure::last_os_error("an event channel of rdma_cm cannot be made"))?;
        let channel = Channel { api, raw };
        // SAFETY: the channel owns the descriptor that fcntl changes.
        let code = unsafe {
            let flags = libc::fcntl(channel.fd(), libc::F_GETFL);
            libc::fcntl(channel.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        check(c_int::from(code < 0), || "fcntl of an event channel".into())?;
        Ok(Rc::new(channel))
    }

    /// Returns the descriptor that is readable when there is an event.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: the channel is live.
        unsafe { self.raw.as_ref().fd }
    }

    /// Returns the next event, if any.
    ///
    /// # Errors
    /// The channel cannot be used any more.
    pub(super) fn next(self: &Rc<Channel>) -> Result<Option<CmEvent>, Failure> {
        let mut raw: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is live, and `raw` takes the event.
        if unsafe { (self.api.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut raw) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Failure::from_io("events of rdma_cm", &error)),
            };
        }
        let Some(event) = NonNull::new(raw) else { return Ok(None) };
        // SAFETY: the library filled the event and keeps it until the acknowledgement, which happens once, below. The private data
        // has the stated length. The id of a request belongs to this code from here on; other ids are only compared.
        unsafe {
            let seen = event.as_ref();
            let is_request = seen.event == RDMA_CM_EVENT_CONNECT_REQUEST;
            let data = seen.conn.private_data.cast::<u8>();
            let has_data = matches!(
                seen.event,
                RDMA_CM_EVENT_CONNECT_REQUEST
                    | RDMA_CM_EVENT_CONNECT_RESPONSE
                    | RDMA_CM_EVENT_REJECTED
            ) && !data.is_null();
            let found = CmEvent {
                key: if is_request { seen.listen_id.addr() } else { seen.id.addr() },
                kind: seen.event,
                status: seen.status,
                private: if has_data {
                    core::slice::from_raw_parts(data, usize::from(seen.conn.private_data_len))
                        .to_vec()
                } else {
                    Vec::new()
                },
                request: NonNull::new(seen.id)
                    .filter(|_| is_request)
                    .map(|raw| Id { channel: Rc::clone(self), raw }),
            };
            let _ = (self.api.rdma_ack_cm_event)(event.as_ptr());
            Ok(Some(found))
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every id holds the channel, and every event was acknowledged.
        unsafe { (self.api.rdma_destroy_event_channel)(self.raw.as_ptr()) }
    }
}

/// A connection manager id: a listener, or one side of a connection.
pub(super) struct Id {
    channel: Rc<Channel>,
    raw: NonNull<rdma_cm_id>,
}

impl Id {
    pub(super) fn new(channel: &Rc<Channel>) -> Result<Id, Failure> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is live, because the id holds it, and `raw` takes the new id.
        let code = unsafe {
            let create = channel.api.rdma_create_id;
            create(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), RDMA_PS_TCP)
        };
        let failed = || Failure::last_os_error("an id of rdma_cm cannot be made");
        let raw = NonNull::new(raw).filter(|_| code == 0).ok_or_else(failed)?;
        Ok(Id { channel: Rc::clone(channel), raw })
    }

    fn api(&self) -> &'static Library {
        self.channel.api
    }

    /// Returns the value that identifies this id in [`CmEvent::key`]: its address.
    pub(super) fn key(&self) -> usize {
        self.raw.addr().get()
    }

    pub(super) fn bind(&self, to: SocketAddr) -> Result<(), Failure> {
        let mut room = pack(to);
        // SAFETY: the id is live, and the address is of its family.
        let code = unsafe { (self.api().rdma_bind_addr)(self.raw.as_ptr(), &raw mut room) };
        check(code, || format!("binding to {to}"))
    }

    pub(super) fn listen(&self, backlog: i32) -> Result<(), Failure> {
        // SAFETY: the id is live.
        check(unsafe { (self.api().rdma_listen)(self.raw.as_ptr(), backlog) }, || {
            "listening".into()
        })
    }

    /// Returns the local address of a bound id.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: the id is live; the library writes its addresses only within calls on it.
        unpack(unsafe { &self.raw.as_ref().src_addr })
    }

    /// Returns the device and port to which the id is bound.
    pub(super) fn device(&self, name: impl Fn(*mut ibv_device) -> String) -> Option<(String, u8)> {
        // SAFETY: the id is live, and so is the context that the id names.
        unsafe {
            let id = self.raw.as_ref();
            let device = id.verbs.as_ref()?.device;
            Some((name(device), id.port_num))
        }
    }

    pub(super) fn resolve_address(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        timeout_ms: i32,
    ) -> Result<(), Failure> {
        let (mut source, mut target) = (pack(from), pack(to));
        // SAFETY: the id is live, and both addresses are complete records.
        let code = unsafe {
            let resolve = self.api().rdma_resolve_addr;
            resolve(self.raw.as_ptr(), &raw mut source, &raw mut target, timeout_ms)
        };
        check(code, || format!("resolving {to} from {from}"))
    }

    pub(super) fn resolve_route(&self, timeout_ms: i32) -> Result<(), Failure> {
        // SAFETY: the id is live.
        let code = unsafe { (self.api().rdma_resolve_route)(self.raw.as_ptr(), timeout_ms) };
        check(code, || "resolving the route".into())
    }

    /// Sets the type of service of later operations.
    pub(super) fn set_traffic_class(&self, class: u8) -> Result<(), Failure> {
        let mut value = class;
        // SAFETY: the id is live, and the option takes one byte.
        let code = unsafe {
            (self.api().rdma_set_option)(
                self.raw.as_ptr(),
                RDMA_OPTION_ID as c_int,
                RDMA_OPTION_ID_TOS as c_int,
                (&raw mut value).cast::<c_void>(),
                1,
            )
        };
        check(code, || "setting the traffic class".into())
    }

    /// Returns the queue pair attributes for a state (`IBV_QPS_*`), and the mask of valid ones.
    pub(super) fn qp_attributes(&self, state: c_uint) -> Result<(ibv_qp_attr, c_uint), Failure> {
        let mut attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
        let mut mask: c_int = 0;
        // SAFETY: the id is live, and `attr` takes the record; the library reads only the state in it.
        let code = unsafe {
            (self.api().rdma_init_qp_attr)(self.raw.as_ptr(), &raw mut attr, &raw mut mask)
        };
        check(code, || "the attributes of a queue pair".into())?;
        attr.qp_state = state;
        Ok((attr, mask as c_uint))
    }

    pub(super) fn connect(&self, qpn: u32, private: &[u8]) -> Result<(), Failure> {
        let mut param = param(qpn, private);
        // SAFETY: the id is live, and the record is filled; its private data is borrowed for the call.
        let code = unsafe { (self.api().rdma_connect)(self.raw.as_ptr(), &raw mut param) };
        check(code, || "connecting".into())
    }

    /// Confirms the other side's response, which establishes the connection.
    pub(super) fn establish(&self) -> Result<(), Failure> {
        // SAFETY: the id is live.
        let code = unsafe { (self.api().rdma_establish)(self.raw.as_ptr()) };
        check(code, || "establishing the connection".into())
    }

    pub(super) fn accept(&self, qpn: u32, private: &[u8]) -> Result<(), Failure> {
        let mut param = param(qpn, private);
        // SAFETY: the id is live, and the record is filled; its private data is borrowed for the call.
        let code = unsafe { (self.api().rdma_accept)(self.raw.as_ptr(), &raw mut param) };
        check(code, || "accepting".into())
    }

    pub(super) fn reject(&self, private: &[u8]) {
        // SAFETY: the id is live, and the bytes are borrowed for the call.
        let _ = unsafe {
            let reject = self.api().rdma_reject;
            reject(self.raw.as_ptr(), private.as_ptr().cast::<c_void>(), private.len() as u8)
        };
    }

    pub(super) fn disconnect(&self) {
        // SAFETY: the id is live; in the wrong state the call fails without effect.
        let _ = unsafe { (self.api().rdma_disconnect)(self.raw.as_ptr()) };
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the id is live and dropped once; no event of the id is held, so the call does not wait for one.
        let _ = unsafe { (self.api().rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

fn param(qpn: u32, private: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast::<c_void>(),
        private_data_len: private.len() as u8,
        // The connection uses no remote reads or atomics, but a device may refuse a limit of zero.
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: qpn,
    }
}

/// Returns the name of a device.
pub(super) fn device_name(device: *mut ibv_device) -> String {
    let Ok(api) = crate::load::library() else { return String::new() };
    // SAFETY: the device belongs to an open context; its name is NUL-terminated.
    unsafe {
        let name = (api.ibv_get_device_name)(device);
        if name.is_null() {
            return String::new();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

/// Encodes an address as `struct sockaddr_in` or `sockaddr_in6`.
fn pack(address: SocketAddr) -> sockaddr_room {
    let mut room = sockaddr_room { bytes: [0; 128] };
    let family = match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    room.bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    room.bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => room.bytes[4..8].copy_from_slice(&v4.ip().octets()),
        SocketAddr::V6(v6) => {
            room.bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            room.bytes[8..24].copy_from_slice(&v6.ip().octets());
            room.bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    room
}

/// Decodes an address; `None` for other families.
fn unpack(room: &sockaddr_room) -> Option<SocketAddr> {
    let bytes = &room.bytes;
    let family = i32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
            let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_layout() {
        for text in ["10.77.0.1:7174", "[fd00::1]:65535", "[fe80::1%3]:1", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().expect(text);
            assert_eq!(unpack(&pack(address)), Some(address), "{text}");
        }
        assert_eq!(unpack(&sockaddr_room { bytes: [0; 128] }), None);
    }

    #[test]
    fn refusals_of_the_connection_manager_are_errors() {
        use crate::cm::double::sys::{asked, fault};
        let id = Id::new(&Channel::new().expect("it is played")).expect("it is played");
        type Call<'a> = &'a dyn Fn() -> Result<(), Failure>;
        let calls: [(&str, Call<'_>); 3] = [
            ("connect", &|| id.connect(7, b"")),
            ("accept", &|| id.accept(7, b"")),
            ("establish", &|| id.establish()),
        ];
        for (name, call) in calls {
            assert_eq!((call().is_ok(), asked()), (true, vec![name]));
            fault(|faults| faults.refuses = true);
            assert_eq!((call().is_ok(), asked()), (false, vec![name]));
            fault(|faults| faults.refuses = false);
        }
    }
}
