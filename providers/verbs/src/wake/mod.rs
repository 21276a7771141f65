//! Wake-up of a sleeping interface, and the device's asynchronous events.

pub(crate) mod sys;
#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::devices::{PortName, Published};
#[cfg(test)]
use crate::double::clock::Instant;
use crate::sys::{AsyncEvent, Cq, Device};
use core::time::Duration;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
#[cfg(not(test))]
use std::time::Instant;
use sys::{Bell, Epoll, Ticker};
use tieline_plugin_api::{Failure, HostHandle, Status, async_kind};

/// Dispatches the asynchronous events of a domain's device to the domain's interfaces and connectors, no matter which of them reads
/// the events. An event of a queue pair goes to the owner of the completion queue; all other events go to every interface and
/// connector.
pub(crate) struct Watch {
    device: Arc<Device>,
    port: u8,
    inboxes: Mutex<Vec<Weak<Inbox>>>,
    gone: AtomicBool,
    port_down: AtomicBool,
    /// The kernel's entry for access from processes, which vanishes immediately when the device is removed. Not every driver sends
    /// an event on removal: soft RoCE silently waits until the last process has closed the device.
    entry: Option<PathBuf>,
    published: Published,
    moved: Mutex<Option<String>>,
    entry_looked: Mutex<Instant>,
    host: HostHandle,
    /// The host's name for the domain.
    domain: String,
}

/// The interval between checks of the kernel's entry for the device.
const ENTRY_EVERY: Duration = Duration::from_millis(500);

/// Pending asynchronous events of one interface.
pub(crate) struct Inbox {
    events: Mutex<Vec<AsyncEvent>>,
    bell: Bell,
    /// The interface's completion queue: the address of the library's object, 0 before the queue exists.
    cq: AtomicUsize,
}

impl Watch {
    pub(crate) fn new(
        device: Arc<Device>,
        port: &PortName,
        entry: Option<PathBuf>,
        published: Published,
        host: HostHandle,
    ) -> Watch {
        Watch {
            device,
            port: port.port,
            domain: port.domain(),
            host,
            inboxes: Mutex::default(),
            gone: AtomicBool::new(false),
            port_down: AtomicBool::new(false),
            entry,
            published,
            moved: Mutex::default(),
            entry_looked: Mutex::new(Instant::now()),
        }
    }

    /// Adds an inbox for an interface that has no completion queue yet.
    fn join(&self) -> Result<Arc<Inbox>, Failure> {
        let cq = AtomicUsize::new(0);
        let inbox = Arc::new(Inbox { events: Mutex::default(), bell: Bell::new()?, cq });
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        inboxes.retain(|inbox| inbox.strong_count() > 0);
        inboxes.push(Arc::downgrade(&inbox));
        Ok(inbox)
    }

    /// Checks whether the device was removed or has failed permanently.
    pub(crate) fn device_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Checks whether the port has no link.
    pub(crate) fn port_down(&self) -> bool {
        self.port_down.load(Ordering::Relaxed)
    }

