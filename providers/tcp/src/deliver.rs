//! The delivery of frames in their order.

use std::rc::Rc;

use tieline_plugin_api::{Events, Status, access};

use crate::conn::{ConnectionState, Phase};
use crate::frame::{Head, KeyPart, Kind, Malformed, Refused, word_status};
use crate::ops::{MAX_GETS, MAX_PUTS, PutOp, Serve, not_after};
use crate::receive::Item;
use crate::shared::Shared;
use crate::stream::Broke;
use crate::window::Verdict;

impl ConnectionState {
    /// Records a frame that has arrived completely: delivers it if it is the next one, holds it if it is early, and drops a
    /// duplicate.
    pub(crate) fn arrived(&mut self, seq: u32, item: Item, len: usize) -> Result<(), Malformed> {
        self.ack_owed += 1;
        self.ack_bytes += len;
        match self.window.judge(seq)? {
            Verdict::Duplicate => Ok(()),
            Verdict::Ahead => {
                self.window.hold(seq, item);
                Ok(())
            }
            Verdict::Next => {
                self.window.advance();
                self.deliver(item)
            }
        }
    }

    /// Delivers the held frames that are in order. Returns `false` if the event array is full, or too many events wait for a
    /// notification.
    pub(crate) fn drain(
        &mut self,
        shared: &Shared,
        events: &mut Events<'_>,
    ) -> Result<bool, Malformed> {
        loop {
            match self.window.ready() {
                None => return Ok(true),
                Some(Item::Message { id, header, data }) => {
                    self.held_bytes = self.held_bytes.saturating_sub(data.len());
                    let (id, header, at, len) = (*id, *header, data.as_ptr(), data.len());
                    if !self.abandoned {
                        if events.room() <= self.floor {
                            self.held_bytes += len;
                            self.queue_up();
                            return Ok(false);
                        }
                        let _ = events.push_message(self.cookie, id, header, at, len);
                    }
                    if let Some(Item::Message { data, .. }) = self.window.take_ready() {
                        shared.handed_out.borrow_mut().push(data);
                    }
                }
                Some(Item::Control(Head { kind: Kind::Notified, .. }, _))
                    if !self.abandoned && shared.tells_enough() =>
                {
                    self.queue_up();
                    return Ok(false);
                }
                Some(_) => {
                    if let Some(item) = self.window.take_ready() {
                        self.deliver(item)?;
                    }
                }
            }
        }
    }

    /// Retries the delivery of held frames, because the event array may have room.
    pub(crate) fn drain_held(&mut self, events: &mut Events<'_>) {
        let shared = Rc::clone(&self.shared);
        if self.window.has_gap() {
            let before = self.window.expected();
            if let Err(why) = self.drain(&shared, events) {
                let broke = Broke::malformed("the peer", why);
                return self.fail(broke.status, &broke.text);
            }
            if self.window.expected() != before {
                self.ack_owed += 1; // the last acknowledgement did not cover this frame
                self.after_reading(&shared);
            }
        }
    }

    /// Processes a frame in its order.
    fn deliver(&mut self, item: Item) -> Result<(), Malformed> {
        if self.phase == Phase::Closing {
            if matches!(item, Item::Control(Head { kind: Kind::Goodbye, .. }, _)) {
                self.phase = Phase::Failed(Status::Closed);
                self.release();
                self.call_attention();
            }
            return Ok(());
        }
        let shared = Rc::clone(&self.shared);
        match item {
            Item::Message { .. } => Ok(()), // `drain` delivers messages, because it holds the events
            Item::PutLanded { number, last, result } => {
                let ops = self.ops();
                let known = ops.failing.filter(|(failing, _)| *failing == number);
                let result = known.map_or(result, |(_, status)| Err(status));
                ops.failing = result.err().map(|refused| (number, refused));
                if last {
                    ops.refused = ops.failing.map(|(failing, _)| failing);
                    if let Some(failure) = ops.failing.take() {
                        if ops.failures.len() > 2 * MAX_PUTS {
                            return Err("more puts than may be under way");
                        }
                        ops.failures.push_back(failure);
                    }
                    ops.done = Some(number);
                }
                Ok(())
            }
            Item::GetLanded { number, at, len } => {
                let get = self.ops().gets.iter_mut().find(|get| get.number == number);
                match get {
                    Some(get) if get.landed == at => get.landed += u64::from(len),
                    Some(_) => return Err("data of a get twice, or not in order"),
                    None => return Err("data that nothing asked for"),
                }
                Ok(())
            }
            Item::Control(head, key) => self.control(&head, key, &shared),
        }
    }

