//! A real sshd for the tests of `tieline run --hosts`.

use super::{Dir, installed, root};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An sshd on loopback that belongs to this test.
pub(crate) struct Sshd {
    child: Child,
    port: u16,
    made_room: bool,
}

impl Sshd {
    pub(crate) fn start(dir: &Dir) -> Option<Sshd> {
        if !installed("sshd") || !installed("ssh") {
            println!("skipped: ssh or sshd is not installed (openssh-client, openssh-server)");
            return None;
        }
        if !root() {
            println!("skipped: an sshd that starts sessions needs root");
            return None;
        }
        let d = dir.0.display();
        for key in ["host", "user"] {
            let file = format!("{d}/{key}");
            let mut make = Command::new("ssh-keygen");
            let _ = make.args(["-q", "-t", "ed25519", "-N", "", "-f", &file]);
            assert!(make.status().unwrap().success());
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let configuration = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {d}/host\nAuthorizedKeysFile {d}/user.pub\n\
             PidFile none\nStrictModes no\nPermitRootLogin yes\nUsePAM no\nPasswordAuthentication no\n"
        );
        std::fs::write(dir.0.join("sshd.conf"), configuration).unwrap();
        // sshd needs this directory for privilege separation; the package creates it at boot.
        let made_room = std::fs::create_dir("/run/sshd").is_ok();
        let conf = format!("{d}/sshd.conf");
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f", &conf])
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut sshd = Sshd { child, port, made_room };
        let end = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = sshd.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > end {
                println!("skipped: sshd does not start here ({ended:?})");
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(sshd)
    }

    pub(crate) fn ssh(&self, dir: &Dir) -> String {
        format!(
            "ssh -F none -p {} -i {}/user -o BatchMode=yes -o StrictHostKeyChecking=no -o \
             UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            self.port,
            dir.0.display()
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.made_room {
            let _ = std::fs::remove_dir("/run/sshd");
        }
    }
}
