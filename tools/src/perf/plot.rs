//! `--plot`: draws latency and bandwidth over size as one SVG file, with two logarithmic axes.

use super::args::Test;
use super::output::{Record, scaled, time};
use crate::size;
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
/// The left, right, top and bottom margin of a panel's plotting area.
const MARGIN: (f64, f64, f64, f64) = (76.0, 20.0, 44.0, 46.0);
/// Colours that people with any colour vision can distinguish (Okabe and Ito). The shapes of the points also differ.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999"];

type Series<'a> = (Test, &'a str);

fn key(record: &Record) -> Series<'_> {
    (record.test, &record.path)
}

struct Panel {
    title: &'static str,
    value: fn(&Record) -> f64,
    label: fn(f64) -> String,
    legend_at_bottom: bool,
}

/// Draws the records as an SVG document: the latency of the `_lat` tests on the left, the bandwidth of all tests with sizes on the
/// right.
pub(crate) fn svg(records: &[Record]) -> String {
    let latency = Panel {
        title: "Latency (p50)",
        value: |r| r.p50_ns,
        label: |v| time(v).replace(".0 ", " ").replace(".00 ", " "),
        legend_at_bottom: false,
    };
    let bandwidth = Panel {
        title: "Bandwidth",
        value: |r| r.bytes_per_second,
        label: |v| scaled(v, "B/s").replace(".0 ", " ").replace(".00 ", " "),
        legend_at_bottom: true,
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{HEIGHT}\" viewBox=\"0 0 {w} \
         {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#ffffff\"/>\n",
        w = 2.0 * WIDTH
    );
    // A series has the same number, and therefore the same colour, in both panels.
    let mut series: Vec<Series<'_>> = Vec::new();
    for key in records.iter().map(key) {
        if !series.contains(&key) {
            series.push(key);
        }
    }
    let latencies = records.iter().filter(|r| r.test.is_latency());
    panel(&mut out, 0.0, &latency, &series, &latencies.collect::<Vec<_>>());
    let sized = records.iter().filter(|r| !r.test.has_fixed_size());
    panel(&mut out, WIDTH, &bandwidth, &series, &sized.collect::<Vec<_>>());
    out.push_str("</svg>\n");
    out
}

/// Returns the logarithm of a positive number, to about 14 digits. With the function of the C library, every command would load the
/// mathematical library at its start.
fn log(value: f64, base: f64) -> f64 {
    const FRACTION: u32 = f64::MANTISSA_DIGITS - 1;
    let binary = |value: f64| {
        let bits = value.to_bits();
        let exponent = (bits >> FRACTION) as f64 - 1023.0;
        let fraction = f64::from_bits(bits & ((1 << FRACTION) - 1) | 1.0_f64.to_bits());
        // The series of the inverse hyperbolic tangent, whose argument is at most a third.
        let x = (fraction - 1.0) / (fraction + 1.0);
        let series = (0..20).rev().fold(0.0, |sum, n| sum * x * x + 1.0 / f64::from(2 * n + 1));
        exponent + 2.0 * x * series / std::f64::consts::LN_2
    };
    let log = binary(value) / binary(base);
    // A power of the base lies on its line of the grid.
    if (log - log.round()).abs() < 1e-12 { log.round() } else { log }
}

