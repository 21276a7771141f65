//! A process that attaches a segment and accesses it on request, until it is ended or an access ends it.

use tieline_lab_programs::child::Child;
use tieline_lab_programs::sys::{self, End, PAGE};
use tieline_lab_programs::xpmem::Device;

const LOAD: u64 = 1;
const STORE: u64 = 2;
const PROBE: u64 = 3;
const ATTACH: u64 = 4;

pub(crate) struct Watcher {
    child: Child,
}

impl Watcher {
    pub(crate) fn of(segid: i64, pages: usize) -> Watcher {
        let child = Child::start(|talk| {
            let device = Device::open();
            let apid = device.get(segid).expect("a permit");
            let at = device.attach(apid, 0, pages * PAGE).expect("an attachment");
            talk.say(0);
            while let Some(told) = talk.hear() {
                let (what, byte, page) = (told >> 56, (told >> 48) as u8, told as u32 as usize);
                let place = at + page * PAGE;
                match what {
                    LOAD => talk.say(u64::from(sys::load(place))),
                    STORE => {
                        sys::store(place, byte);
                        talk.say(0);
                    }
                    PROBE => talk.say(sys::probe(place).map_or_else(|e| e as u64, |_| 0)),
                    ATTACH => {
                        talk.say(device.attach(apid, 0, PAGE).map_or_else(|e| e as u64, |_| 0))
                    }
                    _ => return,
                }
            }
        });
        let _ = child.hear();
        Watcher { child }
    }

    fn tell(&self, what: u64, byte: u8, page: usize) {
        self.child.talk.say(what << 56 | u64::from(byte) << 48 | page as u64);
    }

    /// Loads the first byte of a page; returns `None` if the access ended the process.
    pub(crate) fn load(&self, page: usize) -> Option<u8> {
        self.tell(LOAD, 0, page);
        self.child.talk.hear().map(|byte| byte as u8)
    }

    pub(crate) fn store(&self, page: usize, byte: u8) -> Option<u64> {
        self.tell(STORE, byte, page);
        self.child.talk.hear()
    }

    pub(crate) fn probe(&self, page: usize) -> i32 {
        self.tell(PROBE, 0, page);
        self.child.hear() as i32
    }

    pub(crate) fn attaches(&self) -> i32 {
        self.tell(ATTACH, 0, 0);
        self.child.hear() as i32
    }

    pub(crate) fn ends_at(self, page: usize) -> End {
        self.tell(LOAD, 0, page);
        self.child.end()
    }

    pub(crate) fn ends_storing(self, page: usize) -> End {
        self.tell(STORE, 1, page);
        self.child.end()
    }
}
