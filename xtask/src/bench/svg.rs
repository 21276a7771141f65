//! Draws the ratios as bars: right is better, and a mark shows the aim.

use super::Row;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 400.0;
const RIGHT: f64 = 60.0;
const BAR: f64 = 22.0;
/// The range of the axis: from a quarter of the rival to eight times the rival.
const RANGE: (f64, f64) = (0.25, 8.0);

pub(crate) fn draw(rows: &[Row], machine: &str) -> String {
    let height = 96.0 + BAR * rows.len() as f64;
    let (bottom, below, last) = (height - 42.0, height - 26.0, height - 8.0);
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="12" y="24" font-size="16" font-weight="bold">How many times better than the rival (the mark is the aim)</text>
"##
    );
    for tick in [0.25, 0.5, 1.0, 2.0, 4.0, 8.0] {
        let (x, stroke) = (at(tick), if tick == 1.0 { "#444444" } else { "#dddddd" });
        let _ = writeln!(
            out,
            r#"<path d="M{x:.1} 44V{bottom:.1}" stroke="{stroke}"/><text x="{x:.1}" y="{below:.1}" text-anchor="middle">{tick}x</text>"#
        );
    }
    for (number, row) in rows.iter().enumerate() {
        let y = 50.0 + BAR * number as f64;
        let better = better(row, row.ratio);
        let colour = match row.reached() {
            Some(true) => "#009e73",
            Some(false) => "#d55e00",
            None => "#8fb4cc",
        };
        let (from, to) = (at(1.0).min(at(better)), at(1.0).max(at(better)));
        let (name, base, long) = (LEFT - 10.0, y + 12.0, (to - from).max(1.0));
        let (behind, what, rival) = (to + 5.0, row.what, &row.rival);
        let _ = writeln!(
            out,
            r#"<text x="{name:.1}" y="{base:.1}" text-anchor="end">{what} / {rival}</text><rect x="{from:.1}" y="{y:.1}" width="{long:.1}" height="15" fill="{colour}"/><text x="{behind:.1}" y="{base:.1}" font-size="11">{better:.2}x</text>"#
        );
        if let Some(aim) = row.aim {
            let (x, top) = (at(self::better(row, aim)), y - 2.0);
            let _ = writeln!(
                out,
                r##"<path d="M{x:.1} {top:.1}v19" stroke="#000000" stroke-width="2"/>"##
            );
        }
    }
    out + &format!(
        "<text x=\"12\" y=\"{last:.1}\" font-size=\"10\" fill=\"#666666\">{machine}</text>\n</svg>\n"
    )
}

/// Returns the ratio, or its inverse if less is better, so that a larger value is always better.
fn better(row: &Row, ratio: f64) -> f64 {
    if row.is_better_lower { 1.0 / ratio } else { ratio }
}

fn at(ratio: f64) -> f64 {
    let (low, high) = (RANGE.0.log2(), RANGE.1.log2());
    let place = (ratio.clamp(RANGE.0, RANGE.1).log2() - low) / (high - low);
    LEFT + place * (WIDTH - LEFT - RIGHT)
}
