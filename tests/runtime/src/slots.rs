//! What is asked for and not yet handed over, each with a number by which handlers and completions find it at once.

/// Things by number; a number that is free again is used first.
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
    pub(crate) fn add(&mut self, thing: T) -> usize {
        if let Some(number) = self.free.pop() {
            self.slots[number] = Some(thing);
            return number;
        }
        self.slots.push(Some(thing));
        self.slots.len() - 1
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.slots.get_mut(number)?.as_mut()
    }

    pub(crate) fn take(&mut self, number: usize) -> Option<T> {
        let taken = self.slots.get_mut(number)?.take()?;
        self.free.push(number);
        Some(taken)
    }
}
