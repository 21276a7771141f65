//! Pending requests, each with a number by which handlers and completions find it in constant time.

/// Objects by number; free numbers are reused first. A free object is in its default state, and stays in its place.
pub(crate) struct Slots<T> {
    slots: Vec<T>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slots<T> {
    #[inline]
    pub(crate) fn add(&mut self) -> (usize, &mut T) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(T::default());
            self.slots.len() - 1
        });
        (number, &mut self.slots[number])
    }

    /// Returns an object; the number may be free.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.slots.get(number)
    }

    /// Returns an object, to change it; the number may be free.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.slots.get_mut(number)
    }

    /// Frees the number of an object that is in its default state.
    #[inline]
    pub(crate) fn free(&mut self, number: usize) {
        self.free.push(number);
    }
}
