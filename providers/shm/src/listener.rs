//! The listening socket of an interface: in a directory that no other user can enter, or with an abstract name.
//!
//! The owner of a socket removes its file. If the owner was killed, another process removes the file: a peer that notices the
//! death, or a process that starts or ends with the same directory. A socket is dead if no process has it open; the kernel reports
//! that without notifying the owner of a live one. Without any directory the name is abstract: 128 random bits, without a file, and
//! it vanishes with the process. However, every process in the network namespace can connect to an abstract name.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tieline_plugin_api::Failure;

use crate::closer::Closer;
use crate::config::Settings;
use crate::directory::Directory;
use crate::hello::Address;
use crate::sys;

const PREFIX: &str = "tieline-";
const SUFFIX: &str = ".sock";
const STARTING: &str = ".new";
/// The system's directory of processes.
const PROC: &[u8] = b"/proc/";
/// The time after which a socket that was bound but never came into use is removed.
const STARTING_DEADLINE: Duration = Duration::from_secs(60);
/// The maximum number of entries that one sweep examines: a thousand processes that start together must not examine a million. Each
/// sweep begins at a random place, so later sweeps find the rest.
const MOST_SWEPT: usize = 64;
/// The number of attempts to create a directory that other processes remove because it is empty.
const ATTEMPTS: usize = 100;

/// A listening socket, and its name.
pub(crate) struct Listener {
    socket: Option<OwnedFd>,
    name: Vec<u8>,
    file: Option<SocketFile>,
}

/// The file of a socket.
struct SocketFile {
    file: PathBuf,
    /// Whether the file's directory is one of this provider's own.
    made: bool,
    /// Whether the file's directory belongs to this host alone.
    local: bool,
}

impl Listener {
    /// Binds a socket and listens. The text explains why the socket's name is abstract, if it is.
    pub(crate) fn open(settings: &Settings) -> Result<(Listener, Option<String>), Failure> {
        let Some(dir) = &settings.dir else {
            return match Listener::somewhere(settings) {
                Ok(listener) => Ok((listener, None)),
                Err(error) if sys::is_exhaustion(&error) => {
                    Err(Failure::from_io("a directory for sockets", &error))
                }
                Err(why) => Ok((Listener::without_directory()?, Some(why.to_string()))),
            };
        };
        let directory = Directory::given(dir)?;
        let text = |error: io::Error| {
            let failure = Failure::from_io("a socket cannot be made there", &error);
            Failure {
                text: format!("TIELINE_SHM_DIR={}: {}", dir.display(), failure.text),
                ..failure
            }
        };
        Listener::within(directory).map(|listener| (listener, None)).map_err(text)
    }

    fn somewhere(settings: &Settings) -> io::Result<Listener> {
        let mut attempts = 0;
        loop {
            let directory = Directory::found(&settings.bases)?;
            let path = directory.path().to_path_buf();
            attempts += 1;
            match Listener::within(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS => {}
                Err(error) if !sys::is_exhaustion(&error) => {
                    return Err(io::Error::other(format!("{}: {error}", path.display())));
                }
                other => return other,
            }
        }
    }

    fn without_directory() -> Result<Listener, Failure> {
        let number: String =
            sys::random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut name = vec![0];
        name.extend(PREFIX.bytes());
        name.extend(number.bytes());
        let fail = |error| Failure::from_io("an abstract socket", &error);
        let socket = sys::bind(&name).map_err(fail)?;
        sys::listen(&socket).map_err(fail)?;
        Ok(Listener { socket: Some(socket), name, file: None })
    }

