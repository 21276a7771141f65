//! Tests one after another, on hosts that they share.

use super::machine::{Ended, Lab, NOT_UP};
use super::test::{Chance, Test, Verdict};
use crate::check::Count;
use crate::sh::Outcome;
use std::collections::VecDeque;
use std::time::Duration;

/// A run of tests.
#[derive(Default)]
pub(super) struct Run {
    pub(super) count: Count,
    /// Tests and boots, each with its time and its verdict.
    pub(super) rows: Vec<(String, Duration, &'static str)>,
    pub(super) chance: Chance,
    /// The output of tests that pass is shown, too.
    pub(super) log: bool,
}

impl Run {
    /// Runs tests that stand in the order of their boots. `boot` takes the processors of a host, and the number of hosts.
    pub(super) fn tests(
        &mut self,
        tests: &[Test],
        boot: impl Fn(usize, usize) -> Outcome<Option<Lab>>,
    ) -> Outcome {
        // Other tests get hosts that are booted anew: rdma_rxe is not trusted to work on a second device after a run of
        // tests on one, since messages were lost there for good.
        for like in tests.chunk_by(|a, b| a.boot() == b.boot()) {
            let (mut alone, mut together): (Vec<Test>, Vec<Test>) =
                like.iter().cloned().partition(|test| test.hosts == 1);
            // Tests without a device come before all others, and tests that spoil their host behind. Among the rest the
            // longest is the first, so that none is left for the end.
            alone.sort_by_key(|test| (test.last, test.devices, std::cmp::Reverse(test.timeout)));
            together.sort_by_key(|test| test.last);
            let (mut alone, mut together) = (VecDeque::from(alone), VecDeque::from(together));
            let cpus = like.first().map_or(1, |test| test.cpus);
            let hosts = like.iter().map(|test| test.hosts).max().unwrap_or(1);
            let hosts = if alone.len() > 1 { hosts.max(2) } else { hosts };
            let spoils = alone.iter().any(|test| test.last);
            let mut lab = None;
            while !alone.is_empty() {
                drop(lab.take());
                let mut running = self.up(cpus, hosts, &boot)?;
                running.run_alone(&mut alone, |test, ended| self.over(test, ended))?;
                lab = Some(running).filter(|lab| lab.whole && !spoils);
            }
            while let Some(test) = together.pop_front() {
                let mut running = lab.take().map_or_else(|| self.up(cpus, hosts, &boot), Ok)?;
                let ended = running.run(&test, &mut |_, _| {})?;
                // If a test failed, the machine itself may be broken, such as a network card that sends nothing any more. The next
                // test would fail there, too, and take its whole time limit.
                let is_good = matches!(ended.verdict, Verdict::Passed | Verdict::Skipped(_));
                lab = Some(running).filter(|lab| lab.whole && is_good && !test.last);
                self.over(&test, ended).into_iter().for_each(|test| together.push_front(test));
            }
        }
        Ok(())
    }

    /// Hosts that are up.
    fn up(
        &mut self,
        cpus: usize,
        hosts: usize,
        boot: impl Fn(usize, usize) -> Outcome<Option<Lab>>,
    ) -> Outcome<Lab> {
        loop {
            if let Some(lab) = boot(cpus, hosts)? {
                self.rows.push((format!("({hosts} hosts start)"), lab.boot, ""));
                return Ok(lab);
            }
            if !self.chance.repeats(&Verdict::Silent(String::new())) {
                return Err(NOT_UP.into());
            }
            println!("{NOT_UP}: the hosts are booted anew, once in a run");
        }
    }

    /// Says how a test ended, and counts that. Returns the test that is to be repeated, if it is.
    fn over(&mut self, test: &Test, ended: Ended) -> Option<Test> {
        let Ended { verdict, time, story } = ended;
        self.rows.push((test.name.clone(), time, verdict.word()));
        let again = match &verdict {
            Verdict::Silent(reason) if self.chance.repeats(&verdict) => {
                let name = &test.name;
                println!(
                    "test {name} ... {reason}; it is repeated once, on hosts that are booted anew"
                );
                Some(Test { name: format!("{name}.again"), ..test.clone() })
            }
            _ => {
                self.count.add(Count::of(test, &verdict, time));
                None
            }
        };
        match verdict {
            Verdict::Failed(_) | Verdict::Silent(_) => story.print_failure(),
            _ if self.log => story.print(),
            _ => {}
        }
        again
    }
}
