//! The exchange as a state machine: what processes say goes in, what they are told comes out. No I/O and no
//! clock.

use super::wire::{Frame, Hello};
use std::time::Duration;

/// Tell this rank that.
pub(super) type Tell = (usize, Frame);

/// Ranks that are listed by number in a message; more are only counted.
const LISTED: usize = 8;

/// Who has come, who contributed what to the exchange that is under way, and why there will be no more.
pub(super) struct Gather {
    job: String,
    round: u64,
    members: Vec<Member>,
    /// The last word to everybody.
    over: Option<Frame>,
    /// Who was turned away, for the one who wonders why a rank does not come.
    turned_away: Vec<String>,
}

#[derive(Clone, Default)]
struct Member {
    /// `pid 71 on nodeb`, once it has come.
    name: Option<String>,
    part: Option<Vec<u8>>,
}

impl Gather {
    pub(super) fn new(size: usize, job: &str) -> Gather {
        let members = vec![Member::default(); size];
        Gather { job: job.to_owned(), round: 0, members, over: None, turned_away: Vec::new() }
    }

    /// A process names itself. `Err` is the last word to it; the second value is for everybody else.
    pub(super) fn join(&mut self, hello: &Hello) -> Result<usize, (Frame, Vec<Tell>)> {
        let (rank, size) = (hello.rank as usize, self.members.len());
        let who = format!("pid {} on {}", hello.pid, hello.host);
        let refused = |text: String| Frame::Refused { text };
        if hello.job != self.job {
            return Err((self.turn_away(refused("TIELINE_JOB is not this job's".into())), vec![]));
        }
        if hello.size as usize != size {
            // Nobody can know which of the two is right, and the others would wait in vain.
            let text = format!("rank {rank} ({who}) has size {}, rank 0 has {size}", hello.size);
            let told = self.end(refused(text.clone()));
            return Err((refused(text), told));
        }
        let Some(member) = self.members.get_mut(rank) else {
            let text = format!("there is no rank {rank} in this job of {size}");
            return Err((self.turn_away(refused(text)), vec![]));
        };
        if let Some(first) = &member.name {
            let text = format!("rank {rank} has joined already, as {first}; this is {who}");
            return Err((self.turn_away(refused(text)), vec![]));
        }
        member.name = Some(who);
        Ok(rank)
    }

    /// Remembers that somebody was turned away, and why.
    pub(super) fn turn_away(&mut self, last_word: Frame) -> Frame {
        if let (Frame::Refused { text }, true) = (&last_word, self.turned_away.len() < LISTED) {
            self.turned_away.push(text.clone());
        }
        last_word
    }

    /// A process contributed. `Err` says why it cannot be right; that process is then told and left out.
    pub(super) fn contribute(
        &mut self,
        rank: usize,
        round: u64,
        bytes: Vec<u8>,
    ) -> Result<Vec<Tell>, String> {
        if let Some(last_word) = &self.over {
            return Ok(vec![(rank, last_word.clone())]);
        }
        if round != self.round || self.members[rank].part.is_some() {
            return Err(format!(
                "rank {rank} spoke out of turn, in exchange {round} of {}",
                self.round
            ));
        }
        self.members[rank].part = Some(bytes);
        if self.members.iter().any(|m| m.part.is_none()) {
            return Ok(Vec::new());
        }
        let parts: Vec<Vec<u8>> =
            self.members.iter_mut().map(|m| m.part.take().unwrap_or_default()).collect();
        let answer = Frame::Gathered { round, parts };
        self.round += 1;
        // Rank 0 comes last: where it serves the exchange itself, its end would come before the others' answer.
        Ok((0..self.members.len()).rev().map(|rank| (rank, answer.clone())).collect())
    }

    /// A process will wait no longer: nobody will, and everybody hears the same reason.
    pub(super) fn give_up(&mut self, waited: Duration) -> Vec<Tell> {
        let text = self.missing(waited);
        self.end(Frame::Late { text })
    }

    /// A process ended or hung up: nobody who waits for it now or later will wait in vain.
    pub(super) fn gone(&mut self, text: &str) -> Vec<Tell> {
        self.end(Frame::Lost { text: text.to_owned() })
    }

    /// What a person calls this rank: `rank 3 (pid 71 on nodeb)`.
    pub(super) fn name(&self, rank: usize) -> String {
        match self.members.get(rank).and_then(|m| m.name.as_ref()) {
            Some(name) => format!("rank {rank} ({name})"),
            None => format!("rank {rank}"),
        }
    }

    /// Everybody who has come is told, waiting or not: later the one who serves may be gone.
    fn end(&mut self, last_word: Frame) -> Vec<Tell> {
        if self.over.is_some() {
            return Vec::new();
        }
        let members = self.members.iter().enumerate().rev();
        let joined = members.filter(|(_, m)| m.name.is_some());
        let told = joined.map(|(rank, _)| (rank, last_word.clone())).collect();
        self.over = Some(last_word);
        told
    }

