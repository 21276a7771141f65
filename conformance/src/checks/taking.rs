//! Memory that is asked back while peers still have keys to it.

use super::rma::{TARGET, bench};
use crate::case::{ALL_RIGHTS, Case};
use crate::report::{Checked, Stop, refused, same_bytes, succeeds};
use crate::watch::Patience;
use tieline_plugin_api::{Status, caps};

pub(super) fn a_key_is_refused_after_revoke(case: &Case) -> Checked {
    if case.has(caps::PASSIVE_TARGET) {
        let why = "whoever reaches the memory asks nobody: a device may go on until deregister";
        return Err(Stop::Skip(why.to_string()));
    }
    let mut bench = bench(case, ALL_RIGHTS)?;
    let patience = Patience::new();
    loop {
        match bench.target.refuse_keys() {
            Err(failure) if failure.status == Status::Again => {
                bench.desk.turn()?;
                patience.still("revoke while everybody polls", "0", "AGAIN for ever")?;
            }
            Err(failure) if failure.status == Status::Unsupported => {
                return Err(Stop::Skip("the domain has no revoke".to_string()));
            }
            other => break succeeds("revoke", other)?,
        }
    }
    for put in [true, false] {
        let what = format!("{} by a revoked key", if put { "put" } else { "get" });
        let done = bench.desk.rma(put, &[bench.local.piece(0..8)], &bench.key, 0)?;
        refused(what, done, &[Status::KeyRejected])?;
    }
    same_bytes("a region whose keys were revoked", &[0xee; TARGET], &bench.target.all())
}
