//! From a figure's data to a picture: scales, layout, and two ways to write it down.
//!
//! ```text
//! figure (data) -> layout (with scale and font) -> scene (shapes) -> svg, png
//! ```
//!
//! One drawing serves the files and the page: the page shows each panel as inline SVG whose points
//! say their values.

mod font;
mod layout;
mod png;
mod scale;
pub mod scene;
mod svg;

pub use layout::{legend_key, panel, sheet};
pub use png::encode as png;
pub use svg::{document as svg, escape, inline};
