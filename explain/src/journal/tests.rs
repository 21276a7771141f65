use super::*;
use std::fs::read_to_string;

/// A file for this test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder =
            std::env::temp_dir().join(format!("tieline-journal-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Scratch(folder)
    }

    fn journal(&self, name: &str) -> Journal {
        Journal::new(&ReportTo::File(self.path(name)), 77, "node\u{1b}a")
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn file_is_created_on_first_line_and_its_name_may_hold_pid_and_host() {
    let scratch = Scratch::new("late");
    let journal = scratch.journal("report.%h.%p");
    let path = scratch.path("report.nodea.77");
    assert!(!std::fs::exists(&path).unwrap());
    journal.tell_all(&["first", "second \u{1b}[31mred"]);
    let text = read_to_string(&path).unwrap();
    assert_eq!(text, "tieline[77@nodea] first\ntieline[77@nodea] second  [31mred\n");
    assert_eq!(journal.trouble(), None);
}

#[test]
fn lines_of_several_who_share_a_file_are_whole() {
    let scratch = Scratch::new("shared");
    let long = "x".repeat(3000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let _ = scope.spawn(|| {
                let journal = scratch.journal("report");
                (0..50).for_each(|_| journal.tell(&long));
            });
        }
    });
    let text = read_to_string(scratch.path("report")).unwrap();
    assert_eq!(text.lines().count(), 200);
    assert!(text.lines().all(|line| line == format!("tieline[77@nodea] {long}")));
}

#[test]
fn lanes_of_peer_are_reported_again_only_after_change_or_failure() {
    let scratch = Scratch::new("peers");
    let journal = scratch.journal("report");
    let one = || journal.tell_of_peer([1; 16], "one");
    one();
    one();
    journal.tell_of_peer([2; 16], "one");
    journal.tell_of_failure(Some([1; 16]), "lost");
    journal.tell_of_failure(Some([1; 16]), "lost");
    one();
    let text = read_to_string(scratch.path("report")).unwrap().replace("tieline[77@nodea] ", "");
    assert_eq!(text, "one\none\nlost\none\n");
}

#[test]
fn failed_writes_are_counted_with_reason_and_end_nothing() {
    let scratch = Scratch::new("refused");
    let nowhere = scratch.journal("no/such/folder");
    nowhere.tell("a");
    nowhere.tell("b");
    let trouble = nowhere.trouble().expect("it is nowhere");
    assert!(
        trouble.contains("2 incomplete writes") && trouble.contains("No such file"),
        "{trouble}"
    );
    let full = Journal::new(&ReportTo::File("/dev/full".into()), 77, "a");
    full.tell("a");
    assert!(full.trouble().is_some_and(|text| text.contains("No space left")));
}

#[test]
fn a_pipe_that_nobody_reads_holds_up_nobody_and_its_signal_ends_nothing() {
    let scratch = Scratch::new("pipe");
    let path = scratch.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let journal = scratch.journal("pipe");
    journal.tell("nobody is there");
    assert!(journal.trouble().is_some());
    let flags = {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        let _ = options.read(true).custom_flags(libc::O_NONBLOCK);
        options
    };
    let reader = flags.open(&path).unwrap();
    // The text is longer than the pipe's capacity.
    (0..100).for_each(|_| journal.tell(&"x".repeat(4000)));
    drop(reader);
    journal.tell("the reader is gone");
    assert!(journal.trouble().is_some_and(|text| text.contains("Broken pipe")));
}

#[test]
fn text_from_peer_cannot_start_a_line() {
    let scratch = Scratch::new("forged");
    let journal = scratch.journal("report");
    let name = "a\ntieline[1@b] warning\r\u{202e}\u{2028}c";
    journal.tell(name);
    journal.tell_of_peer([1; 16], name);
    journal.tell_of_failure(None, name);
    journal.tell_all(&["of several", name]);
    let text = read_to_string(scratch.path("report")).unwrap();
    let line = "tieline[77@nodea] a tieline[1@b] warning   c";
    assert_eq!(text.lines().count(), 5, "{text}");
    assert_eq!(text.lines().filter(|told| *told == line).count(), 4, "{text}");
}

#[test]
fn a_line_is_as_long_as_a_pipe_takes_at_once_and_says_that_it_was_cut() {
    let scratch = Scratch::new("long");
    let journal = scratch.journal("report");
    journal.tell(&"\u{e9}".repeat(100_000));
    let several: Vec<String> = (0..20).map(|n| format!("{n} {}", "x".repeat(900))).collect();
    journal.tell_all(&several);
    let text = read_to_string(scratch.path("report")).unwrap();
    assert_eq!(text.lines().count(), 21);
    let first = text.lines().next().unwrap();
    assert!(first.len() < LINE && first.len() > LINE - 8 && first.ends_with("..."));
    assert!(text.lines().all(|line| line.starts_with("tieline[77@nodea] ")));
    assert_eq!(journal.trouble(), None);
}