/// A logarithmic axis that begins and ends at whole powers of its base.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, base: f64, from: f64, to: f64) -> Option<Axis> {
        let (mut low, mut high) = (f64::MAX, f64::MIN);
        for value in values.filter(|v| *v > 0.0) {
            low = low.min(log(value, base).floor());
            high = high.max(log(value, base).ceil());
        }
        if high == low {
            high += 1.0;
        }
        (low < high).then_some(Axis { low, high, from, to })
    }

    fn at(&self, log: f64) -> f64 {
        self.from + (log - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

fn panel(out: &mut String, x0: f64, panel: &Panel, series: &[Series<'_>], records: &[&Record]) {
    let (left, right, top, bottom) =
        (x0 + MARGIN.0, x0 + WIDTH - MARGIN.1, MARGIN.2, HEIGHT - MARGIN.3);
    let _ = writeln!(
        out,
        "<text x=\"{left}\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{}</text>",
        panel.title
    );
    let xs = Axis::new(records.iter().map(|r| r.size as f64), 2.0, left, right);
    let ys = Axis::new(records.iter().map(|r| (panel.value)(r)), 10.0, bottom, top);
    let (Some(xs), Some(ys)) = (xs, ys) else {
        let _ = writeln!(out, "<text x=\"{left}\" y=\"60\" fill=\"#666\">not measured</text>");
        return;
    };
    grid(out, panel, &xs, &ys);
    let here = |wanted: &Series<'_>| records.iter().any(|r| key(r) == *wanted);
    let seen: Vec<(usize, &Series<'_>)> =
        series.iter().enumerate().filter(|(_, wanted)| here(wanted)).collect();
    for (number, wanted) in &seen {
        let points: Vec<(f64, f64)> = records
            .iter()
            .filter(|r| key(r) == **wanted)
            .map(|r| (xs.at(log(r.size as f64, 2.0)), ys.at(log((panel.value)(r), 10.0))))
            .collect();
        line(out, *number, &points);
    }
    legend(out, panel, &seen, left, top, bottom);
}

fn grid(out: &mut String, panel: &Panel, xs: &Axis, ys: &Axis) {
    let every = ((xs.high - xs.low) / 12.0).ceil().max(1.0) as usize;
    for power in (xs.low as i32..=xs.high as i32).step_by(every) {
        let x = xs.at(f64::from(power));
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {:.1}V{:.1}\" stroke=\"#e4e4e4\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{}</text>",
            ys.to,
            ys.from,
            ys.from + 18.0,
            size::show(1 << power.max(0))
        );
    }
    for power in ys.low as i32..=ys.high as i32 {
        let y = ys.at(f64::from(power));
        let _ = writeln!(
            out,
            "<path d=\"M{:.1} {y:.1}H{:.1}\" stroke=\"#cfcfcf\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            xs.from,
            xs.to,
            xs.from - 6.0,
            y + 4.0,
            (panel.label)(10f64.powi(power))
        );
        for minor in 2..10 {
            let log = f64::from(power) + log(f64::from(minor), 10.0);
            if log < ys.high {
                let y = ys.at(log);
                let _ = writeln!(
                    out,
                    "<path d=\"M{:.1} {y:.1}H{:.1}\" stroke=\"#f3f3f3\"/>",
                    xs.from, xs.to
                );
            }
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444\">size in bytes</text>",
        (xs.from + xs.to) / 2.0,
        ys.from + 36.0
    );
}

fn line(out: &mut String, number: usize, points: &[(f64, f64)]) {
    let colour = COLOURS[number % COLOURS.len()];
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let _ = writeln!(
        out,
        "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join("L")
    );
    for &(x, y) in points {
        let _ = writeln!(out, "{}", point(number, x, y));
    }
}

fn point(number: usize, x: f64, y: f64) -> String {
    let colour = COLOURS[number % COLOURS.len()];
    match number % 3 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"),
        1 => format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6.4\" height=\"6.4\" fill=\"{colour}\"/>",
            x - 3.2,
            y - 3.2
        ),
        _ => format!("<path d=\"M{x:.1} {:.1}l4 7h-8z\" fill=\"{colour}\"/>", y - 4.5),
    }
}

fn legend(
    out: &mut String,
    panel: &Panel,
    series: &[(usize, &Series<'_>)],
    left: f64,
    top: f64,
    bottom: f64,
) {
    let height = 18.0 * series.len() as f64;
    let right = left - MARGIN.0 + WIDTH - MARGIN.1;
    let letters = series.iter().map(|(_, (test, path))| test.name().len() + path.len() + 2).max();
    let width = 34.0 + 6.6 * letters.unwrap_or(0) as f64;
    // The legend is in the corner without curves: bandwidth rises to the upper right, and latency rises from the lower left.
    let (x, y) = if panel.legend_at_bottom {
        (right - width - 8.0, bottom - height - 14.0)
    } else {
        (left + 10.0, top + 6.0)
    };
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"#ffffff\" \
         fill-opacity=\"0.85\" stroke=\"#cfcfcf\"/>",
        height + 8.0
    );
    for (row, (number, (test, path))) in series.iter().enumerate() {
        let y = y + 13.0 + 18.0 * row as f64;
        let _ = writeln!(
            out,
            "{}<text x=\"{:.1}\" y=\"{:.1}\">{}  {}</text>",
            point(*number, x + 13.0, y),
            x + 26.0,
            y + 4.0,
            test.name(),
            escape(path)
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::stats::Summary;

    fn record(test: Test, size: usize, path: &str) -> Record {
        let ns = 80.0 + size as f64 / 12.0;
        let summary = Summary {
            iterations: 1,
            p50_ns: ns,
            p99_ns: ns,
            mean_ns: ns,
            bytes_per_second: size as f64 * 1e9 / ns,
            messages_per_second: 1e9 / ns,
        };
        Record::new(test, size, path.into(), summary)
    }

    #[test]
    fn every_series_has_its_line_points_and_legend() {
        let records: Vec<Record> = (0..20)
            .flat_map(|p| {
                [record(Test::AmLat, 1 << p, "shm"), record(Test::AmBw, 1 << p, "shm <&>")]
            })
            .collect();
        let svg = svg(&records);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("am_lat  shm</text>").count(), 2);
        assert_eq!(svg.matches("am_bw  shm &lt;&amp;&gt;</text>").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn logarithm_is_that_of_the_library_and_whole_for_powers_of_the_base() {
        for power in -12..=15 {
            assert_eq!(log(10_f64.powi(power), 10.0), f64::from(power));
            assert_eq!(log(2_f64.powi(power), 2.0), f64::from(power));
        }
        for value in [1.5, 3.0, 7.0, 9.99, 1e-9, 12_345.678, 1.8e10] {
            for base in [2.0, 10.0] {
                assert!((log(value, base) - value.log(base)).abs() < 1e-12, "{value} {base}");
            }
        }
    }

    #[test]
    fn a_single_size_and_nothing_at_all_still_make_a_picture() {
        for records in
            [vec![], vec![record(Test::AmLat, 8, "shm")], vec![record(Test::FaddLat, 8, "x")]]
        {
            let svg = svg(&records);
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
        }
    }
}
