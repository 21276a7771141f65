//! Registered memory of this process: regions, and the local keys of I/O pieces.

mod sys;

use crate::abi::*;
use crate::keys::{KEY_LEN, PackedKey, Seal};
use crate::sys::{Mr, Pd};
use core::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_plugin_api::abi::{Iov, RegisterParams};
use tieline_plugin_api::{Failure, Status, access};
use tieline_registration::key::Grant;
use tieline_registration::{Device, Lender, Limits};

/// A registered region.
pub struct Region {
    mr: Mr,
    base: u64,
    len: u64,
    access: u64,
    number: u64,
    /// Whether the device may write to the region: `false` for a read-only mapping.
    writable: bool,
    /// Whether the processor must not access the memory, because it belongs to another device (DMA buffer).
    untouchable: bool,
}

/// Registers the memory of a domain. Any thread may use the registry.
pub(crate) struct Registry {
    /// Registers all memory that is not a region, buffers included.
    pub(crate) lender: Arc<Lender<LocalMemory>>,
    seal: Seal,
    next: AtomicU64,
    /// Whether peers' writes may be reordered on their way to memory in all regions, not only in regions that ask for it.
    relaxed: bool,
}

impl Registry {
    pub(crate) fn new(pd: Arc<Pd>, seal: Seal, limits: Option<Limits>, relaxed: bool) -> Registry {
        let lender = Arc::new(Lender::new(LocalMemory(pd), limits));
        Registry { lender, seal, next: AtomicU64::new(1), relaxed }
    }

    pub(crate) fn register(
        &self,
        base: *mut u8,
        len: usize,
        rights: u64,
        relaxed: bool,
    ) -> Result<Region, Failure> {
        let start = base.expose_provenance() as u64;
        if start == 0 || start.checked_add(len as u64).is_none() {
            let text = format!("{len} bytes at address {start:#x} are no memory of this process");
            return Err(Failure::new(Status::Invalid, text));
        }
        // The device rejects an empty registration. The extra byte never becomes part of a key.
        let (mr, writable) = self.lender.pressed(|| {
            let relaxed = if self.relaxed || relaxed { IBV_ACCESS_RELAXED_ORDERING } else { 0 };
            let rights = verbs_rights(rights) | relaxed;
            register(&self.lender.device().0, base, len.max(1), rights)
        })?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (len, access) = (len as u64, rights);
        Ok(Region { mr, base: start, len, access, number, writable, untouchable: false })
    }

    /// Registers a DMA buffer.
    pub(crate) fn register_dmabuf(&self, memory: &RegisterParams) -> Result<Region, Failure> {
        let (base, len) = (memory.base.addr() as u64, memory.len);
        if base.checked_add(len as u64).is_none() || len == 0 {
            let text =
                format!("{len} bytes of a DMA buffer at address {base:#x} are no valid range");
            return Err(Failure::new(Status::Invalid, text));
        }
        let pd = &self.lender.device().0;
        let rights = verbs_rights(memory.access);
        let mr = pd
            .register_dmabuf(memory.dmabuf, memory.dmabuf_offset, (base, len), rights)
            .map_err(|errno| match errno {
                libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EBADF => {
                    let error = std::io::Error::from_raw_os_error(errno);
                    let text = format!(
                        "a DMA buffer of {len} bytes cannot be registered ({error}): the device, its driver or libibverbs \
                         (rdma-core 34) do not support it, or the descriptor is no DMA buffer"
                    );
                    Failure::new(Status::Unsupported, text)
                }
                errno => refusal(len, errno),
            })?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (len, access) = (len as u64, memory.access);
        Ok(Region { mr, base, len, access, number, writable: true, untouchable: true })
    }

    pub(crate) fn deregister(&self, region: Region) {
        // The application may free the memory as soon as the registration ends, so transient registrations of that memory are
        // forgotten.
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
            grant: Grant { base: region.base, len: region.len, access: region.access },
            generation: region.number,
        };
        out.copy_from_slice(&key.pack(&self.seal));
        Ok(KEY_LEN)
    }

    /// Builds the device's scatter/gather list, without empty pieces. Unregistered memory gets a transient registration, which
    /// `borrowed` holds until the operation has ended.
    pub(crate) fn pieces(
        &self,
        iov: &[Iov],
        out: &mut Vec<ibv_sge>,
        borrowed: &mut Vec<Loan>,
        written: bool,
    ) -> Result<(), Status> {
        for piece in iov.iter().filter(|piece| piece.len > 0) {
            if piece.len > u32::MAX as usize {
                return Err(Status::TooLarge);
            }
            let sge = match registered(piece, written) {
                Some(sge) => sge,
                None => {
                    let loan = self.lender.lend(piece.base, piece.len, written, Mr::lkey);
                    let (loan, lkey) = loan.map_err(|failure| failure.status)?;
                    borrowed.push(loan);
                    local(piece, lkey)
                }
            };
            out.push(sge);
        }
        Ok(())
    }
}

