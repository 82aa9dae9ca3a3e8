//! A scene as SVG.
//!
//! Attributes carry the colours of white paper; classes let a style sheet replace them. A file of
//! its own brings a style sheet for dark screens; in a page, the page's own rules do it.

use std::fmt::Write;

use super::scene::{
    ColourRole, Drawing, Primitive, Symbol, TextAnchor, TextLine, Xy, cross_strokes, symbol_corners,
};

const FAMILY: &str = "DejaVu Sans, Verdana, system-ui, sans-serif";

/// A file of its own.
pub fn document(scene: &Drawing) -> String {
    let rule = |ink: ColourRole, paint: &str| {
        format!(".{} {{ {paint}: {} }} ", ink.class().unwrap_or_default(), ink.dark().css())
    };
    let rules = [
        (ColourRole::Text, "fill"),
        (ColourRole::Muted, "fill"),
        (ColourRole::Grid, "stroke"),
        (ColourRole::Background, "fill"),
    ];
    let rules: String = rules.into_iter().map(|(ink, paint)| rule(ink, paint)).collect();
    let axis = format!(".muted.line {{ stroke: {}; fill: none }}", ColourRole::Muted.dark().css());
    write_svg(
        scene,
        &format!("<style>@media (prefers-color-scheme: dark) {{ {rules}{axis} }}</style>\n"),
        true,
    )
}

/// A part of a page.
pub fn inline(scene: &Drawing) -> String {
    write_svg(scene, "", false)
}

fn write_svg(scene: &Drawing, style: &str, alone: bool) -> String {
    let Drawing { width, height, title, primitives: shapes } = scene;
    let size =
        if alone { format!(" width=\"{width:.0}\" height=\"{height:.0}\"") } else { String::new() };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\"{size} font-family=\"{FAMILY}\" \
         role=\"img\">\n<title>{}</title>\n{style}",
        escape(title)
    );
    for shape in shapes {
        write_primitive(&mut svg, shape);
        svg.push('\n');
    }
    svg.push_str("</svg>\n");
    svg
}

fn write_primitive(svg: &mut String, shape: &Primitive) {
    // Writing to a string cannot fail.
    let _ = match shape {
        Primitive::Polyline { points, role: ink, width, dashed } => {
            let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let class =
                ink.class().map(|class| format!(" class=\"{class} line\"")).unwrap_or_default();
            let (points, colour) = (points_attribute(points), ink.light().css());
            write!(
                svg,
                "<polyline{class} points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dash}/>"
            )
        }
        Primitive::Polygon { points, role: ink, opacity } => {
            let (class, points) = (class_attribute(*ink), points_attribute(points));
            let opacity =
                if *opacity < 1.0 { format!(" fill-opacity=\"{opacity}\"") } else { String::new() };
            write!(
                svg,
                "<polygon{class} points=\"{points}\" fill=\"{}\"{opacity}/>",
                ink.light().css()
            )
        }
        Primitive::Marker { position: at, symbol, radius, colour, tooltip: tip } => {
            write_marker(svg, (*at, *symbol, *radius), &colour.css(), tip)
        }
        Primitive::Text(text) => write_text(svg, text),
    };
}

fn write_marker(
    svg: &mut String,
    (at, symbol, r): (Xy, Symbol, f32),
    colour: &str,
    tip: &str,
) -> std::fmt::Result {
    let (x, y) = at;
    let tip = if tip.is_empty() { String::new() } else { format!(" data-tip=\"{}\"", escape(tip)) };
    match symbol {
        Symbol::Hidden => {
            write!(svg, "<circle{tip} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\" fill=\"transparent\"/>")
        }
        Symbol::Circle => {
            write!(svg, "<circle{tip} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\" fill=\"{colour}\"/>")
        }
        Symbol::Cross => {
            let [a, b] = cross_strokes(at, r)
                .map(|[from, to]| format!("M{:.1} {:.1}L{:.1} {:.1}", from.0, from.1, to.0, to.1));
            write!(
                svg,
                "<path{tip} d=\"{a}{b}\" stroke=\"{colour}\" stroke-width=\"1.6\" fill=\"none\"/>"
            )
        }
        _ => write!(
            svg,
            "<polygon{tip} points=\"{}\" fill=\"{colour}\"/>",
            points_attribute(&symbol_corners(symbol, at, r))
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
    let turn = if text.vertical {
        format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"")
    } else {
        String::new()
    };
    let (class, colour, size) = (class_attribute(text.role), text.role.light().css(), text.size);
    let words = escape(&text.text);
    write!(
        svg,
        "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\"{bold}{anchor}{turn} fill=\"{colour}\">{words}</text>"
    )
}

fn class_attribute(ink: ColourRole) -> String {
    ink.class().map(|class| format!(" class=\"{class}\"")).unwrap_or_default()
}

fn points_attribute(points: &[Xy]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

/// Text as markup says it, in attributes and between tags.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push_str("&#10;"),
            // XML has no word for other control characters.
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::scene::Colour;

    #[test]
    fn text_is_escaped() {
        let tip = "<script>\"it's\" & more\u{1}\n".to_owned();
        let mark = Primitive::Marker {
            position: (1.0, 2.0),
            symbol: Symbol::Circle,
            radius: 3.0,
            colour: Colour(1, 2, 3),
            tooltip: tip,
        };
        let scene =
            Drawing { width: 10.0, height: 10.0, title: "a < b".into(), primitives: vec![mark] };
        let svg = inline(&scene);
        assert!(svg.contains("&lt;script&gt;&quot;it&#39;s&quot; &amp; more &#10;"), "{svg}");
        assert!(svg.contains("<title>a &lt; b</title>") && !svg.contains("<script"), "{svg}");
    }

    #[test]
    fn a_standalone_file_has_a_dark_style() {
        let scene = Drawing { width: 10.0, height: 10.0, title: String::new(), primitives: vec![] };
        assert!(document(&scene).contains("prefers-color-scheme: dark"));
        assert!(!inline(&scene).contains("<style>"));
    }
}
