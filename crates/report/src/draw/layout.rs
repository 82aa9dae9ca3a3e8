//! Where everything goes: a panel with its axes, and a sheet of panels with title, legend and caption.

use super::font::{Font, wrap};
use super::scale::Range;
use super::scene::{Anchor, Ink, Place, Scene, Shape, Symbol, Text};
use crate::figures::{Figure, Line, Look, Panel, Point, Series, Spread};

/// A panel, axes included, and one that is alone on its sheet.
const PANEL: (f32, f32) = (420.0, 310.0);
const ALONE: (f32, f32) = (640.0, 400.0);
/// From the panel's edges to its axes: left, top, right, bottom.
const INSET: (f32, f32, f32, f32) = (58.0, 30.0, 14.0, 46.0);
const MARGIN: f32 = 16.0;
const COLUMNS: usize = 3;
const TITLE: f32 = 15.0;
const LABEL: f32 = 12.0;
const SMALL: f32 = 11.0;
/// The width of a legend's sample.
const SWATCH: (f32, f32) = (26.0, 14.0);

/// One panel alone, as the page shows it.
pub fn panel(panel: &Panel) -> Scene {
    let mut scene = Scene { width: PANEL.0, height: PANEL.1, title: panel.title.clone(), shapes: Vec::new() };
    draw(&mut scene.shapes, panel, (0.0, 0.0), PANEL);
    scene
}

/// A sample of a series' line and symbol.
pub fn swatch(look: &Look) -> Scene {
    let mut shapes = Vec::new();
    sample(&mut shapes, look, (0.0, SWATCH.1 / 2.0));
    Scene { width: SWATCH.0, height: SWATCH.1, title: String::new(), shapes }
}

/// The whole figure with everything that explains it, as the files show it.
pub fn sheet(figure: &Figure) -> Scene {
    let columns = figure.panels.len().clamp(1, COLUMNS);
    let rows = figure.panels.len().div_ceil(columns);
    let size = if figure.panels.len() == 1 { ALONE } else { PANEL };
    let width = 2.0 * MARGIN + columns as f32 * size.0;
    let mut shapes = Vec::new();
    let mut y = MARGIN;
    lines(&mut shapes, &mut y, (&figure.title, width), (TITLE, true, Ink::Text));
    let top = y + 4.0;
    for (i, panel) in figure.panels.iter().enumerate() {
        let corner = (MARGIN + (i % columns) as f32 * size.0, top + (i / columns) as f32 * size.1);
        draw(&mut shapes, panel, corner, size);
    }
    y = top + rows as f32 * size.1 + 6.0;
    legend(&mut shapes, &mut y, figure, width);
    y += 4.0;
    lines(&mut shapes, &mut y, (&figure.caption, width), (SMALL, false, Ink::Muted));
    let height = y + MARGIN - 4.0;
    shapes.insert(0, Shape::Area { points: rectangle((0.0, 0.0), (width, height)), ink: Ink::Paper, opacity: 1.0 });
    Scene { width, height, title: figure.title.clone(), shapes }
}

