//! The table and the JSON lines of the results.

use super::args::Test;
use super::disturbed::Disturbed;
use super::stats::Summary;
use crate::size;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) iterations: u64,
    pub(crate) path: String,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) mean_ns: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) messages_per_second: f64,
    /// The number of preemptions of either side during the measurement.
    pub(crate) preempted: u64,
    /// The time in milliseconds that the host of a virtual machine took away during the measurement.
    pub(crate) stolen_ms: u64,
    /// The candidates that did not become a path, each with the reason.
    pub(crate) hindrances: Vec<String>,
}

impl Record {
    pub(crate) fn new(test: Test, size: usize, path: String, summary: Summary) -> Record {
        let Summary { iterations, p50_ns, p99_ns, mean_ns, bytes_per_second, messages_per_second } =
            summary;
        Record {
            test,
            size,
            iterations,
            path,
            p50_ns,
            p99_ns,
            mean_ns,
            bytes_per_second,
            messages_per_second,
            preempted: 0,
            stolen_ms: 0,
            hindrances: Vec::new(),
        }
    }

    pub(crate) fn with(self, disturbed: Disturbed, hindrances: Vec<String>) -> Record {
        let Disturbed { preempted, stolen_ms } = disturbed;
        Record { preempted, stolen_ms, hindrances, ..self }
    }
}

pub(crate) enum Output {
    /// A table. `told` contains the hindrances that were already printed.
    Table {
        headed: bool,
        told: Vec<String>,
    },
    Json,
}

impl Output {
    pub(crate) fn way(record: &Record) -> String {
        let &Record { preempted, stolen_ms, .. } = record;
        match (Disturbed { preempted, stolen_ms }).words() {
            None => record.path.clone(),
            Some(words) => format!("{} ({words})", record.path),
        }
    }

    pub(crate) fn write(&mut self, to: &mut impl Write, record: &Record) -> io::Result<()> {
        match self {
            Output::Json => {
                serde_json::to_writer(&mut *to, record)?;
                writeln!(to)?;
            }
            Output::Table { headed, told } => {
                if !*headed {
                    *headed = true;
                    writeln!(
                        to,
                        "{:<10} {:>6} {:>11} {:>10} {:>10} {:>10} {:>12} {:>12}  path",
                        "test", "size", "iterations", "p50", "p99", "mean", "bandwidth", "rate"
                    )?;
                }
                writeln!(
                    to,
                    "{:<10} {:>6} {:>11} {:>10} {:>10} {:>10} {:>12} {:>12}  {}",
                    record.test.name(),
                    size::show(record.size),
                    record.iterations,
                    time(record.p50_ns),
                    time(record.p99_ns),
                    time(record.mean_ns),
                    scaled(record.bytes_per_second, "B/s"),
                    scaled(record.messages_per_second, "/s"),
                    Output::way(record)
                )?;
                for hindrance in &record.hindrances {
                    if !told.contains(hindrance) {
                        writeln!(to, "  not {hindrance}")?;
                        told.push(hindrance.clone());
                    }
                }
            }
        }
        to.flush()
    }
}

/// Formats nanoseconds: `87 ns`, `1.24 us`.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        n if n < 99.95 => format!("{n:.1} ns"),
        n if n < 999.5 => format!("{n:.0} ns"),
        n if n < 999_500.0 => format!("{} us", three(n / 1e3)),
        n if n < 999_500_000.0 => format!("{} ms", three(n / 1e6)),
        n => format!("{} s", three(n / 1e9)),
    }
}

/// Formats a rate: `11.9 GB/s`, `87.1 M/s`.
pub(crate) fn scaled(value: f64, unit: &str) -> String {
    for (from, letter) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= from * 0.9995 {
            return format!("{} {letter}{unit}", three(value / from));
        }
    }
    format!("{} {unit}", three(value))
}

fn three(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let summary = Summary {
            iterations: 1000,
            p50_ns: 87.25,
            p99_ns: 1240.0,
            mean_ns: 90.0,
            bytes_per_second: 11.94e9,
            messages_per_second: 22e6,
        };
        Record::new(Test::AmLat, 4096, "shm".into(), summary)
    }

    #[test]
    fn a_line_of_json_has_exactly_the_fields_that_are_promised() {
        let mut out = Vec::new();
        Output::Json.write(&mut out, &record()).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let mut fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        let promised = [
            "bytes_per_second",
            "hindrances",
            "iterations",
            "mean_ns",
            "messages_per_second",
            "p50_ns",
            "p99_ns",
            "path",
            "preempted",
            "size",
            "stolen_ms",
            "test",
        ];
        assert_eq!(fields, promised);
        assert_eq!(value["test"], "am_lat");
    }

    #[test]
    fn a_table_has_one_head_and_columns_that_line_up() {
        let mut out = Vec::new();
        let mut output = Output::Table { headed: false, told: Vec::new() };
        output.write(&mut out, &record()).unwrap();
        output.write(&mut out, &record()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].find("path"), lines[1].find("shm"));
        assert!(lines[1].contains("87.2 ns") && lines[1].contains("11.9 GB/s"), "{}", lines[1]);
    }

    #[test]
    fn hindrances_stand_once_under_the_first_line_and_disturbances_in_theirs() {
        let mut out = Vec::new();
        let mut output = Output::Table { headed: true, told: Vec::new() };
        let not = "shm-cma/copy: the kernel forbids it".to_string();
        let disturbed = Disturbed { preempted: 2, stolen_ms: 0 };
        output.write(&mut out, &record().with(disturbed, vec![not.clone()])).unwrap();
        output.write(&mut out, &record().with(Disturbed::default(), vec![not])).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("shm (preempted 2 times)"), "{}", lines[0]);
        assert_eq!(lines[1], "  not shm-cma/copy: the kernel forbids it");
        assert!(lines[2].ends_with("shm"), "{}", lines[2]);
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [time(9.96), time(123.0), time(999.9), time(1240.0), time(2.5e6), time(3e9)];
        assert_eq!(shown, ["10.0 ns", "123 ns", "1.00 us", "1.24 us", "2.50 ms", "3.00 s"]);
        assert_eq!(scaled(999_900.0, "/s"), "1.00 M/s");
        assert_eq!(scaled(12.0, "B/s"), "12.0 B/s");
    }
}
