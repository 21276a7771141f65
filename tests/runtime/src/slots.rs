//! Pending requests, each with a number by which handlers and completions find it in constant time.

/// Objects by number; free numbers are reused first.
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn add(&mut self) -> (usize, &mut T)
    where
        T: Default,
    {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        (number, self.slots[number].insert(T::default()))
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.slots.get_mut(number)?.as_mut()
    }

    pub(crate) fn free(&mut self, number: usize) {
        if let Some(slot) = self.slots.get_mut(number).filter(|slot| slot.is_some()) {
            *slot = None;
            self.free.push(number);
        }
    }
}
