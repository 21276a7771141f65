//! Tests of services between two workers, and of their time limits.

use super::*;
use crate::Context;
use std::cell::{Cell, RefCell};
use tieline_lookup::{ServiceLimits, Services};

fn until<T>(workers: &[&Worker], mut ready: impl FnMut() -> Option<T>) -> T {
    loop {
        for worker in workers {
            let _ = worker.progress();
        }
        if let Some(value) = ready() {
            return value;
        }
    }
}

#[test]
fn a_service_accepts_later_and_both_sides_then_have_endpoints() {
    let context = Context::open().unwrap();
    let (server, client) = (context.worker().unwrap(), context.worker().unwrap());
    let waiting = Rc::new(RefCell::new(None));
    let kept = waiting.clone();
    server.listen("later", 1, move |request| *kept.borrow_mut() = Some(request)).unwrap();
    let heard = Rc::new(Cell::new(0));
    let counted = heard.clone();
    client.on_message(3, move |m| counted.set(m.header())).unwrap();
    let address = server.address().unwrap();
    let call = client.connect_to_service(&address, "later", b"please").unwrap();
    let request: ServiceRequest = until(&[&server, &client], || waiting.borrow_mut().take());
    assert_eq!((request.service(), request.private()), ("later", &b"please"[..]));
    assert!(call.test().is_none());
    let endpoint = request.accept(b"welcome").unwrap();
    let answer = until(&[&server, &client], || call.test()).unwrap();
    assert_eq!(answer, ServiceAnswer::Accepted(b"welcome".to_vec()));
    let _ = endpoint.send(3, 42, &[]).unwrap();
    assert_eq!(until(&[&server, &client], || Some(heard.get()).filter(|n| *n > 0)), 42);
}

#[test]
fn dropped_request_and_unknown_service_are_rejected_with_text() {
    let context = Context::open().unwrap();
    let (server, client) = (context.worker().unwrap(), context.worker().unwrap());
    server.listen("nobody", 4, drop).unwrap();
    assert_eq!(server.listen("nobody", 4, drop).unwrap_err().status(), Status::Busy);
    let address = server.address().unwrap();
    let call = client.connect_to_service(&address, "nobody", b"").unwrap();
    let answer = until(&[&server, &client], || call.test()).unwrap();
    assert_eq!(answer, ServiceAnswer::Rejected(Vec::new()));
    server.unlisten("nobody");
    for name in ["nobody", "elsewhere"] {
        let call = client.connect_to_service(&address, name, b"").unwrap();
        let error = until(&[&server, &client], || call.test()).unwrap_err();
        assert!(error.to_string().contains("nobody listens"), "{error}");
    }
    let error = client.connect_to_service(&address, "nobody", &[0; 2000]).unwrap_err();
    assert_eq!(error.status(), Status::Invalid);
}

#[test]
fn a_request_with_an_answer_that_is_too_large_is_rejected() {
    let context = Context::open().unwrap();
    let (server, client) = (context.worker().unwrap(), context.worker().unwrap());
    let large =
        |result: Result<(), Error>| assert_eq!(result.unwrap_err().status(), Status::TooLarge);
    server
        .listen("accepts", 1, move |request| large(request.accept(&[0; 2000]).map(drop)))
        .unwrap();
    server.listen("rejects", 1, move |request| large(request.reject(&[0; 2000]))).unwrap();
    let address = server.address().unwrap();
    for name in ["accepts", "rejects"] {
        let call = client.connect_to_service(&address, name, b"").unwrap();
        let answer = until(&[&server, &client], || call.test()).unwrap();
        assert_eq!(answer, ServiceAnswer::Rejected(Vec::new()), "{name}");
    }
}

#[test]
fn a_call_is_finished_by_the_worker_that_made_it() {
    let context = Context::open().unwrap();
    let (server, client) = (context.worker().unwrap(), context.worker().unwrap());
    server.listen("shelf", 1, drop).unwrap();
    let call = client.connect_to_service(&server.address().unwrap(), "shelf", b"").unwrap();
    let error = server.finish_call(&call).unwrap_err();
    assert!(matches!(error, ConnectError::Correct(_)), "{error}");
    assert_eq!(error.status(), Status::Invalid);
}

