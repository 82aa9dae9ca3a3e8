//! A drawing as a list of shapes, before it is known whether it becomes SVG or pixels.
//!
//! What must change with the background (text, grid, paper) is named by its role; only series have
//! a fixed colour, chosen to be told from white and from near-black paper alike.

/// A place, in points from the upper left.
pub type Xy = (f32, f32);

/// Red, green, blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    /// As CSS writes it.
    pub fn css(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// The colour `share` of the way to another.
    pub fn towards(self, other: Self, share: f64) -> Self {
        let mix =
            |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
        Self(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }
}

/// What a shape is painted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColourRole {
    /// Titles and labels.
    Text,
    /// Axes' numbers and captions.
    Muted,
    /// Lines to read values by.
    Grid,
    /// The background.
    Background,
    /// Data.
    Data(Colour),
}

impl ColourRole {
    /// Its CSS class; data have none.
    pub fn class(self) -> Option<&'static str> {
        match self {
            Self::Text => Some("ink"),
            Self::Muted => Some("muted"),
            Self::Grid => Some("grid"),
            Self::Background => Some("paper"),
            Self::Data(_) => None,
        }
    }

    /// Its colour on white paper.
    pub fn light(self) -> Colour {
        match self {
            Self::Text => Colour(0x1f, 0x23, 0x28),
            Self::Muted => Colour(0x59, 0x63, 0x6e),
            Self::Grid => Colour(0xdf, 0xe3, 0xe8),
            Self::Background => Colour(0xff, 0xff, 0xff),
            Self::Data(colour) => colour,
        }
    }

    /// Its colour on a dark screen.
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

/// The form of a data point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    /// A disc.
    Circle,
    /// A square on its corner.
    Diamond,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// Two strokes.
    Cross,
    /// A star of five rays.
    Star,
    /// Nothing is drawn, but there is a value to point at.
    Hidden,
}

/// Where a text begins, relative to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextAnchor {
    /// To the right of it.
    Start,
    /// Around it.
    Middle,
    /// To the left of it.
    End,
}

/// A line of text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextLine {
    /// Its anchor, on the base line.
    pub position: Xy,
    /// The words.
    pub text: String,
    /// The height of the letters.
    pub size: f32,
    /// Whether they are heavy.
    pub bold: bool,
    /// Which part of the text is at its place.
    pub anchor: TextAnchor,
    /// Whether it runs upwards.
    pub vertical: bool,
    /// Its ink.
    pub role: ColourRole,
}

/// One thing that is drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Primitive {
    /// A line through places.
    Polyline {
        /// The places.
        points: Vec<Xy>,
        /// Its ink.
        role: ColourRole,
        /// Its width.
        width: f32,
        /// Whether it is interrupted.
        dashed: bool,
    },
    /// A filled polygon.
    Polygon {
        /// Its corners.
        points: Vec<Xy>,
        /// Its ink.
        role: ColourRole,
        /// 1 hides what is below.
        opacity: f32,
    },
    /// A data point.
    Marker {
        /// Its centre.
        position: Xy,
        /// Its form.
        symbol: Symbol,
        /// Half its width.
        radius: f32,
        /// Its colour.
        colour: Colour,
        /// What it says when pointed at; may be empty.
        tooltip: String,
    },
    /// A line of text.
    Text(TextLine),
}

/// A drawing.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// Its width.
    pub width: f32,
    /// Its height.
    pub height: f32,
    /// What it shows, for those who cannot see it.
    pub title: String,
    /// What is drawn, in this order.
    pub primitives: Vec<Primitive>,
}

/// The corners of a symbol around its centre; a circle and a cross have none.
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
