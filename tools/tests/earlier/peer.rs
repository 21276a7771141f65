//! A program of an earlier commit that serves a peer of this build. The test copies it into the earlier sources, so it uses only
//! the public interface of that commit.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline::Context;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn main() -> Result<(), tieline::Error> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let region = context.register(vec![0; 64])?;
    worker.on_message(7, |message| {
        println!("{} {}", message.header(), hex(message.payload()));
        let _ = std::io::stdout().flush();
    })?;
    println!("{} {}", hex(&worker.address()?), hex(&region.remote_key()?));
    let _ = std::io::stdout().flush();
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    let _ = std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        end.store(true, Ordering::Relaxed);
    });
    while !ended.load(Ordering::Relaxed) {
        let _ = worker.wait(Some(std::time::Duration::from_millis(20)))?;
    }
    println!("{}", hex(&region.to_vec(0..64)?));
    Ok(())
}
