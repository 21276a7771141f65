use super::*;
use std::fs::read_to_string;

/// A file of this test's own, removed behind it.
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
fn no_file_is_made_before_there_is_something_to_say_and_its_name_may_hold_the_process() {
    let scratch = Scratch::new("late");
    let journal = scratch.journal("report.%p");
    let path = scratch.path("report.77");
    assert!(!std::fs::exists(&path).unwrap());
    journal.tell("first\nsecond \u{1b}[31mred");
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
fn what_is_known_of_a_peer_is_told_again_only_when_it_is_another_or_has_failed() {
    let scratch = Scratch::new("peers");
    let journal = scratch.journal("report");
    let one = || journal.tell_of_peer([1; 16], "one".into());
    one();
    one();
    journal.tell_of_peer([2; 16], "one".into());
    journal.tell_of_failure(Some([1; 16]), "lost");
    journal.tell_of_failure(Some([1; 16]), "lost");
    one();
    let text = read_to_string(scratch.path("report")).unwrap().replace("tieline[77@nodea] ", "");
    assert_eq!(text, "one\none\nlost\none\n");
}

#[test]
fn what_cannot_be_written_is_counted_with_the_reason_and_ends_nothing() {
    let scratch = Scratch::new("refused");
    let nowhere = scratch.journal("no/such/folder");
    nowhere.tell("a");
    nowhere.tell("b");
    let trouble = nowhere.trouble().expect("it is nowhere");
    assert!(trouble.contains("2 times") && trouble.contains("No such file"), "{trouble}");
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
    // More than it holds.
    (0..100).for_each(|_| journal.tell(&"x".repeat(4000)));
    drop(reader);
    journal.tell("the reader is gone");
    assert!(journal.trouble().is_some_and(|text| text.contains("Broken pipe")));
}
