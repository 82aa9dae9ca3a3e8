//! A scene as pixels, on white paper.

use tiny_skia::{
    FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform,
};
use ttf_parser::OutlineBuilder;

use super::font::Font;
use super::scene::{
    Colour, ColourRole, Drawing, Primitive, Symbol, TextAnchor, TextLine, Xy, cross_strokes,
    symbol_corners,
};

/// Pixels per point: sharp on a screen of high density, and in print.
const SCALE: f32 = 2.0;
/// Pictures are at most this wide and high, in pixels.
const MAX_PIXELS: f32 = 16_384.0;

/// The bytes of a PNG file; `None` if the scene has no area or far too much.
pub fn encode(scene: &Drawing) -> Option<Vec<u8>> {
    let (width, height) = (SCALE * scene.width, SCALE * scene.height);
    if !(width <= MAX_PIXELS && height <= MAX_PIXELS) {
        return None;
    }
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)?;
    pixels.fill(tiny_skia::Color::WHITE);
    scene.primitives.iter().for_each(|shape| draw(&mut pixels, shape));
    pixels.encode_png().ok()
}

fn draw(pixels: &mut Pixmap, shape: &Primitive) {
    match shape {
        Primitive::Polyline { points, role: ink, width, dashed } => {
            stroke_line(pixels, points, *ink, *width, *dashed)
        }
        Primitive::Polygon { points, role: ink, opacity } => {
            fill_path(pixels, polygon(points), ink.light(), *opacity)
        }
        Primitive::Marker { position: at, symbol, radius, colour, .. } => {
            draw_marker(pixels, *at, *symbol, *radius, *colour)
        }
        Primitive::Text(text) => draw_text(pixels, text),
    }
}

fn draw_marker(pixels: &mut Pixmap, at: Xy, symbol: Symbol, radius: f32, colour: Colour) {
    match symbol {
        Symbol::Hidden => {}
        Symbol::Circle => {
            fill_path(pixels, PathBuilder::from_circle(at.0, at.1, radius), colour, 1.0)
        }
        Symbol::Cross => cross_strokes(at, radius)
            .iter()
            .for_each(|stroke| stroke_line(pixels, stroke, ColourRole::Data(colour), 1.6, false)),
        _ => fill_path(pixels, polygon(&symbol_corners(symbol, at, radius)), colour, 1.0),
    }
}

fn stroke_line(pixels: &mut Pixmap, points: &[Xy], ink: ColourRole, width: f32, dashed: bool) {
    let Some(path) = polyline(points, false) else { return };
    let dash = if dashed { StrokeDash::new(vec![5.0, 4.0], 0.0) } else { None };
    let stroke = Stroke {
        width,
        dash,
        line_cap: LineCap::Butt,
        line_join: LineJoin::Round,
        ..Stroke::default()
    };
    pixels.stroke_path(
        &path,
        &paint(ink.light(), 1.0),
        &stroke,
        Transform::from_scale(SCALE, SCALE),
        None,
    );
}

fn fill_path(pixels: &mut Pixmap, path: Option<Path>, colour: Colour, opacity: f32) {
    if let Some(path) = path {
        let transform = Transform::from_scale(SCALE, SCALE);
        pixels.fill_path(&path, &paint(colour, opacity), FillRule::Winding, transform, None);
    }
}

fn draw_text(pixels: &mut Pixmap, text: &TextLine) {
    let font = Font::new(text.bold, text.size);
    let shift = match text.anchor {
        TextAnchor::Start => 0.0,
        TextAnchor::Middle => -font.width(&text.text) / 2.0,
        TextAnchor::End => -font.width(&text.text),
    };
    let place =
        Transform::from_translate(text.position.0, text.position.1).post_scale(SCALE, SCALE);
    let place = if text.vertical { place.pre_rotate(-90.0) } else { place };
    font.outlines(&text.text, |x, scale, outline| {
        let mut glyph = GlyphPath(PathBuilder::new());
        outline(&mut glyph);
        if let Some(path) = glyph.0.finish() {
            // Fonts count upwards, pictures downwards.
            let transform = place.pre_translate(shift + x, 0.0).pre_scale(scale, -scale);
            pixels.fill_path(
                &path,
                &paint(text.role.light(), 1.0),
                FillRule::Winding,
                transform,
                None,
            );
        }
    });
}

fn paint(Colour(red, green, blue): Colour, opacity: f32) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, (255.0 * opacity) as u8);
    paint.anti_alias = true;
    paint
}

fn polygon(points: &[Xy]) -> Option<Path> {
    polyline(points, true)
}

fn polyline(points: &[Xy], closed: bool) -> Option<Path> {
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
struct GlyphPath(PathBuilder);

impl OutlineBuilder for GlyphPath {
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

    fn scene(shapes: Vec<Primitive>) -> Drawing {
        Drawing { width: 40.0, height: 20.0, title: String::new(), primitives: shapes }
    }

    fn dark_pixels(scene: &Drawing) -> usize {
        let pixels = Pixmap::decode_png(&encode(scene).unwrap()).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (80, 40));
        pixels
            .pixels()
            .iter()
            .filter(|p| u32::from(p.red()) + u32::from(p.green()) + u32::from(p.blue()) < 300)
            .count()
    }

    #[test]
    fn text_is_drawn_with_the_embedded_font() {
        let text = |words: &str, upwards| TextLine {
            position: (20.0, 14.0),
            text: words.into(),
            size: 12.0,
            bold: false,
            anchor: TextAnchor::Middle,
            vertical: upwards,
            role: ColourRole::Text,
        };
        assert_eq!(dark_pixels(&scene(vec![])), 0);
        let (one, two) = (
            dark_pixels(&scene(vec![Primitive::Text(text("N", false))])),
            dark_pixels(&scene(vec![Primitive::Text(text("NN", false))])),
        );
        assert!(one > 20 && two > one * 3 / 2, "{one} {two}");
        assert!(dark_pixels(&scene(vec![Primitive::Text(text("N", true))])) > 20);
    }

    #[test]
    fn every_symbol_but_the_hidden_one_is_drawn() {
        let all = [
            Symbol::Circle,
            Symbol::Diamond,
            Symbol::Square,
            Symbol::Triangle,
            Symbol::Cross,
            Symbol::Star,
        ];
        let mark = |symbol| Primitive::Marker {
            position: (20.0, 10.0),
            symbol,
            radius: 4.0,
            colour: Colour(0, 0, 0),
            tooltip: String::new(),
        };
        all.into_iter()
            .for_each(|symbol| assert!(dark_pixels(&scene(vec![mark(symbol)])) > 20, "{symbol:?}"));
        assert_eq!(dark_pixels(&scene(vec![mark(Symbol::Hidden)])), 0);
    }

    #[test]
    fn a_drawing_of_zero_or_excessive_size_is_refused() {
        for (width, height) in [(0.0, 10.0), (1e9, 10.0), (f32::NAN, 10.0)] {
            assert!(encode(&Drawing { width, height, ..scene(vec![]) }).is_none());
        }
    }
}
