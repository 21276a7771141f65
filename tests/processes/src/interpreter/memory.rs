//! Orders about the node's own memory.

use super::remote::rally;
use super::{Node, find, hex, number, pattern};
use crate::mapped::{Kind, Mapped};
use crate::sys;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tieline::{Access, Error, Status};

impl Node {
    pub(super) fn memory(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            ["alloc", name, len] => {
                let region = self.context().alloc(number(len))?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["alloc", name, len, "read"] => {
                let region = self.context().alloc_with(number(len), Access::READ)?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            // `map` maps application memory of that kind, `fresh` or filled. Peers may `read` it, or use it for `both`.
            ["map", name, len, kind, rights, seed] => {
                let mapped =
                    Mapped::new(Kind::named(kind), number(len)).map_err(|_| Status::NoMemory)?;
                if *seed != "fresh" {
                    let seed = number(seed) as u64;
                    mapped.fill(|at| pattern(at, seed));
                }
                let access =
                    if *rights == "read" { Access::READ } else { Access::READ | Access::WRITE };
                let region = mapped.register(self.context(), access)?;
                let _ = self.mapped.insert((*name).to_string(), mapped);
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["register", name, len] => {
                let region = self.context().register(vec![0u8; number(len)])?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["register", name, len, "read"] => {
                let buffer = vec![0u8; number(len)];
                let region = self.context().register_with(buffer, Access::READ)?;
                let _ = self.regions.insert((*name).to_string(), region);
            }
            ["shared", name] => return Ok(find(&self.regions, name).is_shared().to_string()),
            // `put-and-unmap` puts a new memory of the application, closes the memory as soon as possible, and unmaps it.
            ["put-and-unmap", key, len, seed] => self.put_and_unmap(key, number(len), seed)?,
            // `churn` registers memory, makes its key and closes it, repeatedly until the process is killed.
            ["churn", len] => loop {
                let region = self.context().register(vec![0u8; number(len)])?;
                let _ = region.remote_key()?;
                region.close().map_err(|not| not.error)?;
                self.parent.say("streaming");
            },
            ["close", name] => {
                let region = self.regions.remove(*name).expect("a region");
                if let Err(not) = region.close() {
                    let _ = self.regions.insert((*name).to_string(), not.region);
                    return Err(not.error);
                }
                drop(self.mapped.remove(*name));
            }
            ["free", name] => drop(self.regions.remove(*name)),
            ["swap-local", name, value] => {
                let word = find(&self.regions, name).atomic_u64(0)?;
                word.store(number(value) as u64, Ordering::SeqCst);
            }
            ["key", name] => return find(&self.regions, name).remote_key().map(|k| hex(&k)),
            ["handle", name] => {
                return find(&self.regions, name).handle().map(|handle| hex(&handle.to_bytes()));
            }
            ["fill", name, seed] => {
                let region = find(&self.regions, name);
                let seed = number(seed) as u64;
                for start in (0..region.len()).step_by(1 << 20) {
                    let end = region.len().min(start + (1 << 20));
                    let bytes: Vec<u8> = (start..end).map(|at| pattern(at, seed)).collect();
                    region.write(start, &bytes)?;
                }
            }
            // `check` returns whether `len` bytes from `at` on are those of a fill from `from` on.
            ["check", name, at, len, seed, from] => {
                let region = find(&self.regions, name);
                let (at, len, from) = (number(at), number(len), number(from));
                let seed = number(seed) as u64;
                for start in (0..len).step_by(1 << 20) {
                    let end = len.min(start + (1 << 20));
                    let bytes = region.to_vec(at + start..at + end)?;
                    let wrong = (start..end).find(|&i| bytes[i - start] != pattern(from + i, seed));
                    if let Some(i) = wrong {
                        return Ok(format!("byte {i} differs"));
                    }
                }
                return Ok("same".into());
            }
            ["word", name, at] => {
                let word = find(&self.regions, name).atomic_u64(number(at))?;
                return Ok(word.load(Ordering::SeqCst).to_string());
            }
            ["rally-own", name, turns, side] => {
                rally(find(&self.regions, name).atomic_u64(0)?, number(turns), side);
            }
            // `watch` waits for another process to change a word, with or without progress.
            ["watch", name, at, how] => {
                let word = find(&self.regions, name).atomic_u64(number(at))?;
                let before = word.load(Ordering::SeqCst);
                self.parent.say("watching");
                while word.load(Ordering::SeqCst) == before {
                    if *how == "progress" {
                        let _ = self.worker().progress();
                    } else {
                        std::thread::yield_now();
                    }
                }
            }
            _ => panic!("{words:?} is no order"),
        }
        Ok(String::new())
    }

    /// Puts memory and unmaps it. Reports the result of the first attempt to close the memory, before it waits.
    fn put_and_unmap(&self, key: &str, len: usize, seed: &str) -> Result<(), Error> {
        let (name, _) = key.split_once('.').expect("NAME.KEY");
        let pages = sys::Pages::map(len);
        let region = pages.register(self.context())?;
        let bytes: Vec<u8> = (0..len).map(|at| pattern(at, number(seed) as u64)).collect();
        region.write(0, &bytes)?;
        // The request is dropped: the put continues as the worker makes progress.
        drop(self.endpoint(name).put(&region, 0..len, find(&self.keys, key), 0)?);
        match region.close() {
            Ok(()) => self.parent.say("closing took one call"),
            Err(not) => {
                self.parent.say(&format!("closing {:?} {}", not.error.status(), not.error));
                self.worker().close_region(not.region, Duration::from_secs(60))?;
            }
        }
        pages.unmap();
        Ok(self.worker().flush()?)
    }
}