/// Returns the scatter/gather entry for a piece of the application's memory.
#[inline]
pub(crate) fn local(piece: &Iov, lkey: u32) -> ibv_sge {
    ibv_sge { addr: piece.base.expose_provenance() as u64, length: piece.len as u32, lkey }
}

/// Returns the entry for a piece that lies in its stated region. Returns `None` if the piece states no region or lies outside, or
/// if the device would write (`written`) to a read-only mapping.
#[inline]
pub(crate) fn registered(piece: &Iov, written: bool) -> Option<ibv_sge> {
    let region = sys::region(piece)?;
    let start = (piece.base.addr() as u64).checked_sub(region.base)?;
    let inside = start <= region.len && piece.len as u64 <= region.len - start;
    (inside && (region.writable || !written)).then(|| local(piece, region.mr.lkey()))
}

/// Checks whether the processor must not access a piece. Such a piece is neither inlined nor copied.
#[inline]
pub(crate) fn untouchable(piece: &Iov) -> bool {
    sys::region(piece).is_some_and(|region| region.untouchable)
}

/// A transient registration for one operation.
pub(crate) type Loan = tieline_registration::Loan<LocalMemory>;

/// Registers the pieces of operations, and buffers.
pub(crate) struct LocalMemory(pub(crate) Arc<Pd>);

impl Device for LocalMemory {
    type Registration = Mr;

    fn register(&self, base: *mut u8, len: usize, written: bool) -> Result<Mr, Failure> {
        let rights = if written { IBV_ACCESS_LOCAL_WRITE } else { 0 };
        self.0.register(base, len, rights).map_err(|errno| refusal(len, errno))
    }
}

fn verbs_rights(rights: u64) -> c_uint {
    // A remote write or atomic also needs the local write right (InfiniBand specification). The local pieces of a get need
    // this right, too.
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

/// Registers a region. The flag in the result says whether the device may write to the region.
fn register(
    pd: &Arc<Pd>,
    base: *mut u8,
    len: usize,
    rights: c_uint,
) -> Result<(Mr, bool), Failure> {
    match pd.register(base, len, rights) {
        // A read-only mapping is registered with read access only, unless peers are to write to it.
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

/// Returns the error for a refused registration. If the limit on locked memory may be the cause, the text says how to raise it.
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

/// Returns the soft limit on locked memory in bytes; `None` if it is unlimited or unknown.
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
    fn refusal_for_lack_of_memory_explains_how_to_raise_the_limit() {
        let failure = refusal(4096, libc::ENOMEM);
        assert_eq!(failure.status, Status::NoMemory);
        assert!(failure.text.starts_with("registering 4096 bytes"), "{}", failure.text);
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        if locked_limit(&limits).is_some() {
            assert!(failure.text.contains("ulimit -l"), "{}", failure.text);
        }
        assert!(!refusal(4096, libc::EINVAL).text.contains("ulimit"));
    }

    #[test]
    fn only_refusals_caused_by_the_limit_report_lack_of_memory() {
        use libc::{EAGAIN, EFAULT, EINVAL, ENOMEM, EPERM};
        for (errno, lacks) in
            [(ENOMEM, true), (EAGAIN, true), (EPERM, true), (EINVAL, false), (EFAULT, false)]
        {
            assert_eq!(refusal(1, errno).status == Status::NoMemory, lacks, "{errno}");
        }
    }

    #[test]
    fn invalid_range_is_not_registered() {
        let domain = crate::double::domain(&[]).unwrap();
        let registry = &domain.state.registry;
        let at = core::ptr::without_provenance_mut;
        for (base, len) in [(0, 8), (1, usize::MAX)] {
            let text = registry.register(at(base), len, 0, false).err().unwrap().text;
            assert_eq!(
                text,
                format!("{len} bytes at address {base:#x} are no memory of this process")
            );
        }
        for (base, len) in [(4096, 0), (1, usize::MAX)] {
            let buffer = RegisterParams { dmabuf: 3, ..RegisterParams::new(at(base), len, 0) };
            let text = registry.register_dmabuf(&buffer).err().unwrap().text;
            assert_eq!(
                text,
                format!("{len} bytes of a DMA buffer at address {base:#x} are no valid range")
            );
        }
    }

    #[test]
    fn a_piece_lies_in_its_region_from_the_first_byte_to_the_last() {
        let domain = crate::double::domain(&[]).unwrap();
        let mut words = [0u64; 8];
        let all = crate::double::piece(&mut words);
        let region = domain.state.registry.register(all.base, 64, access::REMOTE_READ, false);
        let region = region.unwrap();
        let handle = core::ptr::from_ref(&region).cast_mut().cast();
        let lies = |from: isize, len: usize| {
            let base = all.base.wrapping_offset(from);
            registered(&Iov { region: handle, ..Iov::new(base, len) }, false).is_some()
        };
        for (from, len, inside) in [
            (0, 64, true),
            (0, 65, false),
            (-1, 1, false),
            (63, 1, true),
            (63, 2, false),
            (64, 0, true),
            (64, 1, false),
            (65, 0, false),
        ] {
            assert_eq!(lies(from, len), inside, "{len} from {from}");
        }
    }
}
