//! The process's descriptor of the device. All open contexts share one descriptor, which is never duplicated.
//!
//! If a process closes *any* descriptor of the device, the module ends everything that the process has made. Users therefore take a
//! [`Lease`]: the first lease opens the device and the last one closes it. A forked child inherits a useless descriptor and opens
//! its own. It leaves the inherited descriptor open, because closing it would count as closing its own.
//!
//! Another library in the process may also use the module. The library that closes first ends the objects of both, and peers of the
//! other library keep attached memory that is never invalidated. The device is therefore not opened while another user in this
//! process has it open. It is also not closed if another user has opened it meanwhile.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tieline_plugin_api::process::{Kept, Mark, PerProcess};
use tieline_plugin_api::{Failure, Status};
use tieline_single_copy::{not_opened, system};

use crate::attachments::Attachments;
use crate::settings::Settings;
use crate::sys::{self, Device, Kernel};

/// The path of the module's device.
pub(crate) const DEVICE: &str = "/dev/xpmem";

/// The state of this process. A forked child forgets its parent's state, and closes, releases or detaches none of it.
static OPEN: PerProcess<Mutex<State>> = PerProcess::new();
/// The descriptor of this process, or of the parent at the fork; -1 if there is none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The descriptors of the device that a parent of this process has opened. Nothing in this process was made through them.
static INHERITED: Kept<i32> = Kept::new();

#[derive(Default)]
struct State {
    /// Whether the parent's descriptor has been added to the inherited ones.
    has_begun: bool,
    open: Option<Open>,
}

struct Open {
    leases: usize,
    kernel: Arc<dyn Kernel>,
    attachments: Arc<Attachments>,
}

fn state() -> MutexGuard<'static, State> {
    // Every change below is complete before any code can panic.
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

/// Closes the device, under the lock: otherwise a concurrent open would lose everything made through the device.
fn close(open: &Open) {
    DESCRIPTOR.store(-1, Ordering::Relaxed);
    open.kernel.close();
}

/// The right to use this process's descriptor of the device.
pub(crate) struct Lease {
    pub(crate) kernel: Arc<dyn Kernel>,
    /// The attachments of this process through any lease.
    pub(crate) attachments: Arc<Attachments>,
    /// The process that opened the descriptor.
    mark: Mark,
    /// Whether the lease counts in `OPEN`; false for a device double.
    counts: bool,
}

impl Lease {
    /// Opens the device, or shares the open one.
    pub(crate) fn take(settings: &Settings) -> Result<Arc<Lease>, Failure> {
        Lease::take_by(settings, || Ok(Arc::new(opened()?)))
    }

    fn take_by(
        settings: &Settings,
        device: impl FnOnce() -> Result<Arc<dyn Kernel>, Failure>,
    ) -> Result<Arc<Lease>, Failure> {
        let mut state = state();
        let open = &mut state.open;
        // The device stayed open because another library had it open. That library has closed it since, which ended everything made
        // through this descriptor.
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

    /// Returns a lease of a device double.
    #[cfg(test)]
    pub(crate) fn played(kernel: Arc<dyn Kernel>, settings: Settings) -> Arc<Lease> {
        let attachments = Arc::new(Attachments::new(kernel.clone(), settings));
        Arc::new(Lease { kernel, attachments, mark: Mark::new(), counts: false })
    }

    /// Checks whether this process took the lease, as opposed to a forked child.
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

/// Checks whether another user in this process has the device open.
fn is_shared(kernel: &dyn Kernel) -> bool {
    kernel.is_open_elsewhere(&inherited())
}

/// Opens the device and checks its version.
fn opened() -> Result<Device, Failure> {
    if usize::BITS != 64 {
        return Err(Failure::new(Status::Unsupported, "xpmem is for processes of 64 bits"));
    }
    let node = std::fs::metadata(DEVICE).map_err(|error| no_device(&error))?;
    can_be_opened(sys::first_thread_has_ended(), sys::is_open(node.rdev(), &inherited()))?;
    let device = Device::open(Path::new(DEVICE)).map_err(|error| no_device(&error))?;
    let version = device.version().map_err(|errno| {
        device.close();
        system(&format!("asking {DEVICE} for its version"), errno)
    })?;
    if let Err(failure) = known(version) {
        device.close();
        return Err(failure);
    }
    Ok(device)
}

/// Refuses to open the device if the first thread of the process has ended, or if the process already has it open.
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
            "something else in this process has {DEVICE} open (another library that uses xpmem, a second copy of this one, or \
             the parent process). Leave xpmem to one of them: when one closes the device, the module ends everything that all of \
             them have made"
        ));
    }
    Ok(())
}

