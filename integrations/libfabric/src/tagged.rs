//! Receives with a tag.

use crate::address::Source;
use crate::endpoint::Ep;
use crate::flow::TAGGED;
use crate::ops::{End, Kind};
use crate::receive::{Kept, Receive, Stored, canceled};
use crate::status::Failed;
use tieline_libfabric_abi::*;
use tieline_tag::{MessageId, Pattern, Post};

/// A call of `fi_trecvmsg`.
#[derive(Clone, Debug)]
pub(crate) struct TaggedCall {
    pub(crate) receive: Receive,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) flags: u64,
}

impl Ep {
    /// Discards the bytes of a message that waits.
    fn discard(&self, kept: Kept) {
        self.unkept(kept.head.source, &kept.stored);
        if let Stored::Long(rendezvous) = kept.stored {
            // An empty receive completes the sender's operation without an error.
            drop(rendezvous.receive_into_pieces(&[]));
        }
    }

    /// Posts a receive with a tag, or looks for a message without receiving it.
    #[inline(always)] // a receive that is passed on is copied once more
    pub(crate) fn receive_tagged(&self, call: TaggedCall) -> Result<(), i32> {
        let source = call.receive.source.map(|source| u64::from(source.0));
        let pattern = Pattern { source, tag: call.tag, ignore: call.ignore };
        if call.flags & (FI_PEEK | FI_CLAIM) != 0 {
            return self.look_for(&call, pattern);
        }
        let from = call.receive.source;
        let posted = self.tags.borrow_mut().post(pattern, call.receive);
        match posted {
            Post::Matched(message, receive) => self.deliver_kept(receive, None, message.payload),
            Post::Waiting(id) if from.is_some_and(|source| self.is_dead(source)) => {
                let canceled = self.tags.borrow_mut().cancel(id);
                canceled
                    .into_iter()
                    .for_each(|it| self.end_receive(&it.word, Failed::PEER, FI_TAGGED));
            }
            Post::Waiting(_) => self.wants(from, TAGGED),
        }
        Ok(())
    }

    /// Looks for a message, or receives the one that was found before.
    #[inline(never)]
    fn look_for(&self, call: &TaggedCall, pattern: Pattern) -> Result<(), i32> {
        if call.flags & FI_PEEK == 0 {
            return self.receive_claimed(call);
        }
        self.peek(call, pattern);
        Ok(())
    }

    /// Looks for a message, and reports it or its absence.
    fn peek(&self, call: &TaggedCall, pattern: Pattern) {
        // Without progress, an application that only peeks would never see a message.
        self.progress();
        let mut tags = self.tags.borrow_mut();
        let found = tags.peek(pattern).map(|message| (message.id, message.payload.head));
        let Some((id, head)) = found else {
            drop(tags);
            self.wants(call.receive.source, TAGGED);
            let end = End {
                tag: call.tag,
                ..End::new(Kind::Receive, call.receive.told, call.receive.context, FI_TAGGED)
            };
            return self.tell_quietly(end, Failed::new(FI_ENOMSG));
        };
        if call.flags & FI_DISCARD != 0 {
            let message = tags.take(id);
            drop(tags);
            message.into_iter().for_each(|message| self.discard(message.payload));
            tags = self.tags.borrow_mut();
        } else if call.flags & FI_CLAIM != 0 {
            let _ = tags.claim(pattern, call.receive.context as u64);
        }
        drop(tags);
        let end = End {
            len: head.len,
            tag: head.tag,
            data: head.data,
            source: self.address_of(head.source),
            ..End::new(Kind::Receive, true, call.receive.context, head.flags)
        };
        self.push_entry(&end, None);
    }

    /// Receives or discards the message that was claimed under the context of the call.
    fn receive_claimed(&self, call: &TaggedCall) -> Result<(), i32> {
        let context = call.receive.context;
        let mut tags = self.tags.borrow_mut();
        let claimed: Option<MessageId> = tags.claim_of(context as u64);
        let message = claimed.and_then(|id| tags.take(id)).ok_or(FI_EINVAL)?;
        drop(tags);
        if call.flags & FI_DISCARD == 0 {
            self.deliver_kept(call.receive.clone(), None, message.payload);
            return Ok(());
        }
        let head = message.payload.head;
        self.discard(message.payload);
        let end = End {
            len: 0,
            tag: head.tag,
            source: self.address_of(head.source),
            ..End::new(Kind::Receive, call.receive.told, context, FI_TAGGED)
        };
        self.push_entry(&end, None);
        Ok(())
    }

    /// Cancels a receive with a tag. Returns whether there was one with this context.
    pub(crate) fn cancel_tagged(&self, context: usize) -> bool {
        let mut tags = self.tags.borrow_mut();
        let same = tags.receives().filter(|receive| receive.word.context == context);
        // Of several receives with the same context, the first one is canceled.
        let found = same.map(|receive| receive.id).min();
        let Some(found) = found.and_then(|id| tags.cancel(id)) else { return false };
        drop(tags);
        self.end_receive(&found.word, canceled(), FI_TAGGED);
        true
    }

    /// Ends the receives with a tag that wait for this sender alone.
    pub(crate) fn end_tagged_from(&self, source: Source) {
        let mut tags = self.tags.borrow_mut();
        let only = Some(u64::from(source.0));
        let from = tags.receives().filter(|receive| receive.pattern.source == only);
        let mut ids: Vec<_> = from.map(|receive| receive.id).collect();
        ids.sort();
        let ended: Vec<_> = ids.into_iter().filter_map(|id| tags.cancel(id)).collect();
        drop(tags);
        for receive in ended {
            self.end_receive(&receive.word, Failed::PEER, FI_TAGGED);
        }
    }
}
