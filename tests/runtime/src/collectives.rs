//! Collectives: calls that every rank makes in the same order.

use crate::{OWN, Received, Receiving, Runtime, Sending};
use tieline::Error;
use tieline_tag::Pattern;

impl Runtime {
    /// Returns when every rank has called `barrier`.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
    pub fn barrier(&self) -> Result<(), Error> {
        let (rank, size, tag) = (self.rank(), self.size(), self.collective());
        let mut distance = 1;
        while distance < size {
            let from = (rank + size - distance) % size;
            let receiving = self.take_part(from, tag)?;
            let sending = self.send_any((rank + distance) % size, tag, b"")?;
            let _ = self.both(receiving, sending)?;
            distance *= 2;
        }
        Ok(())
    }

    /// Combines the words of all ranks, one by one, by a commutative and associative operation.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
    pub fn allreduce(&self, words: &mut [u64], op: fn(u64, u64) -> u64) -> Result<(), Error> {
        let (rank, size, tag) = (self.rank(), self.size(), self.collective());
        // The ranks below the largest power of two exchange their words. Each of the other ranks passes its words to one of these,
        // and gets the result.
        let many = 1 << size.ilog2();
        if rank >= many {
            let receiving = self.take_part(rank - many, tag)?;
            let sending = self.send_any(rank - many, tag, &bytes(words))?;
            return fill(words, &self.both(receiving, sending)?, |_, result| result);
        }
        if rank + many < size {
            let receiving = self.take_part(rank + many, tag)?;
            fill(words, &self.wait(receiving)?, op)?;
        }
        let mut bit = 1;
        while bit < many {
            let receiving = self.take_part(rank ^ bit, tag)?;
            let sending = self.send_any(rank ^ bit, tag, &bytes(words))?;
            fill(words, &self.both(receiving, sending)?, op)?;
            bit *= 2;
        }
        if rank + many < size {
            let sending = self.send_any(rank + many, tag, &bytes(words))?;
            self.wait_sent(sending)?;
        }
        Ok(())
    }

    /// Passes every rank its part, and returns the parts that the ranks have sent to this rank.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
    ///
    /// # Panics
    /// Panics unless there is a part for every rank.
    pub fn alltoall(&self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Error> {
        let (rank, size, tag) = (self.rank(), self.size(), self.collective());
        assert_eq!(parts.len(), size);
        let receiving: Vec<Receiving> =
            (0..size).map(|from| self.take_part(from, tag)).collect::<Result<_, _>>()?;
        let mut sending = Vec::new();
        for distance in 0..size {
            let to = (rank + distance) % size; // not all ranks to the same one at a time
            sending.push(self.send_any(to, tag, &parts[to])?);
        }
        sending.into_iter().try_for_each(|sending| self.wait_sent(sending))?;
        receiving.into_iter().map(|receiving| Ok(self.wait(receiving)?.bytes)).collect()
    }

    /// Returns the bytes of all ranks.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
    pub fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.alltoall(&vec![mine.to_vec(); self.size()])
    }

    /// Returns the tag of the next collective; every rank has the same count.
    fn collective(&self) -> u64 {
        self.collectives.set(self.collectives.get() + 1);
        OWN | self.collectives.get()
    }

    fn take_part(&self, from: usize, tag: u64) -> Result<Receiving, Error> {
        self.receive_any(Pattern::exact(from as u64, tag), None)
    }

    fn both(&self, receiving: Receiving, sending: Sending) -> Result<Received, Error> {
        let received = self.wait(receiving)?;
        self.wait_sent(sending)?;
        Ok(received)
    }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn fill(words: &mut [u64], received: &Received, op: fn(u64, u64) -> u64) -> Result<(), Error> {
    let theirs = received.bytes.chunks_exact(8);
    if received.bytes.len() != 8 * words.len() {
        return Err(tieline::Status::BadData.into());
    }
    for (word, theirs) in words.iter_mut().zip(theirs) {
        *word = op(*word, theirs.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }
    Ok(())
}
