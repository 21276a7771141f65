//! The exchange as a state machine without I/O or a clock. The input of the machine consists of frames from processes, and its
//! output of frames for processes.

use super::wire::{Frame, Hello};
use std::collections::BTreeMap;
use std::time::Duration;

/// A frame and its receivers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nobody,
    /// A frame for one rank.
    One(usize, Frame),
    /// A frame for all processes that have joined. The processes share one copy, which may be as long as all contributions
    /// together.
    All(Frame),
}

/// The maximum number of bytes in the answer to an exchange, whose length is encoded in four bytes.
const MOST: u64 = u32::MAX as u64 - 64;

/// A part of the identity of every job that Slurm started.
pub(super) const SLURM: &str = "slurm ";

/// The maximum number of ranks that a message lists by number; further ranks are only counted.
const LISTED: usize = 8;

/// The processes that have joined, their contributions to the current exchange, and the reason why there will be no more exchanges.
pub(super) struct Gather {
    job: String,
    round: u64,
    size: usize,
    /// The processes that have joined, by rank. A map is used, so that a mistyped large size costs no memory.
    members: BTreeMap<usize, Member>,
    /// The number of contributions to the current exchange.
    given: usize,
    /// The sum of the bytes of these contributions, each with its length.
    given_bytes: u64,
    /// The final frame for all processes.
    over: Option<Frame>,
    /// The reasons of refused connections, for error texts about missing ranks.
    turned_away: Vec<String>,
}

struct Member {
    /// The description of the process: `pid 71 on nodeb`.
    name: String,
    part: Option<Vec<u8>>,
}

impl Gather {
    pub(super) fn new(size: usize, job: &str) -> Gather {
        Gather {
            job: job.to_owned(),
            round: 0,
            size,
            members: BTreeMap::new(),
            given: 0,
            given_bytes: 0,
            over: None,
            turned_away: Vec::new(),
        }
    }

    /// Adds a process. Returns `Err` with the reason of a refusal; the second value of the error is the frame for all other
    /// processes.
    pub(super) fn join(&mut self, hello: &Hello) -> Result<usize, (String, Reply)> {
        let (rank, size) = (hello.rank as usize, self.size);
        let who = format!("pid {} on {}", hello.pid, hello.host);
        // The identity is checked first: a process of another job must not end this one.
        if hello.job != self.job {
            let which = if self.job.contains(SLURM) || hello.job.contains(SLURM) {
                "its Slurm job and step (or TIELINE_JOB) are not this job's"
            } else {
                "TIELINE_JOB is not this job's"
            };
            return Err((self.turn_away(which.into()), Reply::Nobody));
        }
        if hello.size as usize != size {
            // Either size may be wrong, and the other processes would wait forever.
            let text = format!("rank {rank} ({who}) has size {}, rank 0 has {size}", hello.size);
            let told = self.end(Frame::Refused { text: text.clone() });
            return Err((text, told));
        }
        if rank >= size {
            let text = format!("there is no rank {rank} in this job of {size}");
            return Err((self.turn_away(text), Reply::Nobody));
        }
        if let Some(Member { name: first, .. }) = self.members.get(&rank) {
            let text = format!("rank {rank} has joined already, as {first}; this is {who}");
            return Err((self.turn_away(text), Reply::Nobody));
        }
        let _ = self.members.insert(rank, Member { name: who, part: None });
        Ok(rank)
    }

    /// Records the reason of a refused connection, and returns it.
    pub(super) fn turn_away(&mut self, why: String) -> String {
        if self.turned_away.len() < LISTED && !self.turned_away.contains(&why) {
            self.turned_away.push(why.clone());
        }
        why
    }