    fn control(
        &mut self,
        head: &Head,
        key: Option<KeyPart>,
        shared: &Shared,
    ) -> Result<(), Malformed> {
        let number = head.number;
        match head.kind {
            Kind::PutDone => {
                self.ops().puts_ended(number)?;
                while let Some(put) = self.ops().next_put_done(number) {
                    self.end_put(&put, Ok(()))?;
                    self.note_missing(&put);
                }
            }
            Kind::PutFailed => {
                let refused = word_status(head.word).err().unwrap_or(Status::Io.into());
                let status = refused.status();
                let put = self.ops().put_refused(number)?;
                self.end_put(&put, Err(refused))?;
                let ops = self.ops();
                let told = put.cookie.is_some() || ops.covers_put(number);
                ops.note_failure(Some(number), None, status);
                if !told {
                    let _ = ops.late.get_or_insert(status);
                }
            }
            Kind::Get => {
                let Some(key) = key else { return Err("a get without a key") };
                let region = shared.regions.find(&key, head.word, key.total, access::REMOTE_READ);
                let ops = self.ops();
                if ops.serves.len() >= 2 * MAX_GETS {
                    return Err("more gets than may be under way");
                }
                ops.serves.push_back(Serve {
                    number,
                    region: region.map_err(Refused::from),
                    offset: head.word,
                    len: key.total,
                    cut: 0,
                    last_frame: 0,
                });
            }
            Kind::GetDone => {
                let result = word_status(head.word);
                let ops = self.ops();
                let at = ops.gets.iter().position(|get| get.number == number);
                let at = at.ok_or("the end of a get that is not under way")?;
                if result.is_ok() && ops.gets[at].landed != ops.gets[at].len {
                    return Err("the end of a get whose data did not come");
                }
                let get = ops.gets.swap_remove(at);
                let result = result.and(get.missing.map_or(Ok(()), |status| Err(status.into())));
                if let Err(refused) = result {
                    ops.note_failure(None, Some(number), refused.status());
                }
                shared.ended(get.cookie, result);
                self.end_flushes(shared);
            }
            Kind::Notified => {
                if self.ops().refused != Some(number) {
                    shared.notified(self.cookie, head.word);
                }
            }
            Kind::Flush => self.ops().flush_asked = Some(number),
            Kind::FlushDone => {
                self.ops().flushes_ended(number)?;
                self.end_flushes(shared);
            }
            Kind::Goodbye => {
                self.fail(Status::Closed, "the peer closed its endpoint in good order");
            }
            _ => return Err("a frame that cannot come here"),
        }
        Ok(())
    }

    /// Ends a put as the target reports: from here on its memory is not read any more.
    fn end_put(&mut self, put: &PutOp, result: Result<(), Refused>) -> Result<(), Malformed> {
        let sent = !put.bulk || self.outbox.end_put(put.number);
        let result = result.and(put.missing.map_or(Ok(()), Err));
        // A pending put completes in any case. If the peer lied, the put fails, and so does the endpoint.
        if let Some(cookie) = put.cookie {
            self.shared.ended(cookie, if sent { result } else { Err(Status::BadData.into()) });
        }
        if sent { Ok(()) } else { Err("the end of a put that was not sent yet") }
    }

    /// Records a put that ended successfully at the target although zeros replaced missing bytes. The flushes report the failure.
    fn note_missing(&mut self, put: &PutOp) {
        let Some(refused) = put.missing else { return };
        let ops = self.ops();
        let told = put.cookie.is_some() || ops.covers_put(put.number);
        ops.note_failure(Some(put.number), None, refused.status());
        if !told {
            let _ = ops.late.get_or_insert(refused.status());
        }
    }

    /// Completes the flushes that are answered and whose gets have ended.
    fn end_flushes(&mut self, shared: &Shared) {
        let ops = self.ops();
        while let Some(flush) = ops.flushes.front() {
            let gets = ops.gets.iter().any(|get| not_after(get.number, flush.last_get));
            if !flush.answered || gets {
                return;
            }
            if let Some(flush) = ops.flushes.pop_front() {
                shared.completed(flush.cookie, flush.result.map(|()| 0));
            }
        }
    }
}