fn no_device(error: &std::io::Error) -> Failure {
    not_opened(DEVICE, "xpmem", "gives it mode 0666: install that", error)
}

/// Checks whether that version of the module has the commands of `sys`: 2.6 and later versions of 2. `0x00027004` is 2.7.4.
fn known(version: u32) -> Result<(), Failure> {
    let (major, minor, patch) = (version >> 16, version >> 12 & 0xf, version & 0xfff);
    if major == 2 && minor >= 6 {
        return Ok(());
    }
    let text = format!(
        "the module behind {DEVICE} has version {major}.{minor}.{patch}; supported are 2.6 and later versions of 2"
    );
    Err(Failure::new(Status::Unsupported, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::{DESCRIPTOR as DESCRIPTOR_OF_PLAYED, Played};
    use tieline_testing::holds_in_child;

    #[test]
    fn incompatible_module_versions_are_refused_by_number() {
        assert!(known(0x0002_7004).is_ok() && known(0x0002_6005).is_ok());
        assert!(known(0x0002_5000).unwrap_err().text.contains("version 2.5.0"));
        assert!(known(0x0003_0000).is_err() && known(0).is_err());
    }

    #[test]
    fn note_states_the_words_for_a_missing_device() {
        let missing = no_device(&std::io::ErrorKind::NotFound.into());
        assert_eq!((missing.status, &*missing.text), (Status::NoDevice, crate::MISSING));
    }

    #[test]
    fn device_open_elsewhere_in_the_process_is_refused() {
        assert_eq!(can_be_opened(false, false), Ok(()));
        let refused = can_be_opened(false, true).unwrap_err();
        assert_eq!(refused.status, Status::Unsupported);
        assert!(refused.text.contains("something else in this process has /dev/xpmem open"));
        let refused = can_be_opened(true, false).unwrap_err();
        assert_eq!(refused.status, Status::Unsupported);
        assert!(refused.text.contains("first thread of this process has ended"));
    }

    #[test]
    fn open_device_is_found_among_the_descriptors() {
        use std::os::fd::AsRawFd;
        // Nothing else in this process has this device open.
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

    // This is one test, because a process has one descriptor and tests run concurrently.
    #[test]
    fn device_is_opened_by_first_lease_closed_by_last_and_reopened() {
        let settings = Settings::of(|_| None).unwrap();
        let played = Arc::new(Played::default());
        let first = Lease::take_by(&settings, || Ok(played.clone())).unwrap();
        let second = Lease::take_by(&settings, || panic!("it is open")).unwrap();
        assert!(Arc::ptr_eq(&first.attachments, &second.attachments));
        drop(first);
        assert_eq!(played.closed(), 0);
        drop(second);
        assert_eq!(played.closed(), 1);

        // Another library of the process has opened the device later. Closing the own descriptor would end everything that library
        // has made.
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
        // That library has closed the device, which ended everything made through the own descriptor.
        played.open_elsewhere(false);
        let anew = Arc::new(Played::default());
        let second = Lease::take_by(&settings, || Ok(anew.clone())).unwrap();
        assert_eq!((played.closed(), anew.closed()), (2, 0));
        drop(second);
        assert_eq!((played.closed(), anew.closed()), (2, 1));

        let refused = Lease::take_by(&settings, || Err(Status::NoDevice.into()));
        assert_eq!(refused.err().unwrap().status, Status::NoDevice);
        let again = Lease::take_by(&settings, || Ok(played.clone())).unwrap();

        // A forked child has its own state, even if another thread of the parent is just opening or closing a device.
        let (held, mut again) = (state(), Some(again));
        assert!(holds_in_child(|| {
            let anew = Arc::new(Played::default());
            let child = Lease::take_by(&settings, || Ok(anew.clone())).unwrap();
            let own = again.as_ref().is_some_and(|lease| {
                !lease.is_own() && !Arc::ptr_eq(&lease.attachments, &child.attachments)
            });
            again = None;
            drop(child);
            // The child leaves the parent's device open and does not count it as another library's.
            own && (played.closed(), anew.closed()) == (2, 1)
                && inherited() == [DESCRIPTOR_OF_PLAYED]
        }));
        drop(held);
        drop(again);
        assert_eq!(played.closed(), 3);
        assert!(inherited().is_empty());
    }
}