    /// Returns the reason why peers cannot reach the port at the address they know, or `None`.
    pub(crate) fn moved(&self) -> Option<String> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks whether a published fact has changed, and reports the first change to the host.
    #[cold]
    fn look_at_address(&self) {
        let changed = self.published.changed();
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(why)) = (&*moved, &changed) {
            self.tell(async_kind::MESSAGE, why);
        }
        *moved = changed;
    }

    /// Reads and dispatches the device's events.
    pub(crate) fn read_events(&self) {
        while let Some(event) = self.device.next_event() {
            match event.kind {
                IBV_EVENT_DEVICE_FATAL if !self.gone.swap(true, Ordering::Relaxed) => {
                    self.tell(async_kind::DEVICE_GONE, "the device has failed, or was removed");
                }
                IBV_EVENT_PORT_ERR
                    if event.port == Some(self.port)
                        && !self.port_down.swap(true, Ordering::Relaxed) =>
                {
                    self.tell(async_kind::PORT_DOWN, "the port has lost its link");
                }
                IBV_EVENT_PORT_ACTIVE
                    if event.port == Some(self.port)
                        && self.port_down.swap(false, Ordering::Relaxed) =>
                {
                    self.tell(async_kind::PORT_UP, "the port has its link again");
                }
                // A new subnet manager or a reregistration breaks nothing by itself. The address check finds the facts that have
                // changed.
                IBV_EVENT_LID_CHANGE
                | IBV_EVENT_PKEY_CHANGE
                | IBV_EVENT_SM_CHANGE
                | IBV_EVENT_CLIENT_REREGISTER
                | IBV_EVENT_GID_CHANGE
                    if event.port == Some(self.port) =>
                {
                    self.look_at_address();
                }
                _ => {}
            }
            self.deliver(event);
        }
        if self.entry_vanished() && !self.gone.swap(true, Ordering::Relaxed) {
            self.tell(async_kind::DEVICE_GONE, "the device was removed");
            let kind = IBV_EVENT_DEVICE_FATAL;
            self.deliver(AsyncEvent { kind, qp: None, queue: None, port: None });
        }
    }

    /// Reports a device event to the host, whose report operators read.
    fn tell(&self, kind: u32, words: &str) {
        let status = if kind == async_kind::DEVICE_GONE { Status::NoDevice as i32 } else { 0 };
        self.host.async_event(kind, status, &self.domain, words);
    }

    fn deliver(&self, event: AsyncEvent) {
        let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let concerns = |inbox: &Arc<Inbox>| {
            event.qp.is_none() || event.queue == Some(inbox.cq.load(Ordering::Relaxed))
        };
        for inbox in inboxes.iter().filter_map(Weak::upgrade).filter(concerns) {
            let mut events = inbox.events.lock().unwrap_or_else(PoisonError::into_inner);
            events.push(event);
            inbox.bell.ring(); // rung under the lock, because the reader of the events also silences the bell
        }
    }

    fn entry_vanished(&self) -> bool {
        let Some(entry) = &self.entry else { return false };
        let mut entry_looked_at = self.entry_looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = entry_looked_at.elapsed() >= ENTRY_EVERY;
        if due {
            *entry_looked_at = Instant::now();
        }
        due && !entry.exists()
    }
}

/// The descriptors on which one interface sleeps.
pub(crate) struct Sleep {
    epoll: Epoll,
    ticker: Ticker,
    interval: Cell<Option<Duration>>,
    inbox: Arc<Inbox>,
    watch: Arc<Watch>,
}

impl Sleep {
    pub(crate) fn new(watch: &Arc<Watch>, cq: Option<&Cq>) -> Result<Sleep, Failure> {
        let (epoll, ticker, inbox) = (Epoll::new()?, Ticker::new()?, watch.join()?);
        for fd in [watch.device.async_fd(), inbox.bell.raw(), ticker.raw()] {
            epoll.add(fd)?;
        }
        let sleep = Sleep { epoll, ticker, interval: Cell::new(None), inbox, watch: watch.clone() };
        cq.map_or(Ok(()), |cq| sleep.watch(cq))?;
        Ok(sleep)
    }

    /// Adds the completion queue: its events wake the sleeper, and the device events of its queue pairs are delivered here. The
    /// owner keeps the queue while the sleeper may sleep.
    pub(crate) fn watch(&self, cq: &Cq) -> Result<(), Failure> {
        self.epoll.add(cq.fd())?;
        self.inbox.cq.store(cq.raw.as_ptr().addr(), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn raw(&self) -> i32 {
        self.epoll.raw()
    }

    /// Adds the descriptor `fd`, which wakes the sleeper when readable. The caller owns `fd` and keeps it open while the sleeper
    /// may sleep.
    pub(crate) fn also(&self, fd: i32) -> Result<(), Failure> {
        self.epoll.add(fd)
    }

    /// Wakes the sleeper at every interval, for timers; never with `None`. Consumes an expired interval.
    pub(crate) fn wake_every(&self, interval: Option<Duration>) {
        if self.interval.replace(interval) != interval {
            self.ticker.every(interval);
        }
        self.ticker.silence();
    }

    /// Returns the device's events for this interface since the last call.
    pub(crate) fn async_events(&self) -> Vec<AsyncEvent> {
        self.watch.read_events();
        let mut events = self.inbox.events.lock().unwrap_or_else(PoisonError::into_inner);
        if !events.is_empty() {
            self.inbox.bell.silence();
        }
        core::mem::take(&mut *events)
    }
}
