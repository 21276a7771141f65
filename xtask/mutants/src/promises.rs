//! Mutants chosen by hand, each of which breaks a promise: a test has to fail on every one, by an assertion.
//!
//! A place is named by a piece of its file that is there once. What begins with `fn` is a function, which returns at once;
//! what is replaced by nothing is a statement, which is left out; anything else is an expression, which becomes another one.

use crate::PACKAGES;
use crate::find::{Edit, Mutant};
use std::path::Path;

/// File, place, what becomes of it, and what that breaks.
const PROMISES: &[(&str, &str, &str, &str)] = &[
    // ---- order and completion ----
    ("core/src/endpoint/flush.rs", "fn fence(", "Ok(())", "a fence orders nothing"),
    (
        "core/src/endpoint/flush.rs",
        "fn flush(&self)",
        "Ok(Outcome::Done(0))",
        "a flush waits for nothing",
    ),
    ("core/src/endpoint/queue.rs", "fn queue_len(", "1", "the queue seems never empty"),
    ("core/src/worker/mod.rs", "fn pending(", "0", "nothing seems pending"),
    (
        "core/src/endpoint/route.rs",
        "peer.polls_often && peer.service.is_none()",
        "true",
        "a target that promised nothing has to answer for what is small",
    ),
    (
        "core/src/shared/unanswered.rs",
        "asked.len() < FEW",
        "true",
        "a target that does not look owes answers without end for what a lane would do",
    ),
    (
        "core/src/endpoint/key.rs",
        "rank > best.rank",
        "rank <= best.rank",
        "a way counts as settled while a better one may come",
    ),
    (
        "core/src/endpoint/queue.rs",
        "done < budget",
        "true",
        "answers have no bound in one progress call",
    ),
    (
        "core/src/endpoint/queue.rs",
        "done < most",
        "true",
        "messages have no bound in one progress call",
    ),
    // ---- what a peer says ----
    (
        "core/src/worker/threads/waker.rs",
        "self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP",
        "false",
        "who sleeps is woken by nobody",
    ),
    (
        "core/src/worker/threads/abi.rs",
        "fn bound_to_thread(",
        "None",
        "a module that belongs to a thread is moved",
    ),
    (
        "core/src/worker/threads/wait_set.rs",
        "fn let_go(",
        "",
        "a set watches what has ended, for ever",
    ),
    ("core/src/endpoint/close.rs", "fn give_up(", "", "a close that cancels ends nothing"),
    (
        "core/src/endpoint/close.rs",
        "if self.closing.get() { Err(closed()) } else { Ok(()) }",
        "Ok(())",
        "an endpoint that was closed posts on",
    ),
    ("core/src/endpoint/strided.rs", "fn runs(", "0", "more blocks are posted than fit"),
    (
        "core/src/endpoint/strided.rs",
        "ep.check_local(local)?;",
        "",
        "blocks of memory that another context registered are posted",
    ),
    (
        "core/src/endpoint/notify.rs",
        "self.check_local(local)?;",
        "",
        "a put that tells the target takes memory that another context registered",
    ),
    (
        "core/src/worker/taking.rs",
        "endpoint.inner.check_local(local)?;",
        "",
        "an announced message is taken into memory that another context registered",
    ),
    ("core/src/worker/incoming.rs", "fn check_answer(", "Ok(())", "anybody answers a question"),
    (
        "core/src/endpoint/by_handle.rs",
        "fn key_refused(",
        "",
        "a key that was refused is handed out again",
    ),
    (
        "core/src/endpoint/known_keys.rs",
        "self.known.len() >= MOST",
        "false",
        "keys are kept by their handles without a bound",
    ),
    (
        "core/src/names.rs",
        "tag(&address.entry.worker) == self.name.worker()",
        "true",
        "the address of any worker counts for the one that was named",
    ),
    ("core/src/op/mod.rs", "end > self.len", "false", "the data of an emulated get has no bounds"),
    (
        "core/src/op/mod.rs",
        "position != self.len - self.missing",
        "false",
        "the data of an emulated get lies anywhere",
    ),
    (
        "core/src/worker/endpoints.rs",
        "self.answers_over(circuit)",
        "self.reply_endpoint(from.peer)",
        "an answer goes another way than its question",
    ),
    (
        "core/src/endpoint/shared_copy.rs",
        "(job.plan.at + from) as usize",
        "job.plan.at as usize",
        "a shared copy begins at its first chunk",
    ),
    (
        "core/src/endpoint/shared_copy.rs",
        "job.plan.target.offset + from",
        "job.plan.target.offset",
        "a shared copy ends at its first chunk",
    ),
    (
        "core/src/worker/help.rs",
        "plan.target.offset.saturating_add(from)",
        "plan.target.offset",
        "a helper copies to the first chunk",
    ),
    (
        "core/src/worker/help.rs",
        "plan.at.checked_add(from)",
        "Some(plan.at)",
        "a helper copies from the first chunk",
    ),
    (
        "core/src/worker/owed.rs",
        "self.debts.borrow().len() + coming > MOST",
        "false",
        "answers that are owed have no bound",
    ),
    ("core/src/registry/abi/objects.rs", "fn release(", "", "lent payloads are never given back"),
    // ---- wire-up ----
    (
        "core/src/worker/wiring/circuits.rs",
        "code < 0",
        "false",
        "an endpoint that could not be connected counts as one that is",
    ),
    (
        "wireup/src/tables.rs",
        "self.idle_pairs <= MAX_IDLE_PAIRS",
        "true",
        "idle pairs are never forgotten",
    ),
    (
        "wireup/src/tables.rs",
        "pair.live > 0 || pair.touched > until",
        "pair.touched > until",
        "pairs in use are forgotten",
    ),
    (
        "wireup/src/tables.rs",
        "floor = floor.max(pair.used.highest());",
        "",
        "numbers of forgotten pairs are new again",
    ),
    (
        "wireup/src/service.rs",
        "private.len() <= MAX_PRIVATE",
        "true",
        "private data has no bound here",
    ),
    (
        "wireup/src/service.rs",
        "bytes.len() > MAX_PRIVATE",
        "false",
        "private data has no bound there",
    ),
    ("wireup/src/message.rs", "bytes.len() > MAX_IDENTITY", "false", "identities have no bound"),
    (
        "wireup/src/message.rs",
        "bytes.len() > MAX_ADDRESS",
        "false",
        "endpoint addresses have no bound",
    ),
    (
        "wireup/src/receive.rs",
        "peer.is_some_and(|peer| peer.early >= limits.max_unfinished_per_peer)",
        "false",
        "what one peer begins has no bound",
    ),
    (
        "wireup/src/receive.rs",
        "self.early >= limits.max_early",
        "false",
        "what peers begin has no bound",
    ),
    (
        "wireup/src/receive.rs",
        "self.connections.len() >= limits.max_connections",
        "false",
        "connections have no bound",
    ),
    (
        "wireup/src/receive.rs",
        "key.n > highest.saturating_add(WINDOW)",
        "false",
        "numbers of connections may be anything",
    ),
    // ---- files that are loaded ----
    (
        "core/src/registry/probe.rs",
        "age < NO_LASTS_SECONDS",
        "true",
        "a no of the probe is believed for ever",
    ),
    (
        "core/src/registry/probe.rs",
        "meta.mode() & 0o022 == 0",
        "true",
        "a cache that others can write is believed",
    ),
    (
        "core/src/registry/probe.rs",
        "(meta.uid() == effective_uid() || meta.uid() == 0)",
        "true",
        "a cache of another user is believed",
    ),
    // ---- handshakes ----
    (
        "net/src/handshakes.rs",
        "self.pending.len() >= HALF_OPEN && self.room_at().is_none_or(|at| now < at)",
        "false",
        "those that have not proven themselves are accepted without end",
    ),
    (
        "net/src/handshakes.rs",
        "handshake.last_active + GRACE",
        "handshake.last_active",
        "nobody has time to prove itself when others wait",
    ),
    // ---- shared memory ----
    (
        "providers/memory-file/src/sys.rs",
        "seals < 0 || seals & SEAL_SIZE != SEAL_SIZE",
        "false",
        "a peer can shorten a memory file under its reader",
    ),
    (
        "providers/memory-file/src/accessor.rs",
        "fenced(word);",
        "",
        "an access may look at its key before its owner can see it",
    ),
    (
        "providers/memory-file/src/announcements.rs",
        "fenced(used);",
        "",
        "an owner may look for accesses before they can see what it revoked",
    ),
    (
        "providers/shm/src/keys.rs",
        "!sys::is_write_sealed(&region.fd)",
        "true",
        "read-only memory is told as writable",
    ),
    (
        "providers/shm/src/wake.rs",
        "#[cfg(not(loom))]\n    crate::sys::membarrier();",
        "",
        "a sleeper does not pay for its senders' fences",
    ),
    ("providers/shm/src/wake.rs", "notes();", "", "a sleeper does not say so"),
    ("providers/shm/src/wake.rs", "        pay();", "", "who publishes pays for no fence"),
    (
        "providers/shm/src/sender/socket.rs",
        "asymmetric && sys::asymmetric()",
        "true",
        "a sender leaves out its fences whatever its peer has",
    ),
    (
        "providers/shm/src/receiver.rs",
        "!(hello.asymmetric && sys::asymmetric())",
        "false",
        "a receiver leaves out its fences whatever its peer has",
    ),
    (
        "providers/shm/src/sender/socket.rs",
        "return Status::Closed",
        "()",
        "a key is asked for while the endpoint closes",
    ),
    (
        "providers/shm/src/sender/socket.rs",
        "bell as usize / 64 * 8",
        "0",
        "bells ring in the first word",
    ),
    (
        "providers/shm/src/pool.rs",
        "committed.clamp(FIRST_SEGMENT, LARGEST_SEGMENT)",
        "FIRST_SEGMENT",
        "the pool grows by its first size for ever",
    ),
    (
        "providers/shm/src/interface.rs",
        "records < ENOUGH_RECORDS",
        "true",
        "records have no bound in one progress call",
    ),
    // ---- tcp ----
    ("providers/tcp/src/receive.rs", "end <= get.len", "true", "the data of a get has no bounds"),
    (
        "providers/tcp/src/window.rs",
        "distance >= WINDOW",
        "false",
        "frames that are held have no bound",
    ),
    (
        "providers/tcp/src/window.rs",
        "fn highest(",
        "self.expected",
        "the highest number that came is not known",
    ),
    (
        "providers/tcp/src/deliver.rs",
        "ops.serves.len() >= 2 * MAX_GETS",
        "false",
        "a peer's gets have no bound",
    ),
    (
        "providers/tcp/src/link.rs",
        "self.early.len() < MAX_EARLY",
        "true",
        "connections that come early have no bound",
    ),
    // ---- verbs ----
    (
        "providers/verbs/src/ud/state/arrivals.rs",
        "self.early >= EARLY",
        "false",
        "datagrams that come early have no bound",
    ),
    (
        "core/src/setup/selftest.rs",
        "fn run(&self, domain: &OpenDomain",
        "Ok(())",
        "every module passes the test of itself",
    ),
    (
        "providers/tcp/src/link.rs",
        "self.fail(Status::TimedOut, &text);",
        "",
        "a connection that does not come about is waited for without end",
    ),
    (
        "providers/verbs/src/ud/state/arrivals.rs",
        "self.outbound[number] = None;",
        "",
        "closed channels are kept for ever",
    ),
    (
        "providers/verbs/src/rc/state/progress.rs",
        "!connection.keepalive_pending && !connection.closing",
        "false",
        "no keepalive is sent to a silent peer",
    ),
    (
        "providers/verbs/src/rc/state.rs",
        "fn fits(",
        "Ok(())",
        "a peer is sent what is longer than its receives",
    ),
    (
        "providers/shm/src/keys.rs",
        "(key.slot as usize) < ENTRIES",
        "true",
        "a key's entry may lie beside the table",
    ),
    // ---- tag matching ----
    ("tag/src/posted.rs", "sequence < first", "false", "not the receive that was posted first"),
    (
        "tag/src/posted.rs",
        "first < entry.sequence",
        "false",
        "a receive without a table goes before earlier ones",
    ),
    (
        "tag/src/posted.rs",
        "entry.sequence == id.sequence",
        "true",
        "the id of a receive that has ended cancels another",
    ),
    (
        "tag/src/unexpected.rs",
        "*next = links[ORDER].after()",
        "*next = NONE",
        "messages are not found after one was taken",
    ),
    ("tag/src/slab.rs", "self.idle.len() > IDLE + self.busy()", "false", "no memory is given back"),
];

