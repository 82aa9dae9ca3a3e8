//! The SVG backend.
//!
//! Attributes hold the colors of the light theme; CSS classes let a style sheet override them. A
//! standalone file includes a style sheet for the dark theme; in the page, the page's rules apply.

use std::fmt::Write;

use super::drawing::{
    ColourRole, Drawing, PointMarker, Primitive, Symbol, TextAnchor, TextLine, Xy, cross_strokes,
    symbol_corners,
};

const FONT_FAMILY: &str = "DejaVu Sans, Verdana, system-ui, sans-serif";

/// A standalone SVG file.
pub fn document(drawing: &Drawing) -> String {
    let rule = |role: ColourRole, paint: &str| {
        format!(".{} {{ {paint}: {} }} ", role.class().unwrap_or_default(), role.dark().css())
    };
    let rules = [
        (ColourRole::Text, "fill"),
        (ColourRole::Muted, "fill"),
        (ColourRole::Grid, "stroke"),
        (ColourRole::Background, "fill"),
    ];
    let rules: String = rules.into_iter().map(|(role, paint)| rule(role, paint)).collect();
    let axis = format!(".muted.line {{ stroke: {}; fill: none }}", ColourRole::Muted.dark().css());
    write_svg(
        drawing,
        &format!("<style>@media (prefers-color-scheme: dark) {{ {rules}{axis} }}</style>\n"),
        true,
    )
}

/// An SVG element for embedding in HTML.
pub fn inline(drawing: &Drawing) -> String {
    write_svg(drawing, "", false)
}

fn write_svg(drawing: &Drawing, style: &str, standalone: bool) -> String {
    let Drawing { width, height, title, primitives } = drawing;
    let size = if standalone {
        format!(" width=\"{width:.0}\" height=\"{height:.0}\"")
    } else {
        String::new()
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\"{size} \
         font-family=\"{FONT_FAMILY}\" role=\"img\">\n<title>{}</title>\n{style}",
        escape(title)
    );
    for primitive in primitives {
        write_primitive(&mut svg, primitive);
        svg.push('\n');
    }
    svg.push_str("</svg>\n");
    svg
}

fn write_primitive(svg: &mut String, primitive: &Primitive) {
    // Writing to a string cannot fail.
    let _ = match primitive {
        Primitive::Polyline { points, role, width, dashed } => {
            let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let class =
                role.class().map(|class| format!(" class=\"{class} line\"")).unwrap_or_default();
            let points = points_attribute(points);
            let colour = role.light().css();
            write!(
                svg,
                "<polyline{class} points=\"{points}\" fill=\"none\" stroke=\"{colour}\" \
                 stroke-width=\"{width}\"{dash}/>"
            )
        }
        Primitive::Polygon { points, role, opacity } => {
            let class = class_attribute(*role);
            let points = points_attribute(points);
            let opacity =
                if *opacity < 1.0 { format!(" fill-opacity=\"{opacity}\"") } else { String::new() };
            write!(
                svg,
                "<polygon{class} points=\"{points}\" fill=\"{}\"{opacity}/>",
                role.light().css()
            )
        }
        Primitive::Marker(marker) => write_marker(svg, marker),
        Primitive::Text(text) => write_text(svg, text),
    };
}

fn write_marker(svg: &mut String, marker: &PointMarker) -> std::fmt::Result {
    let PointMarker { position, symbol, radius: r, .. } = *marker;
    let ((x, y), colour) = (position, marker.colour.css());
    let tip = match marker.tooltip.as_str() {
        "" => String::new(),
        tooltip => format!(" data-tip=\"{}\"", escape(tooltip)),
    };
    let opacity = match marker.opacity {
        opaque if opaque >= 1.0 => String::new(),
        opacity => format!(" opacity=\"{opacity}\""),
    };
    match symbol {
        Symbol::Hidden => {
            write!(svg, "<circle{tip} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\" fill=\"transparent\"/>")
        }
        Symbol::Circle => {
            let at = format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"");
            write!(svg, "<circle{tip} {at} fill=\"{colour}\"{opacity}/>")
        }
        Symbol::Cross => {
            let [a, b] = cross_strokes(position, r)
                .map(|[from, to]| format!("M{:.1} {:.1}L{:.1} {:.1}", from.0, from.1, to.0, to.1));
            write!(
                svg,
                "<path{tip} d=\"{a}{b}\" stroke=\"{colour}\" stroke-width=\"1.6\" fill=\"none\"/>"
            )
        }
        _ => write!(
            svg,
            "<polygon{tip} points=\"{}\" fill=\"{colour}\"{opacity}/>",
            points_attribute(&symbol_corners(symbol, position, r))
        ),
    }
}

fn write_text(svg: &mut String, text: &TextLine) -> std::fmt::Result {
    let (x, y) = text.position;
    let anchor = match text.anchor {
        TextAnchor::Start => "",
        TextAnchor::Middle => " text-anchor=\"middle\"",
        TextAnchor::End => " text-anchor=\"end\"",
    };
    let bold = if text.bold { " font-weight=\"bold\"" } else { "" };
    let rotate = if text.vertical {
        format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"")
    } else {
        String::new()
    };
    let class = class_attribute(text.role);
    let colour = text.role.light().css();
    let size = text.size;
    let content = escape(&text.text);
    write!(
        svg,
        "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\"{bold}{anchor}{rotate} \
         fill=\"{colour}\">{content}</text>"
    )
}

fn class_attribute(role: ColourRole) -> String {
    role.class().map(|class| format!(" class=\"{class}\"")).unwrap_or_default()
}

fn points_attribute(points: &[Xy]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

/// Escapes text for attributes and element content.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push_str("&#10;"),
            // XML cannot represent other control characters.
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::drawing::Colour;

    #[test]
    fn text_is_escaped() {
        let tooltip = "<script>\"it's\" & more\u{1}\n".to_owned();
        let marker = Primitive::Marker(PointMarker {
            position: (1.0, 2.0),
            symbol: Symbol::Circle,
            radius: 3.0,
            colour: Colour(1, 2, 3),
            opacity: 1.0,
            tooltip,
        });
        let drawing =
            Drawing { width: 10.0, height: 10.0, title: "a < b".into(), primitives: vec![marker] };
        let svg = inline(&drawing);
        assert!(svg.contains("&lt;script&gt;&quot;it&#39;s&quot; &amp; more &#10;"), "{svg}");
        assert!(svg.contains("<title>a &lt; b</title>") && !svg.contains("<script"), "{svg}");
    }

    #[test]
    fn a_standalone_file_has_a_dark_style() {
        let drawing =
            Drawing { width: 10.0, height: 10.0, title: String::new(), primitives: vec![] };
        assert!(document(&drawing).contains("prefers-color-scheme: dark"));
        assert!(!inline(&drawing).contains("<style>"));
    }
}
