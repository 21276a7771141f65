//! Messages with options: header bytes, a request for an acknowledgement, or a rendezvous whatever the length.

use super::queued::QueuedOp;
use super::{DRAIN, Endpoint, EndpointState, State, patiently};
use crate::address::{ANNOUNCEMENTS, HEADS};
use crate::message::head::{HeaderBytes, MAX_HEADER_BYTES};
use crate::proto::{head::Head, id};
use crate::region::Region;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::ops::Range;
use tieline_host::abi::PackBuffer;
use tieline_order::Kind;

/// The length up to which a head and its payload are copied into one buffer on the stack.
const TOGETHER: usize = 256;

/// Options of a message: header bytes, a request for an acknowledgement, and a rendezvous whatever the length.
///
/// ```
/// # fn main() -> Result<(), tieline::Error> {
/// use tieline::SendOptions;
/// # let worker = tieline::Context::open()?.worker()?;
/// # let me = worker.connect(&worker.address()?)?;
/// worker.on_message(7, |message| {
///     assert_eq!(*message.header_bytes(), *b"rank 3, chunk 12");
///     assert_eq!((message.header(), message.payload()), (42, &b"payload"[..]));
/// })?;
/// let options = SendOptions::new().header_bytes(b"rank 3, chunk 12").delivered();
/// let sent = me.send_with(7, 42, b"payload", &options)?;
/// worker.finish(sent)?; // the handler has returned
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct SendOptions<'a> {
    header_bytes: &'a [u8],
    delivered: bool,
    rendezvous: bool,
}

impl<'a> SendOptions<'a> {
    /// Makes options of a message like those of [`Endpoint::send`]: no header bytes, no acknowledgement, and a
    /// rendezvous only for a message longer than [`Endpoint::max_message`].
    pub fn new() -> SendOptions<'a> {
        SendOptions::default()
    }

    /// Passes up to [`MAX_HEADER_BYTES`] bytes to the handler, beside the id and the 8-byte header. The handler reads them by
    /// [`Message::header_bytes`](crate::Message::header_bytes), also for a rendezvous message. `n` header bytes take `n + 8` bytes
    /// of [`Endpoint::max_message`].
    pub fn header_bytes(self, bytes: &'a [u8]) -> SendOptions<'a> {
        SendOptions { header_bytes: bytes, ..self }
    }

    /// Makes the operation complete when the receiver has acknowledged the message: when its handler has returned, or when the
    /// handler's [`Acknowledgement`](crate::Acknowledgement) was given. The request takes 16 bytes of [`Endpoint::max_message`], and
    /// header bytes take their own length in addition.
    ///
    /// If the handler panics or the acknowledgement is dropped, the operation ends with
    /// [`CompletionError::Canceled`](crate::CompletionError::Canceled). If the receiver has no handler for the id, it ends with
    /// [`CompletionError::Refused`](crate::CompletionError::Refused). Flushes and fences do not wait for the acknowledgement, but
    /// [`Worker::close`](crate::Worker::close) does. The operation of a rendezvous message ends, with and without this option, when
    /// the receiver has the bytes that it requested.
    pub fn delivered(self) -> SendOptions<'a> {
        SendOptions { delivered: true, ..self }
    }

    /// Sends the message as a rendezvous message whatever its length. The receiver's handler gets a
    /// [`Rendezvous`](crate::Rendezvous), and copies the payload once, from the sender's memory to its place. This is faster for
    /// messages longer than [`Endpoint::eager_limit`], if the receiver would copy the payload of an eager message.
    ///
    /// Use this with [`Endpoint::send_regions_with`]: [`Endpoint::send_with`] copies the payload first. An empty message, and a message
    /// to a peer whose version has no rendezvous messages, is sent as without this option.
    pub fn rendezvous(self) -> SendOptions<'a> {
        SendOptions { rendezvous: true, ..self }
    }

    fn has_head(&self) -> bool {
        !self.header_bytes.is_empty() || self.delivered
    }
}

impl Endpoint {
    /// Sends a message like [`Endpoint::send`], with header bytes or with a request for an acknowledgement; see [`SendOptions`].
    ///
    /// A message whose payload and head exceed [`max_message`](Endpoint::max_message) together is a rendezvous message.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`]. [`PostError::Correct`] also for more than [`MAX_HEADER_BYTES`] header bytes, and if the
    /// peer's version does not support the options. In both cases nothing was sent.
    pub fn send_with(
        &self,
        id: u16,
        header: u64,
        payload: &[u8],
        options: &SendOptions<'_>,
    ) -> Result<Outcome, PostError> {
        match self.inner.is_plain(options, payload.len()) {
            true => self.send(id, header, payload),
            false => self.inner.send_headed(id, header, payload, options),
        }
    }

    /// Sends a message of pieces like [`Endpoint::send_regions`], with the options of [`Endpoint::send_with`]. An eager message with
    /// options is sent as a copy.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send_regions`] and of [`Endpoint::send_with`].
    pub fn send_regions_with(
        &self,
        id: u16,
        header: u64,
        pieces: &[(&Region, Range<usize>)],
        options: &SendOptions<'_>,
    ) -> Result<Outcome, PostError> {
        let ep = &*self.inner;
        let len = ep.len_of_pieces(id, pieces)?;
        if ep.is_plain(options, len) {
            return self.send_regions(id, header, pieces);
        }
        let header_bytes = ep.check_options(options)?;
        let word = options.delivered.then_some(header);
        let most = if ep.prefers_rendezvous(options, len) { 0 } else { ep.most() };
        if len.saturating_add(Head::new(id, word, &header_bytes).bytes().len()) > most {
            let announced = ep.announce_pieces(id, header, header_bytes, pieces, len);
            return announced.map_err(|error| ep.refused(error));
        }
        let mut bytes = vec![0; len];
        let mut buffer = PackBuffer::new(&mut bytes);
        for (region, range) in pieces {
            buffer.put_span(&region.inner.span, range.start, range.len())?;
        }
        ep.send_headed(id, header, &bytes, options)
    }
}

