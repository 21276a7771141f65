use crate::wireup::{Action, Claim, Limits, Machine, Phase};

#[test]
fn two_requests_that_cross_form_one_connection() {
    let mut a = Machine::new([1; 16], 1, b"a".to_vec(), Limits::default());
    let mut b = Machine::new([2; 16], 1, b"b".to_vec(), Limits::default());
    let Ok(Claim::New(at_a)) = a.connect(0, [2; 16], "tcp") else { panic!() };
    let Ok(Claim::New(at_b)) = b.connect(0, [1; 16], "tcp") else { panic!() };
    a.created(0, &at_a, b"address of a");
    b.created(0, &at_b, b"address of b");
    loop {
        let before = (a.counters().ready, b.counters().ready);
        for from_a in [true, false] {
            let (x, y) = if from_a { (&mut a, &mut b) } else { (&mut b, &mut a) };
            while let Some(action) = x.take_action() {
                match action {
                    Action::Send { datagram, .. } => y.receive(0, &datagram).unwrap(),
                    Action::Bind { key, .. } => x.bound(0, &key, Ok(())),
                    Action::Ready { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        if before == (a.counters().ready, b.counters().ready) && before == (1, 1) {
            break;
        }
    }
    assert_eq!((a.phase(&at_a), b.phase(&at_b)), (Some(Phase::Ready), Some(Phase::Ready)));
    assert_eq!((a.len(), b.len()), (1, 1));
}