    /// Returns a socket in the directory. The socket is first bound under another name. `bind` creates the file before the kernel
    /// knows its owner, and a sweep at that moment would consider the socket dead.
    fn within(directory: Directory) -> io::Result<Listener> {
        let local = !directory.is_remote();
        if local {
            sweep(directory.path());
        }
        let number = sys::random::<8>().map_err(|failure| io::Error::other(failure.text))?;
        let number: String = number.iter().map(|byte| format!("{byte:02x}")).collect();
        let (starting, last) =
            (format!("{PREFIX}{number}{STARTING}"), format!("{PREFIX}{number}{SUFFIX}"));
        let file = directory.path().join(&last);
        let early = directory.path().join(&starting);
        let socket = sys::bind(early.as_os_str().as_bytes())?;
        if let Err(error) = directory.rename(&starting, &last).and_then(|()| sys::listen(&socket)) {
            let _ = fs::remove_file(&early);
            return Err(error);
        }
        let name = file.as_os_str().as_bytes().to_vec();
        let file = SocketFile { file, made: directory.is_made(), local };
        Ok(Listener { socket: Some(socket), name, file: Some(file) })
    }

    /// Returns the socket, or `None` after it is closed.
    pub(crate) fn socket(&self) -> Option<&OwnedFd> {
        self.socket.as_ref()
    }

    /// Closes the socket and the connections that wait on it: with an abstract name they can be of any user. The socket's file is
    /// removed first.
    pub(crate) fn close(&mut self, closer: &Closer) {
        let by_file = self.file.is_some();
        self.remove_file();
        match self.socket.take() {
            Some(socket) if !by_file => closer.close(socket),
            _ => {}
        }
    }

    fn remove_file(&mut self) {
        let Some(SocketFile { file, made, local }) = self.file.take() else { return };
        let _ = fs::remove_file(&file);
        let Some(directory) = file.parent() else { return };
        // The last process to leave finds the sockets of killed processes that were not removed before: a dying process may close
        // its channels before its listening socket.
        if local {
            sweep(directory);
        }
        if made {
            let _ = fs::remove_dir(directory); // removed if it is empty
        }
    }

    /// Returns the bytes of the name for `sun_path`.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// Returns the names to try for a peer's socket. A directory that was set for this process comes first, because the peer's path may
/// lead elsewhere in this mount namespace. The path in the root of the peer's process comes last; the system may deny access to it.
pub(crate) fn targets(peer: &Address, own_dir: Option<&Path>) -> Vec<Vec<u8>> {
    let mut names = Vec::with_capacity(3);
    if let (Some(dir), Some(file)) = (own_dir, file_name(&peer.socket)) {
        names.push(dir.join(file).into_os_string().into_encoded_bytes());
    }
    if !names.contains(&peer.socket) {
        names.push(peer.socket.clone());
    }
    if peer.socket[0] == b'/' {
        names.extend(in_the_root_of(peer.process, &peer.socket));
    }
    names
}

/// Returns the path as a process of the same user sees it, possibly in another mount namespace.
fn in_the_root_of(process: u32, path: &[u8]) -> Option<Vec<u8>> {
    let number = process.to_string();
    let own = [PROC, number.as_bytes()].concat();
    let about = fs::metadata(OsStr::from_bytes(&own));
    let theirs = process != 0 && about.is_ok_and(|about| about.uid() == sys::user());
    let name = [&own, b"/root".as_slice(), path].concat();
    (theirs && name.len() < sys::MAX_NAME).then_some(name)
}

/// Returns the name of the socket's file; `None` for an abstract name.
fn file_name(socket: &[u8]) -> Option<&OsStr> {
    if socket.first() != Some(&b'/') {
        return None;
    }
    Path::new(OsStr::from_bytes(socket)).file_name()
}

/// Checks whether one of the names exists. The error is [`io::ErrorKind::PermissionDenied`] if this process may not look, and
/// [`io::ErrorKind::NotFound`] if none exists.
pub(crate) fn find(peer: &Address, own_dir: Option<&Path>) -> io::Result<()> {
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    for name in targets(peer, own_dir) {
        match fs::symlink_metadata(OsStr::from_bytes(&name)) {
            Ok(_) => return Ok(()),
            // A path of /proc that may not be read says nothing about the socket.
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && !name.starts_with(PROC) =>
            {
                outcome = Err(error);
            }
            Err(_) => {}
        }
    }
    outcome
}

/// Removes sockets of killed processes, among at most [`MOST_SWEPT`] entries.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let ours = |entry: &fs::DirEntry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
    let mut entries: Vec<fs::DirEntry> = entries.flatten().filter(ours).collect();
    if entries.len() > MOST_SWEPT {
        let start = sys::random::<8>().map_or(0, u64::from_le_bytes) % entries.len() as u64;
        entries.rotate_left(start as usize);
    }
    for entry in entries.into_iter().take(MOST_SWEPT) {
        let path = entry.path();
        if path.as_os_str().as_bytes().ends_with(SUFFIX.as_bytes()) {
            remove_if_dead(&path);
        } else if path.as_os_str().as_bytes().ends_with(STARTING.as_bytes()) {
            let about = entry.metadata().ok();
            let age = about.and_then(|about| about.modified().ok()?.elapsed().ok());
            if age.is_some_and(|age| age > STARTING_DEADLINE) {
                remove_if_dead(&path);
            }
        }
    }
}

