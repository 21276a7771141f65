//! The check that only root and this user can change a file or replace it.
//!
//! dlopen takes a path. A user who can rename a directory of the path decides which file is loaded, regardless of an earlier check.
//! So the check follows the path from the root, like the kernel. Every directory and every symbolic link of the path must belong to
//! root or to this user, and no other user may be able to write the directories. A sticky directory (`/tmp`) may be writable by
//! all, because only root, the owner of an entry and the owner of the directory can move the entry. Under these conditions no other
//! user can redirect the path, neither during the check (each step is in a directory that was checked before) nor later.
//!
//! A group with the same number as the owner does not count as another user, because most systems assign each user such a private
//! group. If there is also an access control list, the group's rights are the maximum for the users and groups that the list names,
//! and they count. In a program that was started with raised rights, only root's directories and files are trusted, because the
//! user must not choose providers. In a user namespace, "other users" are those inside it: directories of users outside count as
//! root's, because root's are among them.

use crate::{Unfit, sys};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use tieline_plugin_api::{effective_uid, raised_rights};

/// The maximum number of symbolic links, as in the kernel.
const MOST_LINKS: usize = 40;
const STICKY: u32 = 0o1000;

/// The owners whose directories and files are trusted.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The user that is trusted besides root; `None` in a program that was started with raised rights.
    user: Option<u32>,
    /// The number that stands for all users outside the user namespace, including root of the host, in a process inside one. It is
    /// read when a directory of a third owner is on a path, which is rare.
    outside: OnceLock<Option<u32>>,
    /// The attributes of `/`, from which every path is followed.
    top: OnceLock<Metadata>,
}

/// The reason that a path is refused.
#[derive(Debug)]
pub enum Obstacle {
    /// The path is unsafe: another user could change its target.
    Unsafe(Unfit),
    /// The path cannot be followed to a target; the text is the reason.
    Nowhere(String),
}

impl Trust {
    /// Returns the owners that this process may trust.
    #[must_use]
    pub fn current_process() -> Trust {
        let user = (!raised_rights()).then(effective_uid);
        Trust { user, outside: OnceLock::new(), top: OnceLock::new() }
    }

    #[cfg(test)]
    pub(crate) fn for_user(user: Option<u32>) -> Trust {
        Trust { user, outside: OnceLock::from(None), top: OnceLock::new() }
    }

    /// Follows an absolute path through its links, and returns its target. The target itself is not checked: [`Trust::check`] does
    /// that.
    ///
    /// # Errors
    /// An obstacle on the path.
    pub fn follow(&self, path: &Path) -> Result<PathBuf, Obstacle> {
        self.target(path).map(|(real, _)| real)
    }

    /// Does the same as [`Trust::follow`], and returns the attributes of the target with it.
    ///
    /// # Errors
    /// An obstacle on the path.
    pub fn target(&self, path: &Path) -> Result<(PathBuf, Metadata), Obstacle> {
        let mut steps: VecDeque<OsString> = names(path);
        let mut real = PathBuf::from("/");
        let mut meta = self.top()?;
        let mut links = 0;
        let mut last_link = None;
        while let Some(step) = steps.pop_front() {
            self.check_ancestor(&real, &meta).map_err(Obstacle::Unsafe)?;
            if step == ".." {
                let _ = real.pop();
            } else {
                real.push(step);
            }
            meta = fs::symlink_metadata(&real)
                .map_err(|error| nowhere(&real, &error, last_link.as_ref()))?;
            if !meta.is_symlink() {
                continue;
            }
            self.check_owner(&meta, || format!("the symbolic link {}", real.display()))
                .map_err(Obstacle::Unsafe)?;
            links += 1;
            if links > MOST_LINKS {
                let text = format!("{}: too many symbolic links", path.display());
                return Err(Obstacle::Nowhere(text));
            }
            let target = fs::read_link(&real).map_err(|error| nowhere(&real, &error, None))?;
            last_link = Some((real.clone(), target.clone()));
            let _ = real.pop();
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            let rest = std::mem::replace(&mut steps, names(&target));
            steps.extend(rest);
            meta = fs::symlink_metadata(&real).map_err(|error| nowhere(&real, &error, None))?;
        }
        Ok((real, meta))
    }

