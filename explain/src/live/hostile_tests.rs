//! A process that publishes the maximum amount of text, to keep its observers busy.

use super::sys::{Mapped, memory_file};
use super::*;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Instant;

const ASKED: &str = "TIELINE_TEST_LOOKS_AT";

/// Makes a file of a context of this process with all places in use; the first places have the given texts.
fn shows(texts: &[String]) -> OwnedFd {
    let len = HEAD + PLACES * PLACE;
    let fd = memory_file(NAME, len).unwrap();
    let mapped = Mapped::new(&fd, 0, len).unwrap();
    let set =
        |at: usize, value: u64| mapped.word(at).store(value, std::sync::atomic::Ordering::Relaxed);
    set(AT_MAGIC, MAGIC);
    set(AT_PID, u64::from(std::process::id()));
    for place in 0..PLACES {
        let at = HEAD + place * PLACE;
        set(at + AT_USED, 1);
        if let Some(text) = texts.get(place) {
            set(at + slot(0) + AT_LEN, text.len() as u64);
            mapped.write(at + slot(0) + AT_TEXT, text.as_bytes());
        }
    }
    fd
}

/// Builds a text that contains the maximum number of these pieces.
fn full(head: &str, piece: impl Fn(usize) -> String, tail: &str) -> String {
    let mut text = head.to_owned();
    for n in 0.. {
        let more = piece(n);
        if text.len() + more.len() + tail.len() > MOST_TEXT {
            break;
        }
        text += &more;
    }
    text + tail
}

/// Returns texts that take the most memory for their length, or that name the largest number of processes to observe.
fn texts() -> Vec<String> {
    let same = |piece: &'static str| move |_| piece.to_owned();
    vec![
        full("{\"endpoints\":[", same("{},"), "{}]}"),
        full("{\"endpoints\":[", same("{\"waits\":{}},"), "{}]}"),
        full("{\"endpoints\":[{\"lanes\":[", same("\"\","), "\"\"]}]}"),
        full("{\"counters\":{", |n| format!("\"{n}\":1,"), "\"x\":1}}"),
        full("{\"news\":[", same("0,"), "0]}"),
        full("{\"endpoints\":[", |n| format!("{{\"peer_pid\":{},\"waits\":{{}}}},", 1 + n), "{}]}"),
        full("{\"worker\":\"", same("\u{202e}"), "\"}"),
    ]
}

#[test]
fn a_look_at_a_hostile_process_ends_within_its_time_and_memory() {
    let files = if std::env::var_os("TESTS_WHOLE").is_some() { 63 } else { 7 };
    let kinds = texts();
    let many: Vec<String> = (0..PLACES).map(|n| kinds[n % kinds.len()].clone()).collect();
    let mut held = vec![shows(&many[..256])];
    held.extend((0..files).map(|_| shows(&[])));
    let looks = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "live::hostile_tests::a_look_from_another_process", "--ignored"])
        .arg("--nocapture")
        .env(ASKED, std::process::id().to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&looks.stdout);
    let told = said.lines().find_map(|line| line.strip_prefix("the look ")).unwrap_or_else(|| {
        panic!("{said}{}", String::from_utf8_lossy(&looks.stderr));
    });
    println!("    {told}");
    let numbers: Vec<u64> = told.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [ms, kib, contexts, incomplete] = numbers[..] else { panic!("{told}") };
    assert!(ms < 5000 && kib < 64 << 10, "{told}");
    assert!(contexts > 0 && incomplete == contexts, "{told}");
    drop(held);
}

#[test]
#[ignore = "the test before it runs it in a process of its own, whose memory is measured"]
fn a_look_from_another_process() {
    let pid = std::env::var(ASKED).unwrap().parse().unwrap();
    let begun = Instant::now();
    let all = status_of(pid).unwrap();
    let printed: usize = all.iter().map(|status| status.to_string().len()).sum();
    let json: usize = all.iter().map(|status| status.to_json().len()).sum();
    let took = begun.elapsed().as_millis();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB");
    let incomplete = all.iter().filter(|status| status.incomplete).count();
    println!(
        "\nthe look took {took} ms and {peak} KiB, showed {} contexts, {incomplete} incomplete, in {printed}+{json} bytes",
        all.len()
    );
}
