//! Orders about a peer's memory.

use super::{Node, find, number, unhex};
use crate::parent::Parent;
use crate::sys::{self, Pages};
use crate::trap::Trap;
use std::sync::atomic::{AtomicU64, Ordering};
use tieline::{AtomicOp, Error, KeyHandle, KeyLookup, Status, Width};

impl Node {
    pub(super) fn remote(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            ["import", name, key, bytes] => {
                let key_name = format!("{name}.{key}");
                let key = self.endpoint(name).import_key(&unhex(bytes))?;
                while key.is_settling() && self.endpoint(name).error().is_none() {
                    self.pause()?;
                }
                let path = key.path();
                let _ = self.keys.insert(key_name, key);
                Ok(path)
            }
            // `import-handle` imports a key by its handle, and reports `begins` when the request was sent to the owner.
            ["import-handle", name, key, bytes] => {
                let bytes = unhex(bytes).try_into().expect("eight bytes");
                let handle = KeyHandle::from_bytes(bytes);
                let key_name = format!("{name}.{key}");
                let key = loop {
                    match self.endpoint(name).key_by_handle(handle)? {
                        KeyLookup::Known(key) => break key,
                        KeyLookup::Asked(asked) => {
                            self.parent.say("begins");
                            let _ = self.finish(Ok(asked))?;
                        }
                    }
                };
                let path = key.path();
                let _ = self.keys.insert(key_name, key);
                Ok(path)
            }
            ["path", key] => Ok(find(&self.keys, key).path()),
            ["reaches-passive", key] => {
                Ok(find(&self.keys, key).reaches_passive_target().to_string())
            }
            // `point` makes a pointer to a peer's memory, and keeps it under this name.
            ["point", name, key] => {
                let pointer = find(&self.keys, key).pointer()?;
                let _ = self.pointers.insert((*name).to_string(), pointer);
                Ok(String::new())
            }
            ["load", name, at] => {
                let word = find(&self.pointers, name).atomic_u64(number(at))?;
                Ok(word.load(Ordering::SeqCst).to_string())
            }
            ["store", name, at, value] => {
                let word = find(&self.pointers, name).atomic_u64(number(at))?;
                word.store(number(value) as u64, Ordering::SeqCst);
                Ok(String::new())
            }
            ["rally", name, turns, side] => {
                rally(find(&self.pointers, name).atomic_u64(0)?, number(turns), side);
                Ok(String::new())
            }
            ["forget-key", key] => {
                drop(self.keys.remove(*key));
                Ok(String::new())
            }
            ["forget-pointer", name] => {
                drop(self.pointers.remove(*name));
                Ok(String::new())
            }
            ["put" | "get", key, local, at, len, offset] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (endpoint, local) = (self.endpoint(name), find(&self.regions, local));
                let key = find(&self.keys, key);
                let (at, len) = (number(at), number(len));
                let offset = offset.parse().expect("an offset");
                self.parent.say("begins");
                let outcome = if words[0] == "put" {
                    endpoint.put(local, at..at + len, key, offset)
                } else {
                    endpoint.get(local, at..at + len, key, offset)
                };
                self.finish(outcome)
            }
            ["put-bytes", key, len, byte, offset] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let bytes = vec![number(byte) as u8; number(len)];
                let offset = offset.parse().expect("an offset");
                let outcome = self.endpoint(name).put_bytes(&bytes, find(&self.keys, key), offset);
                self.finish(outcome)
            }
            ["atomic", key, offset, operand] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let offset = offset.parse().expect("an offset");
                let operand = operand.parse().expect("an operand");
                let outcome = self.endpoint(name).fetch_add(find(&self.keys, key), offset, operand);
                self.finish(outcome)
            }
            ["swap", key, offset, operand] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (offset, operand) = (number(offset) as u64, number(operand) as u64);
                let outcome = self.endpoint(name).fetch(
                    AtomicOp::Swap,
                    Width::Bits32,
                    find(&self.keys, key),
                    offset,
                    operand,
                );
                self.finish(outcome)
            }
            // `held` starts a put or get that stops in the middle, reports `inside`, and continues when that process has ended.
            ["held", what, key, len, process] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (endpoint, key) = (self.endpoint(name), find(&self.keys, key));
                let (len, process) = (number(len), number(process) as u32);
                let pages = Pages::map(len);
                let region = pages.register(self.context())?;
                region.write(0, &vec![9; len])?;
                let inside = || Parent::default().say("inside");
                let trap = Trap::set(&pages, process, inside).expect("userfaultfd");
                let outcome = if *what == "put" {
                    endpoint.put(&region, 0..len, key, 0)
                } else {
                    endpoint.get(&region, 0..len, key, 0)
                };
                let ended = self.finish(outcome);
                drop(trap);
                region.close().map_err(|not| not.error)?;
                pages.unmap();
                ended
            }
            // `time-gets` repeats a get, every second time at an offset of `stride` bytes. Returns the median time of a get, in
            // nanoseconds.
            ["time-gets", key, local, len, count, stride] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (endpoint, key) = (self.endpoint(name), find(&self.keys, key));
                let (local, len) = (find(&self.regions, local), number(len));
                let (count, stride) = (number(count), number(stride) as u64);
                // Reading the clock takes the time of a short get, so short gets are timed in groups.
                let each = if len > 4096 { 1 } else { 16 };
                let mut times = Vec::new();
                for _ in 0..count {
                    let began = sys::now_ns();
                    for at in (0..each).map(|turn| (times.len() + turn) as u64 % 2 * stride) {
                        let _ = self.worker().finish(endpoint.get(local, 0..len, key, at)?)?;
                    }
                    times.push((sys::now_ns() - began) / each as u64);
                }
                times.sort_unstable();
                Ok(times[count / 2].to_string())
            }
            // `repeat` repeats the operation and checks its result, until the operation fails.
            ["repeat", what, key] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (endpoint, key) = (self.endpoint(name), find(&self.keys, key));
                let local = find(&self.regions, "here");
                for turn in 0usize.. {
                    let len = [8, 100, 4096, 60_000][turn % 4];
                    let outcome = match *what {
                        "put" => endpoint.put(local, 0..len, key, 0),
                        "get" => endpoint.get(local, 0..len, key, 0),
                        _ => endpoint.fetch_add(key, 8, 1),
                    };
                    let ended = match outcome {
                        Ok(outcome) => self.worker().finish(outcome).map_err(Error::from),
                        Err(e) => Err(e.into()),
                    };
                    match ended {
                        Ok(_) => {}
                        Err(e) if e.status() == Status::Again => {}
                        Err(e) => return Err(e),
                    }
                    let _ = self.worker().progress();
                }
                Ok(String::new())
            }
            _ => panic!("{words:?} is no order"),
        }
    }
}

/// Adds 1 to the word in every turn of this side. The first side has its turn while the word is even.
pub(super) fn rally(word: &AtomicU64, turns: usize, side: &str) {
    let other = u64::from(side != "first");
    for _ in 0..turns {
        while word.load(Ordering::Acquire) % 2 != other {
            std::thread::yield_now();
        }
        let _ = word.fetch_add(1, Ordering::AcqRel);
    }
}
