//! Tests that a process without free descriptors reports that immediately, and continues when descriptors are free again.
//!
//! The file contains a single test, because the limit applies to the whole process.

use std::fs::File;
use std::process::Command;
use tieline::{Context, Outcome, Status};

#[test]
fn connection_without_descriptor_fails_and_next_one_succeeds() {
    let folder = match tieline_testing::built::folder(&tieline_testing::built::TCP) {
        Ok(folder) => folder,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let open = || {
        let context = Context::builder()
            .set("TIELINE_PROVIDER_PATH", folder.to_str().unwrap())
            .set("TIELINE_PROVIDERS", "tcp,tcp-connect")
            .set("TIELINE_TCP_INTERFACES", "127.0.0.0/8");
        context.open().unwrap()
    };
    let (here, there) = (open(), open());
    let (worker, peer) = (here.worker().unwrap(), there.worker().unwrap());
    let address = peer.address().unwrap();
    let me = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &me, "--nofile=256:"]).status();
    if !limited.is_ok_and(|status| status.success()) {
        return println!("skipped: no prlimit");
    }
    let hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let send = || -> Result<(), tieline::Error> {
        let endpoint = worker.connect(&address)?;
        match endpoint.send(1, 0, b"hello")? {
            Outcome::Done(_) => Ok(()),
            Outcome::Pending(request) => loop {
                if let Some(result) = worker.test(&request) {
                    return Ok(result.map(drop)?);
                }
                let _ = (worker.progress(), peer.progress());
            },
        }
    };
    let error = send().unwrap_err();
    assert_eq!(error.status(), Status::NoMemory, "{error}");
    assert!(error.to_string().contains("open files"), "{error}");
    assert!(error.fix().contains("ulimit -n"), "{error}");
    drop(hoard);
    send().unwrap();
}
