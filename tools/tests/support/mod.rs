//! Code that the tests with real launchers share.

use std::process::{Child, Output};
use std::time::{Duration, Instant};

/// Waits until a condition is true that causes no event for this process.
pub(crate) fn until(mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "waited in vain");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the output of a launcher that has ended; a launcher that hangs is ended, and the test fails with its name.
pub(crate) fn ended(mut child: Child) -> Output {
    let ends = std::panic::AssertUnwindSafe(|| until(|| child.try_wait().unwrap().is_some()));
    if std::panic::catch_unwind(ends).is_err() {
        let _ = child.kill();
        panic!("the launcher has not ended within a minute");
    }
    child.wait_with_output().unwrap()
}
