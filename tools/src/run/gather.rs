//! The allgather as a state machine: what processes say goes in, what they are told comes out. No I/O.

use tieline::job::wire::Frame;

/// Tell this rank that.
pub(super) type Tell = (usize, Frame);

/// Who contributed what to the exchange that is under way, and who is gone.
pub(super) struct Gather {
    round: u64,
    parts: Vec<Option<Vec<u8>>>,
    gone: Option<String>,
}

impl Gather {
    pub(super) fn new(size: usize) -> Gather {
        Gather { round: 0, parts: vec![None; size], gone: None }
    }

    /// Whether the job has this rank.
    pub(super) fn has(&self, rank: usize) -> bool {
        rank < self.parts.len()
    }

    /// A process contributed. `Err` says why it cannot be right; that process is then told and left out.
    pub(super) fn contribute(
        &mut self,
        rank: usize,
        round: u64,
        bytes: Vec<u8>,
    ) -> Result<Vec<Tell>, String> {
        if let Some(text) = &self.gone {
            return Ok(vec![(rank, Frame::Lost { text: text.clone() })]);
        }
        if round != self.round || self.parts[rank].is_some() {
            return Err(format!(
                "rank {rank} spoke out of turn, in exchange {round} of {}",
                self.round
            ));
        }
        self.parts[rank] = Some(bytes);
        if self.parts.iter().any(Option::is_none) {
            return Ok(Vec::new());
        }
        let parts: Vec<Vec<u8>> =
            self.parts.iter_mut().map(|p| p.take().unwrap_or_default()).collect();
        let answer = Frame::Gathered { round, parts };
        self.round += 1;
        Ok((0..self.parts.len()).map(|rank| (rank, answer.clone())).collect())
    }

    /// A process ended or hung up: nobody who waits for it now or later will wait in vain.
    pub(super) fn gone(&mut self, text: &str) -> Vec<Tell> {
        if self.gone.is_some() {
            return Vec::new();
        }
        self.gone = Some(text.to_owned());
        let waiting =
            self.parts.iter_mut().enumerate().filter_map(|(rank, part)| part.take().map(|_| rank));
        waiting.map(|rank| (rank, Frame::Lost { text: text.to_owned() })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_is_answered_in_rank_order_once_the_last_has_spoken() {
        let mut gather = Gather::new(3);
        for round in 0..2 {
            assert!(gather.contribute(2, round, vec![2]).unwrap().is_empty());
            assert!(gather.contribute(0, round, vec![0]).unwrap().is_empty());
            let told = gather.contribute(1, round, vec![1]).unwrap();
            let answer = Frame::Gathered { round, parts: vec![vec![0], vec![1], vec![2]] };
            assert_eq!(told, (0..3).map(|rank| (rank, answer.clone())).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_death_reaches_those_who_wait_and_those_who_come_later() {
        let mut gather = Gather::new(3);
        assert!(gather.contribute(0, 0, vec![]).unwrap().is_empty());
        let lost = Frame::Lost { text: "rank 1 died".into() };
        assert_eq!(gather.gone("rank 1 died"), [(0, lost.clone())]);
        assert_eq!(gather.contribute(2, 0, vec![]).unwrap(), [(2, lost)]);
        assert!(gather.gone("rank 2 died").is_empty(), "the first death is the reason");
    }

    #[test]
    fn a_process_that_speaks_twice_or_ahead_is_refused() {
        let mut gather = Gather::new(2);
        assert!(gather.contribute(0, 1, vec![]).is_err());
        assert!(gather.contribute(0, 0, vec![]).unwrap().is_empty());
        assert!(gather.contribute(0, 0, vec![]).is_err());
    }
}
