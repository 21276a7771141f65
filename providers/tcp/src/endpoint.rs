//! An endpoint: the core's handle of a connection.

use std::rc::Rc;

use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Endpoint, Failure, Packer, Posted, Posting, RmaOp, Status, op_flags};

use crate::address;
use crate::config::MAX_STREAMS;
use crate::conn::{Conn, ConnectionState, Peer, Phase};
use crate::frame::{Head, Kind, LONG_HEAD, MAX_MESSAGE};
use crate::ops::{BulkOp, Fence, GetOp, MAX_GETS, MAX_PUTS, PutOp, SMALL};
use crate::outbox::Outbox;
use crate::regions::Key;
use crate::shared::Shared;
use crate::sys;

/// The length of an endpoint's address after the contact: id, domain, streams, and whether the side keeps sent data.
const TAIL: usize = 8 + 8 + 1 + 1;
/// The longest endpoint address, in bytes.
pub(crate) const MAX_ADDRESS: usize = address::MAX_LEN + TAIL;

/// A connection to one peer.
pub struct StreamEndpoint {
    conn: Rc<Conn>,
    shared: Rc<Shared>,
}

impl StreamEndpoint {
    pub(crate) fn new(conn: Rc<Conn>, shared: Rc<Shared>) -> StreamEndpoint {
        StreamEndpoint { conn, shared }
    }

    #[cfg(test)]
    pub(crate) fn conn(&self) -> &Rc<Conn> {
        &self.conn
    }

    /// Returns the number of streams that this side requests, and whether it keeps sent data.
    fn wishes(&self) -> (usize, bool) {
        let mut interfaces: Vec<&str> = self
            .shared
            .hub
            .local()
            .iter()
            .filter(|local| !local.loopback && !local.last_resort)
            .map(|local| local.interface.as_str())
            .collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        let streams = self.shared.settings.streams(interfaces.len());
        (streams, self.shared.settings.retains(streams))
    }

    /// Posts a put, with its notification if there is a `word`.
    fn post_put(&self, key: &Key, op: &RmaOp<'_>, word: Option<u32>) -> Posted {
        let mut inner = self.conn.inner.borrow_mut();
        inner.ready()?;
        check_len(op)?;
        if op.offset.checked_add(op.len as u64).is_none() {
            return Err(Status::OutOfRange);
        }
        let ops = inner.ops();
        if ops.puts.len() >= MAX_PUTS {
            return Err(Status::Again);
        }
        let number = ops.last_put.wrapping_add(1);
        let bulk = op.len > SMALL || !ops.bulk.is_empty();
        if !bulk {
            let mut head = Head::bare(Kind::Put, number, op.offset);
            head.last = true;
            StreamEndpoint::put_small(&mut inner, head, key, op, word)?;
        } else {
            ops.bulk.push_back(BulkOp::Put {
                number,
                key: key.part(op.len as u64),
                offset: op.offset,
                pieces: sys::pieces(op.iov),
                len: op.len,
                cut: 0,
                word,
                last_frame: 0,
            });
        }
        let local = op.flags & op_flags::REMOTE_COMPLETION == 0;
        // The caller owns copied data again on return. Data that is sent in place belongs to the caller again when it is not sent
        // any more.
        let cookie = (bulk || !local).then_some(op.cookie);
        let ops = inner.ops();
        ops.last_put = number;
        ops.puts.push_back(PutOp { number, cookie, bulk, local, missing: None });
        inner.flush_unless(is_followed(op));
        Ok(if cookie.is_some() { Posting::Pending } else { Posting::Done })
    }

    fn put_small(
        inner: &mut ConnectionState,
        head: Head,
        key: &Key,
        op: &RmaOp<'_>,
        word: Option<u32>,
    ) -> Result<(), Status> {
        let mut bytes = [0u8; SMALL];
        let mut at = 0;
        for &piece in op.iov {
            sys::read_piece(piece.into(), &mut bytes[at..op.len]);
            at += piece.len;
        }
        let (key, bytes) = (key.part(op.len as u64), &bytes[..op.len]);
        match word {
            None => inner.submit_before(is_followed(op), head, Some(&key), bytes),
            Some(word) => inner.submit_both(head, &key, bytes, Head::notified(head.number, word)),
        }
    }
}

/// Checks whether another operation follows immediately, so that one system call can write the frames of both.
fn is_followed(op: &RmaOp<'_>) -> bool {
    op.flags & op_flags::MORE != 0
}

/// Checks that the pieces hold the operation's length.
fn check_len(op: &RmaOp<'_>) -> Result<(), Status> {
    let sum = op.iov.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len));
    if sum == Some(op.len) { Ok(()) } else { Err(Status::Invalid) }
}

impl Endpoint for StreamEndpoint {
    type Key = Key;