    /// Returns the attributes of `/`, which are read once.
    fn top(&self) -> Result<Metadata, Obstacle> {
        if let Some(known) = self.top.get() {
            return Ok(known.clone());
        }
        let top = Path::new("/");
        let read = fs::symlink_metadata(top).map_err(|error| nowhere(top, &error, None))?;
        Ok(self.top.get_or_init(|| read).clone())
    }

    /// Checks whether only trusted users can create an entry in this directory, or write this file.
    ///
    /// # Errors
    /// Another user can write the file or directory, or owns it.
    pub fn check(&self, at: &Path, meta: &Metadata, what: &str) -> Result<(), Unfit> {
        if let Some(writers) = other_writers(at, meta) {
            let expected = match writers {
                Writers::Listed => {
                    format!("{what} whose access control list grants write access to no other user")
                }
                Writers::All => format!("{what} that is not world-writable"),
                Writers::Group(_) => {
                    format!("{what} that no group except its owner's own can write")
                }
            };
            return Err(Unfit { expected, found: writers.found(meta) });
        }
        self.check_owner(meta, || what.to_owned()).map_err(|unfit| {
            let found = format!("it belongs to user {}", meta.uid());
            Unfit { expected: unfit.expected, found }
        })
    }

    pub(crate) fn is_owned(&self, meta: &Metadata) -> bool {
        meta.uid() == 0 || Some(meta.uid()) == self.user
    }

    fn check_owner(&self, meta: &Metadata, what: impl FnOnce() -> String) -> Result<(), Unfit> {
        if self.is_owned(meta) {
            return Ok(());
        }
        let what = what();
        let found = format!("{what} belongs to user {}", meta.uid());
        Err(Unfit { expected: format!("{what} that belongs to {}", self.owners()), found })
    }

    fn owners(&self) -> String {
        self.user.map_or_else(|| "root".to_string(), |user| format!("root or to user {user}"))
    }

    /// Checks a directory on the path.
    fn check_ancestor(&self, directory: &Path, meta: &Metadata) -> Result<(), Unfit> {
        let is_outside = || Some(meta.uid()) == *self.outside.get_or_init(outside);
        let name = || format!("the directory {}", directory.display());
        let expected = || {
            format!(
                "directories on the path that belong to {} and that no other user can write",
                self.owners()
            )
        };
        if !self.is_owned(meta) && !is_outside() {
            return Err(Unfit {
                expected: expected(),
                found: format!("{} belongs to user {}", name(), meta.uid()),
            });
        }
        match other_writers(directory, meta) {
            Some(writers) if meta.mode() & STICKY == 0 => Err(Unfit {
                expected: expected(),
                found: format!("{} has {}", name(), writers.found(meta)),
            }),
            _ => Ok(()),
        }
    }
}

/// The users besides the owner that can write a file or directory.
enum Writers {
    All,
    Group(u32),
    /// The users or groups that an access control list names.
    Listed,
}

impl Writers {
    fn found(&self, meta: &Metadata) -> String {
        let mode = meta.mode() & 0o7777;
        match self {
            Writers::All => format!("mode {mode:04o}: world-writable"),
            Writers::Group(group) => format!("mode {mode:04o}: writable by group {group}"),
            Writers::Listed => format!("mode {mode:04o}, and an access control list"),
        }
    }
}

fn other_writers(at: &Path, meta: &Metadata) -> Option<Writers> {
    let group = meta.mode() & 0o020 != 0;
    match () {
        () if meta.mode() & 0o002 != 0 => Some(Writers::All),
        () if group && meta.gid() != meta.uid() => Some(Writers::Group(meta.gid())),
        () if group && sys::has_access_list(at) => Some(Writers::Listed),
        () => None,
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    let named = |part| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(named).collect()
}

fn nowhere(at: &Path, error: &io::Error, link: Option<&(PathBuf, PathBuf)>) -> Obstacle {
    let text = match link {
        Some((link, target)) => {
            format!("{} is a symbolic link to {}: {error}", link.display(), target.display())
        }
        None if error.kind() == io::ErrorKind::NotFound => error.to_string(),
        None => format!("{}: {error}", at.display()),
    };
    Obstacle::Nowhere(text)
}

/// Returns the user number that stands for all users outside the user namespace of this process; `None` without such users. In a
/// user namespace without root, root's directories, such as `/`, also have this number, so directories of a path with this number
/// count as root's.
fn outside() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    outside_of(&fs::read_to_string("/proc/self/uid_map").ok()?, text.trim().parse().ok()?)
}

