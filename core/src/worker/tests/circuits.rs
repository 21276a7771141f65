//! Tests of circuits: those that carry replies, the carriers of their datagrams, and the consequences of their end.

use super::*;
use crate::address::{Scheme, Via, WorkerEntry};
use crate::proto::emulate::Answer;
use crate::worker::wireup_transports::WireupTransport;
use crate::{CompletionError, ContextBuilder, PostError};
use tieline_testing::Wait;

/// Returns the directory of the TCP provider, or an error.
fn tcp_folder() -> Option<String> {
    match tieline_testing::built::folder(&tieline_testing::built::TCP) {
        Ok(folder) => Some(folder.display().to_string()),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn over_tcp() -> Option<Context> {
    Some(tcp_context_builder()?.open().unwrap())
}

fn tcp_context_builder() -> Option<ContextBuilder> {
    let context = Context::builder()
        .set("TIELINE_PROVIDER_PATH", &tcp_folder()?)
        .set("TIELINE_PROVIDERS", "tcp,tcp-connect")
        .set("TIELINE_TCP_INTERFACES", "127.0.0.0/8");
    Some(context)
}

/// Completes an operation of `asks` while both workers make progress.
fn end(asks: &Worker, answers: &Worker, request: &Request) -> Result<u64, CompletionError> {
    let wait = Wait::new("the end of an operation");
    loop {
        match asks.test(request) {
            Some(result) => return result,
            None => wait.goes_on(),
        }
        let _ = (asks.progress(), answers.progress());
    }
}

fn pending(outcome: Result<Outcome, PostError>) -> Request {
    match outcome.unwrap() {
        Outcome::Pending(request) => request,
        Outcome::Done(_) => panic!("it ended at once, although a peer has to answer"),
    }
}

#[test]
fn an_answer_goes_back_over_the_circuit_that_the_question_came_by() {
    let (Some(here), Some(there)) = (over_tcp(), over_tcp()) else { return };
    let (asks, answers) = (here.worker().unwrap(), there.worker().unwrap());
    let target = there.alloc(64).unwrap();
    let key = target.remote_key().unwrap();
    let address = answers.address().unwrap();
    let [first, second] = [0, 1].map(|_| asks.connect(&address).unwrap());
    let add = |endpoint: &Endpoint| {
        let key = endpoint.import_key(&key).unwrap();
        end(&asks, &answers, &pending(endpoint.fetch_add(&key, 0, 1))).unwrap()
    };
    let answered_over = || answers.inner.wiring.circuits_with_answers();
    assert_eq!(add(&first), 0);
    let one = answered_over();
    assert_eq!(one.len(), 1);
    assert_eq!((add(&second), add(&first)), (1, 2));
    let both = answered_over();
    assert_eq!(both.len(), 2, "each endpoint has its circuit: {both:?}");
    assert!(both.contains(&one[0]));
    // A reply does not keep a circuit claimed: the next endpoint uses the same circuit.
    drop(first);
    let third = asks.connect(&address).unwrap();
    assert_eq!(add(&third), 3);
    assert_eq!(answered_over(), both);
}

#[test]
fn dead_circuit_carries_no_replies_while_its_endpoint_is_held() {
    let (Some(here), Some(there)) = (over_tcp(), over_tcp()) else { return };
    let (asks, answers) = (here.worker().unwrap(), there.worker().unwrap());
    let there = asks.connect(&answers.address().unwrap()).unwrap();
    assert_eq!(end(&asks, &answers, &pending(there.flush_messages())), Ok(0));
    let back = answers.connect(&asks.address().unwrap()).unwrap();
    assert_eq!(end(&answers, &asks, &pending(back.flush_messages())), Ok(0));
    let circuits = answers.inner.wiring.circuits_with_answers();
    assert_eq!((circuits.len(), &circuits), (1, &answers.inner.wiring.standing()));
    answers.inner.circuit_failed(circuits[0], Status::TimedOut, "the test says so");
    assert!(answers.inner.wiring.circuits_with_answers().is_empty());
    drop(back);
}

/// The same peer may have two requests, and answer one in place of the other.
#[test]
fn an_answer_counts_only_over_the_circuit_that_the_question_went_by() {
    let (Some(here), Some(there)) = (over_tcp(), over_tcp()) else { return };
    let (asks, answers) = (here.worker().unwrap(), there.worker().unwrap());
    let target = there.alloc(64).unwrap();
    let key = target.remote_key().unwrap();
    let address = answers.address().unwrap();
    let [first, second] = [0, 1].map(|_| asks.connect(&address).unwrap());
    let ask = |endpoint: &Endpoint| {
        let key = endpoint.import_key(&key).unwrap();
        pending(endpoint.fetch_add(&key, 0, 1))
    };
    let circuit_of = |endpoint: &Endpoint, known: &[u64]| {
        let _ = end(&asks, &answers, &ask(endpoint)).unwrap();
        let circuits = answers.inner.wiring.circuits_with_answers();
        *circuits.iter().find(|circuit| !known.contains(circuit)).expect("a circuit of its own")
    };
    let one = circuit_of(&first, &[]);
    let other = circuit_of(&second, &[one]);
    let asked = ask(&first);
    let lie = |value| Answer::Reply { token: asked.id.raw(), status: 0, value };
    let wrong = answers.inner.answers_over(other).unwrap();
    wrong.send_answer(&mut lie(99)).unwrap();
    let wait = Wait::new("an answer over the other circuit");
    while asks.counters().malformed == 0 && asks.test(&asked).is_none() {
        wait.goes_on();
        let _ = asks.progress();
    }
    assert_eq!(asks.test(&asked), None, "it was not asked over that circuit");
    let right = answers.inner.answers_over(one).unwrap();
    right.send_answer(&mut lie(77)).unwrap();
    let wait = Wait::new("an answer over the circuit of the question");
    while asks.test(&asked).is_none() {
        wait.goes_on();
        let _ = asks.progress();
    }
    assert_eq!(asks.test(&asked), Some(Ok(77)));
}

/// The two workers of one process fail separately. The second worker has no circuit yet and may be alive.
#[test]
fn failed_circuit_ends_its_endpoint_and_reports_its_worker() {
    for status in [Status::PeerFailed, Status::TimedOut] {
        let (Some(here), Some(there)) = (over_tcp(), over_tcp()) else { return };
        let asks = here.worker().unwrap();
        let others = [there.worker().unwrap(), there.worker().unwrap()];
        let [first, second] =
            others.each_ref().map(|worker| asks.connect(&worker.address().unwrap()).unwrap());
        assert_eq!(end(&asks, &others[0], &pending(first.flush_messages())), Ok(0));
        let told = Rc::new(Cell::new(0));
        let count = told.clone();
        asks.on_peer_failure(move |_, _| count.set(count.get() + 1));
        let [circuit] = asks.inner.wiring.standing()[..] else { panic!("one circuit") };
        asks.inner.circuit_failed(circuit, status, "the test says so");
        assert_eq!(first.error().map(|error| error.status()), Some(status));
        assert_eq!(second.error(), None, "{status}");
        assert_eq!(told.get(), 0, "a handler ran outside of progress");
        assert_eq!(asks.arm(), Ok(false), "it would sleep on the news");
        let _ = asks.progress();
        assert_eq!(told.get(), 1);
    }
}

/// A host may be down, unreachable or busy, and the status does not show which.
#[test]
fn remedy_for_an_ended_connection_names_no_cause() {
    use crate::worker::arrivals::remedy_for_status;
    for status in [Status::TimedOut, Status::Unreachable, Status::Io, Status::BadData] {
        let remedy = remedy_for_status(status);
        let guesses = ["host", "network", "firewall", "down", "crash"];
        assert!(!guesses.iter().any(|guess| remedy.contains(guess)), "{status}: {remedy}");
    }
}

/// The failure of the first circuit does not mean that the peer has failed.
#[test]
fn a_peer_is_not_gone_while_another_circuit_to_it_stands() {
    let (Some(here), Some(there)) = (over_tcp(), over_tcp()) else { return };
    let (asks, answers) = (here.worker().unwrap(), there.worker().unwrap());
    let address = answers.address().unwrap();
    let both = [0, 1].map(|_| asks.connect(&address).unwrap());
    for endpoint in &both {
        assert_eq!(end(&asks, &answers, &pending(endpoint.flush_messages())), Ok(0));
    }
    let told = Rc::new(Cell::new(0));
    let count = told.clone();
    asks.on_peer_failure(move |_, _| count.set(count.get() + 1));
    let circuits = asks.inner.wiring.standing();
    assert_eq!(circuits.len(), 2);
    for (ended, circuit) in circuits.into_iter().enumerate() {
        asks.inner.circuit_failed(circuit, Status::Io, "the test says so");
        let _ = asks.progress();
        assert_eq!(told.get(), ended);
    }
}

#[test]
fn a_peer_stands_elsewhere_when_a_circuit_to_it_stands_in_another_domain() {
    let Some(folder) = tcp_folder() else { return };
    let both = Context::builder()
        .set("TIELINE_PROVIDER_PATH", &folder)
        .set("TIELINE_PROVIDERS", "shm,tcp,tcp-connect")
        .set("TIELINE_TCP_INTERFACES", "127.0.0.0/8");
    let (here, there) = (both.open().unwrap(), over_tcp().unwrap());
    let (asks, answers) = (here.worker().unwrap(), there.worker().unwrap());
    let endpoint = asks.connect(&answers.address().unwrap()).unwrap();
    assert_eq!(end(&asks, &answers, &pending(endpoint.flush_messages())), Ok(0));
    let [circuit] = asks.inner.wiring.standing()[..] else { panic!("one circuit") };
    let slot = |to_endpoint: bool| {
        asks.inner.shared.interfaces.iter().find(|slot| slot.to_endpoint == to_endpoint).unwrap()
    };
    let stands_after = |status, worker: &Worker| {
        let id = worker.inner.shared.id;
        [false, true].map(|circuits| asks.inner.stands_elsewhere(id, slot(circuits), status))
    };
    let stands = |worker: &Worker| stands_after(Status::TimedOut, worker);
    assert_eq!(stands(&answers), [true, false]);
    assert_eq!(stands_after(Status::Io, &answers), [true, true], "nothing was said of the peer");
    assert_eq!(stands(&there.worker().unwrap()), [false, false], "it is another worker's circuit");
    asks.inner.circuit_failed(circuit, Status::TimedOut, "the test says so");
    assert_eq!(stands(&answers), [false, false], "it stands no more");
}

/// The address lists the peer's schemes for a candidate in any order.
#[test]
fn datagram_carrier_with_highest_rank_of_peer_is_chosen() {
    let (Some(here), Some(there)) = (over_tcp(), over_tcp()) else { return };
    let worker = here.worker().unwrap();
    let [peer, beside] = [0, 1].map(|_| {
        let worker = there.worker().unwrap();
        WorkerAddress::parse(&worker.address().unwrap()).unwrap()
    });
    let scheme = |of: &WorkerAddress, rank| Scheme {
        serves: vec![(0, rank)],
        ..of.entry.schemes[0].clone()
    };
    let via = |scheme: &Scheme| match &scheme.via {
        Via::Connector(address) => Some(WireupTransport::Connector(0, address.clone())),
        Via::Candidate(_) => None,
    };
    for (first, second) in [(1, 2), (2, 1)] {
        let schemes = vec![scheme(&peer, first), scheme(&beside, second)];
        let best = schemes.iter().max_by_key(|scheme| scheme.rank(0)).and_then(via);
        let entry = WorkerEntry { schemes, ..peer.entry.clone() };
        let peer = WorkerAddress { entry, ..peer.clone() };
        assert_eq!(worker.inner.choose_transport(&peer, 0, 0).ok(), best);
    }
}

/// The peer waits for the datagram, although no endpoint of the worker does.
#[test]
fn worker_closes_only_after_waiting_datagrams_are_sent() {
    let by_hand = || {
        tcp_context_builder()
            .map(|of| of.set("TIELINE_CONNECT", "oob").out_of_band(true).open().unwrap())
    };
    let (Some(here), Some(there)) = (by_hand(), by_hand()) else { return };
    let (asks, answers) = (here.worker().unwrap(), there.worker().unwrap());
    let requests: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let mail = requests.clone();
    let post = move |_: &[u8], datagram: &[u8]| {
        mail.borrow_mut().push(datagram.to_vec());
        true
    };
    asks.set_out_of_band(b"asks", post).unwrap();
    let tries = Rc::new(Cell::new(0));
    let count = tries.clone();
    let third = move |_: &[u8], _: &[u8]| count.replace(count.get() + 1) >= 2;
    answers.set_out_of_band(b"answers", third).unwrap();
    let endpoint = asks.connect(&answers.address().unwrap()).unwrap();
    let _ = pending(endpoint.send(7, 0, b"")); // this post forms the connection
    let wait = Wait::new("a datagram that asks for a connection");
    while requests.borrow().is_empty() {
        wait.goes_on();
        let _ = asks.progress();
    }
    answers.deliver_out_of_band(&requests.borrow()[0]).unwrap();
    assert_eq!(tries.get(), 1);
    answers.close(Duration::from_secs(60)).unwrap();
    assert!(tries.get() >= 3, "it left at the third try, and not after {}", tries.get());
}

/// A peer could not answer a truncated address, and the request would time out.
#[test]
fn an_address_that_no_request_carries_is_said_at_once_and_nobody_is_asked() {
    let Some(builder) = tcp_context_builder() else { return };
    let context = builder.set("TIELINE_CONNECT", "oob").out_of_band(true).open().unwrap();
    let (asks, answers) = (context.worker().unwrap(), context.worker().unwrap());
    let never = |_: &[u8], _: &[u8]| -> bool { panic!("nothing is sent") };
    asks.inner.wiring.transports.set_out_of_band(&[1; 9000], Box::new(never));
    answers.set_out_of_band(b"answers", never).unwrap();
    let endpoint = asks.connect(&answers.address().unwrap()).unwrap();
    let said = match endpoint.send(7, 0, b"") {
        Ok(Outcome::Pending(request)) => end(&asks, &answers, &request).unwrap_err().to_string(),
        Ok(Outcome::Done(_)) => panic!("it is sent"),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("a request carries 8192"), "{said}");
}

/// The cost is the number of accesses to entries of tables and to circuits.
#[test]
fn cost_of_circuit_endpoint_does_not_depend_on_number_of_endpoints() {
    let Some(context) = over_tcp() else { return };
    let worker = context.worker().unwrap();
    let address = worker.address().unwrap();
    worker.on_message(7, |_| ()).unwrap();
    let open = || {
        let endpoint = worker.connect(&address).unwrap();
        let _ = endpoint.send(7, 0, b"").unwrap();
        endpoint
    };
    let cost = || {
        let before = LOOKS.get();
        drop(open());
        LOOKS.get() - before
    };
    let _keeps_the_peer = open();
    let _ = cost();
    let first = cost();
    // Each endpoint has a connection to its own worker, which takes two sockets.
    let others: Vec<Endpoint> = (0..100).map(|_| open()).collect();
    drop(open());
    assert_eq!(cost(), first, "among {}", others.len());
}

#[test]
fn cost_of_finding_requester_does_not_depend_on_number_of_endpoints() {
    let context = over_shm(false);
    let (worker, peer) = (context.worker().unwrap(), context.worker().unwrap());
    let there = worker.connect(&peer.address().unwrap()).unwrap();
    let cost = |there: &Endpoint| {
        let number = there.peer();
        if let Some(peer) = worker.inner.peers.borrow_mut().get_mut(number.0) {
            peer.borrowed = std::rc::Weak::new();
        }
        let before = LOOKS.get();
        let found = worker.inner.reply_endpoint(number.0).unwrap();
        assert!(std::ptr::eq(&raw const *found, &raw const *there.inner));
        LOOKS.get() - before
    };
    let alone = cost(&there);
    let address = worker.address().unwrap();
    let others: Vec<Endpoint> = (0..100).map(|_| worker.connect(&address).unwrap()).collect();
    drop(there);
    let there = worker.connect(&peer.address().unwrap()).unwrap();
    assert_eq!(cost(&there), alone, "among {}", others.len());
}

/// Returns the addresses of a worker's open connectors.
fn connectors(worker: &Worker) -> Vec<Vec<u8>> {
    let open = &worker.inner.wiring.transports.connectors;
    open.iter().map(|slot| slot.connector.address().unwrap()).collect()
}

#[test]
fn first_worker_gets_connector_that_the_context_opened_as_a_test() {
    let Some(context) = over_tcp() else { return };
    let core = context.core();
    let (id, addresses) = {
        let mut tested = core.tested().lock().unwrap();
        let tested = tested.as_mut().expect("open connectors");
        (tested.worker, tested.addresses())
    };
    let (first, second) = (context.worker().unwrap(), context.worker().unwrap());
    assert_eq!(addresses.len(), 1);
    assert_eq!((first.inner.shared.id, connectors(&first)), (id, addresses));
    assert_ne!(second.inner.shared.id, id);
    assert_ne!(connectors(&second), connectors(&first));
    assert!(core.tested().lock().unwrap().is_none());
    // The listener of a context without a worker would take one of a few ports.
    let few = tcp_context_builder().unwrap().set("TIELINE_TCP_PORTS", "20000-29999");
    assert!(few.open().unwrap().core().tested().lock().unwrap().is_none());
}