    /// Adds the contribution of a process. Returns `Err` with the reason if the contribution is invalid; that process is then
    /// notified and excluded.
    pub(super) fn contribute(
        &mut self,
        rank: usize,
        round: u64,
        bytes: Vec<u8>,
    ) -> Result<Reply, String> {
        if let Some(last_word) = &self.over {
            return Ok(Reply::One(rank, last_word.clone()));
        }
        let part = self.members.get_mut(&rank).map(|member| &mut member.part);
        let Some(part) = part.filter(|part| part.is_none() && round == self.round) else {
            return Err(format!(
                "rank {rank} spoke out of turn, in exchange {round} of {}",
                self.round
            ));
        };
        self.given_bytes += bytes.len() as u64 + 4;
        *part = Some(bytes);
        self.given += 1;
        if self.given_bytes > MOST {
            let text =
                format!("the contributions to one exchange are together more than {MOST} bytes");
            return Ok(self.end(Frame::Refused { text }));
        }
        if self.given < self.size {
            return Ok(Reply::Nobody);
        }
        let parts = self.members.values_mut().map(|m| m.part.take().unwrap_or_default()).collect();
        self.round += 1;
        (self.given, self.given_bytes) = (0, 0);
        Ok(Reply::All(Frame::Gathered { round, parts }))
    }

    /// Handles a process that gives up waiting: the exchange ends for all processes with the same reason.
    pub(super) fn give_up(&mut self, waited: Duration) -> Reply {
        let text = self.missing(waited);
        self.end(Frame::Late { text })
    }

    /// Handles a process that ended or disconnected: every process that waits for it, then or later, gets the reason, unless the
    /// exchange has ended for another one.
    pub(super) fn gone(&mut self, text: &str) -> Reply {
        self.end(Frame::Lost { text: text.to_owned() })
    }

    /// Returns the description of this rank for error texts: `rank 3 (pid 71 on nodeb)`.
    pub(super) fn name(&self, rank: usize) -> String {
        match self.members.get(&rank) {
            Some(member) => format!("rank {rank} ({})", member.name),
            None => format!("rank {rank}"),
        }
    }

    /// Returns the reason why there is no answer about this rank's bytes.
    pub(super) fn has_come(&self, rank: usize) -> String {
        let name = self.name(rank);
        if self.members.contains_key(&rank) {
            format!("{name} has not published it")
        } else {
            format!("{name} has not come{}", self.turned_away())
        }
    }

    /// Returns the number of ranks that have not joined.
    pub(super) fn absent(&self) -> usize {
        self.size.saturating_sub(self.members.len())
    }

    /// Ends the exchange, and notifies all processes that have joined, whether they wait or not: the server may be gone when they
    /// call.
    fn end(&mut self, last_word: Frame) -> Reply {
        if self.over.is_some() {
            return Reply::Nobody;
        }
        self.over = Some(last_word.clone());
        // Pending contributions get the final frame instead of an answer.
        self.members.values_mut().for_each(|member| member.part = None);
        Reply::All(last_word)
    }

    fn missing(&self, waited: Duration) -> String {
        let size = self.size;
        let waited = format!("{waited:?}");
        let absent = (0..size).filter(|rank| !self.members.contains_key(rank));
        let silent = self.members.iter().filter(|(_, m)| m.part.is_none()).map(|(rank, _)| *rank);
        let counts = [self.absent(), self.members.len() - self.given];
        let [absent, silent] = [list(absent, counts[0]), list(silent, counts[1])];
        let have = |count| if count == 1 { "has" } else { "have" };
        let mut text = String::new();
        if counts[0] > 0 {
            text = format!("{absent} of {size} {} not come within {waited}", have(counts[0]));
        }
        if counts[1] > 0 {
            let and = if text.is_empty() { "" } else { ", and " };
            let have = have(counts[1]);
            text += &format!("{and}{silent} of {size} {have} not called exchange within {waited}");
        }
        text + &self.turned_away()
    }

    fn turned_away(&self) -> String {
        match &self.turned_away[..] {
            [] => String::new(),
            those => format!(" (turned away: {})", those.join("; ")),
        }
    }
}