fn outside_of(map: &str, overflow: u32) -> Option<u32> {
    let covers = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(overflow))
    };
    (!map.trim().is_empty() && !map.lines().any(covers)).then_some(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tieline_testing::holds_in_child;

    /// A directory tree below a trusted directory, removed on drop.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let top =
                std::env::temp_dir().join(format!("tieline-trust-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&top);
            fs::create_dir_all(top.join("a/b")).expect("a directory");
            fs::write(top.join("a/b/file"), "x").expect("a file");
            Tree(top)
        }
        fn at(&self, path: &str) -> PathBuf {
            self.0.join(path)
        }
        fn mode(&self, path: &str, mode: u32) {
            fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).expect("our own");
        }
        fn refusal(&self, path: &str) -> String {
            match Trust::current_process().follow(&self.at(path)) {
                Err(Obstacle::Unsafe(unfit)) => format!("{} / {}", unfit.expected, unfit.found),
                other => panic!("{other:?}"),
            }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn own_path_below_sticky_directory_is_followed_through_links() {
        let tree = Tree::new("own");
        symlink("b/../b", tree.at("a/link")).unwrap();
        symlink(tree.at("a"), tree.at("absolute")).unwrap();
        let real = Trust::current_process().follow(&tree.at("absolute/link/./file")).unwrap();
        assert_eq!(real, fs::canonicalize(tree.at("a/b/file")).unwrap());
    }

    /// The limit equals that of the kernel.
    #[test]
    fn so_many_links_are_followed_and_no_more() {
        let tree = Tree::new("links");
        symlink("a/b/file", tree.at("link1")).unwrap();
        for n in 2..=MOST_LINKS + 1 {
            symlink(format!("link{}", n - 1), tree.at(&format!("link{n}"))).unwrap();
        }
        let follow = |n: usize| Trust::current_process().follow(&tree.at(&format!("link{n}")));
        let real = fs::canonicalize(tree.at("a/b/file")).unwrap();
        assert_eq!(follow(MOST_LINKS).unwrap(), real);
        let Err(Obstacle::Nowhere(words)) = follow(MOST_LINKS + 1) else { panic!("followed") };
        assert!(words.ends_with("link41: too many symbolic links"), "{words}");
    }

    #[test]
    fn an_ancestor_that_others_can_write_is_refused_unless_it_is_sticky() {
        let tree = Tree::new("writable");
        for (mode, found) in [(0o777, "world-writable"), (0o757, "world-writable")] {
            tree.mode("a", mode);
            assert!(tree.refusal("a/b/file").contains(found));
        }
        tree.mode("a", 0o1777);
        assert!(Trust::current_process().follow(&tree.at("a/b/file")).is_ok());
    }

    #[test]
    fn a_group_that_is_not_the_owners_own_is_somebody_else() {
        let tree = Tree::new("group");
        let given = std::os::unix::fs::chown(tree.at("a"), None, Some(12_345)).is_ok();
        if !given {
            println!("skipped: a directory cannot be given to another group");
            return;
        }
        tree.mode("a", 0o775);
        assert!(tree.refusal("a/b/file").contains("writable by group 12345"));
    }

    #[test]
    fn whom_an_access_control_list_names_is_somebody_else() {
        let tree = Tree::new("listed");
        let about = fs::metadata(tree.at("a")).unwrap();
        let own = about.uid() == about.gid();
        if !own || sys::give_access(&tree.at("a"), 12_345).is_err() {
            println!(
                "skipped: this file system has no access control lists, or the group is not the user's own"
            );
            return;
        }
        assert_eq!(fs::metadata(tree.at("a")).unwrap().mode() & 0o777, 0o775);
        assert!(tree.refusal("a/b/file").contains("access control list"));
        let meta = fs::metadata(tree.at("a")).unwrap();
        assert!(Trust::current_process().check(&tree.at("a"), &meta, "a directory").is_err());
    }

    #[test]
    fn a_link_that_leads_through_a_writable_directory_is_not_followed() {
        let tree = Tree::new("link");
        tree.mode("a", 0o777);
        fs::create_dir(tree.at("safe")).unwrap();
        symlink(tree.at("a/b/file"), tree.at("safe/link")).unwrap();
        assert!(tree.refusal("safe/link").contains("world-writable"));
    }

    #[test]
    fn foreign_files_are_refused_and_own_ones_too_in_setuid_program() {
        let tree = Tree::new("owner");
        let user = fs::metadata(tree.at("a")).unwrap().uid();
        let meta = fs::metadata(tree.at("a/b/file")).unwrap();
        if user != 0 {
            assert!(Trust::for_user(None).follow(&tree.at("a/b/file")).is_err());
            assert!(Trust::for_user(None).check(&tree.at("a/b/file"), &meta, "a file").is_err());
            return;
        }
        std::os::unix::fs::chown(tree.at("a"), Some(12_345), None).unwrap();
        assert!(tree.refusal("a/b/file").contains("belongs to user 12345"));
        assert!(Trust::for_user(Some(12_345)).follow(&tree.at("a/b/file")).is_ok());
        assert!(Trust::for_user(None).follow(&tree.at("a/b/file")).is_err());
        // The owner of a link in a sticky directory controls its target, so the link is not trusted.
        tree.mode("a", 0o1777);
        std::os::unix::fs::chown(tree.at("a"), Some(0), None).unwrap();
        symlink("b", tree.at("a/link")).unwrap();
        std::os::unix::fs::lchown(tree.at("a/link"), Some(12_345), None).unwrap();
        assert!(tree.refusal("a/link/file").contains("the symbolic link"));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_called_one() {
        let tree = Tree::new("dangling");
        symlink("gone", tree.at("a/link")).unwrap();
        let obstacle = Trust::current_process().follow(&tree.at("a/link")).unwrap_err();
        let Obstacle::Nowhere(text) = obstacle else { panic!("{obstacle:?}") };
        assert!(text.contains("a symbolic link to gone: No such file"), "{text}");
        symlink("round", tree.at("a/round")).unwrap();
        assert!(Trust::current_process().follow(&tree.at("a/round")).is_err());
    }

    #[test]
    fn only_in_a_user_namespace_is_somebody_outside() {
        assert_eq!(outside_of("         0          0 4294967295\n", 65534), None);
        assert_eq!(outside_of("0 1000 1\n", 65534), Some(65534));
        assert_eq!(outside_of("0 1000 1\n1 100000 65536\n", 65534), None);
        assert_eq!(outside_of("", 65534), None);
    }

    /// In a user namespace without root, root's directories belong to the overflow user: if that number were refused, no path would
    /// be trusted.
    #[test]
    fn user_namespace_allows_own_path_and_refuses_outside_files() {
        let tree = Tree::new("namespace");
        let user = if effective_uid() == 0 { 12_345 } else { effective_uid() };
        let give = |path| std::os::unix::fs::chown(tree.at(path), Some(user), None).is_ok();
        let given = ["", "a", "a/b", "a/b/file"].into_iter().all(give);
        let file = tree.at("a/b/file");
        let enters = || {
            sys::enter_user_namespace(user).unwrap();
            fs::metadata(&file).is_ok()
        };
        if !given || !holds_in_child(enters) {
            println!("skipped: no user namespace in which {} can be reached", file.display());
            return;
        }
        assert!(holds_in_child(|| {
            assert!(enters());
            let trust = Trust::current_process();
            assert!(trust.follow(&file).is_ok(), "{trust:?}");
            let above = fs::metadata("/").unwrap();
            trust.check(Path::new("/"), &above, "a directory").is_err()
        }));
    }
}
