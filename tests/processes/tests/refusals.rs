//! Tests in which one side cannot receive over a path: the next common path is used, and no message is lost.

use tieline_processes::{Launch, Node, Test, Verdict, leftovers, named};
use tieline_testing::built;

pub(crate) const TESTS: &[Test] = named![
    a_peer_that_can_make_no_memory_files_any_more_is_reached_over_tcp,
    a_process_that_can_make_no_memory_files_offers_no_shm,
    peer_without_fallback_is_refused_and_report_names_missing_part,
    all_paths_are_refused_until_descriptors_are_available_again,
];

const LOCAL: &[&str] = &[
    "TIELINE_PROVIDERS=shm,shm-cma,tcp,tcp-connect",
    "TIELINE_TCP_INTERFACES=lo",
    "TIELINE_CONNECT_TIMEOUT=1s",
];

/// Starts a node with both paths. If `forbidden`, the node cannot make memory files.
fn node(name: &str, forbidden: bool, more: &str) -> Result<Node, Verdict> {
    let folder = built::folder(&built::TCP).map_err(Verdict::Skipped)?;
    let launch = Launch::new(name, "node").env("TIELINE_PROVIDER_PATH", folder.display());
    let mut node = Node::bare(launch);
    if forbidden {
        forbid(&mut node)?;
    }
    let _ = node.must(&format!("open {} {more}", LOCAL.join(" ")));
    Ok(node)
}

fn forbid(node: &mut Node) -> Result<(), Verdict> {
    match &*node.must("forbid memfd_create") {
        "true" => Ok(()),
        _ => Err(Verdict::Skipped("no seccomp filters here".into())),
    }
}

fn pair(late: bool, more: &str) -> Result<(Node, Node), Verdict> {
    let (rich, mut poor) = (node("rich", false, more)?, node("poor", !late, more)?);
    if late {
        forbid(&mut poor)?;
    }
    Ok((rich, poor))
}

macro_rules! or_return {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(verdict) => return verdict,
        }
    };
}

/// Exchanges messages and checks their order and completeness, and makes every operation on memory, in both directions.
fn everything_works(rich: &mut Node, poor: &mut Node) {
    rich.connect(poor);
    // The messages exceed the size of the ring: some are queued when the refusal arrives.
    let _ = rich.must("exact poor 100 8 3000 48 60000");
    let _ = poor.must("reach exact 100");
    let _ = rich.must("ping poor");
    for node in [&mut *rich, &mut *poor] {
        let _ = node.must("register memory 4096");
    }
    let _ = rich.import(poor, "memory");
    let _ = rich.must("put-bytes poor.memory 8 7 0");
    assert_eq!(poor.must("word memory 0"), u64::from_le_bytes([7; 8]).to_string());
    let _ = rich.must("get poor.memory memory 0 8 0");
    assert_eq!(rich.must("word memory 0"), u64::from_le_bytes([7; 8]).to_string());
    poor.connect(rich);
    let _ = poor.must("exact rich 50 8 3000");
    let _ = rich.must("reach exact 50");
    for node in [&mut *rich, &mut *poor] {
        assert_eq!(node.must("wrong"), "");
    }
}

fn a_peer_that_can_make_no_memory_files_any_more_is_reached_over_tcp() -> Verdict {
    // Memory is accessed by copies of the kernel, by messages, and by messages to the progress thread.
    for more in [
        "",
        "TIELINE_PROVIDERS=shm,tcp,tcp-connect",
        "TIELINE_PROVIDERS=shm,tcp,tcp-connect TIELINE_PROGRESS_THREAD=on",
    ] {
        let (mut rich, mut poor) = or_return!(pair(true, more));
        everything_works(&mut rich, &mut poor);
        assert_eq!((rich.must("failures"), poor.must("failures")), (String::new(), String::new()));
        let (told, why) = (rich.must("warnings"), poor.must("warnings"));
        println!("    rich: {told}\n    poor: {why}");
        assert!(told.contains("from now on: tcp/stream"), "{told}");
        assert!(why.contains("memfd_create"), "{why}");
        // The next endpoint starts with the working path.
        rich.connect(&mut poor);
        let _ = rich.must("ping poor");
        rich.end();
        poor.end();
    }
    Verdict::Passed
}

fn a_process_that_can_make_no_memory_files_offers_no_shm() -> Verdict {
    let (mut rich, mut poor) = or_return!(pair(false, ""));
    everything_works(&mut rich, &mut poor);
    assert_eq!((rich.must("failures"), poor.must("failures")), (String::new(), String::new()));
    let (told, why) = (rich.must("warnings"), poor.must("warnings"));
    assert!(!told.contains("refused"), "it was never asked: {told}");
    assert!(why.contains("shm/ring is not used") && why.contains("memfd_create"), "{why}");
    rich.end();
    poor.end();
    Verdict::Passed
}

fn peer_without_fallback_is_refused_and_report_names_missing_part() -> Verdict {
    let only = &["TIELINE_PROVIDERS=shm"];
    let report = leftovers::current().1.join("tmp").join("refusals");
    let launch = Launch::new("poor", "node").env("TIELINE_REPORT", report.display());
    let (mut rich, mut poor) = (Node::with("rich", only), Node::open(launch, only));
    or_return!(forbid(&mut poor));
    rich.connect(&mut poor);
    let failed = rich.ask("ping poor").expect_err("it cannot receive");
    println!("    {} {}", failed.status, failed.text);
    assert_eq!(failed.status, "NoMemory", "{failed:?}");
    assert!(failed.text.contains("its report says what"), "{failed:?}");
    let why = std::fs::read_to_string(&report).expect("its report");
    println!("{why}");
    let told = |line: &str| line.contains("a peer was refused") && line.contains("memfd_create");
    assert_eq!(why.lines().filter(|line| told(line)).count(), 1, "{why}");
    // Another attempt ends in the same way, and is not reported again.
    rich.connect(&mut poor);
    let _ = rich.ask("ping poor").expect_err("it cannot receive");
    let why = std::fs::read_to_string(&report).expect("its report");
    assert_eq!(why.lines().filter(|line| told(line)).count(), 1, "{why}");
    drop(std::fs::remove_file(report));
    rich.end();
    poor.end();
    Verdict::Passed
}

fn all_paths_are_refused_until_descriptors_are_available_again() -> Verdict {
    let mut nodes = Vec::new();
    for name in ["rich", "poor"] {
        nodes.push(or_return!(node(name, false, "")));
    }
    let [rich, poor] = &mut nodes[..] else { unreachable!("two") };
    let open: u64 = poor.must("descriptors").parse().expect("a number");
    let _ = poor.must(&format!("limit descriptors {}", open - 1));
    rich.connect(poor);
    let failed = rich.ask("ping poor").expect_err("it takes nobody in");
    println!("    {} {}", failed.status, failed.text);
    assert!(failed.text.contains("before that, shm/ring: "), "{failed:?}");
    assert!(failed.text.contains("(ulimit -n)"), "{failed:?}");
    let told = rich.must("warnings");
    assert!(told.contains("(ulimit -n)") && told.contains("from now on: tcp/stream"), "{told}");
    let _ = poor.must("limit descriptors 1000");
    everything_works(rich, poor);
    nodes.into_iter().for_each(Node::end);
    Verdict::Passed
}
