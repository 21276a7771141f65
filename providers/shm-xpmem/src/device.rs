//! The device as a process has it open: once, whatever many contexts there are, and never as a copy.
//!
//! The module ends what a process has made when that process closes *any* descriptor of the device. So whoever needs it takes a
//! [`Lease`], the first of which opens the device and the last of which closes it. A forked child has inherited a descriptor that
//! is good for nothing, and opens its own; it leaves the other one as it is, since closing that one would count as closing its own.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tieline_plugin_api::{Failure, Status};

use crate::attachments::Attachments;
use crate::settings::Settings;
use crate::sys::{self, Device, Kernel};

/// Where the module's device is.
pub(crate) const DEVICE: &str = "/dev/xpmem";

static OPEN: Mutex<Option<Open>> = Mutex::new(None);

struct Open {
    pid: i32,
    leases: usize,
    kernel: Arc<dyn Kernel>,
    attachments: Arc<Attachments>,
}

fn open() -> MutexGuard<'static, Option<Open>> {
    // Every change below is complete before anything can panic.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to use this process's descriptor of the device.
pub(crate) struct Lease {
    pub(crate) kernel: Arc<dyn Kernel>,
    /// What this process has attached, by whatever lease.
    pub(crate) attachments: Arc<Attachments>,
    /// Whose descriptor it is.
    pid: i32,
    /// It counts among those of `OPEN`; not where a test plays the device.
    counts: bool,
}

impl Lease {
    /// Opens the device, or joins those who have it open.
    pub(crate) fn take(settings: &Settings) -> Result<Arc<Lease>, Failure> {
        Lease::take_by(settings, || Ok(Arc::new(opened()?)))
    }

    fn take_by(
        settings: &Settings,
        device: impl FnOnce() -> Result<Arc<dyn Kernel>, Failure>,
    ) -> Result<Arc<Lease>, Failure> {
        let pid = sys::own_pid();
        let mut open = open();
        // What a forked child has inherited is its parent's: it is forgotten, and nothing of it is closed, released or detached.
        if let Some(parents) = open.take_if(|open| open.pid != pid) {
            core::mem::forget(parents);
        }
        let open = match &mut *open {
            Some(open) => open,
            none => {
                let kernel = device()?;
                let attachments = Arc::new(Attachments::new(kernel.clone(), settings.clone()));
                none.insert(Open { pid, leases: 0, kernel, attachments })
            }
        };
        open.leases += 1;
        let (kernel, attachments) = (open.kernel.clone(), open.attachments.clone());
        Ok(Arc::new(Lease { kernel, attachments, pid, counts: true }))
    }

    /// One over a device that a test plays.
    #[cfg(test)]
    pub(crate) fn played(kernel: Arc<dyn Kernel>, settings: Settings) -> Arc<Lease> {
        let attachments = Arc::new(Attachments::new(kernel.clone(), settings));
        Arc::new(Lease { kernel, attachments, pid: sys::own_pid(), counts: false })
    }

    /// Whether this is the process that took it, and no forked child.
    pub(crate) fn is_own(&self) -> bool {
        sys::own_pid() == self.pid
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.counts || !self.is_own() {
            return;
        }
        let mut open = open();
        let last = open.take_if(|open| {
            open.leases -= 1;
            open.leases == 0
        });
        // Under the lock: who opens the device meanwhile would lose what is made with it.
        if let Some(last) = last {
            last.attachments.clear();
            last.kernel.close();
        }
    }
}

/// Opens the device and asks for its version.
fn opened() -> Result<Device, Failure> {
    if usize::BITS != 64 {
        return Err(Failure::new(Status::Unsupported, "xpmem is for processes of 64 bits"));
    }
    let device = Device::open(Path::new(DEVICE)).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            Status::NoDevice,
            format!("there is no {DEVICE}: the kernel module xpmem is not loaded (`modprobe xpmem`)"),
        ),
        std::io::ErrorKind::PermissionDenied => Failure::new(
            Status::Permission,
            format!(
                "{DEVICE} is not open to this user for reading and writing; xpmem's udev rule gives it mode 0666: install \
                 that, or change its mode"
            ),
        ),
        _ => Failure::from_io(&format!("opening {DEVICE}"), &error),
    })?;
    let version = device.version().map_err(|errno| {
        device.close();
        let what = format!("asking {DEVICE} for its version");
        Failure::from_io(&what, &std::io::Error::from_raw_os_error(errno))
    })?;
    if let Err(failure) = known(version) {
        device.close();
        return Err(failure);
    }
    Ok(device)
}

/// Whether the commands of that version are those of `sys`: 2.6 and later ones of 2. `0x00027004` is 2.7.4.
fn known(version: u32) -> Result<(), Failure> {
    let (major, minor, patch) = (version >> 16, version >> 12 & 0xf, version & 0xfff);
    if major == 2 && minor >= 6 {
        return Ok(());
    }
    let text = format!(
        "the module behind {DEVICE} has version {major}.{minor}.{patch}; known here are 2.6 and later ones of 2"
    );
    Err(Failure::new(Status::Unsupported, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::Played;

    #[test]
    fn versions_whose_commands_are_other_ones_are_refused_by_number() {
        assert!(known(0x0002_7004).is_ok() && known(0x0002_6005).is_ok());
        assert!(known(0x0002_5000).unwrap_err().text.contains("version 2.5.0"));
        assert!(known(0x0003_0000).is_err() && known(0).is_err());
    }

    // One test: there is one descriptor in a process, and tests run beside each other.
    #[test]
    fn the_device_is_opened_by_the_first_lease_closed_with_the_last_and_once_more_after_that() {
        let settings = Settings::of(|_| None).unwrap();
        let played = Arc::new(Played::default());
        let first = Lease::take_by(&settings, || Ok(played.clone())).unwrap();
        let second = Lease::take_by(&settings, || panic!("it is open")).unwrap();
        assert!(Arc::ptr_eq(&first.attachments, &second.attachments));
        drop(first);
        assert_eq!(played.closed(), 0);
        drop(second);
        assert_eq!(played.closed(), 1);
        let refused = Lease::take_by(&settings, || Err(Status::NoDevice.into()));
        assert_eq!(refused.err().unwrap().status, Status::NoDevice);
        let again = Lease::take_by(&settings, || Ok(played.clone())).unwrap();

        // In a forked child: what is there belongs to another process.
        if let Some(open) = &mut *open() {
            open.pid -= 1;
        }
        let child = Lease::take_by(&settings, || Ok(Arc::new(Played::default()))).unwrap();
        assert!(!Arc::ptr_eq(&again.attachments, &child.attachments));
        let inherited = Lease {
            kernel: again.kernel.clone(),
            attachments: again.attachments.clone(),
            pid: again.pid - 1,
            counts: true,
        };
        drop(inherited);
        drop(child);
        assert_eq!(played.closed(), 1, "the parent's device is left as it is");
        core::mem::forget(again); // the parent's, which counted where nothing is any more
    }
}
