//! The identity of a peer, and the test whether the kernel allows copies from and to it.
//!
//! A copy of the peer's cookie, 16 random bytes, decides. A process that merely has the same number cannot pass for the peer. A
//! peer under another kernel or in another PID namespace is refused without a copy. The user and the user namespace are compared
//! only for the error texts.

use crate::keys::{Card, IMAGE_LEN};
use crate::sys;
use std::fs;
use tieline_memory_file::{Accessor, Facts};
use tieline_plugin_api::{Failure, Status};
use tieline_single_copy::{other_user, reused, system};

/// The first bytes of an address, of which the last one is the version. Version 2 announces its accesses and refuses accesses by
/// peers that do not.
pub(crate) const MAGIC: [u8; 4] = *b"cma\x02";
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// The interface address. Its card is the location of the domain's entry.
type Address = tieline_single_copy::Address<0>;

/// Checks whether this kernel lets a process copy at all, even from itself.
pub(crate) fn kernel_has_it() -> Result<(), Failure> {
    let (from, mut to) = ([1u8], [0u8]);
    let address = from.as_ptr().expose_provenance() as u64;
    sys::read(sys::own_pid(), address, &mut to).map_err(|errno| match errno {
        libc::ENOSYS => Failure::new(
            Status::NoDevice,
            "this kernel has no process_vm_readv (CONFIG_CROSS_MEMORY_ATTACH is off)",
        ),
        libc::EPERM | libc::EACCES => Failure::new(
            Status::Permission,
            "process_vm_readv is forbidden even within this process: a seccomp filter does that; allow \
             process_vm_readv and process_vm_writev in the container's profile",
        ),
        other => system("process_vm_readv within this process", other),
    })
}

/// Copies and compares the peer's cookie, and takes a place among the peer's accessors. The error text names the likely cause.
pub(crate) fn reach(me: &Facts, peer: &Address) -> Result<Accessor, Failure> {
    let them = &peer.facts;
    me.may_name(them)?;
    match look(peer) {
        Ok(Card { descriptor: Some(number) }) => Accessor::open(them.pid, number, &peer.nonce)
            .map_err(|failure| match failure.status {
                Status::PeerFailed | Status::NoMemory => failure,
                _ => Failure::new(Status::Unreachable, failure.text),
            }),
        Ok(Card { descriptor: None }) => Err(Failure::new(
            Status::Unreachable,
            "the peer could not make the memory file on which accesses are announced: a seccomp filter there \
             forbids memfd_create",
        )),
        Err(Miss::Refused) => {
            Err(Failure::new(Status::Permission, why_refused(me, them, yama_scope())))
        }
        Err(Miss::Missing) => Err(Failure::new(
            Status::Unreachable,
            "process_vm_readv is not available: a seccomp filter or the kernel's configuration hides it",
        )),
        Err(Miss::Gone) => {
            Err(Failure::new(Status::PeerFailed, format!("process {} has ended", them.pid)))
        }
        Err(Miss::Stranger) => Err(Failure::new(Status::PeerFailed, why_stranger(them))),
        Err(Miss::Other(errno)) => Err(system("process_vm_readv of the peer's cookie", errno)),
    }
}

/// The causes of a failed copy of the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The kernel refuses the copy.
    Refused,
    /// The system call does not exist.
    Missing,
    /// There is no such process.
    Gone,
    /// The process is another one, or it has closed the domain.
    Stranger,
    /// Any other error.
    Other(sys::Errno),
}

/// Copies and compares the peer's cookie.
pub(crate) fn check(peer: &Address) -> Result<(), Miss> {
    look(peer).map(|_| ())
}

/// Copies the entry that contains the peer's cookie, and compares the cookie.
fn look(peer: &Address) -> Result<Card, Miss> {
    let mut image = [0; IMAGE_LEN];
    match sys::read(peer.facts.pid, peer.card, &mut image) {
        Ok(()) => Card::read(&image, &peer.nonce).ok_or(Miss::Stranger),
        Err(libc::EFAULT) => Err(Miss::Stranger),
        Err(libc::EPERM | libc::EACCES) => Err(Miss::Refused),
        Err(libc::ENOSYS) => Err(Miss::Missing),
        Err(libc::ESRCH) => Err(Miss::Gone),
        Err(other) => Err(Miss::Other(other)),
    }
}

/// Returns Yama's `ptrace_scope`; `None` without Yama.
pub(crate) fn yama_scope() -> Option<u32> {
    fs::read_to_string(YAMA).ok()?.trim().parse().ok()
}

fn why_refused(me: &Facts, peer: &Facts, scope: Option<u32>) -> String {
    let pid = peer.pid;
    let refused = format!("the kernel does not let this process copy from and to process {pid}: ");
    let why = if me.user_namespace != peer.user_namespace
        && me.user_namespace != 0
        && peer.user_namespace != 0
    {
        "it is in another user namespace; run both in the same one".to_string()
    } else if let Some(why) = other_user(me, peer) {
        why
    } else {
        match scope {
            Some(1) => "Yama's ptrace_scope is 1 and the peer allows nobody \
                        (TIELINE_SHM_CMA_PTRACER=off there?); leave that variable at `auto` at the peer, or set \
                        kernel.yama.ptrace_scope=0"
                .to_string(),
            Some(scope @ 2..) => format!(
                "Yama's ptrace_scope is {scope}, which needs CAP_SYS_PTRACE; set kernel.yama.ptrace_scope to 0 or 1 \
                 (3 lasts until the next boot)"
            ),
            _ => "a seccomp filter forbids process_vm_readv, or the peer is not dumpable (set-uid, file \
                  capabilities, PR_SET_DUMPABLE); allow the call in the container's profile"
                .to_string(),
        }
    };
    refused + &why
}

fn why_stranger(peer: &Facts) -> String {
    let held = |pid| {
        format!(
            "process {pid} does not hold the peer's cookie: it has closed the domain or called exec"
        )
    };
    reused(peer).unwrap_or_else(|| held(peer.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_cookie_is_told_apart_from_a_reused_number() {
        let cookie = [3u8; 16];
        let card = cookie.as_ptr().expose_provenance() as u64;
        let mut peer = Address { facts: Facts::current_process(), nonce: [4; 16], card, files: [] };
        let failure = reach(&Facts::current_process(), &peer).unwrap_err();
        assert_eq!(failure.status, Status::PeerFailed);
        assert!(failure.text.contains("does not hold the peer's cookie"), "{failure}");
        peer.facts.start_time += 1;
        let failure = reach(&Facts::current_process(), &peer).unwrap_err();
        assert!(failure.text.contains("its number was reused"), "{failure}");
    }

    #[test]
    fn every_refusal_names_a_remedy() {
        let me = Facts::current_process();
        let other_user = Facts { uid: me.uid + 1, ..me };
        let other_ns = Facts { user_namespace: me.user_namespace + 1, ..me };
        assert!(why_refused(&me, &other_user, None).contains("run both as the same user"));
        assert!(why_refused(&me, &other_ns, None).contains("user namespace"));
        assert!(why_refused(&me, &me, Some(1)).contains("TIELINE_SHM_CMA_PTRACER"));
        assert!(why_refused(&me, &me, Some(3)).contains("ptrace_scope is 3"));
        assert!(why_refused(&me, &me, None).contains("seccomp"));
    }
}
