//! A scene as pixels, on white paper.

use tiny_skia::{FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform};
use ttf_parser::OutlineBuilder;

use super::font::Font;
use super::scene::{Anchor, Colour, Ink, Place, Scene, Shape, Symbol, Text, corners, strokes};

/// Pixels per point: sharp on a screen of high density, and in print.
const SCALE: f32 = 2.0;
/// Pictures are at most this wide and high, in pixels.
const LARGEST: f32 = 16_384.0;

/// The bytes of a PNG file; `None` if the scene has no area or far too much.
pub fn file(scene: &Scene) -> Option<Vec<u8>> {
    let (width, height) = (SCALE * scene.width, SCALE * scene.height);
    if !(width <= LARGEST && height <= LARGEST) {
        return None;
    }
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)?;
    pixels.fill(tiny_skia::Color::WHITE);
    scene.shapes.iter().for_each(|shape| draw(&mut pixels, shape));
    pixels.encode_png().ok()
}

fn draw(pixels: &mut Pixmap, shape: &Shape) {
    match shape {
        Shape::Line { points, ink, width, dashed } => line(pixels, points, *ink, *width, *dashed),
        Shape::Area { points, ink, opacity } => fill(pixels, polygon(points), ink.on_white(), *opacity),
        Shape::Mark { at, symbol, radius, colour, .. } => mark(pixels, *at, *symbol, *radius, *colour),
        Shape::Text(text) => words(pixels, text),
    }
}

fn mark(pixels: &mut Pixmap, at: Place, symbol: Symbol, radius: f32, colour: Colour) {
    match symbol {
        Symbol::Hidden => {}
        Symbol::Circle => fill(pixels, PathBuilder::from_circle(at.0, at.1, radius), colour, 1.0),
        Symbol::Cross => strokes(at, radius).iter().for_each(|stroke| line(pixels, stroke, Ink::Data(colour), 1.6, false)),
        _ => fill(pixels, polygon(&corners(symbol, at, radius)), colour, 1.0),
    }
}

fn line(pixels: &mut Pixmap, points: &[Place], ink: Ink, width: f32, dashed: bool) {
    let Some(path) = through(points, false) else { return };
    let dash = if dashed { StrokeDash::new(vec![5.0, 4.0], 0.0) } else { None };
    let stroke = Stroke { width, dash, line_cap: LineCap::Butt, line_join: LineJoin::Round, ..Stroke::default() };
    pixels.stroke_path(&path, &paint(ink.on_white(), 1.0), &stroke, Transform::from_scale(SCALE, SCALE), None);
}

fn fill(pixels: &mut Pixmap, path: Option<Path>, colour: Colour, opacity: f32) {
    if let Some(path) = path {
        let transform = Transform::from_scale(SCALE, SCALE);
        pixels.fill_path(&path, &paint(colour, opacity), FillRule::Winding, transform, None);
    }
}

fn words(pixels: &mut Pixmap, text: &Text) {
    let font = Font::new(text.bold, text.size);
    let shift = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => -font.width(&text.words) / 2.0,
        Anchor::End => -font.width(&text.words),
    };
    let place = Transform::from_translate(text.at.0, text.at.1).post_scale(SCALE, SCALE);
    let place = if text.upwards { place.pre_rotate(-90.0) } else { place };
    font.outlines(&text.words, |x, scale, outline| {
        let mut glyph = Glyph(PathBuilder::new());
        outline(&mut glyph);
        if let Some(path) = glyph.0.finish() {
            // Fonts count upwards, pictures downwards.
            let transform = place.pre_translate(shift + x, 0.0).pre_scale(scale, -scale);
            pixels.fill_path(&path, &paint(text.ink.on_white(), 1.0), FillRule::Winding, transform, None);
        }
    });
}

fn paint(Colour(red, green, blue): Colour, opacity: f32) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, (255.0 * opacity) as u8);
    paint.anti_alias = true;
    paint
}

fn polygon(points: &[Place]) -> Option<Path> {
    through(points, true)
}

fn through(points: &[Place], closed: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        if i == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
    }
    if closed {
        path.close();
    }
    path.finish()
}

/// A letter's outline on its way from the font to the canvas.
struct Glyph(PathBuilder);

impl OutlineBuilder for Glyph {
    fn move_to(&mut self, x: f32, y: f32) {
        self.0.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.0.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.0.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.0.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(shapes: Vec<Shape>) -> Scene {
        Scene { width: 40.0, height: 20.0, title: String::new(), shapes }
    }

    fn dark_pixels(scene: &Scene) -> usize {
        let pixels = Pixmap::decode_png(&file(scene).unwrap()).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (80, 40));
        pixels.pixels().iter().filter(|p| u32::from(p.red()) + u32::from(p.green()) + u32::from(p.blue()) < 300).count()
    }

    #[test]
    fn letters_are_drawn_without_a_font_of_the_system() {
        let text = |words: &str, upwards| Text {
            at: (20.0, 14.0),
            words: words.into(),
            size: 12.0,
            bold: false,
            anchor: Anchor::Middle,
            upwards,
            ink: Ink::Text,
        };
        assert_eq!(dark_pixels(&scene(vec![])), 0);
        let (one, two) =
            (dark_pixels(&scene(vec![Shape::Text(text("N", false))])), dark_pixels(&scene(vec![Shape::Text(text("NN", false))])));
        assert!(one > 20 && two > one * 3 / 2, "{one} {two}");
        assert!(dark_pixels(&scene(vec![Shape::Text(text("N", true))])) > 20);
    }

    #[test]
    fn every_symbol_leaves_a_trace_but_the_hidden_one() {
        let all = [Symbol::Circle, Symbol::Diamond, Symbol::Square, Symbol::Triangle, Symbol::Cross, Symbol::Star];
        let mark = |symbol| Shape::Mark { at: (20.0, 10.0), symbol, radius: 4.0, colour: Colour(0, 0, 0), tip: String::new() };
        all.into_iter().for_each(|symbol| assert!(dark_pixels(&scene(vec![mark(symbol)])) > 20, "{symbol:?}"));
        assert_eq!(dark_pixels(&scene(vec![mark(Symbol::Hidden)])), 0);
    }

    #[test]
    fn a_scene_without_area_or_with_too_much_is_refused() {
        for (width, height) in [(0.0, 10.0), (1e9, 10.0), (f32::NAN, 10.0)] {
            assert!(file(&Scene { width, height, ..scene(vec![]) }).is_none());
        }
    }
}
