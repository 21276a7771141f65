//! Orders about messages that the receiver acknowledges, and about notifications with bytes.

use super::{Node, number};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{Acknowledgement, After, Error, KeyLookup, Outcome, SendOptions, Worker};

/// The id of messages that the receiver acknowledges. Their header bytes are `keep` if the handler is to take the acknowledgement.
const DELIVERED: u16 = 11;
/// The id of notifications with bytes.
const NOTICE: u16 = 12;

#[derive(Default)]
pub(super) struct Following {
    /// The operation of a message that waits for the acknowledgement, and that of a notification.
    delivery: Option<Outcome>,
    notice: Option<Outcome>,
    acknowledgements: Rc<RefCell<Vec<Acknowledgement>>>,
    /// The headers of the notifications.
    notices: Rc<RefCell<Vec<String>>>,
}

impl Following {
    pub(super) fn listen(&self, worker: &Worker) -> Result<(), Error> {
        let kept = self.acknowledgements.clone();
        worker.on_message(DELIVERED, move |message| {
            if *message.header_bytes() == *b"keep" {
                kept.borrow_mut().extend(message.acknowledgement());
            }
        })?;
        let notices = self.notices.clone();
        worker.on_message(NOTICE, move |m| notices.borrow_mut().push(m.header().to_string()))
    }
}

impl Node {
    pub(super) fn following(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            // `ask-delivery` sends a message that the receiver acknowledges: `keep` or `return`.
            ["ask-delivery", name, how] => {
                let options = SendOptions::new().header_bytes(how.as_bytes()).delivered();
                let sent = self.endpoint(name).send_with(DELIVERED, 0, b"payload", &options)?;
                self.following.delivery = Some(sent);
                Ok(String::new())
            }
            ["delivery-end"] => {
                let sent = self.following.delivery.take().expect("`ask-delivery` comes first");
                self.finish(Ok(sent))
            }
            // `acknowledgement` waits until the handler has taken one.
            ["acknowledgement"] => {
                let kept = self.following.acknowledgements.clone();
                let _ = self.worker().wait_until(|| !kept.borrow().is_empty(), None)?;
                Ok(String::new())
            }
            ["acknowledge"] => {
                let kept = self.following.acknowledgements.borrow_mut().remove(0);
                kept.give();
                Ok(String::new())
            }
            // `notify-behind-long` posts a notification that follows the message of `long`; `notify` one that follows everything.
            ["notify-behind-long", name, header] => {
                let long = self.long.posted().expect("`long` comes first");
                let header = number(header) as u64;
                let after = After::Operations(&[long]);
                let posted = self.endpoint(name).notify(after, NOTICE, header, b"behind")?;
                self.following.notice = Some(posted);
                Ok(String::new())
            }
            ["notify", name, header] => {
                let header = number(header) as u64;
                let posted =
                    self.endpoint(name).notify(After::Everything, NOTICE, header, b"all")?;
                self.following.notice = Some(posted);
                Ok(String::new())
            }
            ["notify-end"] => {
                let posted = self.following.notice.take().expect("`notify` comes first");
                self.finish(Ok(posted))
            }
            ["notices"] => Ok(self.following.notices.borrow().join(",")),
            // `new-calls` makes the calls that a peer of an earlier version cannot answer. Returns their errors.
            ["new-calls", name] => {
                let endpoint = self.endpoint(name);
                let headed = SendOptions::new().header_bytes(b"keep");
                let headed = endpoint.send_with(DELIVERED, 0, b"", &headed);
                let delivered = SendOptions::new().delivered();
                let delivered = endpoint.send_with(DELIVERED, 0, b"", &delivered);
                let looked_up = endpoint.key_by_number(17).map(|found| match found {
                    KeyLookup::Asked(asked) => asked,
                    KeyLookup::Known(_) => Outcome::Done(0),
                });
                let errors = [headed, delivered, looked_up].map(|result| match result {
                    Ok(_) => "accepted".to_owned(),
                    Err(error) => format!("{:?} {error}", error.status()),
                });
                Ok(errors.join("|"))
            }
            _ => panic!("{words:?} is no order"),
        }
    }
}
