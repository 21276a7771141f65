//! Posts and polls N messages of an interface to itself. To find the cost, count the instructions with `valgrind --tool=callgrind`
//! or `perf stat -e instructions:u` for two values of N.

#[path = "../tests/common/sys.rs"]
mod sys;

use sys::{Provider, events};
use tieline_plugin_api::event;

fn main() {
    let messages: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let provider = Provider::open(&[]).unwrap();
    let domain = provider.domain();
    let interface = domain.interface().unwrap();
    let endpoint = interface.connect(&interface.address(), b"", 0).unwrap();
    let mut buffer = events::<64>();
    let (mut sent, mut seen) = (0, 0);
    while seen < messages {
        while sent < messages && sent - seen < 32 && endpoint.short(1, sent, &[7; 8]).is_ok() {
            sent += 1;
        }
        seen +=
            interface.poll(&mut buffer).iter().filter(|e| e.kind == event::MESSAGE).count() as u64;
    }
    println!("{seen} messages");
}
