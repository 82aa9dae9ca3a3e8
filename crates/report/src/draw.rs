//! Rendering of figures: layout into drawing primitives, then SVG and PNG backends.
//!
//! ```text
//! figure (data) -> layout (with scale and font) -> drawing (primitives) -> svg, png
//! ```
//!
//! The page embeds each panel as inline SVG with tooltips; the files hold the whole figure.

pub mod drawing;
mod font;
mod layout;
mod png;
mod scale;
mod svg;

pub use layout::{legend_key, panel, sheet};
pub use png::encode as png;
pub use svg::{document as svg, escape, inline};
