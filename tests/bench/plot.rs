//! SVG plot for each goal: one row per figure, with its repeats as dots on its own scale, beside the anchor
//! and the goal.

use std::fmt::Write;

use crate::{
    measure::{Measured, Target},
    plan::Goal,
    report::figure,
};

const WIDTH: f64 = 760.0;
const ROW: f64 = 64.0;
const HEAD: f64 = 40.0;
/// Start and end of the scale.
const LEFT: f64 = 30.0;
const RIGHT: f64 = WIDTH - 30.0;

/// Plots the figures of one goal.
pub fn svg(goal: Goal, measured: &[&Measured]) -> String {
    let height = HEAD + ROW * measured.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" fill=\"#1a1a1a\">{goal}: {}</text>\n",
        goal.what()
    );
    for (at, measured) in measured.iter().enumerate() {
        row(&mut svg, measured, HEAD + ROW * at as f64).expect("writing to a string cannot fail");
    }
    svg.push_str("</svg>\n");
    svg
}

fn row(svg: &mut String, measured: &Measured, top: f64) -> std::fmt::Result {
    let (metric, anchor) = (&measured.metric, measured.anchor().median);
    let is_ratio = matches!(metric.target, Target::RatioAtLeast(_) | Target::RatioAtMost(_));
    let goal = match metric.target {
        Target::RatioAtLeast(bound) | Target::RatioAtMost(bound) => Some(bound * anchor),
        Target::AtLeast(bound) | Target::AtMost(bound) => Some(bound),
        Target::Told => None,
    };
    let values = measured.repeats.iter().map(|repeat| repeat.value);
    let most = values.chain(goal).chain(is_ratio.then_some(anchor)).fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| LEFT + (RIGHT - LEFT) * (value / (most * 1.05)).clamp(0.0, 1.0);
    let (middle, median) = (top + 34.0, measured.value().median);
    let color = match measured.holds() {
        Some(true) => "#1b7f4d",
        Some(false) => "#b3341f",
        None => "#3a5fa8",
    };
    let what = metric.what.replace('&', "&amp;").replace('<', "&lt;");
    writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.0}\" fill=\"#1a1a1a\">{what}: {} {}</text>",
        top + 14.0,
        figure(median),
        metric.unit
    )?;
    writeln!(
        svg,
        "<line x1=\"{LEFT}\" y1=\"{middle}\" x2=\"{RIGHT}\" y2=\"{middle}\" stroke=\"#d8d8d8\"/>\
         <rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{:.1}\" height=\"8\" fill=\"{color}\" fill-opacity=\"0.35\"/>",
        middle - 4.0,
        x(median) - LEFT
    )?;
    if is_ratio {
        mark(svg, x(anchor), middle, "#8a8a8a", "", &format!("raw {}", figure(anchor)))?;
    }
    if let Some(goal) = goal {
        mark(svg, x(goal), middle, color, " stroke-dasharray=\"3 3\"", &format!("goal {}", figure(goal)))?;
    }
    for repeat in &measured.repeats {
        let fill = if repeat.is_noisy { "none" } else { color };
        let at = x(repeat.value);
        writeln!(svg, "<circle cx=\"{at:.1}\" cy=\"{middle}\" r=\"4\" fill=\"{fill}\" stroke=\"{color}\"/>")?;
    }
    Ok(())
}

/// A line across the row with a label below it, kept within the picture.
fn mark(svg: &mut String, x: f64, middle: f64, color: &str, dashes: &str, word: &str) -> std::fmt::Result {
    let anchor = if x > RIGHT - 60.0 { "end" } else { "start" };
    writeln!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{:.0}\" x2=\"{x:.1}\" y2=\"{:.0}\" stroke=\"{color}\"{dashes}/>\
         <text x=\"{x:.1}\" y=\"{:.0}\" font-size=\"10\" fill=\"{color}\" text-anchor=\"{anchor}\">{word}</text>",
        middle - 12.0,
        middle + 12.0,
        middle + 22.0
    )
}
