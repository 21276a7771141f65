//! Tests of services: requests of a client, and their results.

use super::*;

const SERVER: u8 = 1;
const CLIENT: u8 = 2;

struct Two {
    server: Services<()>,
    client: Services<()>,
    arrived: Vec<Arrival>,
}

impl Two {
    fn new() -> Two {
        let limits = ServiceLimits { waiting: 100, asking: 150, max_asking: 3 };
        Two {
            server: Services::new(limits.clone()),
            client: Services::new(limits),
            arrived: Vec::new(),
        }
    }

    /// Delivers messages until none remains, and keeps the requests that arrive.
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
                ServiceAction::Arrived(arrival) => self.arrived.push(arrival),
            }
        }
    }

    fn ask(&mut self, service: &str) -> u64 {
        let token = self.client.ask(0, id(SERVER), service, b"from the client").unwrap();
        self.carry(0);
        token
    }

    fn arrived(&mut self) -> Arrival {
        let arrival = self.arrived.pop().expect("a request");
        assert_eq!((arrival.service.as_str(), arrival.peer), ("store", id(CLIENT)));
        assert_eq!(arrival.private, b"from the client");
        arrival
    }

    fn failure(&mut self, token: u64) -> Error {
        self.client.result(token).expect("it ended").expect_err("it failed")
    }

    fn was_withdrawn(&mut self, request: &Arrival) -> bool {
        let answered = self.server.answer(request, b"", true);
        answered.is_err_and(|error| error.status() == Status::TimedOut)
    }
}

fn id(who: u8) -> WorkerId {
    [who; 16]
}