    fn missing(&self, waited: Duration) -> String {
        let ranks = |want: &dyn Fn(&Member) -> bool| -> Vec<usize> {
            let all = self.members.iter().enumerate();
            all.filter(|(_, m)| want(m)).map(|(rank, _)| rank).collect()
        };
        let size = self.members.len();
        let waited = format!("{waited:?}");
        let absent = ranks(&|m| m.name.is_none());
        let silent = ranks(&|m| m.name.is_some() && m.part.is_none());
        let mut text = String::new();
        if !absent.is_empty() {
            let have = if absent.len() == 1 { "has" } else { "have" };
            text = format!("{} of {size} {have} not come within {waited}", list(&absent));
        }
        if !silent.is_empty() {
            let have = if silent.len() == 1 { "has" } else { "have" };
            let and = if text.is_empty() { "" } else { ", and " };
            text += &format!(
                "{and}{} of {size} {have} not called exchange within {waited}",
                list(&silent)
            );
        }
        if !self.turned_away.is_empty() {
            text += &format!(" (turned away: {})", self.turned_away.join("; "));
        }
        text
    }
}

/// `rank 1, 4 and 7`.
pub(super) fn list(ranks: &[usize]) -> String {
    let mut shown: Vec<String> = ranks.iter().take(LISTED).map(usize::to_string).collect();
    if ranks.len() > LISTED {
        shown.push(format!("{} more", ranks.len() - LISTED));
    }
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    match shown.split_last() {
        Some((last, [])) => format!("{word} {last}"),
        Some((last, rest)) => format!("{word} {} and {last}", rest.join(", ")),
        None => "nobody".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(rank: u32, size: u32) -> Hello {
        Hello { rank, size, pid: 70 + rank, host: "a".into(), job: "j".into() }
    }

    fn joined(size: u32) -> Gather {
        let mut gather = Gather::new(size as usize, "j");
        for rank in 0..size {
            assert_eq!(gather.join(&hello(rank, size)).unwrap(), rank as usize);
        }
        gather
    }

    #[test]
    fn everyone_is_answered_in_rank_order_once_the_last_has_spoken_and_rank_0_last() {
        let mut gather = joined(3);
        for round in 0..2 {
            assert!(gather.contribute(2, round, vec![2]).unwrap().is_empty());
            assert!(gather.contribute(0, round, vec![0]).unwrap().is_empty());
            let told = gather.contribute(1, round, vec![1]).unwrap();
            let answer = Frame::Gathered { round, parts: vec![vec![0], vec![1], vec![2]] };
            assert_eq!(told, [2, 1, 0].map(|rank| (rank, answer.clone())));
        }
    }

    #[test]
    fn a_death_reaches_those_who_wait_and_those_who_come_later() {
        let mut gather = joined(3);
        assert!(gather.contribute(0, 0, vec![]).unwrap().is_empty());
        let lost = Frame::Lost { text: "rank 1 died".into() };
        assert_eq!(gather.gone("rank 1 died"), [2, 1, 0].map(|rank| (rank, lost.clone())));
        assert_eq!(gather.contribute(2, 0, vec![]).unwrap(), [(2, lost)]);
        assert!(gather.gone("rank 2 died").is_empty(), "the first death is the reason");
    }

    #[test]
    fn a_process_that_speaks_twice_or_ahead_is_refused() {
        let mut gather = joined(2);
        assert!(gather.contribute(0, 1, vec![]).is_err());
        assert!(gather.contribute(0, 0, vec![]).unwrap().is_empty());
        assert!(gather.contribute(0, 0, vec![]).is_err());
    }

    #[test]
    fn whoever_gives_up_names_those_who_are_missing_to_everybody_who_waits() {
        let mut gather = Gather::new(5, "j");
        for rank in [0, 1, 2] {
            let _ = gather.join(&hello(rank, 5)).unwrap();
        }
        for rank in [0, 1] {
            assert!(gather.contribute(rank, 0, vec![]).unwrap().is_empty());
        }
        let told = gather.give_up(Duration::from_secs(120));
        let text = "ranks 3 and 4 of 5 have not come within 120s, and rank 2 of 5 has not called \
                    exchange within 120s";
        let late = Frame::Late { text: text.into() };
        assert_eq!(told, [2, 1, 0].map(|rank| (rank, late.clone())));
        assert_eq!(gather.contribute(2, 0, vec![]).unwrap(), [(2, late)]);
    }

    #[test]
    fn a_second_process_of_one_rank_is_turned_away_with_the_name_of_the_first() {
        let mut gather = joined(2);
        let (last_word, others) = gather.join(&Hello { pid: 5, ..hello(1, 2) }).unwrap_err();
        let text = "rank 1 has joined already, as pid 71 on a; this is pid 5 on a".to_owned();
        assert_eq!((last_word, others), (Frame::Refused { text }, vec![]));
        assert_eq!(gather.name(1), "rank 1 (pid 71 on a)");
    }

    #[test]
    fn another_size_ends_the_job_and_another_jobs_process_does_not() {
        let mut gather = Gather::new(2, "j");
        assert_eq!(gather.join(&hello(0, 2)).unwrap(), 0);
        assert!(gather.contribute(0, 0, vec![]).unwrap().is_empty());
        let stranger = Hello { job: "other".into(), ..hello(1, 2) };
        assert_eq!(gather.join(&stranger).unwrap_err().1, []);
        let (last_word, told) = gather.join(&hello(1, 4)).unwrap_err();
        assert_eq!(told, [(0, last_word)]);
    }

    #[test]
    fn many_ranks_are_counted_and_not_listed() {
        assert_eq!(list(&[3]), "rank 3");
        assert_eq!(list(&[1, 4, 7]), "ranks 1, 4 and 7");
        let many: Vec<usize> = (0..100).collect();
        assert_eq!(list(&many), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more");
    }
}