fn rectangle((x, y): Place, (width, height): Place) -> Vec<Place> {
    vec![(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
}

/// Text in lines that fit the sheet; moves `y` below them.
fn lines(shapes: &mut Vec<Shape>, y: &mut f32, (words, width): (&str, f32), (size, bold, ink): (f32, bool, Ink)) {
    for line in wrap(words, &Font::new(bold, size), width - 2.0 * MARGIN) {
        *y += 1.35 * size;
        let at = (MARGIN, *y - 0.3 * size);
        shapes.push(Shape::Text(Text { at, words: line, size, bold, anchor: Anchor::Start, upwards: false, ink }));
    }
}

/// Every series' sample and name once, in rows.
fn legend(shapes: &mut Vec<Shape>, y: &mut f32, figure: &Figure, width: f32) {
    let font = Font::new(false, LABEL);
    let mut x = MARGIN;
    for series in figure.keys() {
        let needed = SWATCH.0 + 6.0 + font.width(&series.label) + 18.0;
        if x + needed > width - MARGIN && x > MARGIN {
            (x, *y) = (MARGIN, *y + 19.0);
        }
        sample(shapes, &series.look, (x, *y + 8.0));
        let at = (x + SWATCH.0 + 6.0, *y + 12.0);
        shapes.push(label(at, &series.label, Anchor::Start, Ink::Text));
        x += needed;
    }
    if x > MARGIN {
        *y += 19.0;
    }
}

impl Figure {
    /// The series of the legend: of those with one name, the first. One without a name has no place in it.
    pub fn keys(&self) -> Vec<&Series> {
        let mut keys: Vec<&Series> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !series.label.is_empty() && keys.iter().all(|key| key.label != series.label) {
                keys.push(series);
            }
        }
        keys
    }
}

fn sample(shapes: &mut Vec<Shape>, look: &Look, (x, y): Place) {
    if look.line != Line::None {
        let dashed = look.line == Line::Dashed;
        let points = vec![(x, y), (x + SWATCH.0, y)];
        shapes.push(Shape::Line { points, ink: Ink::Data(look.colour), width: 2.0, dashed });
    }
    let at = (x + SWATCH.0 / 2.0, y);
    shapes.push(Shape::Mark { at, symbol: look.symbol, radius: look.radius.max(3.2), colour: look.colour, tip: String::new() });
}

fn label(at: Place, words: &str, anchor: Anchor, ink: Ink) -> Shape {
    let size = if ink == Ink::Muted { SMALL } else { LABEL };
    Shape::Text(Text { at, words: words.into(), size, bold: false, anchor, upwards: false, ink })
}

/// The axes of a panel at their place on the sheet.
struct Frame {
    left: f32,
    top: f32,
    width: f32,
    height: f32,
    x: Range,
    y: Range,
}

impl Frame {
    fn new(panel: &Panel, (left, top): Place, (width, height): Place) -> Self {
        let points = || panel.series.iter().flat_map(|series| &series.points);
        // Intervals count only where they are drawn.
        let spread = |series: &Series| series.look.spread != Spread::None;
        let drawn = panel.series.iter().filter(|series| spread(series)).flat_map(|series| &series.points);
        let ends = drawn.filter_map(|point| point.interval).flat_map(|(low, high)| [low, high]);
        Self {
            left: left + INSET.0,
            top: top + INSET.1,
            width: width - INSET.0 - INSET.2,
            height: height - INSET.1 - INSET.3,
            x: Range::around(panel.x.scale, points().map(|point| point.x)),
            y: Range::around(panel.y.scale, points().map(|point| point.y).chain(ends)),
        }
    }

    fn at(&self, x: f64, y: f64) -> Place {
        (self.left + self.x.share(x) * self.width, self.top + (1.0 - self.y.share(y)) * self.height)
    }

    fn right(&self) -> f32 {
        self.left + self.width
    }

    fn bottom(&self) -> f32 {
        self.top + self.height
    }
}

fn draw(shapes: &mut Vec<Shape>, panel: &Panel, corner: Place, size: Place) {
    let frame = Frame::new(panel, corner, size);
    axes(shapes, panel, &frame);
    let at = (frame.left, corner.1 + 18.0);
    let title = Text {
        at,
        words: fitting(&panel.title, frame.width),
        size: LABEL,
        bold: true,
        anchor: Anchor::Start,
        upwards: false,
        ink: Ink::Text,
    };
    shapes.push(Shape::Text(title));
    panel.series.iter().for_each(|series| spread(shapes, series, &frame));
    panel.series.iter().for_each(|series| joined(shapes, series, &frame));
    for (series, point) in panel.series.iter().flat_map(|series| series.points.iter().map(move |point| (series, point))) {
        let Look { symbol, radius, colour, .. } = series.look;
        let (at, tip) = (frame.at(point.x, point.y), point.tip.clone());
        shapes.push(Shape::Mark { at, symbol, radius: if symbol == Symbol::Hidden { 6.0 } else { radius }, colour, tip });
    }
}

/// As many letters as fit.
fn fitting(words: &str, width: f32) -> String {
    let font = Font::new(true, LABEL);
    if font.width(words) <= width {
        return words.into();
    }
    let mut short: String = words.into();
    while short.pop().is_some() && font.width(&short) + font.width("…") > width {}
    short + "…"
}

fn axes(shapes: &mut Vec<Shape>, panel: &Panel, frame: &Frame) {
    let mut line = |from: Place, to: Place, ink: Ink| {
        shapes.push(Shape::Line { points: vec![from, to], ink, width: 1.0, dashed: false });
    };
    let (x_ticks, y_ticks) = (frame.x.ticks(), frame.y.ticks());
    let across = |value: f64| frame.left + frame.x.share(value) * frame.width;
    let up = |value: f64| frame.top + (1.0 - frame.y.share(value)) * frame.height;
    x_ticks.iter().for_each(|(value, _)| line((across(*value), frame.top), (across(*value), frame.bottom()), Ink::Grid));
    y_ticks.iter().for_each(|(value, _)| line((frame.left, up(*value)), (frame.right(), up(*value)), Ink::Grid));
    line((frame.left, frame.bottom()), (frame.right(), frame.bottom()), Ink::Muted);
    line((frame.left, frame.top), (frame.left, frame.bottom()), Ink::Muted);
    for (value, words) in &x_ticks {
        shapes.push(label((across(*value), frame.bottom() + 16.0), words, Anchor::Middle, Ink::Muted));
    }
    for (value, words) in &y_ticks {
        shapes.push(label((frame.left - 7.0, up(*value) + 4.0), words, Anchor::End, Ink::Muted));
    }
    let middle = (frame.left + frame.width / 2.0, frame.bottom() + 36.0);
    shapes.push(label(middle, &panel.x.label, Anchor::Middle, Ink::Text));
    let at = (frame.left - 47.0, frame.top + frame.height / 2.0);
    let words = panel.y.label.clone();
    let upwards = Text { at, words, size: LABEL, bold: false, anchor: Anchor::Middle, upwards: true, ink: Ink::Text };
    shapes.push(Shape::Text(upwards));
}

fn spread(shapes: &mut Vec<Shape>, series: &Series, frame: &Frame) {
    let ink = Ink::Data(series.look.colour);
    let ends = |point: &Point| point.interval.unwrap_or((point.y, point.y));
    match series.look.spread {
        Spread::None => {}
        Spread::Band => {
            let low = series.points.iter().map(|point| frame.at(point.x, ends(point).0));
            let high = series.points.iter().rev().map(|point| frame.at(point.x, ends(point).1));
            shapes.push(Shape::Area { points: low.chain(high).collect(), ink, opacity: 0.14 });
        }
        Spread::Bars => series.points.iter().for_each(|point| {
            let (low, high) = ends(point);
            let points = vec![frame.at(point.x, low), frame.at(point.x, high)];
            shapes.push(Shape::Line { points, ink, width: 1.0, dashed: false });
        }),
    }
}

fn joined(shapes: &mut Vec<Shape>, series: &Series, frame: &Frame) {
    if series.look.line != Line::None && series.points.len() > 1 {
        let points = series.points.iter().map(|point| frame.at(point.x, point.y)).collect();
        let dashed = series.look.line == Line::Dashed;
        shapes.push(Shape::Line { points, ink: Ink::Data(series.look.colour), width: 2.0, dashed });
    }
}