#[test]
fn a_call_ends_when_the_server_is_closed() {
    let context = Context::open().unwrap();
    let (server, client) = (context.worker().unwrap(), context.worker().unwrap());
    let waiting = Rc::new(RefCell::new(None));
    let kept = waiting.clone();
    server.listen("gone", 1, move |request| *kept.borrow_mut() = Some(request)).unwrap();
    let address = server.address().unwrap();
    let call = client.connect_to_service(&address, "gone", b"").unwrap();
    let request: ServiceRequest = until(&[&server, &client], || waiting.borrow_mut().take());
    // A closed worker returns the same error as a dropped one.
    server.close(Duration::from_secs(60)).unwrap();
    let error = request.accept(b"").unwrap_err();
    assert_eq!(error.status(), Status::Closed);
    drop(server);
    assert!(call.test().is_none_or(|answer| answer.is_err()));
}

#[test]
fn a_worker_that_is_dropped_with_a_request_in_its_listener_is_gone() {
    let context = Context::open().unwrap();
    let (server, client) = (context.worker().unwrap(), context.worker().unwrap());
    let waiting = Rc::new(RefCell::new(None));
    let (arrived, kept) = (Rc::new(Cell::new(false)), waiting);
    let seen = arrived.clone();
    let listener = move |request| {
        seen.set(true);
        *kept.borrow_mut() = Some(request);
    };
    server.listen("kept", 1, listener).unwrap();
    let _call = client.connect_to_service(&server.address().unwrap(), "kept", b"").unwrap();
    until(&[&server, &client], || Some(()).filter(|()| arrived.get()));
    let inner = Rc::downgrade(&server.inner);
    drop(server);
    assert!(inner.upgrade().is_none());
}

#[test]
fn a_request_that_nobody_answers_is_refused_by_the_servers_clock() {
    let impatient = Context::builder().set("TIELINE_CONNECT_TIMEOUT", "1ms").open().unwrap();
    let context = Context::open().unwrap();
    let (server, client) = (impatient.worker().unwrap(), context.worker().unwrap());
    let waiting = Rc::new(RefCell::new(None));
    let kept = waiting.clone();
    server.listen("slow", 1, move |request| *kept.borrow_mut() = Some(request)).unwrap();
    let call = client.connect_to_service(&server.address().unwrap(), "slow", b"").unwrap();
    let arrived = || Some(()).filter(|()| waiting.borrow().is_some());
    until(&[&server, &client], arrived);
    after_the_time_of(&server, &[&server, &client]);
    let error = call.test().expect("an answer").unwrap_err();
    assert_eq!(error.status(), Status::Unreachable);
    assert!(error.to_string().contains("the server did not answer in time"), "{error}");
    let request: ServiceRequest = waiting.borrow_mut().take().expect("a request came");
    assert!(request.reject(b"too late").is_err(), "the answer is none any more");
}

/// Makes progress until the time limit of `whose` services has expired.
fn after_the_time_of(whose: &Worker, workers: &[&Worker]) {
    let due = whose.inner.services.borrow().next_timer();
    while due.is_some_and(|due| whose.inner.wiring.now() < due) {
        std::hint::spin_loop();
    }
    for _ in 0..1000 {
        for worker in workers {
            let _ = worker.progress();
        }
    }
}

/// A sleep of the client also ends at the time limit.
#[test]
fn request_to_server_without_progress_times_out() {
    let context = Context::open().unwrap();
    let (server, client) = (context.worker().unwrap(), context.worker().unwrap());
    let limits = ServiceLimits { asking: 1_000_000, ..ServiceLimits::default() };
    *client.inner.services.borrow_mut() = Services::new(limits);
    let call = client.connect_to_service(&server.address().unwrap(), "deaf", b"").unwrap();
    let left = client.inner.next_service_timer();
    assert!(left.is_some_and(|left| left <= Duration::from_millis(1)), "{left:?}");
    after_the_time_of(&client, &[&client]);
    let error = call.test().expect("it gives up").unwrap_err();
    assert_eq!(error.status(), Status::TimedOut);
    let text = error.to_string();
    for words in ["no answer came in time", "see that the server makes progress"] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(client.inner.next_service_timer(), None);
}
