//! The registrations of the simulated library, and its keys that must be mapped.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::double::sys::{close, head, new, number, ops};
use crate::double::world::{Memory, world};
use core::ffi::{c_int, c_void};
use core::ptr;

/// The size of a key that must be mapped (fi_mr(3), fi_mr_raw_attr).
const RAW: usize = 24;
const BASE: u64 = 0x5a00_0000;
/// The error for a buffer that is too small (fi_errno.h).
const FI_ETOOSMALL: c_int = 257;

/// Returns the bytes of a key.
fn raw(key: u64) -> [u8; RAW] {
    let mut bytes = [0xee; RAW];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[16..].copy_from_slice(&(!key).to_le_bytes());
    bytes
}

unsafe extern "C" fn show_key(fid: *mut fid, command: c_int, record: *mut c_void) -> c_int {
    if command != FI_GET_RAW_MR {
        return 0;
    }
    let key = number(fid.cast::<fid_mr>());
    // SAFETY: the record of this command is filled, with the stated room.
    unsafe {
        let attr = &mut *record.cast::<fi_mr_raw_attr>();
        let room = core::mem::replace(&mut *attr.key_size, RAW);
        if room < RAW || world(|world| world.manners.keys_are_long) {
            return -FI_ETOOSMALL;
        }
        *attr.base_addr = BASE + (key & 0xffff);
        ptr::copy_nonoverlapping(raw(key).as_ptr(), attr.raw_key, RAW);
    }
    0
}

/// Maps or unmaps a key.
pub(in crate::double) unsafe extern "C" fn map_key(
    domain: *mut fid,
    command: c_int,
    record: *mut c_void,
) -> c_int {
    let owner = domain.addr();
    if command == FI_UNMAP_KEY {
        // SAFETY: the record of this command is a key.
        let key = unsafe { record.cast::<u64>().read() };
        return world(|world| {
            let mut ways = world.ends.iter().flat_map(|end| &end.ways);
            if ways.any(|way| way.key == key) {
                world.complaints.push("a key that operations go by was taken back".into());
            }
            if world.mapped.remove(&key).is_none_or(|(by, _)| by != owner) {
                world.complaints.push("a key was taken back that is not there".into());
            }
            0
        });
    }
    assert_eq!(command, FI_MAP_RAW_MR);
    // SAFETY: the record of this command is filled, with the stated number of bytes.
    unsafe {
        let map = &*record.cast::<fi_mr_map_raw>();
        let bytes = core::slice::from_raw_parts(map.raw_key, map.key_size);
        let key = bytes.first_chunk::<8>().map_or(0, |key| u64::from_le_bytes(*key));
        if bytes != raw(key) || map.base_addr != BASE + (key & 0xffff) {
            return -libc::EINVAL;
        }
        *map.key = world(|world| {
            world.next_key += 1;
            let mapped = 0x77_0000 + world.next_key;
            let _ = world.mapped.insert(mapped, (owner, key));
            mapped
        });
    }
    0
}

/// Closes a domain. All keys must be unmapped before (fi_mr(3), fi_mr_unmap_key).
pub(in crate::double) unsafe extern "C" fn close_domain(fid: *mut fid) -> c_int {
    let owner = fid.addr();
    world(|world| {
        if world.mapped.values().any(|(by, _)| *by == owner) {
            world.complaints.push("a domain was closed before its keys were taken back".into());
        }
    });
    // SAFETY: the object is closed once.
    unsafe { close::<fid_domain>(fid) }
}

unsafe extern "C" fn close_memory(fid: *mut fid) -> c_int {
    let key = number(fid.cast::<fid_mr>());
    if let Some(error) = world(|world| world.manners.keeps_registrations) {
        return -error;
    }
    let _ = world(|world| world.memory.remove(&key));
    // SAFETY: the object is closed once.
    unsafe { close::<fid_mr>(fid) }
}

unsafe extern "C" fn bind_memory(fid: *mut fid, ep: *mut fid, _: u64) -> c_int {
    let (key, ep) = (number(fid.cast::<fid_mr>()), number(ep.cast::<fid_ep>()) as usize);
    world(|world| {
        if let Some(memory) = world.memory.get_mut(&key) {
            memory.bound = Some(ep);
        }
    });
    0
}

pub(in crate::double) unsafe extern "C" fn reg(
    _: *mut fid,
    base: *const c_void,
    len: usize,
    access: u64,
    _: u64,
    wanted: u64,
    _: u64,
    out: *mut *mut fid_mr,
    _: *mut c_void,
) -> c_int {
    let base = base.expose_provenance();
    if world(|world| world.manners.registrations.is_some_and(|most| world.memory.len() >= most)) {
        return -libc::ENOMEM;
    }
    let key = world(|world| {
        world.next_key += 1;
        let own = world.manners.mr_mode & FI_MR_PROV_KEY != 0;
        let key = if own { 1000 + world.next_key } else { wanted };
        let free = !world.memory.contains_key(&key);
        let memory = Memory { base, len, access, bound: None };
        free.then(|| world.memory.insert(key, memory)).map(|_| key)
    });
    let Some(key) = key else { return -FI_ENOKEY };
    let table_of =
        fi_ops { close: close_memory, bind: bind_memory, control: show_key, ..ops::<fid_mr>() };
    // The descriptor identifies the registration that a piece claims to be in.
    let mem_desc = ptr::without_provenance_mut(key as usize);
    // A registration whose key must be mapped has no key number (fi_mr(3): FI_KEY_NOTAVAIL).
    let raw = world(|world| world.manners.mr_mode & FI_MR_RAW != 0);
    let mr = fid_mr { fid: head(table_of), mem_desc, key: if raw { u64::MAX } else { key } };
    // SAFETY: the target has room for one pointer.
    unsafe { *out = new(mr, key) };
    0
}
