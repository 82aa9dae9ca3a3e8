//! Layout of a figure into primitives: single panels with axes for the page, and sheets of panels
//! with title, legend and caption for image files. All lengths are in points.

use super::drawing::{
    ColourRole, Drawing, PointMarker, Primitive, Symbol, TextAnchor, TextLine, Xy,
};
use super::font::{Font, wrap};
use super::scale::AxisRange;
use crate::figures::{DataPoint, Figure, IntervalStyle, LineStyle, Panel, Series, SeriesStyle};

/// Width and height of a panel, including axes.
const PANEL_SIZE: Xy = (420.0, 310.0);
/// Width and height of the panel of a single-panel sheet, including axes.
const SINGLE_PANEL_SIZE: Xy = (640.0, 400.0);
/// Distances from the panel's edges to the plot area.
const INSET_LEFT: f32 = 58.0;
const INSET_TOP: f32 = 30.0;
const INSET_RIGHT: f32 = 14.0;
const INSET_BOTTOM: f32 = 46.0;
const MARGIN: f32 = 16.0;
const COLUMNS: usize = 3;
const TITLE_SIZE: f32 = 15.0;
const LABEL_SIZE: f32 = 12.0;
const SMALL_SIZE: f32 = 11.0;
/// Width and height of a series' sample in the legend.
const LEGEND_KEY_SIZE: Xy = (26.0, 14.0);

/// One panel, for the page.
pub fn panel(panel: &Panel) -> Drawing {
    let mut drawing = Drawing {
        width: PANEL_SIZE.0,
        height: PANEL_SIZE.1,
        title: panel.title.clone(),
        primitives: Vec::new(),
    };
    draw_panel(&mut drawing.primitives, panel, (0.0, 0.0), PANEL_SIZE);
    drawing
}

/// A sample of a series' line and symbol, for the page's legend.
pub fn legend_key(style: &SeriesStyle) -> Drawing {
    let mut primitives = Vec::new();
    draw_legend_key(&mut primitives, style, (0.0, LEGEND_KEY_SIZE.1 / 2.0));
    Drawing {
        width: LEGEND_KEY_SIZE.0,
        height: LEGEND_KEY_SIZE.1,
        title: String::new(),
        primitives,
    }
}

/// The whole figure with title, legend and caption, for image files.
pub fn sheet(figure: &Figure) -> Drawing {
    let columns = figure.panels.len().clamp(1, COLUMNS);
    let rows = figure.panels.len().div_ceil(columns);
    let size = if figure.panels.len() == 1 { SINGLE_PANEL_SIZE } else { PANEL_SIZE };
    let width = 2.0 * MARGIN + columns as f32 * size.0;
    let mut primitives = Vec::new();
    let mut y = MARGIN;
    let title = TextLine::new(&figure.title, TITLE_SIZE, ColourRole::Text);
    draw_paragraph(&mut primitives, &mut y, width, &TextLine { bold: true, ..title });
    let top = y + 4.0;
    for (i, panel) in figure.panels.iter().enumerate() {
        let corner = (MARGIN + (i % columns) as f32 * size.0, top + (i / columns) as f32 * size.1);
        draw_panel(&mut primitives, panel, corner, size);
    }
    y = top + rows as f32 * size.1 + 6.0;
    draw_legend(&mut primitives, &mut y, figure, width);
    y += 4.0;
    let caption = TextLine::new(&figure.caption, SMALL_SIZE, ColourRole::Muted);
    draw_paragraph(&mut primitives, &mut y, width, &caption);
    let height = y + MARGIN - 4.0;
    primitives.insert(
        0,
        Primitive::Polygon {
            points: rectangle((0.0, 0.0), (width, height)),
            role: ColourRole::Background,
            opacity: 1.0,
        },
    );
    Drawing { width, height, title: figure.title.clone(), primitives }
}

