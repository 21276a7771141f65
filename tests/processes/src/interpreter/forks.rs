//! Orders to fork.

use super::{Node, find, number, pattern};
use crate::fork::Aside;
use crate::mapped::{Started, exec_sleep};
use crate::sys;
use tieline::{Context, Error, Outcome, Region, Status};

impl Node {
    pub(super) fn forks(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            ["fork", name, key, local] => Ok(self.fork(name, key, local)),
            // `fork-aside` forks a child that lives until `fork-joined`, and then reports whether the region has the bytes of its
            // fill.
            ["fork-aside", region, seed] => {
                let (region, seed) = (find(&self.regions, region), number(seed) as u64);
                self.aside = Some(Aside::fork(|| u8::from(!is_filled(region, seed))));
                Ok(String::new())
            }
            // `fork-aside-same` forks a child that reports whether the region has the bytes of the moment of the fork.
            ["fork-aside-same", region] => {
                let region = find(&self.regions, region);
                let before = region.to_vec(0..region.len())?;
                let same = || region.to_vec(0..region.len()).is_ok_and(|now| now == before);
                self.aside = Some(Aside::fork(|| u8::from(!same())));
                Ok(String::new())
            }
            // `start` starts a program, by `fork` or by `spawn`, that runs until `start-ended`.
            ["start", how] => {
                self.started = Some(Started::new(*how == "fork"));
                Ok(String::new())
            }
            ["start-ended"] => {
                self.started = None;
                Ok(String::new())
            }
            ["become-another"] => panic!("exec: {}", exec_sleep()),
            ["fork-joined"] => {
                let code = self.aside.take().expect("`fork-aside` comes first").join();
                Ok(format!("{code:?}"))
            }
            // `fork-anew` forks a child that opens its own context, and puts to its own memory by that path.
            ["fork-anew", path, settings @ ..] => {
                let code = sys::in_forked_child(|| match anew(path, settings) {
                    Ok(()) => 0,
                    Err(why) => {
                        self.parent.say(&format!("streaming {why}"));
                        1
                    }
                });
                Ok(format!("{code:?}"))
            }
            _ => panic!("{words:?} is no order"),
        }
    }

    /// Returns the results of all operations in a forked child, which then drops all objects and ends.
    pub(super) fn fork(&mut self, name: &str, key: &str, local: &str) -> String {
        // An untaken completion makes waits return immediately, in the child and in the parent separately.
        self.worker().track(&Outcome::Done(0), 7).expect("it is this process's");
        let code = sys::in_forked_child(|| {
            let statuses = self.post_all(name, key, local);
            let connected = self.worker().address().and_then(|a| Ok(self.worker().connect(&a)?));
            let status = connected.map_or_else(|e| format!("{:?}", e.status()), |_| "Done".into());
            let said = |ended: Result<bool, Error>| {
                ended.map_or_else(|e| format!("{:?}", e.status()), |moved| moved.to_string())
            };
            let (wait, arm) = (
                said(self.worker().wait(None).map(tieline::Waited::has_moved)),
                said(self.worker().arm()),
            );
            let tracked = self.worker().track(&Outcome::Done(0), 8).map(|()| true);
            let events = self.worker().progress() + self.worker().take_completed(9, |_, _| {});
            self.parent.say(&format!("forked {statuses},connect={status},wait={wait},arm={arm},track={},progress={events}", said(tracked)));
            self.keys.clear();
            self.endpoints.clear();
            *self.seen.chatting.borrow_mut() = None;
            self.worker = None;
            self.regions.clear();
            self.context = None;
            0
        });
        let mut told = 0;
        let _ = self.worker().take_completed(9, |word, _| told += word);
        assert_eq!(told, 7, "the child takes nothing of its parent's");
        format!("{code:?}")
    }
}

fn is_filled(region: &Region, seed: u64) -> bool {
    let bytes = region.to_vec(0..region.len()).unwrap_or_default();
    bytes.len() == region.len()
        && bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(at, seed))
}

fn anew(path: &str, settings: &[&str]) -> Result<(), String> {
    const LEN: usize = 50_000;
    let said = |error: Error| error.to_string();
    let mut builder = Context::builder();
    for setting in settings {
        let (name, value) = setting.split_once('=').expect("NAME=VALUE");
        builder = builder.set(name, value);
    }
    let tried = || -> Result<(String, bool), Error> {
        let context = builder.open()?;
        let worker = context.worker()?;
        let (memory, local) = (context.register(vec![0; LEN])?, context.register(vec![7; LEN])?);
        let own = worker.connect(&worker.address()?)?;
        let key = own.import_key(&memory.remote_key()?)?;
        while key.is_settling() {
            let _ = worker.wait(None)?;
        }
        loop {
            match own.put(&local, 0..LEN, &key, 0) {
                Ok(outcome) => {
                    let _ = worker.finish(outcome)?;
                    break;
                }
                Err(error) if error.status() == Status::Again => {
                    let _ = worker.wait(None)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok((key.path(), memory.to_vec(0..LEN)? == [7; LEN]))
    };
    match tried().map_err(said)? {
        (taken, true) if taken == path => Ok(()),
        other => Err(format!("{other:?}, and not by {path}")),
    }
}
