//! Registered memory of this process: regions, and which local key an address has.

use crate::abi::*;
use crate::keys::{KEY_LEN, PackedKey, Seal};
use crate::sys::{Mr, Pd};
use core::ffi::c_uint;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Failure, Status, access};
use tieline_registration::{Device, Lender, Limits};

/// A registered region.
pub struct Region {
    mr: Mr,
    base: u64,
    len: u64,
    access: u64,
    number: u64,
}

/// The regions of a domain. Any thread.
pub(crate) struct Registry {
    /// What registers everything that is not a region, buffers too.
    pub(crate) lender: Arc<Lender<LocalMemory>>,
    seal: Seal,
    next: AtomicU64,
    /// Changes with every deregistration: what somebody remembered of the table is worth nothing then.
    epoch: AtomicU64,
    /// By first byte and number.
    table: RwLock<BTreeMap<(u64, u64), Row>>,
}

/// What the table says of a region.
struct Row {
    len: u64,
    lkey: u32,
    /// The device may write there: not where the memory is mapped to be read.
    writable: bool,
}

/// How many overlapping regions a lookup walks over before it gives up.
const OVERLAPS: usize = 16;

impl Registry {
    pub(crate) fn new(pd: Arc<Pd>, seal: Seal, limits: Option<Limits>) -> Registry {
        Registry {
            lender: Arc::new(Lender::new(LocalMemory(pd), limits)),
            seal,
            next: AtomicU64::new(1),
            epoch: AtomicU64::new(0),
            table: RwLock::default(),
        }
    }

    pub(crate) fn register(
        &self,
        base: *mut u8,
        len: usize,
        rights: u64,
    ) -> Result<Region, Failure> {
        let start = base.expose_provenance() as u64;
        if start == 0 || start.checked_add(len as u64).is_none() {
            let text = format!("{len} bytes at address {start:#x} are no memory of this process");
            return Err(Failure::new(Status::Invalid, text));
        }
        // The device refuses to register nothing; one byte more than asked for is never put into a key.
        let (mr, writable) = self.lender.pressed(|| {
            register(&self.lender.device().0, base, len.max(1), verbs_rights(rights))
        })?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let row = Row { len: len as u64, lkey: mr.lkey(), writable };
        let _ = table.insert((start, number), row);
        Ok(Region { mr, base: start, len: len as u64, access: rights, number })
    }

    pub(crate) fn deregister(&self, region: Region) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let _ = table.remove(&(region.base, region.number));
        let _ = self.epoch.fetch_add(1, Ordering::Release);
        drop(table);
        // Who ends a registration is about to free the memory.
        self.lender.forget(region.base, region.base + region.len);
        drop(region);
    }

    pub(crate) fn pack_key(&self, region: &Region, out: &mut [u8]) -> Result<usize, Failure> {
        let out = out.get_mut(..KEY_LEN).ok_or_else(|| {
            let text = format!("a verbs key takes {KEY_LEN} bytes and the buffer is shorter");
            Failure::new(Status::TooLarge, text)
        })?;
        let key = PackedKey {
            rkey: region.mr.rkey(),
            base: region.base,
            len: region.len,
            access: region.access,
            generation: region.number,
        };
        out.copy_from_slice(&key.pack(&self.seal));
        Ok(KEY_LEN)
    }

    /// A region that holds all of the range, and that the device may write if that is asked for.
    fn find(&self, addr: u64, len: u64, written: bool) -> Option<Found> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.epoch.load(Ordering::Acquire);
        let end = addr.checked_add(len)?;
        table
            .range(..=(addr, u64::MAX))
            .rev()
            .take(OVERLAPS)
            .find(|((base, _), row)| end <= base + row.len && (row.writable || !written))
            .map(|(&(base, _), &Row { len, lkey, writable })| Found {
                epoch,
                base,
                end: base + len,
                lkey,
                writable,
            })
    }
}

#[derive(Clone, Copy)]
struct Found {
    epoch: u64,
    base: u64,
    end: u64,
    lkey: u32,
    writable: bool,
}

/// One thread's memory of where it found local keys: most operations use the same few regions.
#[derive(Default)]
pub(crate) struct Recent {
    found: [Option<Found>; 4],
    next: usize,
}

impl Recent {
    /// The local key of a piece that lies in a registered region; `written`: the device will write there.
    pub(crate) fn lkey(
        &mut self,
        registry: &Registry,
        addr: u64,
        len: usize,
        written: bool,
    ) -> Option<u32> {
        let epoch = registry.epoch.load(Ordering::Acquire);
        let end = addr.checked_add(len as u64)?;
        for found in self.found.iter().flatten() {
            let holds = found.epoch == epoch && found.base <= addr && end <= found.end;
            if holds && (found.writable || !written) {
                return Some(found.lkey);
            }
        }
        let found = registry.find(addr, len as u64, written)?;
        self.found[self.next % self.found.len()] = Some(found);
        self.next = self.next.wrapping_add(1);
        Some(found.lkey)
    }

