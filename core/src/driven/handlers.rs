//! The handlers of a driven worker. The ordinary worker's handlers append an event to the dispatch list.

use super::abi::{Carried, Handler};
use super::dispatch::Dispatch;
use super::event::{
    Event, OnEndpointFailure, OnMessage, OnNotification, OnPeerFailure, OnPeerLeft,
};
use super::message::{Arrived, DrivenMessage};
use super::{DrivenEndpoint, DrivenWorker, PeerId};
use crate::{ConnectError, Error};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The functions of the application, one place for each kind. They are called and dropped outside the lock.
pub(super) struct Handlers {
    dispatch: Arc<Dispatch>,
    messages: Vec<(u16, Place<OnMessage>)>,
    notification: Place<OnNotification>,
    peer_failure: Place<OnPeerFailure>,
    peer_left: Place<OnPeerLeft>,
    endpoint_failure: Place<OnEndpointFailure>,
}

/// A place for a function, shared with the ordinary worker's handler.
type Place<F> = Rc<RefCell<Option<Arc<F>>>>;

/// All functions, for their drop outside the lock.
#[allow(dead_code)] // held for the drop
pub(super) struct Removed(
    Vec<Option<Arc<OnMessage>>>,
    Option<Arc<OnNotification>>,
    Option<Arc<OnPeerFailure>>,
    Option<Arc<OnPeerLeft>>,
    Option<Arc<OnEndpointFailure>>,
);

impl Handlers {
    pub(super) fn new(dispatch: Arc<Dispatch>) -> Handlers {
        Handlers {
            dispatch,
            messages: Vec::new(),
            notification: Rc::default(),
            peer_failure: Rc::default(),
            peer_left: Rc::default(),
            endpoint_failure: Rc::default(),
        }
    }

    /// Removes all functions.
    pub(super) fn remove_all(&mut self) -> Removed {
        Removed(
            self.messages.iter().map(|(_, place)| place.take()).collect(),
            self.notification.take(),
            self.peer_failure.take(),
            self.peer_left.take(),
            self.endpoint_failure.take(),
        )
    }
}

/// Makes the function that the ordinary worker calls: it passes the registered handler and the dispatch list to `push`.
fn collector<F: ?Sized + 'static, A: 'static, E: Fn(Arc<F>, A) -> Event + 'static>(
    place: &Place<F>,
    dispatch: &Arc<Dispatch>,
    event: E,
) -> impl Fn(A) + use<F, A, E> {
    let (place, dispatch) = (place.clone(), dispatch.clone());
    move |what| {
        let handler = place.borrow().clone();
        if let Some(handler) = handler {
            dispatch.push(event(handler, what));
        }
    }
}

impl DrivenWorker {
    /// Registers the handler for messages with one id. It replaces the previous handler of this id, for messages that are received
    /// after the call.
    ///
    /// The handler runs outside the worker's lock, on the progress thread or on a thread that waits. The handlers of a worker run
    /// one at a time, and for the messages of one endpoint in the order in which they were posted. A handler may post, connect,
    /// register handlers and drop objects; calls that wait return `Busy`.
    ///
    /// # Errors
    /// As for [`Worker::on_message`](crate::Worker::on_message).
    pub fn on_message(
        &self,
        id: u16,
        handler: impl Fn(&DrivenMessage) + Send + 'static,
    ) -> Result<(), Error> {
        let handler: Arc<OnMessage> = Arc::new(Handler::new(handler));
        let before;
        {
            let mut entered = self.engine().enter_open()?;
            let handlers = &mut entered.inside().handlers;
            let known = handlers.messages.iter().find(|(known, _)| *known == id);
            if let Some((_, place)) = known {
                before = place.replace(Some(handler));
            } else {
                let place: Place<OnMessage> = Rc::new(RefCell::new(Some(handler)));
                let (shared, dispatch) = (place.clone(), handlers.dispatch.clone());
                entered.worker()?.on_message(id, move |message| {
                    let handler = shared.borrow().clone();
                    if let Some(handler) = handler {
                        dispatch.push(Event::Message(handler, Arrived::new(message)));
                    }
                })?;
                entered.inside().handlers.messages.push((id, place));
                before = None;
            }
        }
        // The application's function is dropped outside the lock.
        drop(before);
        Ok(())
    }

