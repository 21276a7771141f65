//! Tests of descriptors.

use super::*;

#[test]
fn a_wakeup_ends_a_wait() {
    let poller = Poller::new().unwrap();
    let wakeup = Wakeup::new().unwrap();
    poller.add(wakeup.as_raw_fd()).unwrap();
    assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    wakeup.wake();
    assert!(poller.wait(None).unwrap());
}

#[test]
fn a_timer_is_readable_from_its_time_on_and_not_when_it_is_stopped() {
    let (poller, timer) = (Poller::new().unwrap(), Timer::new().unwrap());
    poller.add(timer.as_raw_fd()).unwrap();
    let now = || poller.wait(Some(Duration::ZERO)).unwrap();
    timer.set(Some(Duration::from_secs(3600))).unwrap();
    assert!(!now());
    timer.set(Some(Duration::ZERO)).unwrap();
    assert!(poller.wait(None).unwrap(), "no time is no end of it");
    timer.set(None).unwrap();
    assert!(!now());
    timer.set(Some(Duration::from_nanos(1))).unwrap();
    assert!(poller.wait(None).unwrap());
    timer.set(Some(Duration::from_secs(3600))).unwrap();
    assert!(!now(), "it is not readable until then");
}

#[test]
fn wakeups_are_counted_once_and_need_a_watching_poller() {
    let (poller, wakeup) = (Poller::new().unwrap(), Wakeup::new().unwrap());
    assert_eq!(wakeup.take(), 0);
    poller.add(wakeup.as_raw_fd()).unwrap();
    (0..3).for_each(|_| wakeup.wake());
    assert_eq!((wakeup.take(), wakeup.take()), (3, 0));
    assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    poller.remove(wakeup.as_raw_fd());
    wakeup.wake();
    assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    assert!(poller.add(-1).is_err());
}
