//! Text metrics and outlines from two embedded fonts, independent of the system's fonts.

use ttf_parser::{Face, OutlineBuilder};

static REGULAR: &[u8] = include_bytes!("../../assets/font/DejaVuSans.ttf");
static BOLD: &[u8] = include_bytes!("../../assets/font/DejaVuSans-Bold.ttf");

/// Replacement for characters missing from the font.
const REPLACEMENT: char = '?';

/// A font at a size.
pub struct Font {
    face: Option<Face<'static>>,
    size: f32,
}

impl Font {
    /// The font of this weight and size.
    pub fn new(bold: bool, size: f32) -> Self {
        // Never `None`: a test checks that the embedded fonts are valid.
        Self { face: Face::parse(if bold { BOLD } else { REGULAR }, 0).ok(), size }
    }

    /// The width of a text in points.
    pub fn width(&self, text: &str) -> f32 {
        let mut width = 0.0;
        self.glyphs(text, |_, _, advance| width += advance);
        width
    }

    /// Calls `draw` for each glyph with its offset along the baseline, the scale from font units to
    /// points, and a function that emits its outline in font units.
    pub fn outlines(
        &self,
        text: &str,
        mut draw: impl FnMut(f32, f32, &dyn Fn(&mut dyn OutlineBuilder)),
    ) {
        let Some(face) = &self.face else { return };
        let mut x = 0.0;
        let scale = self.scale(face);
        self.glyphs(text, |face, glyph, advance| {
            draw(x, scale, &|builder| {
                face.outline_glyph(glyph, builder);
            });
            x += advance;
        });
    }

    /// Calls `each` with every glyph and its advance width in points.
    fn glyphs(&self, text: &str, mut each: impl FnMut(&Face<'static>, ttf_parser::GlyphId, f32)) {
        let Some(face) = &self.face else { return };
        for c in text.chars() {
            let Some(glyph) = face.glyph_index(c).or_else(|| face.glyph_index(REPLACEMENT)) else {
                continue;
            };
            each(
                face,
                glyph,
                f32::from(face.glyph_hor_advance(glyph).unwrap_or_default()) * self.scale(face),
            );
        }
    }

    fn scale(&self, face: &Face<'static>) -> f32 {
        self.size / f32::from(face.units_per_em())
    }
}

/// Breaks a text into lines of at most `width` points; a longer word gets a separate line.
pub fn wrap(text: &str, font: &Font, width: f32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if font.width(line) + font.width(" ") + font.width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glyphs_have_widths() {
        for bold in [false, true] {
            let font = Font::new(bold, 10.0);
            assert!(font.width("m") > font.width("i") && font.width("i") > 1.0);
            assert!(
                (font.width("coverage@64 (%)") - font.width("coverage") - font.width("@64 (%)"))
                    .abs()
                    < 1e-3
            );
            for sign in "σ√×≤–±".chars() {
                assert!(
                    font.face.as_ref().is_some_and(|face| face.glyph_index(sign).is_some()),
                    "{sign}"
                );
            }
        }
    }

    #[test]
    fn a_missing_glyph_is_a_question_mark() {
        let font = Font::new(false, 10.0);
        assert_eq!(font.width("語"), font.width("?"));
    }

    #[test]
    fn lines_fit() {
        let font = Font::new(false, 10.0);
        let text = "the share of questions that at least one of k trajectories answers";
        let lines = wrap(text, &font, 120.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| font.width(line) <= 120.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert_eq!(wrap("incomprehensibilities", &font, 5.0), ["incomprehensibilities"]);
    }
}
