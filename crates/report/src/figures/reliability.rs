//! Reliability diagram: confidence against accuracy of the calibrated rule's answers.

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, Series,
    SeriesStyle, percent, percent_interval,
};
use crate::draw::drawing::Symbol;
use crate::interval::Interval;
use crate::run_data::RunData;

/// Caption of the figure.
const CAPTION: &str = "\
    Answers of the calibrated rule in ten bins of confidence: mean confidence against accuracy, \
    which are equal on the dashed line. Bars: 95% confidence interval over the answers of the bin. \
    The expected calibration error is the mean distance from the line, weighted by answers.";

/// `None` if no run has a calibration.
pub fn figure(runs: &[RunData]) -> Option<Figure> {
    let panels: Vec<Panel> = runs.iter().filter_map(panel).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "reliability",
        title: "Confidence against accuracy".into(),
        caption: CAPTION.into(),
        panels,
    })
}

fn panel(run: &RunData) -> Option<Panel> {
    let reliability = run.results.reliability.as_ref()?;
    let points = reliability.bins.iter().filter_map(|bin| {
        let right = (bin.accuracy * bin.count as f64).round() as usize;
        let outcomes: Vec<f64> = (0..bin.count).map(|i| f64::from(u8::from(i < right))).collect();
        let interval = Interval::of_share(&outcomes)?;
        let tooltip = format!(
            "{} answers\nconfidence {}\naccuracy {}",
            bin.count,
            percent(bin.confidence),
            percent_interval(&interval)
        );
        Some(DataPoint::with_interval(bin.confidence, interval, tooltip))
    });
    let measured = Series {
        label: "calibrated".into(),
        style: SeriesStyle { intervals: IntervalStyle::Bars, ..SeriesStyle::line(COLOURS[0]) },
        points: points.collect(),
    };
    let at = |x: f64| {
        let exact = Interval { value: x, low: x, high: x };
        DataPoint::with_interval(x, exact, String::new())
    };
    let ideal = Series {
        label: "confidence = accuracy".into(),
        style: SeriesStyle {
            symbol: Symbol::Hidden,
            line: LineStyle::Dashed,
            intervals: IntervalStyle::None,
            ..SeriesStyle::line(COLOURS[COLOURS.len() - 1])
        },
        points: vec![at(0.0), at(1.0)],
    };
    let error = reliability.expected_calibration_error;
    Some(Panel {
        title: format!("{}: expected calibration error {error:.3}", run.label),
        x: FigureAxis::new("confidence (%)", AxisScale::Percent),
        y: FigureAxis::new("accuracy (%)", AxisScale::Percent),
        series: vec![ideal, measured],
    })
}