/// Returns the message that is to be sent next.
fn said(by: &mut Services<()>) -> Vec<u8> {
    match by.take_action() {
        Some(ServiceAction::Send { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_is_accepted_or_rejected_with_private_data() {
    let mut two = Two::new();
    two.server.listen("store", 2, ()).unwrap();
    for (accepts, answer) in [
        (true, ServiceAnswer::Accepted(b"yes".to_vec())),
        (false, ServiceAnswer::Rejected(b"yes".to_vec())),
    ] {
        let token = two.ask("store");
        let request = two.arrived();
        assert!(two.client.result(token).is_none());
        two.server.answer(&request, b"yes", accepts).unwrap();
        assert!(two.was_withdrawn(&request), "it is answered once");
        two.carry(0);
        assert_eq!(two.client.result(token).unwrap().unwrap(), answer);
        two.client.forget(token);
        assert!(two.client.result(token).is_none());
    }
    assert_eq!((two.server.open(), two.client.open()), ((0, 0), (0, 0)));
    assert_eq!((two.server.next_timer(), two.client.next_timer()), (None, None));
}

#[test]
fn a_service_that_nobody_offers_is_refused_in_words() {
    let mut two = Two::new();
    let token = two.ask("stroe");
    let error = two.failure(token);
    assert_eq!(error.status(), Status::Unreachable);
    assert!(error.why().contains("nobody listens for service `stroe`"), "{error}");
}

#[test]
fn a_full_backlog_refuses_and_has_room_again_after_an_answer() {
    let mut two = Two::new();
    two.server.listen("store", 1, ()).unwrap();
    let _ = two.ask("store");
    let request = two.arrived();
    let second = two.ask("store");
    assert!(two.failure(second).why().contains("1 requests wait"));
    two.server.answer(&request, b"", true).unwrap();
    two.carry(0);
    let _ = two.ask("store");
    let _ = two.arrived();
}

#[test]
fn a_server_that_does_not_answer_refuses_at_its_deadline() {
    let mut two = Two::new();
    two.server.listen("store", 1, ()).unwrap();
    let token = two.ask("store");
    let request = two.arrived();
    assert_eq!(two.server.next_timer(), Some(100));
    two.server.tick(100);
    two.carry(100);
    assert!(two.was_withdrawn(&request));
    assert!(two.failure(token).why().contains("did not answer in time"));
}

#[test]
fn a_client_that_gives_up_withdraws_its_request() {
    let mut two = Two::new();
    two.server.listen("store", 1, ()).unwrap();
    let token = two.ask("store");
    let request = two.arrived();
    two.client.tick(150);
    two.carry(150);
    assert_eq!(two.server.open(), (0, 0));
    assert!(two.was_withdrawn(&request));
    assert_eq!(two.failure(token).status(), Status::TimedOut);
}

#[test]
fn a_lost_peer_ends_what_it_asked_and_what_was_asked_of_it() {
    let mut two = Two::new();
    two.server.listen("store", 1, ()).unwrap();
    let token = two.ask("store");
    let request = two.arrived();
    two.client.peer_lost(id(SERVER), "the link is down");
    two.server.peer_lost(id(CLIENT), "the link is down");
    two.carry(0);
    assert!(two.was_withdrawn(&request));
    let error = two.failure(token);
    assert_eq!(error.status(), Status::PeerFailed);
    assert!(error.why().contains("the link is down"));
}

/// A client that reconnects restarts its tokens: an earlier answer does not belong to a new token.
#[test]
fn reused_token_of_lost_peer_gets_no_old_answer() {
    let mut two = Two::new();
    two.server.listen("store", 5, ()).unwrap();
    let token = two.client.ask(0, id(SERVER), "store", b"from the client").unwrap();
    let message = said(&mut two.client);
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    let request = two.arrived();
    two.server.answer(&request, b"the first", true).unwrap();
    two.carry(0);
    let first = ServiceAnswer::Accepted(b"the first".to_vec());
    assert_eq!(two.client.result(token).unwrap().unwrap(), first);
    two.server.peer_lost(id(CLIENT), "the link is down");
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    let again = two.arrived();
    two.server.answer(&again, b"", true).unwrap();
}

#[test]
fn a_request_that_comes_twice_counts_once() {
    let mut two = Two::new();
    two.server.listen("store", 5, ()).unwrap();
    let token = two.client.ask(0, id(SERVER), "store", b"from the client").unwrap();
    let message = said(&mut two.client);
    for _ in 0..2 {
        two.server.receive(0, id(CLIENT), &message).unwrap();
    }
    two.carry(0);
    let request = two.arrived();
    assert!(two.arrived.is_empty());
    two.server.answer(&request, b"", true).unwrap();
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    assert!(two.arrived.is_empty());
    assert_eq!(two.client.result(token).unwrap().unwrap(), ServiceAnswer::Accepted(Vec::new()));
}

#[test]
fn a_closed_service_refuses_who_waits() {
    let mut two = Two::new();
    two.server.listen("store", 5, ()).unwrap();
    assert!(two.server.listen("store", 5, ()).is_err());
    let token = two.ask("store");
    let _ = two.server.unlisten("store");
    two.carry(0);
    assert!(two.failure(token).why().contains("service `store` has closed"));
}

#[test]
fn oversized_or_excess_request_is_refused_locally() {
    let mut two = Two::new();
    assert!(two.client.ask(0, id(SERVER), "store", &[0; 1025]).is_err());
    assert!(two.client.ask(0, id(SERVER), "", b"").is_err());
    for _ in 0..3 {
        let _ = two.client.ask(0, id(SERVER), "store", b"").unwrap();
    }
    assert_eq!(two.client.ask(0, id(SERVER), "store", b"").unwrap_err().status(), Status::Again);
}

#[test]
fn a_service_of_another_version_is_refused_with_both_versions() {
    let mut two = Two::new();
    let token = two.client.ask(0, id(SERVER), "store", b"").unwrap();
    let mut message = said(&mut two.client);
    message[2] = 9;
    two.server.receive(0, id(CLIENT), &message).unwrap();
    two.carry(0);
    let error = two.failure(token);
    assert!(error.why().contains("version 1") && error.why().contains("version 9"), "{error}");
}

#[test]
fn private_data_of_a_kilobyte_passes_everywhere_and_a_byte_more_nowhere() {
    let services = || Services::new(ServiceLimits::default());
    let (mut server, mut client) = (services(), services());
    server.listen("store", 9, ()).unwrap();
    let (most, more) = (vec![7u8; MAX_PRIVATE], vec![7u8; MAX_PRIVATE + 1]);
    assert_eq!(most.len(), 1024);
    for accepts in [true, false] {
        let error = client.ask(0, id(1), "store", &more).unwrap_err();
        assert_eq!((error.status(), client.take_action()), (Status::Invalid, None));
        let token = client.ask(0, id(1), "store", &most).unwrap();
        server.receive(0, id(2), &said(&mut client)).unwrap();
        let Some(ServiceAction::Arrived(request)) = server.take_action() else {
            panic!("the request")
        };
        assert_eq!(request.private, most);
        let error = server.answer(&request, &more, accepts).unwrap_err();
        assert_eq!(error.status(), Status::TooLarge);
        server.answer(&request, &most, accepts).expect("it is still to be answered");
        client.receive(0, id(1), &said(&mut server)).unwrap();
        let answer = match accepts {
            true => ServiceAnswer::Accepted(most.clone()),
            false => ServiceAnswer::Rejected(most.clone()),
        };
        assert_eq!(client.result(token).unwrap().unwrap(), answer);
    }
    // A message of a peer that exceeds the bound is an error, and has no effect.
    for (to_server, message) in [
        (true, Message::Ask { service: "store", private: &more }),
        (false, Message::Accepted { private: &more }),
        (false, Message::Rejected { private: &more }),
    ] {
        let token = client.ask(0, id(1), "store", b"").unwrap();
        let _ = said(&mut client);
        let receiver = if to_server { &mut server } else { &mut client };
        let from = id(if to_server { 2 } else { 1 });
        assert!(receiver.receive(0, from, &encode(token, &message)).is_err());
        assert_eq!(receiver.take_action(), None);
        assert!(client.result(token).is_none());
    }
}

#[test]
fn a_worker_asks_for_so_many_services_at_a_time() {
    let limits = ServiceLimits { max_asking: 2, ..ServiceLimits::default() };
    let mut client: Services<()> = Services::new(limits);
    let first = client.ask(0, id(1), "store", b"").unwrap();
    let _ = client.ask(0, id(1), "store", b"").unwrap();
    let error = client.ask(0, id(1), "store", b"").unwrap_err();
    assert_eq!(error.status(), Status::Again);
    let answer = encode(first, &Message::Accepted { private: b"" });
    client.receive(0, id(1), &answer).unwrap();
    assert!(client.ask(0, id(1), "store", b"").is_ok(), "one that is answered makes room");
}
