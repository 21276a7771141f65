//! Runs tests on hosts that the tests share.

use super::machine::{Ended, Lab, NOT_UP};
use super::test::{Chance, Test, Verdict};
use crate::check::Count;
use crate::sh::Outcome;
use std::collections::VecDeque;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Run {
    pub(super) count: Count,
    /// The tests and boots, each with its time and its verdict.
    pub(super) rows: Vec<(String, Duration, &'static str)>,
    pub(super) chance: Chance,
    /// Whether the output of passed tests is also printed.
    pub(super) log: bool,
}

impl Run {
    /// Runs tests that are in the order of their boots. The parameters of `boot` are the processors of a host, and the number of
    /// hosts.
    pub(super) fn tests(
        &mut self,
        tests: &[Test],
        boot: impl Fn(usize, usize) -> Outcome<Option<Lab>>,
    ) -> Outcome {
        // Tests that need other hosts get newly booted hosts: rdma_rxe is not used with a second device after tests on one device,
        // because messages were lost permanently in that state.
        for like in tests.chunk_by(|a, b| a.boot() == b.boot()) {
            let (mut alone, mut together): (Vec<Test>, Vec<Test>) =
                like.iter().cloned().partition(|test| test.hosts == 1);
            // Tests without a device run first, and tests that change their host run last. The longest of the other tests runs
            // first, so that no long test remains at the end.
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
                // If a test failed, the machine itself may be broken, for instance by a network card that sends no packets. The
                // next test would also fail on this machine, after its whole time limit.
                let is_good = matches!(ended.verdict, Verdict::Passed | Verdict::Skipped(_));
                lab = Some(running).filter(|lab| lab.whole && is_good && !test.last);
                self.over(&test, ended).into_iter().for_each(|test| together.push_front(test));
            }
        }
        Ok(())
    }

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

    /// Prints and counts the result of a test. Returns the test if it is to be repeated.
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
