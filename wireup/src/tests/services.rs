//! Tests of services: requests of a client, and their results.

use super::world::id;
use crate::service::{RequestId, ServiceAction, ServiceLimits, Services};
use crate::{Reason, ReasonKind};

const SERVER: u8 = 1;
const CLIENT: u8 = 2;

struct Two {
    server: Services,
    client: Services,
    told: Vec<ServiceAction>,
}

impl Two {
    fn new() -> Two {
        let limits = ServiceLimits { waiting: 100, asking: 150, max_asking: 3 };
        Two {
            server: Services::new(limits.clone()),
            client: Services::new(limits),
            told: Vec::new(),
        }
    }

    /// Delivers messages until none remains, and records the applications' events.
    fn carry(&mut self, now: u64) {
        loop {
            let (action, from_client) = match self.client.take_action() {
                Some(action) => (action, true),
                None => match self.server.take_action() {
                    Some(action) => (action, false),
                    None => return,
                },
            };
            match action {
                ServiceAction::Send { peer, message, .. } if from_client => {
                    assert_eq!(peer, id(SERVER));
                    self.server.receive(now, id(CLIENT), &message).unwrap();
                }
                ServiceAction::Send { peer, message, .. } => {
                    assert_eq!(peer, id(CLIENT));
                    self.client.receive(now, id(SERVER), &message).unwrap();
                }
                told => self.told.push(told),
            }
        }
    }

    fn ask(&mut self, service: &str) -> u64 {
        let token = self.client.ask(0, id(SERVER), service, b"from the client").unwrap();
        self.carry(0);
        token
    }

    fn arrived(&mut self) -> RequestId {
        match self.told.pop() {
            Some(ServiceAction::Arrived { id: request, service, peer, private }) => {
                assert_eq!((service.as_str(), peer), ("store", id(CLIENT)));
                assert_eq!(private, b"from the client");
                request
            }
            other => panic!("{other:?}"),
        }
    }