/// All of them, in their order.
///
/// # Errors
/// What stands in the table and not, or more than once, in the source.
pub(crate) fn all(root: &Path) -> Result<Vec<Mutant>, String> {
    PROMISES.iter().map(|promise| of(root, *promise)).collect()
}

fn of(
    root: &Path,
    (file, place, becomes, broken): (&str, &str, &str, &str),
) -> Result<Mutant, String> {
    let text = std::fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
    let found: Vec<usize> = text.match_indices(place).map(|(at, _)| at).collect();
    let &[at] = found.as_slice() else {
        return Err(format!("promises.rs: `{place}` is {} times in {file}", found.len()));
    };
    let package = PACKAGES.iter().find(|(_, folder)| file.starts_with(&format!("{folder}/")));
    let (package, _) = package.ok_or_else(|| format!("promises.rs: no package has {file}"))?;
    let range = at..at + place.len();
    let edit = if place.starts_with("fn ") {
        let body = text[at..].find(" {\n").ok_or_else(|| format!("{file}: {place} has no body"))?;
        Edit::Return(at + body + 2, becomes.to_owned())
    } else if becomes.is_empty() {
        Edit::Leave(range)
    } else {
        Edit::Replace(range, becomes.to_owned())
    };
    let line = text[..at].matches('\n').count() + 1;
    let (file, what) = (file.to_owned(), broken.to_owned());
    Ok(Mutant { package, file, line, what, edit, is_promise: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_is_found_in_the_source() {
        let root = crate::root();
        assert_eq!(all(&root).map(|all| all.len()), Ok(PROMISES.len()));
    }

    #[test]
    fn what_a_promise_exchanges_is_an_expression_on_either_side() {
        for (file, place, becomes, _) in PROMISES.iter().filter(|p| !p.1.starts_with("fn ")) {
            let is_left_out = becomes.is_empty();
            let fits = match is_left_out {
                true => syn::parse_str::<syn::Stmt>(place).is_ok(),
                false => [place, becomes].iter().all(|e| syn::parse_str::<syn::Expr>(e).is_ok()),
            };
            assert!(fits, "{file}: `{place}` and `{becomes}`");
        }
    }
}