    /// Registers the handler for notifications of peers' puts, as
    /// [`Worker::on_notification`](crate::Worker::on_notification) does. It runs as message handlers do.
    ///
    /// # Errors
    /// `Closed` if the worker is closed; `Invalid` in a forked child.
    pub fn on_notification(
        &self,
        handler: impl Fn(PeerId, u32) + Send + 'static,
    ) -> Result<(), Error> {
        let handler: Arc<OnNotification> = Arc::new(Handler::new(handler));
        let before;
        {
            let mut entered = self.engine().enter_open()?;
            let Handlers { dispatch, notification, .. } = &entered.inside().handlers;
            let event = |handler, (peer, word)| Event::Notification(handler, peer, word);
            let told = collector(notification, dispatch, event);
            before = notification.replace(Some(handler));
            entered.worker()?.on_notification(move |peer, word| told((peer, word)))?;
        }
        drop(before);
        Ok(())
    }

    /// Registers the handler for failed peers, as [`Worker::on_peer_failure`](crate::Worker::on_peer_failure) does. It runs as
    /// message handlers do.
    ///
    /// # Errors
    /// `Closed` if the worker is closed; `Invalid` in a forked child.
    pub fn on_peer_failure(
        &self,
        handler: impl Fn(PeerId, &Error) + Send + 'static,
    ) -> Result<(), Error> {
        let handler: Arc<OnPeerFailure> = Arc::new(Handler::new(handler));
        let before;
        {
            let mut entered = self.engine().enter_open()?;
            let Handlers { dispatch, peer_failure, .. } = &entered.inside().handlers;
            let event = |handler, (peer, error)| Event::PeerFailed(handler, peer, error);
            let told = collector(peer_failure, dispatch, event);
            before = peer_failure.replace(Some(handler));
            entered.worker()?.on_peer_failure(move |peer, error| told((peer, error.clone())));
        }
        drop(before);
        Ok(())
    }

    /// Registers the handler for peers that left in good order, as [`Worker::on_peer_left`](crate::Worker::on_peer_left) does. It
    /// runs as message handlers do.
    ///
    /// # Errors
    /// `Closed` if the worker is closed; `Invalid` in a forked child.
    pub fn on_peer_left(&self, handler: impl Fn(PeerId) + Send + 'static) -> Result<(), Error> {
        let handler: Arc<OnPeerLeft> = Arc::new(Handler::new(handler));
        let before;
        {
            let mut entered = self.engine().enter_open()?;
            let Handlers { dispatch, peer_left, .. } = &entered.inside().handlers;
            let told = collector(peer_left, dispatch, Event::PeerLeft);
            before = peer_left.replace(Some(handler));
            entered.worker()?.on_peer_left(told);
        }
        drop(before);
        Ok(())
    }

    /// Registers the handler for failed endpoints, as
    /// [`Worker::on_endpoint_failure`](crate::Worker::on_endpoint_failure) does. It runs as message handlers do.
    ///
    /// # Errors
    /// `Closed` if the worker is closed; `Invalid` in a forked child.
    pub fn on_endpoint_failure(
        &self,
        handler: impl Fn(&DrivenEndpoint, &ConnectError) + Send + 'static,
    ) -> Result<(), Error> {
        let handler: Arc<OnEndpointFailure> = Arc::new(Handler::new(handler));
        let before;
        {
            let mut entered = self.engine().enter_open()?;
            let Handlers { dispatch, endpoint_failure, .. } = &entered.inside().handlers;
            let event = |handler, (endpoint, error)| {
                Event::EndpointFailed(handler, Carried::new(endpoint), error)
            };
            let told = collector(endpoint_failure, dispatch, event);
            before = endpoint_failure.replace(Some(handler));
            entered.worker()?.on_endpoint_failure(move |endpoint, error| {
                told((endpoint.clone(), error.clone()));
            });
        }
        drop(before);
        Ok(())
    }
}