impl EndpointState {
    /// Checks whether the options request a rendezvous of a message of this length, and the peer's version has it.
    fn prefers_rendezvous(&self, options: &SendOptions<'_>, len: usize) -> bool {
        options.rendezvous && len > 0 && self.address.messages.1 >= ANNOUNCEMENTS
    }

    fn is_plain(&self, options: &SendOptions<'_>, len: usize) -> bool {
        !options.has_head() && !self.prefers_rendezvous(options, len)
    }

    /// Checks the options of a message, and returns its header bytes.
    fn check_options(&self, options: &SendOptions<'_>) -> Result<HeaderBytes, Error> {
        let n = options.header_bytes.len();
        let Some(header_bytes) = HeaderBytes::new(options.header_bytes) else {
            return Err(Error::new(
                Status::Invalid,
                format!("a message with {n} header bytes"),
                format!("a message has at most {MAX_HEADER_BYTES}"),
                "pass the rest in the payload",
            ));
        };
        let what = match options.delivered {
            true => "a message with a request for an acknowledgement",
            false => "a message with header bytes",
        };
        if !options.has_head() {
            return Ok(header_bytes);
        }
        let what = |peer: &str| format!("{what} to {peer}");
        self.check_speaks(HEADS, what, "such messages", "send a message without options")?;
        Ok(header_bytes)
    }

    #[cold]
    fn send_headed(
        &self,
        id: u16,
        header: u64,
        payload: &[u8],
        options: &SendOptions<'_>,
    ) -> Result<Outcome, PostError> {
        self.check_id(id)?;
        let header_bytes = self.check_options(options)?;
        let _ = self.ready_or_opened()?;
        let head = Head::new(id, options.delivered.then_some(header), &header_bytes);
        let head = head.bytes();
        let len = payload.len().saturating_add(head.len());
        let most = match self.prefers_rendezvous(options, payload.len()) {
            true => 0,
            false => self.most(),
        };
        if len > most {
            let announced = self.announce_bytes(id, header, header_bytes, payload);
            return announced.map_err(|error| self.refused(error));
        }
        if self.state.get() == State::Queueing {
            // Queued messages are sent first; if all were sent, this message needs no copy.
            let _ = self.run_queue(DRAIN);
        }
        let ready = self.ready_or_opened()?;
        let send = |message, header| match ready {
            true => patiently(|| self.headed_now(message, header, head, payload)),
            false => Err(Status::Again),
        };
        if options.delivered {
            return self.send_to_be_delivered(head, payload, |number| send(id::DELIVER, number));
        }
        match send(id::HEADED, header) {
            Ok(()) => Ok(Outcome::Done(0)),
            Err(Status::Again) if self.has_room(len) => {
                let bytes = [head, payload].concat().into();
                self.queue_message(id::HEADED, header, bytes).map_err(|error| self.refused(error))
            }
            Err(Status::Again) => Err(self.refused(Status::Again)),
            Err(status) => Err(self.message_failed(status).into()),
        }
    }

    /// Sends or queues a message whose operation ends with the receiver's acknowledgement. `send` gets the operation's number.
    fn send_to_be_delivered(
        &self,
        head: &[u8],
        payload: &[u8],
        send: impl FnOnce(u64) -> Result<(), Status>,
    ) -> Result<Outcome, PostError> {
        let opened = self.shared.ops.borrow_mut().open_delivery(self.index);
        let delivery = opened.map_err(|status| self.refused(status))?;
        let not_sent = |error| {
            self.shared.with_ops(|ops| ops.withdraw(delivery));
            Err(error)
        };
        match send(delivery.raw()) {
            Ok(()) => {}
            Err(Status::Again) if self.has_room(head.len() + payload.len()) => {
                // A flush waits for this operation.
                let sent = self.shared.ops.borrow_mut().open_late(self.index, Kind::Send);
                let sent = match sent {
                    Ok(sent) => sent,
                    Err(status) => return not_sent(self.refused(status)),
                };
                let (id, payload) = (id::DELIVER, [head, payload].concat().into());
                let (header, request) = (delivery.raw(), Some(sent));
                self.post(QueuedOp::Message { id, header, payload, request });
            }
            Err(Status::Again) => return not_sent(self.refused(Status::Again)),
            Err(status) => {
                let _ = not_sent(PostError::from(status));
                return Err(self.message_failed(status).into());
            }
        }
        Ok(self.outcome(delivery)?)
    }

    /// Posts a head and a payload as one message. The queue is not checked.
    fn headed_now(
        &self,
        message: u16,
        header: u64,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), Status> {
        let len = head.len() + payload.len();
        if len <= TOGETHER {
            let mut bytes = [0; TOGETHER];
            bytes[..head.len()].copy_from_slice(head);
            bytes[head.len()..len].copy_from_slice(payload);
            return self.message_now(message, header, &bytes[..len]);
        }
        if len > self.message.max_packed() {
            return self.message_now(message, header, &[head, payload].concat());
        }
        self.pack_now(message, header, len, |out| {
            out.put(head)?;
            out.put(payload)
        })
    }
}
