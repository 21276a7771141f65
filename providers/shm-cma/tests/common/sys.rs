//! Waits for state changes of a child without reaping it.
#![allow(unsafe_code, unreachable_pub)] // one system call for a test

/// The new state of a child.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Stopped,
    Ended,
}

/// Waits until the child stops or ends. An ended child stays a zombie.
pub fn wait_for(child: u32) -> Change {
    // SAFETY: the plain record is filled by waitid.
    let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let what = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
    // SAFETY: waitid fills the record, which lives through the call.
    let done = unsafe { libc::waitid(libc::P_PID, child, &mut about, what) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    if about.si_code == libc::CLD_STOPPED { Change::Stopped } else { Change::Ended }
}

pub fn signal(child: u32, signal: i32) {
    // SAFETY: the call takes numbers only.
    assert_eq!(unsafe { libc::kill(child as i32, signal) }, 0);
}
