//! Tests of idle interfaces, which are polled less often while another interface is busy.

use crate::cases;
use crate::stage::{Stage, pending};
use tieline_fake::Lane;

cases! {
    fn idle_interface_delivers_within_eight_calls_and_is_active_again() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (_target, key) = stage.target(vec![0; 64]);
        stage.a.on_message(9, |_| ()).unwrap();
        let calls_of_an_atomic = || {
            let atomic = pending(stage.ab.fetch_add(&key, 0, 1));
            let needed = (1..).find(|_| {
                let _ = stage.a.progress();
                stage.a.test(&atomic).is_some()
            });
            needed.unwrap_or_default()
        };
        stage.settle();
        let awake = calls_of_an_atomic();
        for turn in 0..40_000 {
            if turn % 16 == 0 {
                let _ = stage.ba.send(9, turn, b"").unwrap();
            }
            let _ = stage.turn();
        }
        let rested = calls_of_an_atomic();
        assert!((awake..=8 * awake).contains(&rested), "{awake} calls, and at rest {rested}");
        assert_eq!((calls_of_an_atomic(), calls_of_an_atomic()), (awake, awake));
        stage.assert_no_faults();
    }
}
