//! The device as a process has it open: once, whatever many contexts there are, and never as a copy.
//!
//! The module ends what a process has made when that process closes *any* descriptor of the device. So whoever needs it takes a
//! [`Lease`], the first of which opens the device and the last of which closes it. A forked child has inherited a descriptor that
//! is good for nothing, and opens its own; it leaves the other one as it is, since closing that one would count as closing its own.
//!
//! Another library of the process may use the module, too. Who closes first then ends what both have made: peers of the other one keep
//! memory attached that nobody invalidates any more. So the device is not opened where somebody of this process has it open, and not
//! closed if somebody has opened it meanwhile.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tieline_plugin_api::process::{Kept, Mark, PerProcess};
use tieline_plugin_api::{Failure, Status};

use crate::attachments::Attachments;
use crate::settings::Settings;
use crate::sys::{self, Device, Kernel};

/// Where the module's device is.
pub(crate) const DEVICE: &str = "/dev/xpmem";

/// What a forked child has inherited is its parent's: it is forgotten, and nothing of it is closed, released or detached.
static OPEN: PerProcess<Mutex<State>> = PerProcess::new();
/// The descriptor that this process has open, or the parent at the fork; -1: none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// Descriptors of the device that a parent of this process has opened: nothing in this process is made by them.
static INHERITED: Kept<i32> = Kept::new();

#[derive(Default)]
struct State {
    /// The parent's descriptor is among those that are inherited.
    has_begun: bool,
    open: Option<Open>,
}

struct Open {
    leases: usize,
    kernel: Arc<dyn Kernel>,
    attachments: Arc<Attachments>,
}

fn state() -> MutexGuard<'static, State> {
    // Every change below is complete before anything can panic.
    let mut state = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !core::mem::replace(&mut state.has_begun, true) {
        let parents = DESCRIPTOR.swap(-1, Ordering::Relaxed);
        if parents >= 0 {
            let _ = INHERITED.add(parents);
        }
    }
    state
}

fn inherited() -> Vec<i32> {
    INHERITED.iter().copied().collect()
}

/// Closes it, under the lock: who opens the device meanwhile would lose what is made with it.
fn close(open: &Open) {
    DESCRIPTOR.store(-1, Ordering::Relaxed);
    open.kernel.close();
}

/// The right to use this process's descriptor of the device.
pub(crate) struct Lease {
    pub(crate) kernel: Arc<dyn Kernel>,
    /// What this process has attached, by whatever lease.
    pub(crate) attachments: Arc<Attachments>,
    /// Whose descriptor it is.
    mark: Mark,
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
        let mut state = state();
        let open = &mut state.open;
        // It was left open for another one's sake, who has closed the device since: and with it what is made by ours.
        let left = |open: &mut Open| open.leases == 0 && !is_shared(&*open.kernel);
        if let Some(left) = open.take_if(left) {
            close(&left);
        }
        let open = match open {
            Some(open) => open,
            none => {
                let kernel = device()?;
                let attachments = Arc::new(Attachments::new(kernel.clone(), settings.clone()));
                DESCRIPTOR.store(kernel.descriptor(), Ordering::Relaxed);
                none.insert(Open { leases: 0, kernel, attachments })
            }
        };
        open.leases += 1;
        let (kernel, attachments) = (open.kernel.clone(), open.attachments.clone());
        Ok(Arc::new(Lease { kernel, attachments, mark: Mark::new(), counts: true }))
    }

    /// One over a device that a test plays.
    #[cfg(test)]
    pub(crate) fn played(kernel: Arc<dyn Kernel>, settings: Settings) -> Arc<Lease> {
        let attachments = Arc::new(Attachments::new(kernel.clone(), settings));
        Arc::new(Lease { kernel, attachments, mark: Mark::new(), counts: false })
    }

    /// Whether this is the process that took it, and no forked child.
    pub(crate) fn is_own(&self) -> bool {
        self.mark.is_here()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.counts || !self.is_own() {
            return;
        }
        let mut state = state();
        let last = state.open.take_if(|open| {
            open.leases -= 1;
            if open.leases == 0 {
                open.attachments.clear();
            }
            open.leases == 0 && !is_shared(&*open.kernel)
        });
        if let Some(last) = last {
            close(&last);
        }
    }
}

/// Whether somebody else of this process has the device open.
fn is_shared(kernel: &dyn Kernel) -> bool {
    kernel.is_open_elsewhere(&inherited())
}

/// Opens the device and asks for its version.
fn opened() -> Result<Device, Failure> {
    if usize::BITS != 64 {
        return Err(Failure::new(Status::Unsupported, "xpmem is for processes of 64 bits"));
    }
    let node = std::fs::metadata(DEVICE).map_err(|error| not_opened(&error))?;
    can_be_opened(sys::first_thread_has_ended(), sys::is_open(node.rdev(), &inherited()))?;
    let device = Device::open(Path::new(DEVICE)).map_err(|error| not_opened(&error))?;
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

/// Why the device is not to be opened by a process whose first thread has ended, or that has it open.
fn can_be_opened(first_thread_has_ended: bool, is_open: bool) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::new(Status::Unsupported, text));
    if first_thread_has_ended {
        return refused(
            "the first thread of this process has ended (pthread_exit), by which the module xpmem knows a process: opening its \
             device would stop the kernel; let main wait for the others"
                .into(),
        );
    }
    if is_open {
        return refused(format!(
            "something else in this process has {DEVICE} open (another library that uses xpmem, a second copy of this one, or who \
             started this process): the module ends what all have made when one of them closes it; leave xpmem to one"
        ));
    }
    Ok(())
}