/// Formats a list of `count` ranks: `ranks 1, 4 and 7`.
pub(super) fn list(ranks: impl Iterator<Item = usize>, count: usize) -> String {
    let mut shown: Vec<String> = ranks.take(LISTED).map(|rank| rank.to_string()).collect();
    if count > LISTED {
        shown.push(format!("{} more", count - LISTED));
    }
    let word = if count == 1 { "rank" } else { "ranks" };
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
    fn everyone_is_answered_in_rank_order_once_the_last_has_spoken() {
        let mut gather = joined(3);
        for round in 0..2 {
            assert_eq!(gather.contribute(2, round, vec![2]), Ok(Reply::Nobody));
            assert_eq!(gather.contribute(0, round, vec![0]), Ok(Reply::Nobody));
            let answer = Frame::Gathered { round, parts: vec![vec![0], vec![1], vec![2]] };
            assert_eq!(gather.contribute(1, round, vec![1]), Ok(Reply::All(answer)));
        }
    }

    #[test]
    fn death_is_reported_to_waiting_and_later_processes() {
        let mut gather = joined(3);
        assert_eq!(gather.contribute(0, 0, vec![]), Ok(Reply::Nobody));
        let lost = || Frame::Lost { text: "rank 1 died".into() };
        assert_eq!(gather.gone("rank 1 died"), Reply::All(lost()));
        assert_eq!(gather.contribute(2, 0, vec![]), Ok(Reply::One(2, lost())));
        assert_eq!(gather.gone("rank 2 died"), Reply::Nobody, "the first death is the reason");
    }

    #[test]
    fn a_process_that_speaks_twice_or_ahead_is_refused() {
        let mut gather = joined(2);
        assert!(gather.contribute(0, 1, vec![]).is_err());
        assert_eq!(gather.contribute(0, 0, vec![]), Ok(Reply::Nobody));
        assert!(gather.contribute(0, 0, vec![]).is_err());
    }

    #[test]
    fn timeout_names_missing_ranks_to_all_waiting_ones() {
        let mut gather = Gather::new(5, "j");
        for rank in [0, 1, 2] {
            let _ = gather.join(&hello(rank, 5)).unwrap();
        }
        for rank in [0, 1] {
            assert_eq!(gather.contribute(rank, 0, vec![]), Ok(Reply::Nobody));
        }
        let told = gather.give_up(Duration::from_secs(120));
        let text = "ranks 3 and 4 of 5 have not come within 120s, and rank 2 of 5 has not called \
                    exchange within 120s";
        let late = || Frame::Late { text: text.into() };
        assert_eq!(told, Reply::All(late()));
        assert_eq!(gather.contribute(2, 0, vec![]), Ok(Reply::One(2, late())));
    }

    #[test]
    fn second_process_of_rank_is_refused_with_name_of_first() {
        let mut gather = joined(2);
        let refused = gather.join(&Hello { pid: 5, ..hello(1, 2) }).unwrap_err();
        let text = "rank 1 has joined already, as pid 71 on a; this is pid 5 on a".to_owned();
        assert_eq!(refused, (text, Reply::Nobody));
        assert_eq!(gather.name(1), "rank 1 (pid 71 on a)");
    }

    #[test]
    fn another_size_ends_the_job_and_another_jobs_process_does_not() {
        let mut gather = Gather::new(2, "j");
        assert_eq!(gather.join(&hello(0, 2)).unwrap(), 0);
        assert_eq!(gather.contribute(0, 0, vec![]), Ok(Reply::Nobody));
        // The check holds for any size.
        for size in [2, 4] {
            let stranger = Hello { job: "other".into(), ..hello(1, size) };
            assert_eq!(gather.join(&stranger).unwrap_err().1, Reply::Nobody);
        }
        let (text, told) = gather.join(&hello(1, 4)).unwrap_err();
        assert_eq!(told, Reply::All(Frame::Refused { text }));
    }

    #[test]
    fn a_size_beyond_reason_costs_nothing_and_its_missing_ranks_are_counted() {
        let mut gather = Gather::new(usize::MAX, "j");
        let Reply::All(Frame::Late { text }) = gather.give_up(Duration::from_secs(1)) else {
            panic!("nobody is told");
        };
        assert!(text.starts_with("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 18446744073709551607 more of "));
    }

    #[test]
    fn many_ranks_are_counted_and_not_listed() {
        assert_eq!(list([3].into_iter(), 1), "rank 3");
        assert_eq!(list([1, 4, 7].into_iter(), 3), "ranks 1, 4 and 7");
        assert_eq!(list(0..100, 100), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more");
    }

    #[test]
    fn refused_process_learns_reason() {
        let said = |job: &str, hello: Hello| {
            let (text, told) = Gather::new(2, job).join(&hello).unwrap_err();
            assert_eq!(told, Reply::Nobody);
            text
        };
        assert_eq!(said("j", hello(2, 2)), "there is no rank 2 in this job of 2");
        let other = |job: &str| Hello { job: job.into(), ..hello(1, 2) };
        assert_eq!(said("j", other("k")), "TIELINE_JOB is not this job's");
        let slurm = "its Slurm job and step (or TIELINE_JOB) are not this job's";
        assert_eq!(said("j slurm - 1.0", other("j")), slurm);
        assert_eq!(said("j", other("j slurm - 1.0")), slurm);
        let (text, _) = Gather::new(2, "j").join(&hello(1, 4)).unwrap_err();
        assert_eq!(text, "rank 1 (pid 71 on a) has size 4, rank 0 has 2");
    }

    #[test]
    fn refused_processes_are_listed_once_and_bounded() {
        let mut gather = Gather::new(3, "j");
        assert_eq!(gather.join(&hello(0, 3)), Ok(0));
        assert_eq!(gather.absent(), 2);
        assert_eq!(gather.has_come(1), "rank 1 has not come");
        assert_eq!(gather.has_come(0), "rank 0 (pid 70 on a) has not published it");
        for n in [1, 1, 2, 3, 4, 5, 6, 7, 8, 9] {
            assert_eq!(gather.turn_away(format!("s{n}")), format!("s{n}"));
        }
        let those = "(turned away: s1; s2; s3; s4; s5; s6; s7; s8)";
        assert_eq!(gather.has_come(1), format!("rank 1 has not come {those}"));
        let late = |text: String| Reply::All(Frame::Late { text });
        assert_eq!(
            gather.give_up(Duration::from_millis(1500)),
            late(format!(
                "ranks 1 and 2 of 3 have not come within 1.5s, and rank 0 of 3 has not called exchange within 1.5s {those}"
            ))
        );
        let mut gather = joined(3);
        assert_eq!(
            gather.give_up(Duration::from_secs(1)),
            late("ranks 0, 1 and 2 of 3 have not called exchange within 1s".into())
        );
        let mut gather = Gather::new(2, "j");
        assert_eq!(gather.join(&hello(0, 2)), Ok(0));
        assert_eq!(gather.contribute(0, 0, vec![]), Ok(Reply::Nobody));
        assert_eq!(
            gather.give_up(Duration::from_secs(1)),
            late("rank 1 of 2 has not come within 1s".into())
        );
    }

    #[test]
    fn an_answer_is_no_longer_than_its_length_can_say() {
        let with = |given: u64| {
            let mut gather = joined(2);
            gather.given_bytes = given;
            gather.contribute(0, 0, vec![0; 10]).unwrap()
        };
        assert_eq!(with(MOST - 14), Reply::Nobody);
        let text = "the contributions to one exchange are together more than 4294967231 bytes";
        assert_eq!(with(MOST - 13), Reply::All(Frame::Refused { text: text.into() }));
        // Each exchange starts with no contributions.
        let mut gather = joined(1);
        assert!(matches!(gather.contribute(0, 0, vec![0; 10]), Ok(Reply::All(_))));
        assert_eq!((gather.given, gather.given_bytes), (0, 0));
        assert_eq!(
            gather.contribute(0, 0, vec![]),
            Err("rank 0 spoke out of turn, in exchange 0 of 1".into())
        );
    }

    #[test]
    fn the_ninth_rank_is_counted() {
        assert_eq!(list(0..8, 8), "ranks 0, 1, 2, 3, 4, 5, 6 and 7");
        assert_eq!(list(0..9, 9), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more");
        assert_eq!(list(0..0, 0), "nobody");
    }
}
