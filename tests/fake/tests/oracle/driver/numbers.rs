//! Keys by the number under which the target has published its memory.

use super::{Run, What};
use tieline::KeyLookup;

/// The number of the target's memory.
pub(super) const PUBLISHED: u64 = 17;
/// A number without memory.
const UNPUBLISHED: u64 = 18;

pub(super) fn is_found(published: bool) -> Result<(), String> {
    if published { Ok(()) } else { Err("a number without memory led to a key".into()) }
}

impl Run {
    /// Looks up the key of a number. The end uses the key from then on for every other operation.
    pub(super) fn look_up(&mut self, end: usize, published: bool) -> Result<(), String> {
        let own = self.ends[end].as_mut().expect("an end");
        let number = if published { PUBLISHED } else { UNPUBLISHED };
        let what = What::Key { published };
        let asked = match own.endpoint.key_by_number(number) {
            Ok(KeyLookup::Known(key)) => {
                own.keys[0] = key;
                return is_found(published);
            }
            Ok(KeyLookup::Asked(asked)) => Ok(asked),
            Err(error) => Err(error),
        };
        self.posted(end, what, asked, None, None).map(|_| ())
    }
}