    /// Makes pieces for the device; for memory that is not registered a registration is lent, which `borrowed` holds
    /// until the operation has ended. Empty pieces are left out.
    pub(crate) fn pieces(
        &mut self,
        registry: &Registry,
        iov: &[Iov],
        out: &mut Vec<ibv_sge>,
        borrowed: &mut Vec<Loan>,
        written: bool,
    ) -> Result<(), Status> {
        for piece in iov.iter().filter(|piece| piece.len > 0) {
            let addr = piece.base.expose_provenance() as u64;
            let length = u32::try_from(piece.len).map_err(|_| Status::TooLarge)?;
            let lkey = match self.lkey(registry, addr, piece.len, written) {
                Some(lkey) => lkey,
                None => {
                    let loan = registry.lender.lend(piece.base, piece.len, written, Mr::lkey);
                    let (loan, lkey) = loan.map_err(|failure| failure.status)?;
                    borrowed.push(loan);
                    lkey
                }
            };
            out.push(ibv_sge { addr, length, lkey });
        }
        Ok(())
    }
}

/// A registration for the time of one operation.
pub(crate) type Loan = tieline_registration::Loan<LocalMemory>;

/// What registers the pieces of operations, and buffers.
pub(crate) struct LocalMemory(pub(crate) Arc<Pd>);

impl Device for LocalMemory {
    type Registration = Mr;

    fn register(&self, base: *mut u8, len: usize, written: bool) -> Result<Mr, Failure> {
        let rights = if written { IBV_ACCESS_LOCAL_WRITE } else { 0 };
        self.0.register(base, len, rights).map_err(|errno| refusal(len, errno))
    }
}

fn verbs_rights(rights: u64) -> c_uint {
    // A remote write or atomic needs the local right, too (the specification says so). Local pieces of a get do as well.
    let mut verbs = IBV_ACCESS_LOCAL_WRITE;
    for (right, flag) in [
        (access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
    ] {
        if rights & right != 0 {
            verbs |= flag;
        }
    }
    verbs
}

/// Registers a region; and whether the device may write there.
fn register(
    pd: &Arc<Pd>,
    base: *mut u8,
    len: usize,
    rights: c_uint,
) -> Result<(Mr, bool), Failure> {
    match pd.register(base, len, rights) {
        // Memory that is mapped read-only can be read by peers, no more.
        Err(libc::EFAULT | libc::EACCES)
            if rights & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) == 0 =>
        {
            let reading = rights & !IBV_ACCESS_LOCAL_WRITE;
            pd.register(base, len, reading)
                .map(|mr| (mr, false))
                .map_err(|errno| refusal(len, errno))
        }
        other => other
            .map(|mr| (mr, rights & IBV_ACCESS_LOCAL_WRITE != 0))
            .map_err(|errno| refusal(len, errno)),
    }
}

/// Why registering was refused, with what to do where the limit on locked memory is the reason.
fn refusal(len: usize, errno: i32) -> Failure {
    let error = std::io::Error::from_raw_os_error(errno);
    let mut failure = Failure::from_io(&format!("registering {len} bytes"), &error);
    if errno == libc::ENOMEM || errno == libc::EAGAIN || errno == libc::EPERM {
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        if let Some(limit) = locked_limit(&limits) {
            failure.text.push_str(&format!(
                "; the limit on locked memory is {} KiB and counts what is registered: raise it with `ulimit -l \
                 unlimited`, `memlock` in /etc/security/limits.conf, or LimitMEMLOCK=infinity in the service's unit",
                limit >> 10
            ));
        }
        failure.status = Status::NoMemory;
    }
    failure
}

/// The soft limit on locked memory in bytes; `None` when there is none.
fn locked_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with("Max locked memory"))?;
    line.trim_start_matches("Max locked memory").split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_locked_memory_is_read_from_the_kernels_table() {
        let table = "Limit                     Soft Limit           Hard Limit           Units\n\
                     Max locked memory         8388608              16777216             bytes\n";
        assert_eq!(locked_limit(table), Some(8 << 20));
        assert_eq!(locked_limit(&table.replace("8388608 ", "unlimited")), None);
        assert_eq!(locked_limit(""), None);
    }

    #[test]
    fn a_refusal_for_want_of_memory_says_how_to_raise_the_limit() {
        let failure = refusal(4096, libc::ENOMEM);
        assert_eq!(failure.status, Status::NoMemory);
        assert!(failure.text.starts_with("registering 4096 bytes"), "{}", failure.text);
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        if locked_limit(&limits).is_some() {
            assert!(failure.text.contains("ulimit -l"), "{}", failure.text);
        }
        assert!(!refusal(4096, libc::EINVAL).text.contains("ulimit"));
    }
}
