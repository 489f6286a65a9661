//! The plots: how the figures go with the message size, and how far from what is wanted.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::row::{Unit, Want};
use crate::schedule::{Measured, Medians, Regime};

const WIDTH: u32 = 900;
const BAR: u32 = 34;
const OURS: RGBColor = RGBColor(0x1b, 0x6c, 0xa8);
const PEER: RGBColor = RGBColor(0xc8, 0x55, 0x3d);
const FONT: &str = "sans-serif";

/// Writes `peers-<operation>.svg` for each curve and `peers-ratios.svg`.
pub(crate) fn draw(rows: &[Measured], out: &Path) -> Result<()> {
    for operation in ["SEND", "WRITE", "READ"] {
        let points = curve(rows, operation);
        if points.len() > 1 {
            let name = format!("peers-{}.svg", operation.to_lowercase());
            curves(&points, operation, &out.join(name)).map_err(|error| anyhow!("{error}"))?;
        }
    }
    let bars: Vec<_> = rows.iter().filter_map(bar).collect();
    if !bars.is_empty() {
        ratios(&bars, &out.join("peers-ratios.svg")).map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}

/// The figures of the regime that more of the rows were measured in.
fn best(row: &Measured) -> Option<Medians> {
    row.medians(Regime::Fast).or_else(|| row.medians(Regime::Slow))
}

/// Size, ours and theirs in bytes per second.
#[expect(clippy::cast_precision_loss, reason = "sizes are small")]
fn curve(rows: &[Measured], operation: &str) -> Vec<(f64, f64, f64)> {
    let mut points: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let (name, size) = row.row.curve?;
            let medians = best(row)?;
            let bytes = match row.row.unit {
                Unit::Rate => 1e6 * size as f64,
                _ => 1e9,
            };
            (name == operation).then_some((size as f64, medians.ours * bytes, medians.peer * bytes))
        })
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn curves(points: &[(f64, f64, f64)], operation: &str, path: &Path) -> Drawn {
    let root = SVGBackend::new(path, (WIDTH, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let values = || points.iter().flat_map(|point| [point.1, point.2]);
    let low = values().fold(f64::MAX, f64::min) / 2.0;
    let high = values().fold(0.0, f64::max) * 2.0;
    let (first, last) = (points[0].0, points[points.len() - 1].0);
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("{operation} between two processes, shared memory"), (FONT, 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(90)
        .build_cartesian_2d((first..last).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message size, bytes")
        .y_desc("bytes per second")
        .y_label_formatter(&|value| format!("{value:.0e}"))
        .x_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;
    for (label, color, pick) in [("spinwire", OURS, true), ("UCX posix", PEER, false)] {
        let line: Vec<_> =
            points.iter().map(|point| (point.0, if pick { point.1 } else { point.2 })).collect();
        chart
            .draw_series(LineSeries::new(line.clone(), color.stroke_width(2)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        chart.draw_series(line.into_iter().map(|at| Circle::new(at, 4, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

/// How good a row is, 1 being just what is wanted.
fn bar(row: &Measured) -> Option<(String, f64)> {
    let medians = best(row)?;
    let good = match (row.row.want, row.row.unit) {
        (Want::Nothing, _) => return None,
        (Want::Ratio(want), Unit::Latency) => want / medians.ratio,
        (Want::Ratio(want), _) => medians.ratio / want,
        (Want::Above(want), _) => (medians.peer + want) / medians.ours,
    };
    Some((row.row.name.clone(), good))
}

fn ratios(bars: &[(String, f64)], path: &Path) -> Drawn {
    let count = u32::try_from(bars.len())?;
    let root = SVGBackend::new(path, (WIDTH, 110 + BAR * count)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = bars.iter().map(|bar| bar.1).fold(1.5, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(&root)
        .caption("What was reached, as a multiple of what is wanted", (FONT, 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(330)
        .build_cartesian_2d(0.0..most, 0.0..f64::from(count))?;
    let name = |at: &f64| {
        let nth = bars.iter().enumerate().find(|(nth, _)| (at - middle(*nth)).abs() < 0.01);
        nth.map_or_else(String::new, |(_, bar)| bar.0.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(bars.len() * 2 + 1)
        .y_label_formatter(&name)
        .x_desc("1 = wanted")
        .draw()?;
    chart.draw_series(bars.iter().enumerate().map(|(nth, bar)| {
        let at = middle(nth);
        let color = if bar.1 >= 1.0 { OURS } else { PEER };
        Rectangle::new([(0.0, at - 0.35), (bar.1, at + 0.35)], color.filled())
    }))?;
    let wanted = [(1.0, 0.0), (1.0, f64::from(count))];
    chart.draw_series(LineSeries::new(wanted, BLACK.stroke_width(2)))?;
    root.present()?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a few rows")]
fn middle(nth: usize) -> f64 {
    nth as f64 + 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_plot_are_svg() {
        let folder = std::env::temp_dir().join(format!("spinwire-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let points = [(8.0, 1e9, 4e8), (4096.0, 1e11, 4e10)];
        curves(&points, "SEND", &folder.join("curve.svg")).expect("a plot");
        ratios(&[("a row".into(), 1.2), ("another".into(), 0.8)], &folder.join("bars.svg"))
            .expect("a plot");
        for name in ["curve.svg", "bars.svg"] {
            let text = std::fs::read_to_string(folder.join(name)).expect("it was written");
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{name}");
        }
        assert!(
            std::fs::read_to_string(folder.join("bars.svg")).expect("text").contains("another")
        );
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