    #[inline]
    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        // The state is already borrowed if a signal handler that calls `exit` has interrupted another call.
        let mut inner = self.conn.inner.try_borrow_mut().map_err(|_| Status::Again)?;
        inner.ready()?;
        if payload.len() > MAX_MESSAGE {
            return Err(Status::TooLarge);
        }
        inner.submit(Head::bare(Kind::Message, id, header), None, payload)?;
        Ok(Posting::Done)
    }

    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        if max > MAX_MESSAGE {
            return Err(Status::TooLarge);
        }
        {
            let mut inner = self.conn.inner.borrow_mut();
            inner.ready()?;
            if !inner.outbox.has_room(LONG_HEAD + max) {
                return Err(Status::Again);
            }
            inner.outbox.reserve(LONG_HEAD + max);
        }
        // No borrow is held while the application packs. The room in the outbox stays reserved, so the application packs once.
        let mut scratch = self.shared.scratch.take();
        scratch.resize(MAX_MESSAGE, 0);
        let packed = packer.pack(&mut scratch[..max]);
        let mut inner = self.conn.inner.borrow_mut();
        inner.outbox.unreserve(LONG_HEAD + max);
        let sent = packed.and_then(|len| {
            inner.is_open()?;
            inner.submit(Head::bare(Kind::Message, id, header), None, &scratch[..len])?;
            Ok(len)
        });
        let _ = self.shared.scratch.replace(scratch);
        sent
    }

    fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], _cookie: u64) -> Posted {
        let mut inner = self.conn.inner.borrow_mut();
        inner.ready()?;
        let len = iov.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len));
        if len.is_none_or(|len| len > MAX_MESSAGE) {
            return Err(Status::TooLarge);
        }
        inner.submit_pieces(id, header, iov)?;
        Ok(Posting::Done)
    }

    fn put(&self, key: &Key, op: &RmaOp<'_>) -> Posted {
        self.post_put(key, op, None)
    }

    fn put_notify(&self, key: &Key, op: &RmaOp<'_>, word: u32) -> Posted {
        self.post_put(key, op, Some(word))
    }

    fn get(&self, key: &Key, op: &RmaOp<'_>) -> Posted {
        let mut inner = self.conn.inner.borrow_mut();
        inner.ready()?;
        check_len(op)?;
        if op.offset.checked_add(op.len as u64).is_none() {
            return Err(Status::OutOfRange);
        }
        let ops = inner.ops();
        if ops.gets.len() >= MAX_GETS {
            return Err(Status::Again);
        }
        let number = ops.last_get.wrapping_add(1);
        let head = Head::bare(Kind::Get, number, op.offset);
        inner.submit_before(is_followed(op), head, Some(&key.part(op.len as u64)), &[])?;
        let ops = inner.ops();
        ops.last_get = number;
        ops.gets.push(GetOp {
            number,
            cookie: op.cookie,
            pieces: sys::pieces(op.iov),
            len: op.len as u64,
            landed: 0,
            missing: None,
        });
        Ok(Posting::Pending)
    }

    fn flush(&self, cookie: u64) -> Posted {
        self.conn.inner.borrow_mut().post_flush(cookie)
    }

    fn fence(&self) -> Result<(), Status> {
        let mut inner = self.conn.inner.borrow_mut();
        if let Phase::Failed(status) = inner.phase {
            return Err(status);
        }
        if let Some(ops) = &mut inner.ops {
            if !ops.puts.is_empty() || !ops.gets.is_empty() {
                ops.fence = Some(Fence { last_put: ops.last_put, last_get: ops.last_get });
            }
        }
        Ok(())
    }

    fn import_key(&self, bytes: &[u8]) -> Result<Key, Failure> {
        let Some(key) = Key::parse(bytes) else {
            return Err(Failure::new(Status::KeyRejected, "a malformed tcp key"));
        };
        match &self.conn.inner.borrow().peer {
            Some(peer) if peer.domain != key.domain => {
                let text = "the key belongs to another process than this endpoint leads to";
                Err(Failure::new(Status::KeyRejected, text))
            }
            Some(_) => Ok(key),
            None => Err(Status::Again.into()),
        }
    }

    fn address(&self) -> Vec<u8> {
        let (streams, retains) = self.wishes();
        let mut out = address::pack(&self.shared.hub.contact(self.shared.target));
        out.extend_from_slice(&self.conn.id.to_le_bytes());
        out.extend_from_slice(&self.shared.regions.domain().to_le_bytes());
        out.push(streams as u8); // at most MAX_STREAMS
        out.push(u8::from(retains));
        out
    }

    fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        let refuse =
            |why: String| Failure::new(Status::Invalid, format!("no endpoint of tcp: {why}"));
        let (contact, rest) = address::parse(address).map_err(refuse)?;
        let Some((id, rest)) = rest.split_first_chunk::<8>() else {
            return Err(refuse("the address is cut off".into()));
        };
        let (domain, streams, retains) = match rest.split_first_chunk::<8>() {
            Some((domain, &[streams, retains @ 0..=1]))
                if (1..=MAX_STREAMS).contains(&usize::from(streams)) =>
            {
                (u64::from_le_bytes(*domain), usize::from(streams), retains == 1)
            }
            _ => return Err(refuse("the end of the address is invalid".into())),
        };
        let id = u64::from_le_bytes(*id);
        let mut inner = self.conn.inner.borrow_mut();
        if inner.phase != Phase::Waiting {
            return Err(Failure::new(Status::Invalid, "this endpoint is connected already"));
        }
        let own = (self.shared.target, self.conn.id);
        let other = (contact.target, id);
        if own == other {
            inner.peer = Some(Box::new(Peer { contact, id, domain }));
            return inner
                .link_to_itself()
                .map_err(|e| Failure::from_io("connecting an endpoint to itself", &e));
        }
        let (own_streams, own_retains) = self.wishes();
        let count = own_streams.min(streams);
        inner.outbox =
            Outbox::new(self.shared.settings.send_buffer, own_retains || retains || count > 1);
        inner.peer = Some(Box::new(Peer { contact, id, domain }));
        inner.begin_links(count, own < other);
        Ok(())
    }
}

impl Drop for StreamEndpoint {
    fn drop(&mut self) {
        self.conn.inner.borrow_mut().close();
    }
}
