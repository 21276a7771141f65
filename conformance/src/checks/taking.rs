//! Checks of memory that is revoked or deregistered while peers still have keys to it.

use super::rma::{TARGET, bench};
use crate::case::{ALL_RIGHTS, Case};
use crate::hold::Hold;
use crate::report::{Checked, Stop, holds, refused, same_bytes, succeeds};
use crate::watch::{Patience, limit, waits_for};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;
use tieline_plugin_api::{Status, caps, memory_caps};

pub(super) fn a_key_is_refused_after_revoke(case: &Case) -> Checked {
    if case.has(caps::PASSIVE_TARGET) {
        let why = "accesses are not checked: a device may continue until deregister";
        return Err(Stop::Skip(why.to_string()));
    }
    let mut bench = bench(case, ALL_RIGHTS)?;
    let patience = Patience::new();
    loop {
        match bench.target.refuse_keys() {
            Err(failure) if failure.status == Status::Again => {
                bench.desk.turn()?;
                patience.still("revoke while all sides poll", "0", "AGAIN for ever")?;
            }
            Err(failure) if failure.status == Status::Unsupported => {
                return Err(Stop::Skip("the domain has no revoke".to_string()));
            }
            other => break succeeds("revoke", other)?,
        }
    }
    succeeds("revoke of what was revoked", bench.target.refuse_keys())?;
    for put in [true, false] {
        let what = format!("{} by a revoked key", if put { "put" } else { "get" });
        let done = bench.desk.rma(put, &[bench.local.piece(0..8)], &bench.key, 0)?;
        refused(what, done, &[Status::KeyRejected])?;
    }
    same_bytes("a region whose keys were revoked", &[0xee; TARGET], &bench.target.all())
}

/// The thread that executes a put stops in the middle of it, and the memory is deregistered at that time.
pub(super) fn deregister_does_not_say_0_in_the_middle_of_an_access(case: &Case) -> Checked {
    let registers = case.domain_attr.caps & memory_caps::REGISTER != 0;
    if case.has(caps::OWN_MEMORY_ONLY) || !registers {
        return Err(Stop::Skip("the domain registers no memory of the application's".to_string()));
    }
    // The owner stops an access by making the memory inaccessible.
    case.survives_the_owner()?;
    let hold = &Hold::new();
    let memory = case.domain.register(hold.base(), Hold::LEN, ALL_RIGHTS);
    let mut memory = succeeds("register", memory)?;
    let packed = &case.key_of(&memory)?;
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let user = scope.spawn(move || -> Checked {
            let mut bench = bench(case, ALL_RIGHTS)?;
            let key = succeeds("import_key", bench.desk.import(packed)?)?;
            hold.hold();
            // The result of the put is not checked: a system call that finds inaccessible memory fails.
            let _ = bench.desk.rma(true, &[bench.local.piece(0..8)], &key, 0);
            done.store(true, SeqCst);
            Ok(())
        });
        waits_for("a put, or the access of its executor to the memory");
        while !hold.waits() && !done.load(SeqCst) && !user.is_finished() {
            std::thread::yield_now();
        }
        let held = hold.waits();
        let owner = scope.spawn(move || {
            let said = if held { memory.revoke() } else { Ok(()) };
            (memory, said)
        });
        // A provider that can only wait for the end of its own copy is not wrong.
        let began = Instant::now();
        while !owner.is_finished() && began.elapsed() < limit() / 50 {
            std::thread::yield_now();
        }
        let early = owner.is_finished();
        hold.let_go();
        let panicked = |_| Stop::Fail("a thread panicked".to_string());
        let (mut memory, said) = owner.join().map_err(panicked)?;
        user.join().map_err(panicked)??;
        if !held {
            return Err(Stop::Skip("no thread of this process carries out a put".to_string()));
        }
        if early {
            let what = "deregister in the middle of a put to the region";
            let again = said.as_ref().is_err_and(|failure| failure.status == Status::Again);
            holds(again, what, "AGAIN", format!("{said:?}: it is not free"))?;
        }
        succeeds("deregister when that is through", memory.revoke())
    })
}
