//! A pair of programs, a server on h0 and a client on h1: their commands, and the parsing of their figures.

use crate::bench::groups::Unit;
use crate::bench::source::{number, ucx_field};
use crate::sh::Outcome;

#[derive(Clone, Copy)]
pub(super) enum Tool {
    Tieline,
    Perftest(&'static str),
    Ucx,
}

#[derive(Clone, Copy)]
pub(super) enum Figure {
    /// The median time in nanoseconds, as the program reports it.
    P50,
    Rate,
    Bandwidth,
    /// Instructions from doorbell to doorbell. The text is the first arguments of `steps`: the number of doorbells that pass before
    /// counting, and the number that is counted. The function accepts a count by the number of entries into the driver.
    Steps(&'static str, fn(u64) -> bool),
}

impl Figure {
    pub(super) fn unit(self) -> Unit {
        match self {
            Figure::P50 => Unit::Time,
            Figure::Rate => Unit::Rate,
            Figure::Bandwidth => Unit::Bandwidth,
            Figure::Steps(..) => Unit::Instructions,
        }
    }
}

pub(super) struct Pair {
    pub(super) tool: Tool,
    pub(super) test: &'static str,
    pub(super) iterations: u64,
    pub(super) figure: Figure,
}

/// The figure for the post of a put, in a stream without a poll between doorbells. Counting begins after the warm-up, a tenth of
/// [`STREAM`], because operations that were posted before the connection was established were queued.
pub(super) const POST_PUT: Figure = Figure::Steps("300 16", |entries| entries == 1);
/// The figure for the post of a message, in a stream without a poll between doorbells. The first messages after the warm-up have
/// credits, and the smallest count is that of such a message.
pub(super) const POST_MESSAGE: Figure = Figure::Steps("226 24", |entries| entries == 1);
/// The figure for a turn, with polls between doorbells.
pub(super) const TURN: Figure = Figure::Steps("60 15", |entries| entries != 1);
/// The figure for a turn of puts, in which the program may poll only its memory.
pub(super) const TURN_PUT: Figure = Figure::Steps("60 15", |_| true);
/// The number of operations of a stream whose posts are counted.
pub(super) const STREAM: u64 = 2000;

impl Pair {
    /// Returns the program that must be installed.
    pub(super) fn needs(&self) -> Option<&'static str> {
        match self.tool {
            Tool::Tieline => None,
            Tool::Perftest(program) => Some(program),
            Tool::Ucx => Some("ucx_perftest"),
        }
    }

    /// Returns the command of h0, which listens on `port` and ends with its client.
    pub(super) fn server(&self, port: u16) -> String {
        match self.tool {
            Tool::Tieline => {
                format!("\"$TARGET/release/tieline\" perf --listen 0.0.0.0:{port} --once")
            }
            Tool::Perftest(_) => self.perftest(port),
            Tool::Ucx => format!("ucx_perftest -p {port}"),
        }
    }

    pub(super) fn client(&self, port: u16) -> String {
        let count = match self.figure {
            Figure::Steps(which, _) => format!("\"$TARGET/bench/steps\" {which} "),
            _ => String::new(),
        };
        let (test, n) = (self.test, self.iterations);
        let program = match self.tool {
            Tool::Tieline => format!(
                "\"$TARGET/release/tieline\" perf --connect \"$H0\":{port} --path verbs --json --iterations {n} --test {test}"
            ),
            Tool::Perftest(_) => format!("{} \"$H0\"", self.perftest(port)),
            Tool::Ucx => format!(
                "ucx_perftest -p {port} \"$H0\" -v -f -x rc_verbs -d rxe0:1 -n {n} -w {} -t {test}",
                n / 10
            ),
        };
        count + &program
    }

    fn perftest(&self, port: u16) -> String {
        let Tool::Perftest(program) = self.tool else { return String::new() };
        format!("{program} -d rxe0 -x \"$GID\" -F -p {port} -n {} {}", self.iterations, self.test)
    }

    pub(super) fn read(&self, said: &str) -> Outcome<f64> {
        if let Figure::Steps(_, fits) = self.figure {
            return steps(said, fits);
        }
        let unit = self.figure.unit();
        match self.tool {
            Tool::Tieline => {
                let line = said.lines().rfind(|line| line.starts_with('{'));
                let line = line.ok_or("tieline perf printed nothing")?;
                if !line.contains(":\"verbs:") {
                    return Err(format!("not over verbs: {line}"));
                }
                number(line, unit.field())
            }
            Tool::Perftest(_) => perftest_field(said, unit),
            Tool::Ucx => ucx_field(said, unit),
        }
    }
}

/// Reads the table of a perftest program: a line of names that begins with `#bytes`, then the figures. perftest's megabyte has 2^20
/// bytes, its times are in microseconds, and its rates in millions.
fn perftest_field(said: &str, unit: Unit) -> Outcome<f64> {
    let mut lines = said.lines().map(str::trim).skip_while(|line| !line.starts_with("#bytes"));
    let names = lines.next().unwrap_or_default();
    let figures = lines.find(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    // A name may contain a blank, so the columns are counted.
    let (expected, column, scale) = match unit {
        Unit::Bandwidth => ("BW average[MB/sec]", 3, 1_048_576.0),
        Unit::Rate => ("MsgRate[Mpps]", 4, 1e6),
        _ => ("t_typical[usec]", 4, 1e3),
    };
    let figure = figures
        .filter(|_| names.contains(expected))
        .and_then(|line| line.split_whitespace().nth(column)?.parse::<f64>().ok());
    figure.map(|figure| figure * scale).ok_or_else(|| {
        format!("perftest has no {expected}: {}", said.lines().last().unwrap_or("no output").trim())
    })
}

/// Returns the smallest count in the lines `steps ALL IN-THE-DRIVER ENTRIES` whose number of entries into the driver is accepted.
/// Higher counts include waiting or occasional work. A post enters the driver once, and a turn with polls enters it several times.
fn steps(said: &str, fits: impl Fn(u64) -> bool) -> Outcome<f64> {
    let count = |line: &str| {
        let words = line.strip_prefix("steps ")?.split_whitespace();
        let words: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        match words[..] {
            [all, _, entries] if fits(entries) => Some(all),
            _ => None,
        }
    };
    let least = said.lines().filter_map(count).min();
    least.map(|count| count as f64).ok_or_else(|| "no instructions were counted".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_perftest_are_read() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                        8       1000          150.32         2100.00      163.25           170.1\n---\n";
        assert_eq!(perftest_field(latency, Unit::Time), Ok(163_250.0));
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                          65536      200              50.00              40.00              0.000640\n";
        assert_eq!(perftest_field(bandwidth, Unit::Bandwidth), Ok(40.0 * 1_048_576.0));
        assert_eq!(perftest_field(bandwidth, Unit::Rate), Ok(640.0));
        assert!(perftest_field(bandwidth, Unit::Time).is_err());
        assert!(perftest_field("Couldn't connect to 10.77.0.1", Unit::Time).is_err());
    }

    #[test]
    fn a_post_is_counted_where_nothing_was_polled_between() {
        let said = "noise\nsteps 300 100 1\nsteps 900 300 3\nsteps 700 300 3\nsteps 305 100 1\n";
        assert_eq!(steps(said, |entries| entries == 1), Ok(300.0));
        assert_eq!(steps(said, |entries| entries != 1), Ok(700.0), "the turn that waited least");
        assert!(steps("steps: the program is gone", |_| true).is_err());
    }
}
