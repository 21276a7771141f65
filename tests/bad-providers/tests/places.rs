//! Tests of places that another user can change.

mod common;

use common::{assert_refused, assert_the_rest_works, is_found, open, open_with, verdicts};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tieline_bad_providers::Directory;

const NOBODY: u32 = 65534;
/// The exit status of a process in which the other user's code has run.
const TAKEN: i32 = 77;

/// Makes a directory that belongs to another user; returns `None` if this user cannot change the owner.
fn directory_of_other_user() -> Option<Directory> {
    let directory = Directory::new();
    match chown(directory.path(), Some(NOBODY), Some(NOBODY)) {
        Ok(()) => Some(directory),
        Err(error) => {
            println!("skipped: a directory cannot be given away: {error}");
            None
        }
    }
}

#[test]
fn a_directory_below_one_of_another_user_is_refused() {
    let Some(his) = directory_of_other_user() else { return };
    let ours = his.inner("ours");
    let _ = ours.compile("trap", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let context = open(&[&ours]);
    let found = format!("the directory {} belongs to user {NOBODY}", his.path().display());
    let subject = ours.path().display().to_string();
    assert_refused(&context, &subject, "permissions", "directories on the path", &found);
}

#[test]
fn a_link_leads_to_no_file_in_a_place_of_another_user() {
    let Some(his) = directory_of_other_user() else { return };
    let (inner, ours) = (his.inner("inner"), Directory::new());
    let file = inner.compile("linked", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    symlink(file, ours.file("linked")).unwrap();
    let context = open(&[&ours]);
    assert_refused(
        &context,
        "linked",
        "permissions",
        "directories on the path",
        "belongs to user 65534",
    );
}

#[test]
fn a_link_that_leads_nowhere_is_called_one() {
    let directory = Directory::new();
    symlink("gone.so", directory.file("dangling")).unwrap();
    let found = "is a symbolic link to gone.so: No such file";
    assert_refused(&open(&[&directory]), "dangling", "search", "can be read", found);
}

#[test]
fn a_link_to_a_file_of_ours_is_followed() {
    let (there, here) = (Directory::new(), Directory::new());
    symlink(there.compile("good", &[]), here.file("good")).unwrap();
    assert!(is_found(&open(&[&here]), "good"));
}

#[test]
fn loaded_file_is_the_checked_one_or_is_refused() {
    let directory = Directory::new();
    let inner = directory.inner("inner");
    let other = inner.path().join("other.so");
    let _ = fs::copy(directory.compile("fickle", &[]), &other).unwrap();
    let file = directory.file("fickle");
    let swap = format!("CONSTRUCTOR=rename(\"{}\", \"{}\")", other.display(), file.display());
    let _ = directory.compile_with("fickle", &[&swap], &["-include", "stdio.h"]);
    let context = open(&[&directory]);
    let (expected, found) = ("the file that was checked", "another one was loaded");
    assert_refused(&context, "fickle", "dlopen", expected, found);
    // In the second attempt, the replacement is the file that was checked and that this process has loaded.
    assert!(is_found(&open(&[&directory]), "fickle"));
}

#[test]
fn replaced_file_stays_in_use_and_is_reported() {
    let directory = Directory::new();
    let _ = directory.compile("good", &["VERSION=\"1.0.0\""]);
    let first = open(&[&directory]);
    let file = directory.file("good");
    fs::remove_file(&file).unwrap();
    let _ = directory.compile("good", &["VERSION=\"2.0.0\""]);
    let second = open_with(&[&directory], &[("TIELINE_PROVIDERS", "good")]);
    assert_the_rest_works(&second);
    let said: Vec<String> = second.report().log.into_iter().map(|line| line.text).collect();
    let told = said.iter().any(|text| text.contains("version 1.0.0 stays in use"));
    assert!(told, "{said:?}");
    assert!(!first.report().log.iter().any(|line| line.text.contains("stays in use")));
}

/// The role of this program when the test starts it again, and the directory for that role.
const ROLE: &str = "TIELINE_TEST_ROLE";
const PLACE: &str = "TIELINE_TEST_PLACE";
const RACE: &str = "swapped_parent_directory_brings_no_code_into_the_process";

#[test]
fn swapped_parent_directory_brings_no_code_into_the_process() {
    let place = std::env::var(PLACE).unwrap_or_default();
    match std::env::var(ROLE).as_deref() {
        Ok("swap") => return swap(Path::new(&place)),
        Ok("open") => return open_at(&place),
        _ => {}
    }
    let Some(his) = directory_of_other_user() else { return };
    // The victim names a directory of its own, in a place where the other user may rename it.
    let current = his.inner("current");
    let _ = current.compile("good", &[]);
    let evil = his.inner("evil");
    // In the child that tries the file, the constructor does nothing.
    let here = "geteuid() == 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0";
    let trap = format!("CONSTRUCTOR=if ({here}) _exit({TAKEN})");
    let _ = evil.compile_with("good", &[&trap], &["-include", "sys/prctl.h"]);
    chown(evil.path(), Some(NOBODY), None).unwrap();
    chown(evil.file("good"), Some(NOBODY), None).unwrap();

    let again = |role: &str, place: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let _ = command.args(["--exact", RACE, "--nocapture"]).env(ROLE, role).env(PLACE, place);
        command
    };
    let mut swapper = again("swap", his.path());
    let swapper = swapper.uid(NOBODY).gid(NOBODY).stdout(Stdio::piped()).spawn();
    let mut swapper = match swapper {
        Ok(swapper) => swapper,
        Err(error) => return println!("skipped: another user cannot run this program: {error}"),
    };
    let lines = BufReader::new(swapper.stdout.take().expect("a pipe")).lines();
    let begun = lines.map_while(Result::ok).any(|line| line.contains("SWAPPING"));
    assert!(begun, "he cannot rename what lies in his own directory");
    let mut outcomes = Vec::new();
    for _ in 0..40 {
        let output = again("open", current.path()).output().expect("this program again");
        outcomes.push((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()));
        if outcomes.last().is_some_and(|(code, _)| *code == Some(TAKEN)) {
            break;
        }
    }
    swapper.kill().expect("our own child");
    let _ = swapper.wait().expect("our own child");
    let taken = outcomes.iter().any(|(code, _)| *code == Some(TAKEN));
    assert!(!taken, "at start {} another user's file ran with our rights", outcomes.len());
    for (code, text) in &outcomes {
        assert_eq!(*code, Some(0), "{text}");
        // The refusal `search` means that the directory did not exist at the moment of the search.
        assert!(text.contains("\"permissions\"") || text.contains("\"search\""), "{text}");
    }
}

/// Exchanges the victim's directory with the attacker's repeatedly, until this process is killed or a step fails.
fn swap(place: &Path) {
    let (current, evil, aside) = (place.join("current"), place.join("evil"), place.join("aside"));
    let steps = [(&current, &aside), (&evil, &current), (&current, &evil), (&aside, &current)];
    for round in 0u64.. {
        for (from, to) in steps {
            if let Err(error) = fs::rename(from, to) {
                return println!("{error}");
            }
        }
        if round == 0 {
            println!("SWAPPING");
        }
    }
}

fn open_at(directory: &str) {
    let context = tieline::Context::builder()
        .set("TIELINE_PROVIDER_PATH", directory)
        .set("TIELINE_PROBE", "nocache")
        .open()
        .expect("a context, whatever lies there");
    println!("{:?}", verdicts(&context, directory));
}