fn not_opened(error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            Status::NoDevice,
            format!(
                "there is no {DEVICE}: the kernel module xpmem is not loaded (`modprobe xpmem`)"
            ),
        ),
        std::io::ErrorKind::PermissionDenied => Failure::new(
            Status::Permission,
            format!(
                "{DEVICE} is not open to this user for reading and writing; xpmem's udev rule gives it mode 0666: install \
                 that, or change its mode"
            ),
        ),
        _ => Failure::from_io(&format!("opening {DEVICE}"), error),
    }
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
    use crate::double::{DESCRIPTOR as DESCRIPTOR_OF_PLAYED, Played};
    use tieline_testing::holds_in_child;

    #[test]
    fn versions_whose_commands_are_other_ones_are_refused_by_number() {
        assert!(known(0x0002_7004).is_ok() && known(0x0002_6005).is_ok());
        assert!(known(0x0002_5000).unwrap_err().text.contains("version 2.5.0"));
        assert!(known(0x0003_0000).is_err() && known(0).is_err());
    }

    #[test]
    fn a_device_that_something_else_here_has_open_is_left_to_it_in_words() {
        assert_eq!(can_be_opened(false, false), Ok(()));
        let refused = can_be_opened(false, true).unwrap_err();
        assert_eq!(refused.status, Status::Unsupported);
        assert!(refused.text.contains("something else in this process has /dev/xpmem open"));
        let refused = can_be_opened(true, false).unwrap_err();
        assert_eq!(refused.status, Status::Unsupported);
        assert!(refused.text.contains("first thread of this process has ended"));
    }

    #[test]
    fn who_has_a_device_open_is_found_among_the_descriptors() {
        use std::os::fd::AsRawFd;
        // One that nothing else in this process has open.
        let path = "/dev/full";
        let number = std::fs::metadata(path).unwrap().rdev();
        assert!(!sys::is_open(number, &[]));
        let file = std::fs::File::open(path).unwrap();
        assert!(sys::is_open(number, &[]));
        assert!(!sys::is_open(number, &[file.as_raw_fd()]));
        let device = Device::open(Path::new(path)).unwrap();
        assert!(device.is_open_elsewhere(&[]) && !device.is_open_elsewhere(&[file.as_raw_fd()]));
        drop(file);
        assert!(!device.is_open_elsewhere(&[]) && sys::is_open(number, &[]));
        device.close();
        assert!(!sys::is_open(number, &[]));
        let usual = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(sys::device_behind(usual.as_raw_fd()), None);
        assert_eq!(sys::device_behind(-1), None);
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

        // Another library of the process has opened it after us: to close ours would end what that one has made.
        let first = Lease::take_by(&settings, || Ok(played.clone())).unwrap();
        played.open_elsewhere(true);
        let memory = vec![0u8; 8192];
        let start = memory.as_ptr().expose_provenance().next_multiple_of(4096) as u64;
        let segment = played.make(start, 4096).unwrap();
        let place = crate::attachments::Where {
            owner: [0; 16],
            card: segment,
            generation: 1,
            segment,
            segment_start: start,
            base: start,
            len: 1,
            window: 4096,
        };
        drop(first.attachments.attach(place, start).unwrap());
        assert_eq!(played.there().attached, 1);
        let another = Lease::take_by(&settings, || panic!("it is open")).unwrap();
        drop(another);
        assert_eq!(played.there().attached, 1, "somebody has a lease still");
        drop(first);
        assert_eq!(played.closed(), 1);
        assert_eq!(played.there().attached, 0, "what is left open has nothing attached");
        let second = Lease::take_by(&settings, || panic!("it was left open")).unwrap();
        drop(second);
        assert_eq!(played.closed(), 1);
        // It has closed the device, which has ended what was made by ours.
        played.open_elsewhere(false);
        let anew = Arc::new(Played::default());
        let second = Lease::take_by(&settings, || Ok(anew.clone())).unwrap();
        assert_eq!((played.closed(), anew.closed()), (2, 0));
        drop(second);
        assert_eq!((played.closed(), anew.closed()), (2, 1));

        let refused = Lease::take_by(&settings, || Err(Status::NoDevice.into()));
        assert_eq!(refused.err().unwrap().status, Status::NoDevice);
        let again = Lease::take_by(&settings, || Ok(played.clone())).unwrap();

        // A forked child has its own, also where another thread of its parent's is just opening or closing one.
        let (held, mut again) = (state(), Some(again));
        assert!(holds_in_child(|| {
            let anew = Arc::new(Played::default());
            let child = Lease::take_by(&settings, || Ok(anew.clone())).unwrap();
            let own = again.as_ref().is_some_and(|lease| {
                !lease.is_own() && !Arc::ptr_eq(&lease.attachments, &child.attachments)
            });
            again = None;
            drop(child);
            // The parent's device is left as it is, and is nobody else's in the child.
            own && (played.closed(), anew.closed()) == (2, 1)
                && inherited() == [DESCRIPTOR_OF_PLAYED]
        }));
        drop(held);
        drop(again);
        assert_eq!(played.closed(), 3);
        assert!(inherited().is_empty());
    }
}