/// Removes a socket that no process has open.
fn remove_if_dead(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    if is_socket && sys::is_dead(path.as_os_str().as_bytes()) {
        let _ = fs::remove_file(path);
    }
}

/// Removes the socket file of a peer that was found to be dead. The file's name must be one of this provider, and its directory of
/// this host alone.
pub(crate) fn remove_dead(names: &[Vec<u8>]) {
    for name in names {
        let Some(file) = file_name(name).and_then(OsStr::to_str) else { continue };
        let path = Path::new(OsStr::from_bytes(name));
        let remote = || {
            let parent = path.parent().and_then(|parent| fs::File::open(parent).ok());
            parent.is_none_or(|parent| sys::is_remote(&parent))
        };
        if file.starts_with(PREFIX) && file.ends_with(SUFFIX) && !remote() {
            remove_if_dead(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(process: u32, socket: &[u8]) -> Address {
        let (boot, domain) = ([0; 16], [0; 16]);
        let socket = socket.to_vec();
        Address { cookie: [0; 16], boot, network: 0, mount: 0, process, domain, socket }
    }

    #[test]
    fn socket_lookup_tries_own_directory_then_name_then_process_root() {
        let names = |process, socket: &str, dir: Option<&str>| -> Vec<String> {
            let names = targets(&peer(process, socket.as_bytes()), dir.map(Path::new));
            names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect()
        };
        let (ours, socket) = (std::process::id(), "/there/tieline-1.sock");
        let in_its_root = format!("/proc/{ours}/root{socket}");
        assert_eq!(names(ours, socket, None), [socket, &in_its_root]);
        assert_eq!(
            names(ours, socket, Some("/here")),
            ["/here/tieline-1.sock", socket, &in_its_root]
        );
        assert_eq!(names(ours, socket, Some("/there")), [socket, &in_its_root], "once");
        // The cases: no process number, a number that does not exist, and a name that is too long for a socket.
        assert_eq!(names(0, socket, None), [socket]);
        assert_eq!(names(u32::MAX, socket, None), [socket]);
        let long = format!("/{}.sock", "x".repeat(sys::MAX_NAME - 8));
        assert_eq!(names(ours, &long, None), [long.as_str()]);
        assert_eq!(names(ours, "\0abstract", Some("/here")), ["\0abstract"]);
    }

    /// A folder with sockets, removed with all of its contents.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            let number = u64::from_le_bytes(sys::random().unwrap());
            let path = PathBuf::from(format!("/tmp/tl-{number:x}"));
            fs::create_dir(&path).unwrap();
            Folder(path)
        }

        fn bind(&self, name: &str) -> (PathBuf, OwnedFd) {
            let path = self.0.join(name);
            let socket = sys::bind(path.as_os_str().as_bytes()).unwrap();
            sys::listen(&socket).unwrap();
            (path, socket)
        }

        /// Returns a socket that a killed process left.
        fn dead(&self, name: &str) -> PathBuf {
            self.bind(name).0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn make_old(path: &Path) {
        let mut touch = std::process::Command::new("touch");
        assert!(touch.args(["-t", "200001010000"]).arg(path).status().unwrap().success());
    }

    #[test]
    fn sweep_removes_only_sockets_of_dead_processes() {
        let folder = Folder::new();
        let old = folder.dead("tieline-2.new");
        make_old(&old);
        let gone = [folder.dead("tieline-1.sock"), old];
        let (live, _live) = folder.bind("tieline-3.sock");
        let (starting, _starting) = folder.bind("tieline-4.new");
        make_old(&starting);
        let young = folder.dead("tieline-5.new"); // the owner of this socket may not have reached listen yet
        let [file, strange] = ["tieline-6.sock", "tieline-7.other"].map(|name| folder.0.join(name));
        fs::write(&file, "").unwrap();
        fs::write(&strange, "").unwrap();
        let other = folder.dead("other-8.sock");
        sweep(&folder.0);
        assert!(gone.iter().all(|path| !path.exists()));
        for path in [live, starting, young, file, strange, other] {
            assert!(path.exists(), "{}", path.display());
        }
    }

    #[test]
    fn a_sweep_looks_at_some_and_the_next_ones_find_what_it_passed_over() {
        let folder = Folder::new();
        let dead: Vec<PathBuf> =
            (0..MOST_SWEPT + 10).map(|n| folder.dead(&format!("tieline-{n}.sock"))).collect();
        let left = || dead.iter().filter(|path| path.exists()).count();
        sweep(&folder.0);
        assert_eq!(left(), 10);
        // The number of remaining files does not matter.
        for n in 0..3 * MOST_SWEPT {
            fs::write(folder.0.join(format!("tieline-x{n}.sock")), "").unwrap();
        }
        let more: Vec<PathBuf> =
            (0..MOST_SWEPT).map(|n| folder.dead(&format!("tieline-y{n}.sock"))).collect();
        let is_clean = || {
            sweep(&folder.0);
            left() == 0 && more.iter().all(|path| !path.exists())
        };
        assert!((0..10_000).any(|_| is_clean()));
    }

    #[test]
    fn the_socket_of_a_peer_that_is_dead_is_removed_where_it_is_one_of_ours() {
        let folder = Folder::new();
        let gone = folder.dead("tieline-1.sock");
        let (live, _socket) = folder.bind("tieline-2.sock");
        let others = ["other-3.sock", "tieline-4.new"].map(|name| folder.dead(name));
        let paths = [&gone, &live, &others[0], &others[1]];
        let mut names: Vec<Vec<u8>> =
            paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        names.insert(0, b"\0tieline-5.sock".to_vec());
        remove_dead(&names);
        assert!(!gone.exists());
        assert!(live.exists() && others.iter().all(|path| path.exists()));
    }

    #[test]
    fn socket_of_killed_peer_is_removed_by_its_observer() {
        use tieline_plugin_api::{Interface, Status, event};
        let folder = Folder::new();
        let interface = crate::hostile_tests::open(Settings::defaults());
        let (path, socket) = folder.bind("tieline-1.sock");
        let mut address = Address::parse(&interface.address()).unwrap();
        address.socket = path.as_os_str().as_bytes().to_vec();
        let _endpoint = interface.connect(&address.pack(), b"", 1).unwrap();
        drop((sys::accept(&socket).unwrap(), socket));
        let failed = loop {
            let events = crate::hostile_tests::poll(&interface);
            if let Some(failed) = events.into_iter().find(|e| e.0 == event::ENDPOINT_FAILED) {
                break failed;
            }
        };
        assert_eq!(failed.2, Status::PeerFailed as i32);
        assert!(!path.exists());
    }
}
