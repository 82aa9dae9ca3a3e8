//! Where everything goes: a panel with its axes, and a sheet of panels with title, legend and
//! caption.

use super::font::{Font, wrap};
use super::scale::AxisRange;
use super::scene::{ColourRole, Drawing, Primitive, Symbol, TextAnchor, TextLine, Xy};
use crate::figures::{DataPoint, Figure, IntervalStyle, LineStyle, Panel, Series, SeriesStyle};

/// A panel, axes included, and one that is alone on its sheet.
const PANEL_SIZE: (f32, f32) = (420.0, 310.0);
const SINGLE_PANEL_SIZE: (f32, f32) = (640.0, 400.0);
/// From the panel's edges to its axes: left, top, right, bottom.
const PLOT_INSET: (f32, f32, f32, f32) = (58.0, 30.0, 14.0, 46.0);
const MARGIN: f32 = 16.0;
const COLUMNS: usize = 3;
const TITLE_SIZE: f32 = 15.0;
const LABEL_SIZE: f32 = 12.0;
const SMALL_SIZE: f32 = 11.0;
/// The width of a legend's sample.
const LEGEND_KEY_SIZE: (f32, f32) = (26.0, 14.0);

/// One panel alone, as the page shows it.
pub fn panel(panel: &Panel) -> Drawing {
    let mut scene = Drawing {
        width: PANEL_SIZE.0,
        height: PANEL_SIZE.1,
        title: panel.title.clone(),
        primitives: Vec::new(),
    };
    draw_panel(&mut scene.primitives, panel, (0.0, 0.0), PANEL_SIZE);
    scene
}

/// A sample of a series' line and symbol.
pub fn legend_key(look: &SeriesStyle) -> Drawing {
    let mut shapes = Vec::new();
    draw_legend_key(&mut shapes, look, (0.0, LEGEND_KEY_SIZE.1 / 2.0));
    Drawing {
        width: LEGEND_KEY_SIZE.0,
        height: LEGEND_KEY_SIZE.1,
        title: String::new(),
        primitives: shapes,
    }
}

/// The whole figure with everything that explains it, as the files show it.
pub fn sheet(figure: &Figure) -> Drawing {
    let columns = figure.panels.len().clamp(1, COLUMNS);
    let rows = figure.panels.len().div_ceil(columns);
    let size = if figure.panels.len() == 1 { SINGLE_PANEL_SIZE } else { PANEL_SIZE };
    let width = 2.0 * MARGIN + columns as f32 * size.0;
    let mut shapes = Vec::new();
    let mut y = MARGIN;
    draw_paragraph(
        &mut shapes,
        &mut y,
        (&figure.title, width),
        (TITLE_SIZE, true, ColourRole::Text),
    );
    let top = y + 4.0;
    for (i, panel) in figure.panels.iter().enumerate() {
        let corner = (MARGIN + (i % columns) as f32 * size.0, top + (i / columns) as f32 * size.1);
        draw_panel(&mut shapes, panel, corner, size);
    }
    y = top + rows as f32 * size.1 + 6.0;
    draw_legend(&mut shapes, &mut y, figure, width);
    y += 4.0;
    draw_paragraph(
        &mut shapes,
        &mut y,
        (&figure.caption, width),
        (SMALL_SIZE, false, ColourRole::Muted),
    );
    let height = y + MARGIN - 4.0;
    shapes.insert(
        0,
        Primitive::Polygon {
            points: rectangle((0.0, 0.0), (width, height)),
            role: ColourRole::Background,
            opacity: 1.0,
        },
    );
    Drawing { width, height, title: figure.title.clone(), primitives: shapes }
}

