//! Tests of the cache: its lines, its bound, the validity of its answers, and its owners.

use super::*;
use std::os::unix::fs::PermissionsExt;

/// A test's directory, removed on drop.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let place =
            std::env::temp_dir().join(format!("tieline-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).expect("a directory");
        Place(place)
    }
    fn file(&self) -> PathBuf {
        self.0.join("tieline/probes")
    }
    fn cache(&self) -> Cache {
        Cache::at(self.file())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(path: &std::path::Path) -> Key {
    FileKey::of(&fs::metadata(path).expect("a file")).into()
}

#[test]
fn an_answer_is_remembered_for_that_state_of_the_file() {
    let place = Place::new("kept");
    let subject = place.0.join("subject");
    fs::write(&subject, "one").unwrap();
    let (first, fine) = (key(&subject), Answer { fault: None, at: 5 });
    place.cache().add(&first, &fine);
    fs::write(&subject, "another").unwrap();
    let second = key(&subject);
    let broken = Answer { fault: Some("killed by a signal".into()), at: 6 };
    place.cache().add(&second, &broken);
    let kept = place.cache().read();
    assert_ne!(first, second);
    assert_eq!((kept.get(&first), kept.get(&second)), (Some(&fine), Some(&broken)));
    let left: Vec<_> = fs::read_dir(place.file().parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing but the cache is left");
}

#[test]
fn answers_are_looked_up_by_their_keys_and_the_last_one_applies() {
    let place = Place::new("answers");
    let yes = Answer { fault: None, at: 5 };
    let no = |at| Answer { fault: Some(format!("since {at}")), at };
    let file = FileKey([1, 2, 3, 4, 5, 6, 7]);
    let (own, used) = (Key::from(file), Key::of(file, "device"));
    let other = Key::from(FileKey([1, 2, 3, 4, 5, 6, 77]));
    assert_eq!(place.cache().answers().valid(&own, 9), None, "there is no file");
    place.cache().add(&used, &no(7));
    place.cache().add(&other, &yes);
    let mut answers = place.cache().answers();
    let found =
        |answers: &mut Answers, now| [&own, &used, &other].map(|key| answers.valid(key, now));
    assert_eq!(found(&mut answers, 9), [None, Some(no(7)), Some(yes.clone())]);
    assert_eq!(found(&mut answers, 6), [None, None, Some(yes.clone())], "from the future");
    answers.add(&own, &no(8));
    answers.add(&own, &yes);
    assert_eq!(found(&mut answers, 9)[0], Some(yes.clone()));
    // The file ends without an end of line, and begins with lines of another program.
    fs::write(place.file(), "1 2 3 4 5 6 7\n1 2 3 4 5 6 7 8\n1 2 3 4 5 6 77 5 starts").unwrap();
    let mut answers = place.cache().answers();
    answers.add(&used, &yes);
    assert_eq!(found(&mut answers, 9), [None, Some(yes.clone()), Some(yes)]);
}

#[test]
fn answers_of_other_keys_are_dropped_and_read_again_when_asked_for() {
    let place = Place::new("dropped");
    let key = |n| Key::from(FileKey([n, 2, 3, 4, 5, 6, 7]));
    let answer = |at| Answer { fault: Some(format!("since {at}")), at };
    for n in 1..100 {
        place.cache().add(&key(n), &answer(5));
    }
    let mut answers = place.cache().answers();
    let whole = answers.lines.len();
    assert!(!answers.lacks(&key(7)));
    assert_eq!((answers.valid(&key(7), 9), answers.valid(&key(0), 9)), (Some(answer(5)), None));
    answers.add(&key(0), &answer(6));
    answers.keep_asked();
    assert!(answers.lines.len() * 20 < whole, "{}", answers.lines);
    assert_eq!([7, 0, 8].map(|n| answers.lacks(&key(n))), [false, false, true]);
    let kept = |answers: &mut Answers| [7, 0].map(|n| answers.valid(&key(n), 9));
    assert_eq!(kept(&mut answers), [Some(answer(5)), Some(answer(6))]);
    answers.fill_up(place.cache().answers());
    assert!(!answers.lacks(&key(8)));
    assert_eq!(answers.valid(&key(8), 9), Some(answer(5)));
    assert_eq!(kept(&mut answers), [Some(answer(5)), Some(answer(6))]);
}

#[test]
fn a_cache_that_others_can_write_is_not_believed() {
    let place = Place::new("writable");
    let mine = key(&place.0);
    place.cache().add(&mine, &Answer { fault: None, at: 5 });
    assert_eq!(place.cache().read().len(), 1);
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(place.cache().read().is_empty());
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(place.cache().read().len(), 1);
    // A change of the owner takes a privilege.
    const NOBODY: u32 = 65_534;
    if std::os::unix::fs::chown(place.file(), Some(NOBODY), None).is_ok() {
        assert!(place.cache().read().is_empty(), "another user has written it");
    }
}

#[test]
fn a_cache_full_of_nonsense_is_an_empty_one() {
    let place = Place::new("nonsense");
    fs::create_dir(place.0.join("tieline")).unwrap();
    for nonsense in ["", "a b c", "1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 8 maybe", "\u{1}\n\n9 9"] {
        fs::write(place.file(), nonsense).unwrap();
        assert!(place.cache().read().is_empty());
    }
}

#[test]
fn the_cache_keeps_a_bounded_number_of_answers_the_last_ones() {
    let place = Place::new("bounded");
    for at in 0..300u64 {
        let subject = place.0.join(format!("f{at}"));
        fs::write(&subject, "x").unwrap();
        place.cache().add(&key(&subject), &Answer { fault: None, at });
    }
    let kept = place.cache().read();
    assert_eq!(kept.len(), 256);
    assert!(kept.values().all(|answer| answer.at >= 44));
}

#[test]
fn a_cache_that_cannot_be_written_is_no_error() {
    let place = Place::new("file");
    fs::write(place.0.join("tieline"), "a file where the directory should be").unwrap();
    place.cache().add(&key(&place.0), &Answer { fault: None, at: 5 });
    assert!(place.cache().read().is_empty());
}

#[test]
fn no_is_believed_for_a_day_and_not_before_it_was_found_and_yes_for_ever() {
    let (yes, no) =
        (Answer { fault: None, at: 1000 }, Answer { fault: Some("x".into()), at: 1000 });
    let day = 24 * 60 * 60;
    let believed =
        |answer: &Answer| [999, 1000, 999 + day, 1000 + day].map(|now| answer.holds(now));
    assert_eq!(believed(&no), [false, true, true, false]);
    assert_eq!(believed(&yes), [true; 4]);
}

#[test]
fn a_line_of_the_cache_is_an_answer_or_nothing() {
    let answer = |line: &str| {
        let (key, Answer { fault, at }) = parse(line)?;
        Some((key.file.0, key.of, fault, at))
    };
    let key = [1, 2, 3, 4, 5, 6, -7];
    assert_eq!(answer("1 2 3 4 5 6 -7 8 starts"), Some((key, String::new(), None, 8)));
    let why = Some("killed by a signal".to_owned());
    assert_eq!(
        answer("1 2 3 4 5 6 -7 8 no killed by\u{1b} a signal"),
        Some((key, String::new(), why.clone(), 8))
    );
    let used = answer("1 2 3 4 5 6 -7 =a_device;0 8 no killed by a signal");
    assert_eq!(used, Some((key, "a_device;0".to_owned(), why, 8)));
    for odd in [
        "1 2 3 4 5 6 -7 =a_device starts",
        "1 2 3 4 5 6 -7 8 starts well",
        "1 2 3 4 5 6 -7 8 no",
        "1 2 3 4 5 6 -7 8",
        "1 2 3 4 5 6 -7 -8 starts",
        "1 2 3 4 5 6 x 8 starts",
    ] {
        assert_eq!(answer(odd), None, "{odd}");
    }
}

#[test]
fn each_use_of_a_file_has_its_own_line_and_answer() {
    let place = Place::new("uses");
    let file = FileKey::of(&fs::metadata(&place.0).expect("a directory"));
    let cache = place.cache();
    let no = Answer { fault: Some("ended by a signal".into()), at: now() };
    cache.add(&file.into(), &Answer { fault: None, at: 5 });
    for device in ["ofi:one", "with\na line", "0 1"] {
        let key = Key::of(file, device);
        assert_eq!(cache.valid(&key), None, "{device}");
        cache.add(&key, &no);
        assert_eq!(cache.valid(&key), Some(no.clone()), "{device}");
    }
    assert_eq!(cache.read().len(), 4);
    assert_eq!(cache.valid(&file.into()), Some(Answer { fault: None, at: 5 }));
    let old = Answer { at: 5, ..no };
    cache.add(&Key::of(file, "ofi:one"), &old);
    assert_eq!(
        cache.valid(&Key::of(file, "ofi:one")),
        None,
        "a negative answer is valid for a day"
    );
}

#[test]
fn directory_that_others_can_write_has_no_cache() {
    let place = Place::new("others");
    let (file, mode) = (place.file(), |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    });
    let yes = Answer { fault: None, at: 5 };
    place.cache().add(&key(&place.0), &yes);
    let directory = file.parent().unwrap();
    assert_eq!(fs::metadata(directory).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let mine = Key::of(FileKey::of(&fs::metadata(&file).unwrap()), "mine");
    for others in [0o770, 0o707] {
        mode(directory, others);
        assert!(place.cache().read().is_empty(), "{others:o}");
        place.cache().add(&mine, &yes);
    }
    mode(directory, 0o755);
    assert_eq!(place.cache().read().len(), 1, "nothing was written there");
    mode(&file, 0o644);
    assert_eq!(place.cache().read().len(), 1, "others may read it");
    let link = directory.join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(Cache::at(link).read().is_empty());
    assert!(Cache::at(directory.to_path_buf()).read().is_empty(), "a directory is no file");
}
