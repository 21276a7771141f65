//! Domains: a Tieline context, and the objects that share its lock.

use crate::abi::thread::Gate;
use crate::address::Names;
use crate::endpoint::Ep;
use crate::keys::Memory;
use crate::status::Failed;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::Context;

/// Settings that differ from Tieline's own.
///
/// * Without `ofi`, there is no Tieline over libfabric over Tieline.
/// * A peer that computes makes no progress for a long time. The first operation to it waits, as later ones do.
const SETTINGS: [(&str, &str); 2] =
    [("TIELINE_PROVIDERS", "^ofi"), ("TIELINE_CONNECT_TIMEOUT", "1h")];

/// The time between two looks from which on calls come seldom.
const SELDOM: Duration = Duration::from_millis(2);

/// The attributes of a domain that the application has chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    /// The provider chooses the keys (`FI_MR_PROV_KEY`).
    pub(crate) own_keys: bool,
    /// Remote addresses are virtual addresses rather than offsets (`FI_MR_VIRT_ADDR`).
    pub(crate) virtual_addresses: bool,
    /// Operations progress without calls of the application (`FI_PROGRESS_AUTO`).
    pub(crate) auto: bool,
    /// Several threads may call at the same time.
    pub(crate) is_shared: bool,
}

/// A domain.
pub(crate) struct Domain {
    pub(crate) gate: Gate,
    /// A call of the domain has panicked, and its state may be inconsistent.
    pub(crate) poisoned: Cell<bool>,
    pub(crate) context: Context,
    pub(crate) choices: Choices,
    pub(crate) eps: RefCell<Vec<Rc<Ep>>>,
    pub(crate) names: RefCell<Names>,
    /// Registered memory that peers may access, by key.
    pub(crate) memory: RefCell<HashMap<u64, Rc<Memory>>>,
    /// The number of open objects of the domain.
    pub(crate) users: Cell<usize>,
    /// The number of calls that made progress. The thread of a domain with automatic progress leaves the work to such callers.
    pub(crate) calls: Cell<u64>,
    /// The time of the last look.
    looked: Cell<Instant>,
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({:?})", self.choices)
    }
}

impl Domain {
    pub(crate) fn open(choices: Choices) -> Result<Domain, (Failed, String)> {
        let mut builder = Context::builder();
        // The user's own settings take precedence.
        for (name, value) in SETTINGS {
            if std::env::var_os(name).is_none_or(|value| value.is_empty()) {
                builder = builder.set(name, value);
            }
        }
        let context = builder.open().map_err(|error| {
            let text = error.to_string();
            (Failed::from(error), text)
        })?;
        Ok(Domain {
            gate: Gate::new(choices.is_shared || choices.auto),
            poisoned: Cell::new(false),
            context,
            choices,
            eps: RefCell::default(),
            names: RefCell::default(),
            memory: RefCell::default(),
            users: Cell::new(0),
            calls: Cell::new(0),
            looked: Cell::new(Instant::now()),
        })
    }

    pub(crate) fn used(&self) {
        self.users.set(self.users.get() + 1);
    }

    pub(crate) fn unused(&self) {
        self.users.set(self.users.get() - 1);
    }

    /// Lets the next progress poll everything, if the calls since the last look took long. Returns whether they did.
    ///
    /// A worker counts its progress calls, and polls what needs a system call after some thousands of them: connections over TCP, and
    /// requests for its address. A thread that yields its processor after each call, as MPICH's do, may need a minute for so many.
    #[cold]
    pub(crate) fn look(&self) -> bool {
        let now = Instant::now();
        let is_seldom = now.duration_since(self.looked.replace(now)) > SELDOM;
        if is_seldom {
            for ep in self.eps.borrow().iter() {
                // A module that cannot wait is polled in every call.
                let _ = ep.worker.arm();
            }
        }
        is_seldom
    }

    /// Makes progress on all endpoints of the domain.
    #[inline]
    pub(crate) fn progress(&self) {
        self.calls.set(self.calls.get().wrapping_add(1));
        // Progress runs no code of the application, so no endpoint is opened or closed in between.
        for ep in self.eps.borrow().iter() {
            ep.progress();
        }
    }
}
