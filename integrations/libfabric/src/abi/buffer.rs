//! Memory of the application in an operation.

use crate::regions::Regions;
use core::ffi::c_void;
use tieline::{Context, Endpoint, OpenError, Outcome, PostError, RemoteKey, Rendezvous};

/// Memory of the application: one piece, or several. It stays valid until the operation's completion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffer {
    first: (usize, usize),
    rest: Option<Box<Rest>>,
}

/// The pieces after the first one.
#[derive(Clone, Debug)]
struct Rest {
    pieces: Vec<(usize, usize)>,
    /// The length of all pieces, the first one included.
    len: usize,
}

impl Buffer {
    /// Makes a buffer of one piece.
    ///
    /// # Safety
    /// The memory is valid until the operation's completion, for reads and, if the operation receives into it, for writes.
    #[inline]
    pub(super) unsafe fn new(at: *const c_void, len: usize) -> Buffer {
        let len = if at.is_null() { 0 } else { len };
        Buffer { first: (at.expose_provenance(), len), rest: None }
    }

    /// Makes a buffer of several pieces.
    ///
    /// # Safety
    /// As for [`Buffer::new`], for each piece; `list` has `count` pieces.
    pub(super) unsafe fn gather(list: *const libc::iovec, count: usize) -> Buffer {
        if list.is_null() || count == 0 {
            return Buffer::default();
        }
        // SAFETY: the caller's promise.
        let pieces = unsafe { core::slice::from_raw_parts(list, count) };
        let of = |piece: &libc::iovec| {
            let len = if piece.iov_base.is_null() { 0 } else { piece.iov_len };
            (piece.iov_base.expose_provenance(), len)
        };
        let len = pieces.iter().map(|piece| of(piece).1).sum();
        let rest = || Box::new(Rest { pieces: pieces[1..].iter().map(of).collect(), len });
        Buffer { first: of(&pieces[0]), rest: (count > 1).then(rest) }
    }

    /// Returns the length of all pieces.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.rest.as_ref().map_or(self.first.1, |rest| rest.len)
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.first.0
    }

    fn pieces(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let rest = self.rest.iter().flat_map(|rest| rest.pieces.iter().copied());
        core::iter::once(self.first).chain(rest)
    }

    /// Returns the bytes if the buffer is one piece.
    #[inline]
    pub(crate) fn as_slice(&self) -> Option<&[u8]> {
        if self.rest.is_some() {
            return None;
        }
        if self.first.1 == 0 {
            return Some(&[]);
        }
        let at = core::ptr::with_exposed_provenance::<u8>(self.first.0);
        // SAFETY: the memory is valid, and the application does not change it during the call.
        Some(unsafe { core::slice::from_raw_parts(at, self.first.1) })
    }

    /// Copies the bytes to the beginning of `out`, which has room for them, and returns their number.
    pub(crate) fn read(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        for (from, len) in self.pieces().filter(|piece| piece.1 > 0) {
            let to = &mut out[at..at + len];
            let from = core::ptr::with_exposed_provenance::<u8>(from);
            // SAFETY: the memory of the application is valid and does not overlap the provider's buffer.
            unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), len) };
            at += len;
        }
        at
    }

    /// Returns a copy of the bytes.
    pub(crate) fn copy(&self) -> Box<[u8]> {
        let mut bytes = vec![0; self.len()];
        let _ = self.read(&mut bytes);
        bytes.into_boxed_slice()
    }

    /// Checks whether the buffer is one piece.
    #[inline]
    pub(crate) fn is_one_piece(&self) -> bool {
        self.rest.is_none()
    }

    /// Puts a buffer of one piece from its memory.
    #[inline]
    pub(crate) fn put(
        &self,
        endpoint: &Endpoint,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        let (at, len) = self.first;
        let at = core::ptr::with_exposed_provenance::<u8>(at);
        // SAFETY: the memory is valid until the operation is reported, and then the operation has ended or its endpoint is closed.
        unsafe { endpoint.put_raw(at, len, key, offset) }
    }

    /// Gets into the memory of a buffer of one piece.
    #[inline]
    pub(crate) fn get(
        &self,
        endpoint: &Endpoint,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        let (at, len) = self.first;
        let at = core::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: as for `put`; the application does not access the memory during the operation.
        unsafe { endpoint.get_raw(at, len, key, offset) }
    }

    /// Receives a rendezvous message into a buffer of one piece, if a transport copies its first `len` bytes within the call.
    /// Otherwise the message is returned unchanged.
    pub(crate) fn receive(&self, rendezvous: Rendezvous, len: usize) -> Result<(), Rendezvous> {
        if !self.is_one_piece() || len > self.first.1 {
            return Err(rendezvous);
        }
        let at = core::ptr::with_exposed_provenance_mut::<u8>(self.first.0);
        // SAFETY: the memory of the application has this room, and nothing else accesses it before the completion.
        unsafe { rendezvous.receive_at_once(at, len) }
    }

    /// Copies as many of the bytes as there is room for into the buffer.
    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) {
        if self.rest.is_none() {
            return write_at(self.first, bytes);
        }
        let mut bytes = bytes;
        for piece in self.pieces() {
            let (now, later) = bytes.split_at(piece.1.min(bytes.len()));
            write_at(piece, now);
            bytes = later;
        }
    }

    /// Returns a part of a buffer of one piece.
    pub(crate) fn part(&self, at: usize, len: usize) -> Buffer {
        let at = at.min(self.first.1);
        let len = len.min(self.first.1 - at);
        Buffer { first: (self.first.0 + at, len), rest: None }
    }

    /// Makes transient registrations of the first `len` bytes.
    pub(crate) fn lend(&self, context: &Context, len: usize) -> Result<Regions, OpenError> {
        let mut left = len;
        let mut regions = Regions::default();
        for (at, len) in self.pieces() {
            let len = len.min(left);
            if len > 0 {
                let at = core::ptr::with_exposed_provenance_mut::<u8>(at);
                // SAFETY: the operation that uses the region is reported as complete only when the region is closed, and the
                // memory is valid until then.
                regions.push(unsafe { context.register_transient_raw(at, len)? });
                left -= len;
            }
        }
        Ok(regions)
    }
}

#[inline]
fn write_at((to, room): (usize, usize), bytes: &[u8]) {
    let len = room.min(bytes.len());
    if len > 0 {
        let to = core::ptr::with_exposed_provenance_mut::<u8>(to);
        // SAFETY: the memory of the application has this room, and does not overlap the transport's buffers.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
    }
}
