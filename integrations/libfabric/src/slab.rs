//! A list whose entries keep their index until they are taken.

/// Entries by index. The index of a taken entry is used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    list: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { list: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn add(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.list[index as usize] = Some(value);
            return index;
        }
        self.list.push(Some(value));
        (self.list.len() - 1) as u32
    }

    pub(crate) fn take(&mut self, index: u32) -> Option<T> {
        let taken = self.list.get_mut(index as usize)?.take();
        if taken.is_some() {
            self.free.push(index);
        }
        taken
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.list.get(index as usize)?.as_ref()
    }

    /// Checks whether there is no entry.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.len() == self.free.len()
    }

    /// Takes all entries.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.free.clear();
        std::mem::take(&mut self.list).into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn taken_index_is_used_again() {
        let mut slab = Slab::default();
        let (one, two) = (slab.add("one"), slab.add("two"));
        assert_eq!(slab.take(one), Some("one"));
        assert_eq!(slab.take(one), None);
        assert_eq!(slab.add("three"), one);
        assert_eq!(slab.get(two), Some(&"two"));
        assert!(!slab.is_empty());
        assert_eq!(slab.take_all(), ["three", "two"]);
        assert!(slab.is_empty());
    }
}