fn rectangle((x, y): Xy, (width, height): Xy) -> Vec<Xy> {
    vec![(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
}

/// Text in lines that fit the sheet; moves `y` below them.
fn draw_paragraph(
    shapes: &mut Vec<Primitive>,
    y: &mut f32,
    (words, width): (&str, f32),
    (size, bold, ink): (f32, bool, ColourRole),
) {
    for line in wrap(words, &Font::new(bold, size), width - 2.0 * MARGIN) {
        *y += 1.35 * size;
        let at = (MARGIN, *y - 0.3 * size);
        shapes.push(Primitive::Text(TextLine {
            position: at,
            text: line,
            size,
            bold,
            anchor: TextAnchor::Start,
            vertical: false,
            role: ink,
        }));
    }
}

/// Every series' sample and name once, in rows.
fn draw_legend(shapes: &mut Vec<Primitive>, y: &mut f32, figure: &Figure, width: f32) {
    let font = Font::new(false, LABEL_SIZE);
    let mut x = MARGIN;
    for series in figure.legend_series() {
        let needed = LEGEND_KEY_SIZE.0 + 6.0 + font.width(&series.label) + 18.0;
        if x + needed > width - MARGIN && x > MARGIN {
            (x, *y) = (MARGIN, *y + 19.0);
        }
        draw_legend_key(shapes, &series.style, (x, *y + 8.0));
        let at = (x + LEGEND_KEY_SIZE.0 + 6.0, *y + 12.0);
        shapes.push(text_label(at, &series.label, TextAnchor::Start, ColourRole::Text));
        x += needed;
    }
    if x > MARGIN {
        *y += 19.0;
    }
}

impl Figure {
    /// The series of the legend: of those with one name, the first. One without a name has no place
    /// in it.
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

fn draw_legend_key(shapes: &mut Vec<Primitive>, look: &SeriesStyle, (x, y): Xy) {
    if look.line != LineStyle::None {
        let dashed = look.line == LineStyle::Dashed;
        let points = vec![(x, y), (x + LEGEND_KEY_SIZE.0, y)];
        shapes.push(Primitive::Polyline {
            points,
            role: ColourRole::Data(look.colour),
            width: 2.0,
            dashed,
        });
    }
    let at = (x + LEGEND_KEY_SIZE.0 / 2.0, y);
    shapes.push(Primitive::Marker {
        position: at,
        symbol: look.symbol,
        radius: look.radius.max(3.2),
        colour: look.colour,
        tooltip: String::new(),
    });
}

fn text_label(at: Xy, words: &str, anchor: TextAnchor, ink: ColourRole) -> Primitive {
    let size = if ink == ColourRole::Muted { SMALL_SIZE } else { LABEL_SIZE };
    Primitive::Text(TextLine {
        position: at,
        text: words.into(),
        size,
        bold: false,
        anchor,
        vertical: false,
        role: ink,
    })
}

/// The axes of a panel at their place on the sheet.
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
        // Intervals count only where they are drawn.
        let spread = |series: &Series| series.style.intervals != IntervalStyle::None;
        let drawn =
            panel.series.iter().filter(|series| spread(series)).flat_map(|series| &series.points);
        let ends = drawn.filter_map(|point| point.interval).flat_map(|(low, high)| [low, high]);
        Self {
            left: left + PLOT_INSET.0,
            top: top + PLOT_INSET.1,
            width: width - PLOT_INSET.0 - PLOT_INSET.2,
            height: height - PLOT_INSET.1 - PLOT_INSET.3,
            x: AxisRange::enclosing(panel.x.scale, points().map(|point| point.x)),
            y: AxisRange::enclosing(panel.y.scale, points().map(|point| point.y).chain(ends)),
        }
    }

    fn at(&self, x: f64, y: f64) -> Xy {
        (
            self.left + self.x.fraction(x) * self.width,
            self.top + (1.0 - self.y.fraction(y)) * self.height,
        )
    }

    fn right(&self) -> f32 {
        self.left + self.width
    }

    fn bottom(&self) -> f32 {
        self.top + self.height
    }
}

fn draw_panel(shapes: &mut Vec<Primitive>, panel: &Panel, corner: Xy, size: Xy) {
    let frame = PlotArea::new(panel, corner, size);
    draw_axes(shapes, panel, &frame);
    let at = (frame.left, corner.1 + 18.0);
    let title = TextLine {
        position: at,
        text: shorten_to_width(&panel.title, frame.width),
        size: LABEL_SIZE,
        bold: true,
        anchor: TextAnchor::Start,
        vertical: false,
        role: ColourRole::Text,
    };
    shapes.push(Primitive::Text(title));
    panel.series.iter().for_each(|series| draw_intervals(shapes, series, &frame));
    panel.series.iter().for_each(|series| draw_line(shapes, series, &frame));
    for (series, point) in panel
        .series
        .iter()
        .flat_map(|series| series.points.iter().map(move |point| (series, point)))
    {
        let SeriesStyle { symbol, radius, colour, .. } = series.style;
        let (at, tip) = (frame.at(point.x, point.y), point.tooltip.clone());
        shapes.push(Primitive::Marker {
            position: at,
            symbol,
            radius: if symbol == Symbol::Hidden { 6.0 } else { radius },
            colour,
            tooltip: tip,
        });
    }
}

/// As many letters as fit.
fn shorten_to_width(words: &str, width: f32) -> String {
    let font = Font::new(true, LABEL_SIZE);
    if font.width(words) <= width {
        return words.into();
    }
    let mut short: String = words.into();
    while short.pop().is_some() && font.width(&short) + font.width("…") > width {}
    short + "…"
}

fn draw_axes(shapes: &mut Vec<Primitive>, panel: &Panel, frame: &PlotArea) {
    let mut line = |from: Xy, to: Xy, ink: ColourRole| {
        shapes.push(Primitive::Polyline {
            points: vec![from, to],
            role: ink,
            width: 1.0,
            dashed: false,
        });
    };
    let (x_ticks, y_ticks) = (frame.x.ticks(), frame.y.ticks());
    let across = |value: f64| frame.left + frame.x.fraction(value) * frame.width;
    let up = |value: f64| frame.top + (1.0 - frame.y.fraction(value)) * frame.height;
    x_ticks.iter().for_each(|(value, _)| {
        line((across(*value), frame.top), (across(*value), frame.bottom()), ColourRole::Grid)
    });
    y_ticks.iter().for_each(|(value, _)| {
        line((frame.left, up(*value)), (frame.right(), up(*value)), ColourRole::Grid)
    });
    line((frame.left, frame.bottom()), (frame.right(), frame.bottom()), ColourRole::Muted);
    line((frame.left, frame.top), (frame.left, frame.bottom()), ColourRole::Muted);
    for (value, words) in &x_ticks {
        shapes.push(text_label(
            (across(*value), frame.bottom() + 16.0),
            words,
            TextAnchor::Middle,
            ColourRole::Muted,
        ));
    }
    for (value, words) in &y_ticks {
        shapes.push(text_label(
            (frame.left - 7.0, up(*value) + 4.0),
            words,
            TextAnchor::End,
            ColourRole::Muted,
        ));
    }
    let middle = (frame.left + frame.width / 2.0, frame.bottom() + 36.0);
    shapes.push(text_label(middle, &panel.x.label, TextAnchor::Middle, ColourRole::Text));
    let at = (frame.left - 47.0, frame.top + frame.height / 2.0);
    let words = panel.y.label.clone();
    let upwards = TextLine {
        position: at,
        text: words,
        size: LABEL_SIZE,
        bold: false,
        anchor: TextAnchor::Middle,
        vertical: true,
        role: ColourRole::Text,
    };
    shapes.push(Primitive::Text(upwards));
}

fn draw_intervals(shapes: &mut Vec<Primitive>, series: &Series, frame: &PlotArea) {
    let ink = ColourRole::Data(series.style.colour);
    let ends = |point: &DataPoint| point.interval.unwrap_or((point.y, point.y));
    match series.style.intervals {
        IntervalStyle::None => {}
        IntervalStyle::Band => {
            let low = series.points.iter().map(|point| frame.at(point.x, ends(point).0));
            let high = series.points.iter().rev().map(|point| frame.at(point.x, ends(point).1));
            shapes.push(Primitive::Polygon {
                points: low.chain(high).collect(),
                role: ink,
                opacity: 0.14,
            });
        }
        IntervalStyle::Bars => series.points.iter().for_each(|point| {
            let (low, high) = ends(point);
            let points = vec![frame.at(point.x, low), frame.at(point.x, high)];
            shapes.push(Primitive::Polyline { points, role: ink, width: 1.0, dashed: false });
        }),
    }
}

fn draw_line(shapes: &mut Vec<Primitive>, series: &Series, frame: &PlotArea) {
    if series.style.line != LineStyle::None && series.points.len() > 1 {
        let points = series.points.iter().map(|point| frame.at(point.x, point.y)).collect();
        let dashed = series.style.line == LineStyle::Dashed;
        shapes.push(Primitive::Polyline {
            points,
            role: ColourRole::Data(series.style.colour),
            width: 2.0,
            dashed,
        });
    }
}
