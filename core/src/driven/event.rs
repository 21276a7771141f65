//! Events that wait for their handlers.

use super::abi::{Carried, Handler};
use super::dispatch::{Turn, weight};
use super::engine::Engine;
use super::message::{Arrived, DrivenMessage};
use super::{DrivenEndpoint, PeerId};
use crate::endpoint::Endpoint;
use crate::{ConnectError, Error};
use std::sync::Arc;

pub(super) type OnMessage = Handler<dyn Fn(&DrivenMessage) + Send>;
pub(super) type OnNotification = Handler<dyn Fn(PeerId, u32) + Send>;
pub(super) type OnPeerFailure = Handler<dyn Fn(PeerId, &Error) + Send>;
pub(super) type OnPeerLeft = Handler<dyn Fn(PeerId) + Send>;
pub(super) type OnEndpointFailure = Handler<dyn Fn(&DrivenEndpoint, &ConnectError) + Send>;

/// An event, with the handler that was registered when the event was received.
pub(super) enum Event {
    Message(Arc<OnMessage>, Arrived),
    Notification(Arc<OnNotification>, PeerId, u32),
    PeerFailed(Arc<OnPeerFailure>, PeerId, Error),
    PeerLeft(Arc<OnPeerLeft>, PeerId),
    EndpointFailed(Arc<OnEndpointFailure>, Carried<Endpoint>, ConnectError),
}

impl Event {
    pub(super) fn weight(&self) -> usize {
        match self {
            Event::Message(_, arrived) => weight(arrived.copied_len()),
            _ => 1,
        }
    }

    /// Runs the handler. Without a turn, the event is dropped. The caller holds no lock.
    pub(super) fn run(self, engine: &Arc<Engine>, turn: Option<&Turn>) {
        let Some(turn) = turn else { return self.discard(engine) };
        match self {
            Event::Message(handler, arrived) => {
                let message = arrived.message(engine);
                handler.get(turn)(&message);
                message.returned();
            }
            Event::Notification(handler, peer, word) => handler.get(turn)(peer, word),
            Event::PeerFailed(handler, peer, error) => handler.get(turn)(peer, &error),
            Event::PeerLeft(handler, peer) => handler.get(turn)(peer),
            Event::EndpointFailed(handler, endpoint, error) => {
                handler.get(turn)(&DrivenEndpoint::new(endpoint.belonging(engine)), &error);
            }
        }
    }

    /// Drops the event. The caller holds no lock.
    pub(super) fn discard(self, engine: &Arc<Engine>) {
        match self {
            Event::Message(_, arrived) => drop(arrived.message(engine)),
            Event::EndpointFailed(_, endpoint, _) => endpoint.drop_under(engine),
            Event::Notification(..) | Event::PeerFailed(..) | Event::PeerLeft(..) => {}
        }
    }
}
