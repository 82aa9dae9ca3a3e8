//! Figures as data, independent of their rendering.

use crate::draw::drawing::{Colour, Symbol};
use crate::interval::Interval;

/// A figure of one or more panels.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The stem of the file names.
    pub name: &'static str,
    /// The title.
    pub title: String,
    /// The caption, which explains how to read the figure.
    pub caption: String,
    /// The panels, each with separate axes.
    pub panels: Vec<Panel>,
}

/// A pair of axes with data series.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// The title, unique within the figure.
    pub title: String,
    /// The horizontal axis.
    pub x: FigureAxis,
    /// The vertical axis.
    pub y: FigureAxis,
    /// The data.
    pub series: Vec<Series>,
}

/// An axis of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureAxis {
    /// Quantity and unit.
    pub label: String,
    /// Linear or logarithmic.
    pub scale: AxisScale,
    /// Values that the axis must include in addition to the data.
    pub encloses: Vec<f64>,
}

impl FigureAxis {
    /// An axis with this label and scale.
    pub fn new(label: impl Into<String>, scale: AxisScale) -> Self {
        Self { label: label.into(), scale, encloses: Vec::new() }
    }

    /// Extends the axis to include these values in addition to the data.
    pub fn enclosing(self, values: impl IntoIterator<Item = f64>) -> Self {
        Self { encloses: values.into_iter().collect(), ..self }
    }
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisScale {
    /// Linear.
    Linear,
    /// Linear with ticks at integers.
    Count,
    /// Linear; values from 0 to 1, labeled in percent.
    Percent,
    /// Base-2 logarithm, for numbers of trajectories.
    Log2,
    /// Base-10 logarithm, for costs.
    Log10,
    /// Linear without tick labels, for embeddings.
    Unlabelled,
}

/// Data points with one label and style.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The label in the legend; empty for none.
    pub label: String,
    /// The style.
    pub style: SeriesStyle,
    /// The points.
    pub points: Vec<DataPoint>,
}

/// The style of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesStyle {
    /// The color.
    pub colour: Colour,
    /// The shape of the points.
    pub symbol: Symbol,
    /// The line between the points.
    pub line: LineStyle,
    /// How confidence intervals are drawn.
    pub intervals: IntervalStyle,
    /// Half the width of a point, in points.
    pub radius: f32,
    /// Opacity of the points, from 0 (transparent) to 1 (opaque).
    pub opacity: f32,
}

/// The line between the points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStyle {
    /// No line.
    None,
    /// A solid line.
    Solid,
    /// A dashed line.
    Dashed,
}

/// How confidence intervals are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntervalStyle {
    /// Not drawn.
    None,
    /// As a band along the line.
    Band,
    /// As a bar at each point.
    Bars,
}

impl SeriesStyle {
    /// A solid line with circles and a band.
    pub fn line(colour: Colour) -> Self {
        Self {
            colour,
            symbol: Symbol::Circle,
            line: LineStyle::Solid,
            intervals: IntervalStyle::Band,
            radius: 2.8,
            opacity: 1.0,
        }
    }

    /// Symbols without line and intervals.
    pub fn points_only(colour: Colour, symbol: Symbol) -> Self {
        Self {
            symbol,
            line: LineStyle::None,
            intervals: IntervalStyle::None,
            radius: 3.2,
            ..Self::line(colour)
        }
    }
}

/// A data point.
#[derive(Debug, Clone, PartialEq)]
pub struct DataPoint {
    /// The value on the horizontal axis.
    pub x: f64,
    /// The value on the vertical axis.
    pub y: f64,
    /// The 95% confidence interval of y, (low, high).
    pub interval: Option<(f64, f64)>,
    /// Text shown on hover; may have several lines.
    pub tooltip: String,
}

impl DataPoint {
    /// A point at `x` with a mean and its confidence interval on the vertical axis.
    pub fn with_interval(x: f64, Interval { value, low, high }: Interval, tooltip: String) -> Self {
        Self { x, y: value, interval: Some((low, high)), tooltip }
    }
}

/// Formats a fraction in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// Formats a fraction and its confidence interval in percent.
pub fn percent_interval(interval: &Interval) -> String {
    format!(
        "{} (95%: {} – {})",
        percent(interval.value),
        percent(interval.low),
        percent(interval.high)
    )
}

/// Colors of categorical series. Each has a contrast of at least 3 to white and to near-black, and
/// the first six and the last are distinguishable with any common color vision deficiency
/// (checked by `.ci/browser.py`).
pub const COLOURS: [Colour; 8] = [
    Colour(0x33, 0x92, 0xff),
    Colour(0xb7, 0x8d, 0x05),
    Colour(0xae, 0x24, 0xab),
    Colour(0xd8, 0x09, 0x20),
    Colour(0xff, 0x2c, 0xd9),
    Colour(0x11, 0x77, 0x4d),
    Colour(0x14, 0x96, 0x9e),
    GREY,
];

/// Symbols of categorical series, so that color is not the only difference.
pub const SYMBOLS: [Symbol; 4] =
    [Symbol::Circle, Symbol::Square, Symbol::Diamond, Symbol::Triangle];

/// Color ramp of dropout, from weak to strong. The ends of both ramps are visible on white
/// (contrast above 2) and on near-black (contrast above 3).
pub const REDS: (Colour, Colour) = (Colour(0xe9, 0x9b, 0x7a), Colour(0xc4, 0x2f, 0x44));
/// Color ramp of noise, from weak to strong.
pub const BLUES: (Colour, Colour) = (Colour(0x6a, 0xa6, 0xde), Colour(0x34, 0x66, 0xc4));
/// Neutral color.
pub const GREY: Colour = Colour(0x7a, 0x86, 0x94);
/// Color of the trajectory without perturbation.
pub const GREEN: Colour = Colour(0x12, 0xa1, 0x50);

/// Color `i` of `count` on a ramp between two colors.
pub fn ramp((weak, strong): (Colour, Colour), i: usize, count: usize) -> Colour {
    weak.towards(strong, if count < 2 { 1.0 } else { i as f64 / (count - 1) as f64 })
}
