//! Orders about memory that is removed while peers may access it.

use super::{LONG, Node, find, number};
use crate::spoiled::Spoiled;
use tieline::{Access, Error};

impl Node {
    pub(super) fn spoiling(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            ["place", name, len, kind, later @ ..] => {
                let pages = Spoiled::map(number(len), kind);
                let access = match later {
                    ["later"] => Access::ALL | Access::COMMITTED_LATER,
                    ["read"] => Access::READ,
                    _ => Access::ALL,
                };
                let region = pages.register(self.context(), access)?;
                let _ = self.regions.insert((*name).to_string(), region);
                let _ = self.pages.insert((*name).to_string(), pages);
            }
            ["spoil", name, how, from] => find(&self.pages, name).change(how, number(from)),
            // `long-of` posts a message from registered memory.
            ["long-of", name, region, len] => {
                let region = find(&self.regions, region).clone();
                let pieces = [(&region, 0..number(len))];
                let sent = self.endpoint(name).send_regions(LONG, 0, &pieces);
                drop(self.finish(sent)?);
            }
            ["put-notify", key, local, len, offset, word] => {
                let (name, _) = key.split_once('.').expect("NAME.KEY");
                let (endpoint, local) = (self.endpoint(name), find(&self.regions, local));
                let (len, offset, word) = (number(len), number(offset), number(word));
                let key = find(&self.keys, key);
                let put = endpoint.put_notify(local, 0..len, key, offset as u64, word as u32);
                return self.finish(put);
            }
            // `words` returns the notification words of puts.
            ["words"] => return Ok(format!("{:?}", self.seen.words.borrow())),
            _ => panic!("{words:?} is no order"),
        }
        Ok(String::new())
    }
}