    fn failure(&mut self, token: u64) -> Reason {
        let of =
            |a: &ServiceAction| matches!(a, ServiceAction::Failed { token: t, .. } if *t == token);
        let at = self.told.iter().position(of).expect("it failed");
        match self.told.remove(at) {
            ServiceAction::Failed { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    fn was_withdrawn(&self, request: RequestId) -> bool {
        let mut told = self.told.iter();
        told.any(|a| matches!(a, ServiceAction::Withdrawn { id, .. } if *id == request))
    }
}

#[test]
fn a_client_is_accepted_or_rejected_with_private_data() {
    let mut two = Two::new();
    two.server.listen("store", 2).unwrap();
    let one = two.ask("store");
    let request = two.arrived();
    assert_eq!(two.server.accept(request, b"yes"), Ok(true));
    assert_eq!(two.server.reject(request, b"no"), Ok(false), "it is answered once");
    two.carry(0);
    assert_eq!(
        two.told.pop(),
        Some(ServiceAction::Accepted { token: one, private: b"yes".to_vec() })
    );
    let again = two.ask("store");
    let request = two.arrived();
    assert_eq!(two.server.reject(request, b"no"), Ok(true));
    two.carry(0);
    assert_eq!(
        two.told.pop(),
        Some(ServiceAction::Rejected { token: again, private: b"no".to_vec() })
    );
    assert_eq!((two.server.open(), two.client.open()), ((0, 0), (0, 0)));
    assert_eq!((two.server.next_timer(), two.client.next_timer()), (None, None));
}

#[test]
fn a_service_that_nobody_offers_is_refused_in_words() {
    let mut two = Two::new();
    let token = two.ask("stroe");
    let reason = two.failure(token);
    assert_eq!(reason.kind, ReasonKind::Rejected);
    assert!(reason.text.contains("nobody listens for service `stroe`"), "{reason}");
}

#[test]
fn a_full_backlog_refuses_and_has_room_again_after_an_answer() {
    let mut two = Two::new();
    two.server.listen("store", 1).unwrap();
    let _ = two.ask("store");
    let request = two.arrived();
    let second = two.ask("store");
    assert!(two.failure(second).text.contains("1 requests wait"));
    assert_eq!(two.server.accept(request, b""), Ok(true));
    two.carry(0);
    let _ = two.told.pop();
    let _ = two.ask("store");
    let _ = two.arrived();
}

#[test]
fn a_server_that_does_not_answer_refuses_at_its_deadline() {
    let mut two = Two::new();
    two.server.listen("store", 1).unwrap();
    let token = two.ask("store");
    let request = two.arrived();
    assert_eq!(two.server.next_timer(), Some(100));
    two.server.tick(100);
    two.carry(100);
    assert!(two.was_withdrawn(request));
    assert!(two.failure(token).text.contains("did not answer in time"));
    assert_eq!(two.server.accept(request, b""), Ok(false));
}

#[test]
fn a_client_that_gives_up_withdraws_its_request() {
    let mut two = Two::new();
    two.server.listen("store", 1).unwrap();
    let token = two.ask("store");
    let request = two.arrived();
    two.client.tick(150);
    two.carry(150);
    assert_eq!(two.server.open(), (0, 0));
    assert!(two.was_withdrawn(request));
    assert_eq!(two.failure(token).kind, ReasonKind::TimedOut);
}

#[test]
fn a_lost_peer_ends_what_it_asked_and_what_was_asked_of_it() {
    let mut two = Two::new();
    two.server.listen("store", 1).unwrap();
    let token = two.ask("store");
    let request = two.arrived();
    two.client.peer_lost(id(SERVER), "the link is down");
    two.server.peer_lost(id(CLIENT), "the link is down");
    two.carry(0);
    assert!(two.was_withdrawn(request));
    let reason = two.failure(token);
    assert_eq!(reason.kind, ReasonKind::Transport);
    assert!(reason.text.contains("the link is down"));
}

/// A client that reconnects restarts its tokens: an earlier answer does not belong to a new token.
#[test]
fn reused_token_of_lost_peer_gets_no_old_answer() {
    let mut two = Two::new();
    two.server.listen("store", 5).unwrap();
    let token = two.client.ask(0, id(SERVER), "store", b"from the client").unwrap();
    let Some(ServiceAction::Send { message, .. }) = two.client.take_action() else { panic!() };
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    let request = two.arrived();
    assert_eq!(two.server.accept(request, b"the first"), Ok(true));
    two.carry(0);
    assert_eq!(two.told, [ServiceAction::Accepted { token, private: b"the first".to_vec() }]);
    two.told.clear();
    two.server.peer_lost(id(CLIENT), "the link is down");
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    let again = two.arrived();
    assert_eq!(two.server.accept(again, b""), Ok(true));
}

#[test]
fn a_request_that_comes_twice_counts_once() {
    let mut two = Two::new();
    two.server.listen("store", 5).unwrap();
    let token = two.client.ask(0, id(SERVER), "store", b"from the client").unwrap();
    let Some(ServiceAction::Send { message, .. }) = two.client.take_action() else { panic!() };
    for _ in 0..2 {
        two.server.receive(0, id(CLIENT), &message).unwrap();
    }
    two.carry(0);
    let request = two.arrived();
    assert!(two.told.is_empty());
    assert_eq!(two.server.accept(request, b""), Ok(true));
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    assert_eq!(two.told, [ServiceAction::Accepted { token, private: Vec::new() }]);
}

#[test]
fn a_closed_service_refuses_who_waits() {
    let mut two = Two::new();
    two.server.listen("store", 5).unwrap();
    assert!(two.server.listen("store", 5).is_err());
    let token = two.ask("store");
    two.server.unlisten("store");
    two.carry(0);
    assert!(two.failure(token).text.contains("service `store` has closed"));
}

#[test]
fn oversized_or_excess_request_is_refused_locally() {
    let mut two = Two::new();
    assert!(two.client.ask(0, id(SERVER), "store", &[0; 1025]).is_err());
    assert!(two.client.ask(0, id(SERVER), "", b"").is_err());
    for _ in 0..3 {
        let _ = two.client.ask(0, id(SERVER), "store", b"").unwrap();
    }
    assert_eq!(two.client.ask(0, id(SERVER), "store", b"").unwrap_err().kind, ReasonKind::Busy);
}

#[test]
fn a_service_of_another_version_is_refused_with_both_versions() {
    let mut two = Two::new();
    let token = two.client.ask(0, id(SERVER), "store", b"").unwrap();
    let Some(ServiceAction::Send { mut message, .. }) = two.client.take_action() else { panic!() };
    message[2] = 9;
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    let reason = two.failure(token);
    assert!(reason.text.contains("version 1") && reason.text.contains("version 9"), "{reason}");
}
