//! A drawing as a list of primitives, independent of the backend.
//!
//! Colors that depend on the theme (text, grid, background) are given by their role. Series have
//! fixed colors, legible on white and on near-black.

/// x and y in points, from the upper left corner.
pub type Xy = (f32, f32);

/// An sRGB color: red, green, blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    /// The CSS notation, `#rrggbb`.
    pub fn css(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// Linear interpolation: 0 is `self`, 1 is `other`.
    pub fn towards(self, other: Self, fraction: f64) -> Self {
        let mix =
            |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * fraction).round() as u8;
        Self(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }
}

/// The role of a color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColourRole {
    /// Titles and labels.
    Text,
    /// Tick labels and captions.
    Muted,
    /// Grid lines.
    Grid,
    /// The background.
    Background,
    /// Data, in a fixed color.
    Data(Colour),
}

impl ColourRole {
    /// The CSS class; `None` for data.
    pub fn class(self) -> Option<&'static str> {
        match self {
            Self::Text => Some("ink"),
            Self::Muted => Some("muted"),
            Self::Grid => Some("grid"),
            Self::Background => Some("paper"),
            Self::Data(_) => None,
        }
    }

    /// The color in the light theme.
    pub fn light(self) -> Colour {
        match self {
            Self::Text => Colour(0x1f, 0x23, 0x28),
            Self::Muted => Colour(0x59, 0x63, 0x6e),
            Self::Grid => Colour(0xdf, 0xe3, 0xe8),
            Self::Background => Colour(0xff, 0xff, 0xff),
            Self::Data(colour) => colour,
        }
    }

    /// The color in the dark theme.
    pub fn dark(self) -> Colour {
        match self {
            Self::Text => Colour(0xe6, 0xea, 0xef),
            Self::Muted => Colour(0x9d, 0xa7, 0xb3),
            Self::Grid => Colour(0x30, 0x37, 0x40),
            Self::Background => Colour(0x15, 0x19, 0x1e),
            Self::Data(colour) => colour,
        }
    }
}

/// The shape of a data point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    /// A filled circle.
    Circle,
    /// A square rotated by 45 degrees.
    Diamond,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// Two diagonal strokes.
    Cross,
    /// A five-pointed star.
    Star,
    /// Invisible, but with a tooltip.
    Hidden,
}

/// The part of a text line that its position refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextAnchor {
    /// The start of the text.
    Start,
    /// The middle of the text.
    Middle,
    /// The end of the text.
    End,
}

/// A line of text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextLine {
    /// The anchor, on the baseline.
    pub position: Xy,
    /// The text.
    pub text: String,
    /// The font size in points.
    pub size: f32,
    /// Whether the font is bold.
    pub bold: bool,
    /// The part of the text that is at `position`.
    pub anchor: TextAnchor,
    /// Whether the text is rotated by 90 degrees, reading upwards.
    pub vertical: bool,
    /// The color.
    pub role: ColourRole,
}

impl TextLine {
    /// A horizontal line of regular weight that starts at the origin.
    pub fn new(text: impl Into<String>, size: f32, role: ColourRole) -> Self {
        Self {
            position: (0.0, 0.0),
            text: text.into(),
            size,
            bold: false,
            anchor: TextAnchor::Start,
            vertical: false,
            role,
        }
    }
}

/// A data point.
#[derive(Debug, Clone, PartialEq)]
pub struct PointMarker {
    /// The center.
    pub position: Xy,
    /// The shape.
    pub symbol: Symbol,
    /// Half the width, in points.
    pub radius: f32,
    /// The color.
    pub colour: Colour,
    /// Opacity, from 0 (transparent) to 1 (opaque).
    pub opacity: f32,
    /// Text shown on hover; may be empty.
    pub tooltip: String,
}

/// An element of a drawing.
#[derive(Debug, Clone, PartialEq)]
pub enum Primitive {
    /// A line through points.
    Polyline {
        /// The points.
        points: Vec<Xy>,
        /// The color.
        role: ColourRole,
        /// The stroke width.
        width: f32,
        /// Whether the stroke is dashed.
        dashed: bool,
    },
    /// A filled polygon.
    Polygon {
        /// The corners.
        points: Vec<Xy>,
        /// The color.
        role: ColourRole,
        /// Opacity, from 0 (transparent) to 1 (opaque).
        opacity: f32,
    },
    /// A data point.
    Marker(PointMarker),
    /// A line of text.
    Text(TextLine),
}

/// Primitives on a canvas.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// The width in points.
    pub width: f32,
    /// The height in points.
    pub height: f32,
    /// The accessible title.
    pub title: String,
    /// The primitives, from back to front.
    pub primitives: Vec<Primitive>,
}

/// The corners of a symbol around its center; empty for symbols that are not polygons.
pub fn symbol_corners(symbol: Symbol, (x, y): Xy, r: f32) -> Vec<Xy> {
    let ring = |count: usize, radius: fn(usize) -> f32| {
        let corner = move |i: usize| {
            let angle =
                std::f32::consts::TAU * i as f32 / count as f32 - std::f32::consts::FRAC_PI_2;
            (x + r * radius(i) * angle.cos(), y + r * radius(i) * angle.sin())
        };
        (0..count).map(corner).collect()
    };
    match symbol {
        Symbol::Circle | Symbol::Cross | Symbol::Hidden => Vec::new(),
        Symbol::Diamond => ring(4, |_| 1.2),
        Symbol::Triangle => ring(3, |_| 1.25),
        Symbol::Square => vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
        Symbol::Star => ring(10, |i| if i % 2 == 0 { 1.6 } else { 0.7 }),
    }
}

/// The two strokes of a cross.
pub fn cross_strokes((x, y): Xy, r: f32) -> [[Xy; 2]; 2] {
    let r = 0.85 * r;
    [[(x - r, y - r), (x + r, y + r)], [(x - r, y + r), (x + r, y - r)]]
}
