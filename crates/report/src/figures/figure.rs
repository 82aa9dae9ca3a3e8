//! A figure as data: what the drawing and the tests see.

use crate::draw::scene::{Colour, Symbol};
use crate::interval::Interval;

/// A figure of one or more panels.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The stem of its files.
    pub name: &'static str,
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// Its panels, each with its own axes.
    pub panels: Vec<Panel>,
}

/// A pair of axes and what is between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What sets it apart from the other panels.
    pub title: String,
    /// From left to right.
    pub x: FigureAxis,
    /// From bottom to top.
    pub y: FigureAxis,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// One direction of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureAxis {
    /// Its quantity and unit.
    pub label: String,
    /// How values become places.
    pub scale: AxisScale,
}

impl FigureAxis {
    /// An axis.
    pub fn new(label: impl Into<String>, scale: AxisScale) -> Self {
        Self { label: label.into(), scale }
    }
}

/// How values become places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisScale {
    /// Equal steps are equal distances.
    Linear,
    /// The same for shares, which are written in percent.
    Percent,
    /// Doublings are equal distances; numbers of trajectories.
    Log2,
    /// Tenfolds are equal distances; costs.
    Log10,
    /// Equal steps are equal distances, and the numbers mean nothing.
    Unlabelled,
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// How it is drawn.
    pub style: SeriesStyle,
    /// Its points.
    pub points: Vec<DataPoint>,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesStyle {
    /// Its colour.
    pub colour: Colour,
    /// Its points.
    pub symbol: Symbol,
    /// What joins them.
    pub line: LineStyle,
    /// How its intervals are shown.
    pub intervals: IntervalStyle,
    /// Half the width of a point.
    pub radius: f32,
}

/// What joins the points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStyle {
    /// Nothing.
    None,
    /// A line.
    Solid,
    /// An interrupted line.
    Dashed,
}

/// How intervals are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntervalStyle {
    /// Not.
    None,
    /// As a band along the line.
    Band,
    /// As a bar at each point.
    Bars,
}

impl SeriesStyle {
    /// A line with dots and a band.
    pub fn line(colour: Colour) -> Self {
        Self {
            colour,
            symbol: Symbol::Circle,
            line: LineStyle::Solid,
            intervals: IntervalStyle::Band,
            radius: 2.8,
        }
    }

    /// Dots alone.
    pub fn points_only(colour: Colour, symbol: Symbol) -> Self {
        Self { colour, symbol, line: LineStyle::None, intervals: IntervalStyle::None, radius: 3.2 }
    }
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub struct DataPoint {
    /// Along the horizontal axis.
    pub x: f64,
    /// Along the vertical axis.
    pub y: f64,
    /// The 95% interval of y.
    pub interval: Option<(f64, f64)>,
    /// What it says when pointed at; lines are parted by newlines.
    pub tooltip: String,
}

impl DataPoint {
    /// A point with the interval of its y.
    pub fn with_interval(x: f64, Interval { value, low, high }: Interval, tip: String) -> Self {
        Self { x, y: value, interval: Some((low, high)), tooltip: tip }
    }
}

/// A share as people read it.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// A share with its interval.
pub fn percent_interval(interval: &Interval) -> String {
    format!(
        "{} (95%: {} – {})",
        percent(interval.value),
        percent(interval.low),
        percent(interval.high)
    )
}

/// Colours of series that are told apart by name; each is readable on white and on near-black.
pub const COLOURS: [Colour; 8] = [
    Colour(0x2f, 0x7f, 0xc9),
    Colour(0xd9, 0x6b, 0x0f),
    Colour(0x2a, 0x9d, 0x5c),
    Colour(0xc9, 0x3c, 0x5b),
    Colour(0x8a, 0x63, 0xd2),
    Colour(0x14, 0x96, 0x9e),
    Colour(0xa1, 0x6b, 0x47),
    GREY,
];

/// Dropout, from light to strong.
pub const REDS: (Colour, Colour) = (Colour(0xf3, 0xae, 0x8d), Colour(0xb0, 0x1c, 0x33));
/// Noise, from light to strong.
pub const BLUES: (Colour, Colour) = (Colour(0x8f, 0xc4, 0xee), Colour(0x23, 0x4f, 0xa8));
/// What is neither.
pub const GREY: Colour = Colour(0x7a, 0x86, 0x94);
/// What has no perturbation.
pub const GREEN: Colour = Colour(0x12, 0xa1, 0x50);

/// Colour `i` of `count` on a ramp.
pub fn ramp((light, strong): (Colour, Colour), i: usize, count: usize) -> Colour {
    light.towards(strong, if count < 2 { 1.0 } else { i as f64 / (count - 1) as f64 })
}
