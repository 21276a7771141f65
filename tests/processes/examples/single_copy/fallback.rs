//! The lane of a pair if the best lane is disabled, forbidden or gone. Other pairs keep their lane.

use crate::provider::{
    self, CMA, DIRECT, IN_ORDER, KNEM, SingleCopy, Taken, XPMEM, launch, one_is_missing,
};
use tieline_processes::{Launch, Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![
    pair_falls_back_by_one_lane_per_left_out_provider,
    xpmem_is_first_where_the_operator_lets_it_load_and_store,
    a_pair_falls_back_where_yama_forbids_it_and_pairs_that_it_allows_stay,
    a_key_falls_back_when_yama_forbids_meanwhile_what_it_was_imported_for,
    a_pair_falls_back_where_yama_forbids_cma_until_the_next_boot,
    a_pair_falls_back_whose_processes_are_of_two_users,
    a_pair_falls_back_whose_processes_are_in_two_user_namespaces,
    pair_falls_back_by_one_lane_per_device_gone_after_one_side_opened,
    process_falls_back_by_one_lane_per_module_unloaded_in_between,
];

const LEN: usize = 100_000;
const MESSAGES: &str = "emulated over shm/ring";
const ALL: &str = "TIELINE_PROVIDERS=shm,shm-cma,shm-xpmem,shm-knem";
const NO_CMA: &str = "TIELINE_PROVIDERS=shm,shm-xpmem,shm-knem";

/// Returns the launch of a process with root's files and without root's rights.
fn plain(name: &str) -> Launch {
    let none = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--"];
    launch(name).through(&none)
}

fn start(name: &str, settings: &str) -> Node {
    provider::open(plain(name), settings)
}

/// Makes puts and gets of several lengths and offsets, and checks every byte of the region after each. Returns the lane.
fn moved(from: &mut Node, to: &mut Node) -> String {
    let name = to.peer.name.clone();
    let _ = from.must(&format!("register out {LEN}"));
    let _ = from.must(&format!("register back {LEN}"));
    let _ = to.must(&format!("register memory {LEN}"));
    let _ = to.must("fill memory 1");
    let path = from.import(to, "memory");
    for (seed, (at, len)) in (2..).zip([(13, 8), (4095, 4098), (31, 65_000), (0, LEN)]) {
        let _ = from.must(&format!("fill out {seed}"));
        let _ = from.must(&format!("put {name}.memory out {at} {len} {at}"));
        let behind = at + len;
        for (at, len, seed) in [(0, at, 1), (at, len, seed), (behind, LEN - behind, 1)] {
            assert_eq!(to.must(&format!("check memory {at} {len} {seed} {at}")), "same", "{path}");
        }
        let _ = from.must("fill back 0");
        let _ = from.must(&format!("get {name}.memory back {at} {len} {at}"));
        for (at, len, seed) in [(0, at, 0), (at, len, seed), (behind, LEN - behind, 0)] {
            assert_eq!(from.must(&format!("check back {at} {len} {seed} {at}")), "same", "{path}");
        }
        let _ = to.must("fill memory 1");
    }
    let _ = from.must(&format!("forget-key {name}.memory"));
    let _ = (from.must("close out"), from.must("close back"), to.must("close memory"));
    path
}

/// Checks the path of the pair. The report of the pair must have exactly one record with these words for each of these providers,
/// and no duplicate records.
fn goes_by(from: &mut Node, to: &mut Node, path: &str, records: &[(&str, &str)]) {
    let name = to.peer.name.clone();
    from.connect(to);
    let taken = moved(from, to);
    let report = from.must(&format!("report {name}"));
    println!("    {} to {name}: {taken}: {report}", from.peer.name);
    assert_eq!(taken, path, "{report}");
    let about = |provider: &str| -> Vec<&str> {
        report.split(" | ").filter(|record| record.starts_with(provider)).collect()
    };
    assert!(IN_ORDER.iter().all(|one| about(one.name).len() <= 1), "{report}");
    for (provider, words) in records {
        let about = about(provider);
        assert_eq!(about.len(), 1, "records of {provider}: {report}");
        assert!(about[0].contains(words), "{report}");
    }
}

fn goes_without(node: &mut Node, why: &str) {
    let report = node.must("context-report");
    // The log lines of the provider follow the records.
    let records = report.split("\"warnings\"").next().unwrap_or_default();
    assert_eq!(records.matches(why).count(), 1, "{why}: {report}");
}

fn end<const N: usize>(nodes: [Node; N]) -> Verdict {
    for mut node in nodes {
        node.nothing_was_wrong();
        node.end();
    }
    Verdict::Passed
}

fn pair_falls_back_by_one_lane_per_left_out_provider() -> Verdict {
    let here: Vec<&SingleCopy> =
        IN_ORDER.iter().copied().filter(|one| one.is_missing().is_none()).collect();
    // A list that only excludes providers keeps the default order of the remaining providers.
    let whole = "TIELINE_PROVIDERS=^verbs";
    let (mut whole, mut other) = (start("whole", whole), start("other", whole));
    goes_by(&mut whole, &mut other, here[0].path, &[]);
    for set in 1..1usize << here.len() {
        let (without, with): (Vec<_>, Vec<_>) =
            (0..here.len()).partition(|place| set >> place & 1 == 1);
        let path = with.first().map_or(MESSAGES, |first| here[*first].path);
        let names: Vec<&str> = without.iter().map(|place| here[*place].name).collect();
        let setting = format!("TIELINE_PROVIDERS=^verbs,{}", names.join(","));
        let offered = names.iter().map(|name| format!("of provider {name}"));
        let offered: Vec<String> = offered.collect();
        let missing: Vec<(&str, &str)> =
            names.iter().copied().zip(offered.iter().map(String::as_str)).collect();
        // The test runs two processes with the same exclusion, and then a process with it and a process without it.
        let (mut without, mut like) = (start("without", &setting), start("like", &setting));
        goes_by(&mut without, &mut like, path, &[]);
        goes_by(&mut like, &mut whole, path, &[]);
        goes_by(&mut whole, &mut without, path, &missing);
        let _ = end([without, like]);
    }
    goes_by(&mut whole, &mut other, here[0].path, &[]);
    end([whole, other])
}

fn xpmem_is_first_where_the_operator_lets_it_load_and_store() -> Verdict {
    if let Some(why) = one_is_missing() {
        return Verdict::Skipped(why);
    }
    let direct = format!("TIELINE_PROVIDERS=^verbs {}", DIRECT.settings);
    let (mut a, mut b) = (start("a", &direct), start("b", &direct));
    let mut without = start("without", "TIELINE_PROVIDERS=^verbs,shm-xpmem");
    goes_by(&mut a, &mut b, XPMEM.path, &[]);
    goes_by(&mut a, &mut without, CMA.path, &[("shm-xpmem", "of provider shm-xpmem")]);
    goes_by(&mut without, &mut a, CMA.path, &[]);
    end([a, b, without])
}

fn a_pair_falls_back_where_yama_forbids_it_and_pairs_that_it_allows_stay() -> Verdict {
    if let Some(why) = one_is_missing() {
        return Verdict::Skipped(why);
    }
    provider::yama(0);
    let mut root = Node::open(launch("root"), &[ALL]);
    for scope in [0, 1, 2] {
        provider::yama(scope);
        let (mut a, mut b) = (start("a", ALL), start("b", ALL));
        let silent = format!("{ALL} TIELINE_SHM_CMA_PTRACER=off");
        let mut silent = start("silent", &silent);
        let why = format!("ptrace_scope is {scope}");
        let of_cma = &[("shm-cma", &*why)][..];
        let (path, record) = if scope < 2 { (CMA.path, &[][..]) } else { (XPMEM.path, of_cma) };
        goes_by(&mut a, &mut b, path, record);
        let (path, record) = if scope < 1 { (CMA.path, &[][..]) } else { (XPMEM.path, of_cma) };
        goes_by(&mut a, &mut silent, path, record);
        // An administrator may access the memory.
        goes_by(&mut root, &mut a, CMA.path, &[]);
        let _ = end([a, b, silent]);
    }
    provider::yama(0);
    end([root])
}

fn a_key_falls_back_when_yama_forbids_meanwhile_what_it_was_imported_for() -> Verdict {
    if let Some(why) = one_is_missing() {
        return Verdict::Skipped(why);
    }
    provider::yama(0);
    let (mut a, mut b) = (start("a", ALL), start("b", ALL));
    let mut root = Node::open(launch("root"), &[ALL]);
    let _ = b.must("register memory 4096");
    for node in [&mut a, &mut root] {
        node.connect(&mut b);
        assert_eq!(node.import(&mut b, "memory"), CMA.path);
        let _ = node.must("register here 4096");
    }
    let mut put = |node: &mut Node, seed: usize| {
        let _ = node.must(&format!("fill here {seed}"));
        let _ = node.must("put b.memory here 0 4096 0");
        assert_eq!(b.must(&format!("check memory 0 4096 {seed} 0")), "same");
        node.must("path b.memory")
    };
    assert_eq!([put(&mut a, 1), put(&mut root, 2)], [CMA.path; 2]);
    provider::yama(2);
    assert_eq!(put(&mut a, 3), XPMEM.path);
    assert_eq!(put(&mut root, 4), CMA.path);
    provider::yama(0);
    let _ = (put(&mut a, 5), put(&mut root, 6));
    end([a, b, root])
}

fn a_pair_falls_back_where_yama_forbids_cma_until_the_next_boot() -> Verdict {
    if provider::yama_scope() != 3 {
        return Verdict::Skipped("Yama's scope is not 3: that lasts until the next boot".into());
    }
    let (mut root, mut other) =
        (Node::open(launch("root"), &[ALL]), Node::open(launch("other"), &[ALL]));
    let forbidden = &[("shm-cma", "ptrace_scope is 3")];
    goes_by(&mut root, &mut other, XPMEM.path, forbidden);
    for (setting, path) in [("shm,shm-cma,shm-knem", KNEM.path), ("shm,shm-cma", MESSAGES)] {
        let mut without = start("without", &format!("TIELINE_PROVIDERS={setting}"));
        goes_by(&mut root, &mut without, path, forbidden);
        let _ = end([without]);
    }
    goes_by(&mut root, &mut other, XPMEM.path, forbidden);
    end([root, other])
}

fn a_pair_falls_back_whose_processes_are_of_two_users() -> Verdict {
    if let Some(why) = one_is_missing() {
        return Verdict::Skipped(why);
    }
    let network = "TIELINE_PROVIDERS=shm,shm-cma,shm-xpmem,shm-knem,tcp,tcp-connect";
    let (mut a, mut b) = (start("a", network), start("b", network));
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let mut stranger = Node::open(launch("stranger").through(&other), &[network]);
    goes_by(&mut a, &mut b, CMA.path, &[]);
    let words = [("shm-cma", "user"), ("shm-xpmem", "user"), ("shm-knem", "user")];
    goes_by(&mut a, &mut stranger, "tcp/stream", &words);
    goes_by(&mut stranger, &mut a, "tcp/stream", &words);
    goes_by(&mut a, &mut b, CMA.path, &[]);
    end([a, b, stranger])
}

fn a_pair_falls_back_whose_processes_are_in_two_user_namespaces() -> Verdict {
    if let Some(why) = one_is_missing() {
        return Verdict::Skipped(why);
    }
    let (mut a, mut b) = (start("a", ALL), start("b", ALL));
    let own = ["unshare", "--user", "--map-root-user", "--"];
    let mut inside = Node::open(launch("inside").through(&own), &[ALL]);
    goes_by(&mut a, &mut b, CMA.path, &[]);
    // A process outside the namespace, as its creator, has all rights in the namespace; a process inside has no rights outside.
    goes_by(&mut a, &mut inside, CMA.path, &[]);
    let file = "revocation needs a file";
    let words = [("shm-cma", "user namespace"), ("shm-xpmem", file), ("shm-knem", file)];
    goes_by(&mut inside, &mut a, MESSAGES, &words);
    goes_by(&mut a, &mut b, CMA.path, &[]);
    end([a, b, inside])
}

fn pair_falls_back_by_one_lane_per_device_gone_after_one_side_opened() -> Verdict {
    if let Some(why) = one_is_missing() {
        return Verdict::Skipped(why);
    }
    let (mut a, mut b) = (start("a", NO_CMA), start("b", NO_CMA));
    let without = |one: &SingleCopy| format!("of provider {}", one.name);
    let (no_xpmem, no_knem) = (without(&XPMEM), without(&KNEM));
    let words = [("shm-xpmem", &*no_xpmem), ("shm-knem", &*no_knem)];
    for unreadable in [false, true] {
        let xpmem = Taken::away(&XPMEM, unreadable);
        let mut late = start("late", NO_CMA);
        goes_without(&mut late, &xpmem.why());
        goes_by(&mut a, &mut late, KNEM.path, &words[..1]);
        goes_by(&mut late, &mut a, KNEM.path, &[]);
        let knem = Taken::away(&KNEM, unreadable);
        let mut later = start("later", NO_CMA);
        goes_without(&mut later, &xpmem.why());
        goes_without(&mut later, &knem.why());
        goes_by(&mut a, &mut later, MESSAGES, &words);
        goes_by(&mut later, &mut a, MESSAGES, &[]);
        goes_by(&mut a, &mut b, XPMEM.path, &[]);
        drop((xpmem, knem));
        let mut latest = start("latest", NO_CMA);
        goes_by(&mut a, &mut latest, XPMEM.path, &[]);
        let _ = end([late, later, latest]);
    }
    end([a, b])
}

fn process_falls_back_by_one_lane_per_module_unloaded_in_between() -> Verdict {
    if let Some(why) = one_is_missing() {
        return Verdict::Skipped(why);
    }
    let (mut a, mut b) = (start("a", NO_CMA), start("b", NO_CMA));
    goes_by(&mut a, &mut b, XPMEM.path, &[]);
    let mut gone: Vec<&SingleCopy> = Vec::new();
    for (one, path) in [(&XPMEM, KNEM.path), (&KNEM, MESSAGES)] {
        let _ = (a.must("close"), b.must("close"));
        one.unload();
        gone.push(one);
        for node in [&mut a, &mut b] {
            let _ = node.must(&format!("open {NO_CMA}"));
            for one in &gone {
                goes_without(node, &format!("there is no {}", one.device()));
            }
        }
        goes_by(&mut a, &mut b, path, &[]);
    }
    let _ = (a.must("close"), b.must("close"));
    gone.iter().for_each(|one| one.load());
    for node in [&mut a, &mut b] {
        let _ = node.must(&format!("open {NO_CMA}"));
    }
    goes_by(&mut a, &mut b, XPMEM.path, &[]);
    end([a, b])
}
