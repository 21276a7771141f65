//! Logs: printed while they grow, and the relevant lines after a test has failed; the table at the end.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that another process writes, read line by line.
pub(super) struct Growing {
    path: PathBuf,
    read: u64,
}

impl Growing {
    pub(super) fn new(path: PathBuf) -> Growing {
        Growing { path, read: 0 }
    }

    /// Passes the lines that were written since the last call to `each`; with `last`, an unfinished line too.
    pub(super) fn lines(&mut self, last: bool, mut each: impl FnMut(&str)) {
        let mut bytes = Vec::new();
        let Ok(mut file) = File::open(&self.path) else { return };
        if file.seek(SeekFrom::Start(self.read)).is_ok() && file.read_to_end(&mut bytes).is_ok() {
            if !last {
                bytes
                    .truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
            }
            self.read += bytes.len() as u64;
            String::from_utf8_lossy(&bytes).lines().for_each(|line| each(line.trim_end()));
        }
    }
}

/// The output of one test's hosts, in order of arrival.
pub(super) struct Story {
    folder: PathBuf,
    own: PathBuf,
    hosts: Range<usize>,
    lines: Vec<(Duration, usize, String)>,
    /// The number of bytes of each host's console that were written before the test.
    consoles: Vec<u64>,
    machine: String,
}

/// The words with which the project and the system report trouble.
const TROUBLE: &str =
    "fail|error|panicked|cannot|could not|refused|timed out|in time|killed|bug|warning|call trace";

/// The maximum number of lines of one kind and host that are printed for a failed test.
const MOST: usize = 40;

impl Story {
    pub(super) fn new(folder: &Path, own: &Path, first: usize, hosts: usize) -> Story {
        let hosts = first..first + hosts;
        let size = |host| std::fs::metadata(console(folder, host)).map_or(0, |m| m.len());
        Story {
            folder: folder.to_path_buf(),
            own: own.to_path_buf(),
            consoles: hosts.clone().map(size).collect(),
            hosts,
            lines: Vec::new(),
            machine: String::new(),
        }
    }

    pub(super) fn ended(&mut self, time: Duration, waited: Duration, slowness: u32) {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        self.machine = format!(
            "it took {:.1} s, of which a host waited {:.1} s for a processor of this machine (load {}); deadlines were {} \
             as long as on a quiet one",
            time.as_secs_f64(),
            waited.as_secs_f64(),
            load.split_whitespace().take(2).collect::<Vec<_>>().join(" "),
            if slowness == 1 { "just".to_owned() } else { format!("{slowness} times") },
        );
    }

    /// Returns the lines on a host's console since the beginning of the test.
    fn console(&self, host: usize) -> Vec<String> {
        let mut kernel = Growing::new(console(&self.folder, host));
        kernel.read = self.consoles.get(host - self.hosts.start).copied().unwrap_or(0);
        let mut said = Vec::new();
        kernel.lines(true, |line| said.push(line.to_owned()));
        said
    }

    /// Returns the first line on a console that reports an error of the kernel itself.
    pub(super) fn kernel_trouble(&self) -> Option<String> {
        let of = |host| self.console(host).into_iter().find(|line| is_kernel_trouble(line));
        self.hosts
            .clone()
            .find_map(|host| Some(format!("the kernel of h{host} said: {}", of(host)?)))
    }

    pub(super) fn heard(&mut self, after: Duration, host: usize, line: &str) {
        self.lines.push((after, host, line.to_owned()));
    }

    pub(super) fn print(&self) {
        self.lines.iter().for_each(print_line);
    }

    /// Prints the relevant output of a failed test: first the lines that report errors, then the end of each host's output, the
    /// host's state, and the messages of the host's kernel.
    pub(super) fn print_failure(&self) {
        let lines = &self.lines;
        println!("  {}", self.machine);
        let trouble: Vec<_> = lines.iter().filter(|line| tells_of_trouble(&line.2)).collect();
        if lines.len() > MOST && !trouble.is_empty() {
            println!("  what went wrong, in the words of those who ran:");
            trouble.iter().take(MOST).for_each(|line| print_line(line));
        }
        println!("  what the hosts said, with the seconds since the test began:");
        for (after, line) in lines.iter().enumerate() {
            if lines[after..].iter().filter(|later| later.1 == line.1).count() <= MOST {
                print_line(line);
            }
        }
        for host in self.hosts.clone() {
            print_tail(&format!("state of h{host}"), &self.own.join(format!("h{host}.state")), 100);
            let said = self.console(host);
            for line in &said[said.len().saturating_sub(MOST)..] {
                println!("    console of h{host}| {line}");
            }
        }
    }
}

pub(super) fn console(folder: &Path, host: usize) -> PathBuf {
    folder.join(format!("h{host}.console"))
}

/// Checks whether a line reports an error of the kernel. The fault of a process, `traps: NAME[ID] general protection fault`, is no
/// error of the kernel.
fn is_kernel_trouble(line: &str) -> bool {
    ["Oops", "BUG:", "Kernel panic", "general protection"].iter().any(|word| line.contains(word))
        && !line.contains("traps: ")
}

fn tells_of_trouble(line: &str) -> bool {
    let line = line.to_lowercase();
    TROUBLE.split('|').any(|word| line.contains(word))
}

fn print_line((after, host, line): &(Duration, usize, String)) {
    println!("    h{host} {:6.1}| {line}", after.as_secs_f64());
}

pub(super) fn table(rows: &[(String, Duration, &'static str)], whole: Duration) {
    println!("\n seconds  verdict  test");
    for (name, time, verdict) in rows {
        println!("{:8.1}  {verdict:7}  {name}", time.as_secs_f64());
    }
    println!("{:8.1}           in all", whole.as_secs_f64());
}

pub(super) fn print_tail(name: &str, file: &Path, most: usize) {
    let bytes = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(most)..] {
        println!("    {name}| {}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_trouble_are_found_and_plain_ones_are_not() {
        assert!(tells_of_trouble("failed: the peer did not acknowledge"));
        assert!(tells_of_trouble("thread 'main' panicked at"));
        assert!(!tells_of_trouble("sent 812"));
    }

    #[test]
    fn a_fault_of_a_kernel_is_found_on_a_console_and_one_of_a_process_is_not() {
        let folder = std::env::temp_dir().join(format!("lab-console-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = console(&folder, 1);
        std::fs::write(&file, "[1.0] BUG: of the test before\n").unwrap();
        let story = Story::new(&folder, &folder, 1, 1);
        let more = |text: &str| {
            let before = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, before + text).unwrap();
            story.kernel_trouble()
        };
        assert_eq!(more("[2.0] traps: x[9] general protection fault ip:7\n"), None);
        let said = more("[3.0] general protection fault, probably for address 0: 0000 [#1]\n");
        assert!(said.is_some_and(|said| said.starts_with("the kernel of h1 said: [3.0] general")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