fn rectangle((x, y): Xy, (width, height): Xy) -> Vec<Xy> {
    vec![(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
}

/// Draws a text wrapped to a sheet of this width; moves `y` below the last line.
fn draw_paragraph(primitives: &mut Vec<Primitive>, y: &mut f32, width: f32, text: &TextLine) {
    let font = Font::new(text.bold, text.size);
    for line in wrap(&text.text, &font, width - 2.0 * MARGIN) {
        *y += 1.35 * text.size;
        let position = (MARGIN, *y - 0.3 * text.size);
        primitives.push(Primitive::Text(TextLine { position, text: line, ..text.clone() }));
    }
}

/// Draws the key and label of every series, in rows; moves `y` below the last row.
fn draw_legend(primitives: &mut Vec<Primitive>, y: &mut f32, figure: &Figure, width: f32) {
    let font = Font::new(false, LABEL_SIZE);
    let mut x = MARGIN;
    for series in figure.legend_series() {
        let needed = LEGEND_KEY_SIZE.0 + 6.0 + font.width(&series.label) + 18.0;
        if x + needed > width - MARGIN && x > MARGIN {
            (x, *y) = (MARGIN, *y + 19.0);
        }
        draw_legend_key(primitives, &series.style, (x, *y + 8.0));
        let position = (x + LEGEND_KEY_SIZE.0 + 6.0, *y + 12.0);
        let label = TextLine::new(&series.label, LABEL_SIZE, ColourRole::Text);
        primitives.push(Primitive::Text(TextLine { position, ..label }));
        x += needed;
    }
    if x > MARGIN {
        *y += 19.0;
    }
}

impl Figure {
    /// The series of the legend: the first series of each label, without unlabeled series.
    pub fn legend_series(&self) -> Vec<&Series> {
        let mut keys: Vec<&Series> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !series.label.is_empty() && keys.iter().all(|key| key.label != series.label) {
                keys.push(series);
            }
        }
        keys
    }
}

fn draw_legend_key(primitives: &mut Vec<Primitive>, style: &SeriesStyle, (x, y): Xy) {
    if style.line != LineStyle::None {
        let dashed = style.line == LineStyle::Dashed;
        let points = vec![(x, y), (x + LEGEND_KEY_SIZE.0, y)];
        primitives.push(Primitive::Polyline {
            points,
            role: ColourRole::Data(style.colour),
            width: 2.0,
            dashed,
        });
    }
    primitives.push(Primitive::Marker(PointMarker {
        position: (x + LEGEND_KEY_SIZE.0 / 2.0, y),
        symbol: style.symbol,
        radius: style.radius.max(3.2),
        colour: style.colour,
        opacity: 1.0,
        tooltip: String::new(),
    }));
}

/// The area between the axes of a panel, in coordinates of the sheet.
struct PlotArea {
    left: f32,
    top: f32,
    width: f32,
    height: f32,
    x: AxisRange,
    y: AxisRange,
}

impl PlotArea {
    fn new(panel: &Panel, (left, top): Xy, (width, height): Xy) -> Self {
        let points = || panel.series.iter().flat_map(|series| &series.points);
        // The range includes only intervals that are drawn.
        let drawn = panel
            .series
            .iter()
            .filter(|series| series.style.intervals != IntervalStyle::None)
            .flat_map(|series| &series.points);
        let ends = drawn.filter_map(|point| point.interval).flat_map(|(low, high)| [low, high]);
        Self {
            left: left + INSET_LEFT,
            top: top + INSET_TOP,
            width: width - INSET_LEFT - INSET_RIGHT,
            height: height - INSET_TOP - INSET_BOTTOM,
            x: AxisRange::enclosing(
                panel.x.scale,
                points().map(|point| point.x).chain(panel.x.encloses.iter().copied()),
            ),
            y: AxisRange::enclosing(
                panel.y.scale,
                points().map(|point| point.y).chain(ends).chain(panel.y.encloses.iter().copied()),
            ),
        }
    }

    /// The horizontal coordinate of a value.
    fn x_of(&self, value: f64) -> f32 {
        self.left + self.x.fraction(value) * self.width
    }

    /// The vertical coordinate of a value.
    fn y_of(&self, value: f64) -> f32 {
        self.top + (1.0 - self.y.fraction(value)) * self.height
    }

    fn position(&self, x: f64, y: f64) -> Xy {
        (self.x_of(x), self.y_of(y))
    }

    fn right(&self) -> f32 {
        self.left + self.width
    }

    fn bottom(&self) -> f32 {
        self.top + self.height
    }
}

fn draw_panel(primitives: &mut Vec<Primitive>, panel: &Panel, corner: Xy, size: Xy) {
    let area = PlotArea::new(panel, corner, size);
    draw_axes(primitives, panel, &area);
    let title = shorten_to_width(&panel.title, area.width);
    primitives.push(Primitive::Text(TextLine {
        position: (area.left, corner.1 + 18.0),
        bold: true,
        ..TextLine::new(title, LABEL_SIZE, ColourRole::Text)
    }));
    panel.series.iter().for_each(|series| draw_intervals(primitives, series, &area));
    panel.series.iter().for_each(|series| draw_line(primitives, series, &area));
    for series in &panel.series {
        let SeriesStyle { symbol, radius, colour, opacity, .. } = series.style;
        primitives.extend(series.points.iter().map(|point| {
            Primitive::Marker(PointMarker {
                position: area.position(point.x, point.y),
                symbol,
                // A hidden marker still needs an area to hover over.
                radius: if symbol == Symbol::Hidden { 6.0 } else { radius },
                colour,
                opacity,
                tooltip: point.tooltip.clone(),
            })
        }));
    }
}

/// Shortens a text with an ellipsis so that it fits the width.
fn shorten_to_width(text: &str, width: f32) -> String {
    let font = Font::new(true, LABEL_SIZE);
    if font.width(text) <= width {
        return text.into();
    }
    let mut short: String = text.into();
    while short.pop().is_some() && font.width(&short) + font.width("…") > width {}
    short + "…"
}

fn draw_axes(primitives: &mut Vec<Primitive>, panel: &Panel, area: &PlotArea) {
    let mut line = |from: Xy, to: Xy, role: ColourRole| {
        primitives.push(Primitive::Polyline {
            points: vec![from, to],
            role,
            width: 1.0,
            dashed: false,
        });
    };
    let x_ticks = area.x.ticks();
    let y_ticks = area.y.ticks();
    for (value, _) in &x_ticks {
        let x = area.x_of(*value);
        line((x, area.top), (x, area.bottom()), ColourRole::Grid);
    }
    for (value, _) in &y_ticks {
        let y = area.y_of(*value);
        line((area.left, y), (area.right(), y), ColourRole::Grid);
    }
    line((area.left, area.bottom()), (area.right(), area.bottom()), ColourRole::Muted);
    line((area.left, area.top), (area.left, area.bottom()), ColourRole::Muted);
    for (value, label) in x_ticks {
        primitives.push(Primitive::Text(TextLine {
            position: (area.x_of(value), area.bottom() + 16.0),
            anchor: TextAnchor::Middle,
            ..TextLine::new(label, SMALL_SIZE, ColourRole::Muted)
        }));
    }
    for (value, label) in y_ticks {
        primitives.push(Primitive::Text(TextLine {
            position: (area.left - 7.0, area.y_of(value) + 4.0),
            anchor: TextAnchor::End,
            ..TextLine::new(label, SMALL_SIZE, ColourRole::Muted)
        }));
    }
    primitives.push(Primitive::Text(TextLine {
        position: (area.left + area.width / 2.0, area.bottom() + 36.0),
        anchor: TextAnchor::Middle,
        ..TextLine::new(&panel.x.label, LABEL_SIZE, ColourRole::Text)
    }));
    primitives.push(Primitive::Text(TextLine {
        position: (area.left - 47.0, area.top + area.height / 2.0),
        anchor: TextAnchor::Middle,
        vertical: true,
        ..TextLine::new(&panel.y.label, LABEL_SIZE, ColourRole::Text)
    }));
}

fn draw_intervals(primitives: &mut Vec<Primitive>, series: &Series, area: &PlotArea) {
    let role = ColourRole::Data(series.style.colour);
    let bounds = |point: &DataPoint| point.interval.unwrap_or((point.y, point.y));
    match series.style.intervals {
        IntervalStyle::None => {}
        IntervalStyle::Band => {
            let low = series.points.iter().map(|point| area.position(point.x, bounds(point).0));
            let high =
                series.points.iter().rev().map(|point| area.position(point.x, bounds(point).1));
            primitives.push(Primitive::Polygon {
                points: low.chain(high).collect(),
                role,
                opacity: 0.14,
            });
        }
        IntervalStyle::Bars => series.points.iter().for_each(|point| {
            let (low, high) = bounds(point);
            let points = vec![area.position(point.x, low), area.position(point.x, high)];
            primitives.push(Primitive::Polyline { points, role, width: 1.0, dashed: false });
        }),
    }
}

fn draw_line(primitives: &mut Vec<Primitive>, series: &Series, area: &PlotArea) {
    if series.style.line != LineStyle::None && series.points.len() > 1 {
        let points = series.points.iter().map(|point| area.position(point.x, point.y)).collect();
        let dashed = series.style.line == LineStyle::Dashed;
        primitives.push(Primitive::Polyline {
            points,
            role: ColourRole::Data(series.style.colour),
            width: 2.0,
            dashed,
        });
    }
}
