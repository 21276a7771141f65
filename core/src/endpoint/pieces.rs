//! Puts and gets that have several pieces of local memory.

use super::post::{Local, Transfer};
use super::record::{Completion, rma_list_op};
use super::{Endpoint, RemoteKey};
use crate::mem::pieces::Pieces;
use crate::region::{Access, Region};
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::ops::Range;
use std::rc::Rc;
use tieline_plugin_api::OK;
use tieline_plugin_api::abi::Iov;

/// The maximum number of pieces on the fast path.
const FEW: usize = 16;

impl Endpoint {
    /// Writes pieces of local regions, in sequence, to the peer's region at `offset`. The put is complete when all bytes are
    /// visible at the target. A list that is too long for one operation of the module is split, and the parts complete together.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`]. [`PostError::Retry`] also if the list would have to be queued and the queue is full.
    pub fn put_pieces(
        &self,
        pieces: &[(&Region, Range<usize>)],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        self.post_pieces(true, pieces, key, offset)
    }

    /// Reads the peer's region at `offset` into pieces of local regions, in sequence. If pieces overlap, each shared byte has one
    /// of the values written to it.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_pieces`].
    pub fn get_pieces(
        &self,
        pieces: &[(&Region, Range<usize>)],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        self.post_pieces(false, pieces, key, offset)
    }

    /// Does the same as [`Endpoint::put_notify`], for pieces of local regions, in sequence.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_notify`] and [`Endpoint::put_pieces`].
    pub fn put_pieces_notify(
        &self,
        pieces: &[(&Region, Range<usize>)],
        key: &RemoteKey,
        offset: u64,
        word: u32,
    ) -> Result<Outcome, PostError> {
        let (at, len) = (0, self.check_pieces(pieces)?);
        let list = pieces.iter().map(|(region, range)| (*region, range.clone()));
        let list = &Rc::new(Pieces::new(list));
        let local = if len == 0 { Local::Bytes(&[]) } else { Local::Pieces(list) };
        let (put, completion) = (true, Completion::Remote);
        let transfer = Transfer { put, local, at, len, key, offset, completion };
        self.inner.post_notify(&transfer, word, Status::Again as i32)
    }

    /// Checks the pieces, and returns their total length.
    fn check_pieces(&self, pieces: &[(&Region, Range<usize>)]) -> Result<usize, PostError> {
        let mut len = 0usize;
        for (region, range) in pieces {
            self.inner.check_local(region)?;
            // For a range that ends before it begins, the length is larger than any region.
            let n = range.end.wrapping_sub(range.start);
            let inside = region.inner.span.range(range.start, n);
            let _ = inside.map_err(|status| region.outside(status, range.start, n))?;
            len = len.checked_add(n).ok_or_else(too_long)?;
        }
        Ok(len)
    }

    fn post_pieces(
        &self,
        put: bool,
        pieces: &[(&Region, Range<usize>)],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        let (ep, len) = (&self.inner, self.check_pieces(pieces)?);
        let mut full = pieces.iter().filter(|(_, range)| !range.is_empty());
        let completion = Completion::Remote;
        let Some((region, range)) = full.next() else {
            let needed = if put { Access::WRITE } else { Access::READ };
            ep.prepare(key, None, (needed, offset, 0))?;
            return Ok(Outcome::Done(0));
        };
        if full.next().is_none() {
            let (at, local) = (range.start, Local::Region(region));
            let one = Transfer { put, local, at, len, key, offset, completion };
            return ep.post_transfer(&one, OK);
        }
        let code = self.post_few(put, pieces, len, key, offset)?;
        if code == OK {
            return Ok(Outcome::Done(0));
        }
        let list = pieces.iter().map(|(region, range)| (*region, range.clone()));
        let local = &Rc::new(Pieces::new(list));
        let (at, local) = (0, Local::Pieces(local));
        ep.post_transfer(&Transfer { put, local, at, len, key, offset, completion }, code)
    }

    /// Tries the fast path, and returns the module's status for a short list. If the fast path must not be taken, the status is the
    /// same as that of a module that does not accept the list.
    fn post_few(
        &self,
        put: bool,
        pieces: &[(&Region, Range<usize>)],
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<i32, Status> {
        let fast = &key.inner.fast;
        let below = if put { fast.put_below.get() } else { fast.get_below.get() };
        let few = pieces.len() <= FEW.min(fast.max_iov.get());
        if len >= below || !few || !self.may_take_fast_path(key) {
            return Ok(Status::Again as i32);
        }
        let mut iov = [Iov::new(std::ptr::null_mut(), 0); FEW];
        for (piece, (region, range)) in iov.iter_mut().zip(pieces) {
            *piece = Iov::new(region.inner.span.range(range.start, range.len())?, range.len());
        }
        let (iov, remote) = (&iov[..pieces.len()], Completion::Remote);
        let op = rma_list_op(iov, len, fast.key.get(), offset, 0, remote);
        Ok(if put { fast.put(&op) } else { fast.get(&op) })
    }
}

#[cold]
fn too_long() -> Error {
    Error::new(
        Status::OutOfRange,
        "the pieces of a put or get",
        "their lengths add up to more than any region has",
        "post it in parts",
    )
}
