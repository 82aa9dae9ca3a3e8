//! The PNG backend, in the light theme.

use tiny_skia::{
    FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform,
};
use ttf_parser::OutlineBuilder;

use super::drawing::{
    Colour, ColourRole, Drawing, PointMarker, Primitive, Symbol, TextAnchor, TextLine, Xy,
    cross_strokes, symbol_corners,
};
use super::font::Font;

/// Pixels per point, for high-density screens and print.
const SCALE: f32 = 2.0;
/// Maximum width and height in pixels.
const MAX_PIXELS: f32 = 16_384.0;

/// The bytes of a PNG file; `None` if the drawing has no area or exceeds the size limit.
pub fn encode(drawing: &Drawing) -> Option<Vec<u8>> {
    let width = SCALE * drawing.width;
    let height = SCALE * drawing.height;
    if !(width <= MAX_PIXELS && height <= MAX_PIXELS) {
        return None;
    }
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)?;
    pixels.fill(tiny_skia::Color::WHITE);
    drawing.primitives.iter().for_each(|primitive| draw(&mut pixels, primitive));
    pixels.encode_png().ok()
}

fn draw(pixels: &mut Pixmap, primitive: &Primitive) {
    match primitive {
        Primitive::Polyline { points, role, width, dashed } => {
            stroke_line(pixels, points, *role, *width, *dashed)
        }
        Primitive::Polygon { points, role, opacity } => {
            fill_path(pixels, polygon(points), role.light(), *opacity)
        }
        Primitive::Marker(marker) => draw_marker(pixels, marker),
        Primitive::Text(text) => draw_text(pixels, text),
    }
}

fn draw_marker(pixels: &mut Pixmap, marker: &PointMarker) {
    let PointMarker { position, symbol, radius, colour, opacity, .. } = *marker;
    match symbol {
        Symbol::Hidden => {}
        Symbol::Circle => {
            let circle = PathBuilder::from_circle(position.0, position.1, radius);
            fill_path(pixels, circle, colour, opacity)
        }
        Symbol::Cross => cross_strokes(position, radius)
            .iter()
            .for_each(|stroke| stroke_line(pixels, stroke, ColourRole::Data(colour), 1.6, false)),
        _ => fill_path(pixels, polygon(&symbol_corners(symbol, position, radius)), colour, opacity),
    }
}

fn stroke_line(pixels: &mut Pixmap, points: &[Xy], role: ColourRole, width: f32, dashed: bool) {
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
        &paint(role.light(), 1.0),
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
    let transform =
        Transform::from_translate(text.position.0, text.position.1).post_scale(SCALE, SCALE);
    let transform = if text.vertical { transform.pre_rotate(-90.0) } else { transform };
    font.outlines(&text.text, |x, scale, outline| {
        let mut glyph = GlyphPath(PathBuilder::new());
        outline(&mut glyph);
        if let Some(path) = glyph.0.finish() {
            // The y axis points up in a font and down in a drawing.
            let transform = transform.pre_translate(shift + x, 0.0).pre_scale(scale, -scale);
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

/// Collects the outline of a glyph into a path.
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

    fn drawing(primitives: Vec<Primitive>) -> Drawing {
        Drawing { width: 40.0, height: 20.0, title: String::new(), primitives }
    }

    fn dark_pixels(drawing: &Drawing) -> usize {
        let pixels = Pixmap::decode_png(&encode(drawing).unwrap()).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (80, 40));
        pixels
            .pixels()
            .iter()
            .filter(|p| u32::from(p.red()) + u32::from(p.green()) + u32::from(p.blue()) < 300)
            .count()
    }

    #[test]
    fn text_is_drawn_with_the_embedded_font() {
        let text = |text: &str, vertical| {
            Primitive::Text(TextLine {
                position: (20.0, 14.0),
                anchor: TextAnchor::Middle,
                vertical,
                ..TextLine::new(text, 12.0, ColourRole::Text)
            })
        };
        assert_eq!(dark_pixels(&drawing(vec![])), 0);
        let (one, two) = (
            dark_pixels(&drawing(vec![text("N", false)])),
            dark_pixels(&drawing(vec![text("NN", false)])),
        );
        assert!(one > 20 && two > one * 3 / 2, "{one} {two}");
        assert!(dark_pixels(&drawing(vec![text("N", true)])) > 20);
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
        let marker = |symbol| {
            Primitive::Marker(PointMarker {
                position: (20.0, 10.0),
                symbol,
                radius: 4.0,
                colour: Colour(0, 0, 0),
                opacity: 1.0,
                tooltip: String::new(),
            })
        };
        all.into_iter().for_each(|symbol| {
            assert!(dark_pixels(&drawing(vec![marker(symbol)])) > 20, "{symbol:?}")
        });
        assert_eq!(dark_pixels(&drawing(vec![marker(Symbol::Hidden)])), 0);
    }

    #[test]
    fn a_drawing_of_zero_or_excessive_size_is_refused() {
        for (width, height) in [(0.0, 10.0), (1e9, 10.0), (f32::NAN, 10.0)] {
            assert!(encode(&Drawing { width, height, ..drawing(vec![]) }).is_none());
        }
    }
}