#[test]
fn line_after_cut_write_starts_on_new_line() {
    let scratch = Scratch::new("torn");
    let journal = scratch.journal("report");
    journal.tell("one");
    journal.torn.store(true, Ordering::Relaxed);
    journal.tell("two");
    journal.tell("three");
    let text = read_to_string(scratch.path("report")).unwrap().replace("tieline[77@nodea] ", "");
    assert_eq!(text, "one\n\ntwo\nthree\n");
}

#[test]
fn two_peers_that_are_lost_a_thousand_times_are_a_few_lines() {
    let scratch = Scratch::new("night");
    let journal = scratch.journal("report");
    for _ in 0..1000 {
        for peer in [1, 2] {
            journal.tell_of_peer([peer; 16], &format!("to process {peer}"));
            journal.tell_of_failure(Some([peer; 16]), &format!("process {peer} is gone"));
        }
    }
    let text = read_to_string(scratch.path("report")).unwrap();
    assert_eq!(text.lines().count(), 40, "{text}");
    assert!(text.contains("(512 times so far) process 1 is gone"), "{text}");
    // One failure is repeated without another report in between.
    let journal = scratch.journal("one");
    (0..1000).for_each(|_| journal.tell_of_failure(Some([1; 16]), "process 1 is gone"));
    let text = read_to_string(scratch.path("one")).unwrap();
    assert_eq!(text.lines().count(), 8, "{text}");
    assert!(text.contains("(8 times so far)") && text.contains("(512 times so far)"), "{text}");
}

#[test]
fn a_file_that_is_made_is_this_users_alone_and_no_link_leads_elsewhere() {
    use std::os::unix::fs::{MetadataExt, symlink};
    let scratch = Scratch::new("rights");
    scratch.journal("report").tell("a");
    let about = std::fs::metadata(scratch.path("report")).unwrap();
    assert_eq!(about.mode() & 0o777 & !0o600, 0);
    scratch.journal("report").tell("b");
    assert_eq!(read_to_string(scratch.path("report")).unwrap().lines().count(), 2);
    std::fs::write(scratch.path("victim"), "").unwrap();
    symlink(scratch.path("victim"), scratch.path("link")).unwrap();
    std::fs::hard_link(scratch.path("victim"), scratch.path("second")).unwrap();
    for (name, word) in [("link", "symbolic link"), ("second", "another name"), ("", "directory")] {
        let journal = scratch.journal(name);
        journal.tell("a");
        assert!(
            journal.trouble().is_some_and(|text| text.contains(word)),
            "{:?}",
            journal.trouble()
        );
    }
    assert_eq!(read_to_string(scratch.path("victim")).unwrap(), "");
}

#[test]
fn a_line_is_cut_where_its_end_would_have_no_room() {
    let scratch = Scratch::new("cut");
    let journal = scratch.journal("report");
    let most = LINE - "tieline[77@nodea] ".len() - "...\n".len();
    journal.tell(&"x".repeat(most));
    journal.tell(&"x".repeat(most + 1));
    let text = read_to_string(scratch.path("report")).unwrap().replace("tieline[77@nodea] ", "");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["x".repeat(most), format!("{}...", "x".repeat(most))]);
}

#[test]
fn lines_that_are_left_out_are_counted_in_words() {
    let scratch = Scratch::new("words");
    let journal = scratch.journal("report");
    journal.write(1, &["a"]);
    journal.write(2, &["b"]);
    let text = read_to_string(scratch.path("report")).unwrap().replace("tieline[77@nodea] ", "");
    assert_eq!(text, "(1 line is left out here)\na\n(2 lines are left out here)\nb\n");
}

/// Up to the fourth repetition the failure may be that of another endpoint; the eighth time it recurs.
#[test]
fn consecutive_equal_failures_are_thinned_from_fifth_time_on() {
    let scratch = Scratch::new("row");
    let journal = scratch.journal("report");
    let told = |times: usize| {
        (0..times).for_each(|_| journal.tell_of_failure(None, "lost"));
        read_to_string(scratch.path("report")).unwrap().lines().count()
    };
    assert_eq!([told(1), told(3), told(3), told(1), told(8)], [1, 1, 1, 2, 3]);
}
