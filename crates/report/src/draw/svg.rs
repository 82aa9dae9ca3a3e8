//! A scene as SVG.
//!
//! Attributes carry the colours of white paper; classes let a style sheet replace them. A file of its own brings a style
//! sheet for dark screens; in a page, the page's own rules do it.

use std::fmt::Write;

use super::scene::{Anchor, Ink, Place, Scene, Shape, Symbol, Text, corners, strokes};

const FAMILY: &str = "DejaVu Sans, Verdana, system-ui, sans-serif";

/// A file of its own.
pub fn file(scene: &Scene) -> String {
    let rule = |ink: Ink, paint: &str| format!(".{} {{ {paint}: {} }} ", ink.class().unwrap_or_default(), ink.on_dark().css());
    let rules = [(Ink::Text, "fill"), (Ink::Muted, "fill"), (Ink::Grid, "stroke"), (Ink::Paper, "fill")];
    let rules: String = rules.into_iter().map(|(ink, paint)| rule(ink, paint)).collect();
    let axis = format!(".muted.line {{ stroke: {}; fill: none }}", Ink::Muted.on_dark().css());
    draw(scene, &format!("<style>@media (prefers-color-scheme: dark) {{ {rules}{axis} }}</style>\n"), true)
}

/// A part of a page.
pub fn inline(scene: &Scene) -> String {
    draw(scene, "", false)
}

fn draw(scene: &Scene, style: &str, alone: bool) -> String {
    let Scene { width, height, title, shapes } = scene;
    let size = if alone { format!(" width=\"{width:.0}\" height=\"{height:.0}\"") } else { String::new() };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\"{size} font-family=\"{FAMILY}\" \
         role=\"img\">\n<title>{}</title>\n{style}",
        escape(title)
    );
    for shape in shapes {
        one(&mut svg, shape);
        svg.push('\n');
    }
    svg.push_str("</svg>\n");
    svg
}

fn one(svg: &mut String, shape: &Shape) {
    // Writing to a string cannot fail.
    let _ = match shape {
        Shape::Line { points, ink, width, dashed } => {
            let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let class = ink.class().map(|class| format!(" class=\"{class} line\"")).unwrap_or_default();
            let (points, colour) = (places(points), ink.on_white().css());
            write!(svg, "<polyline{class} points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dash}/>")
        }
        Shape::Area { points, ink, opacity } => {
            let (class, points) = (class(*ink), places(points));
            let opacity = if *opacity < 1.0 { format!(" fill-opacity=\"{opacity}\"") } else { String::new() };
            write!(svg, "<polygon{class} points=\"{points}\" fill=\"{}\"{opacity}/>", ink.on_white().css())
        }
        Shape::Mark { at, symbol, radius, colour, tip } => mark(svg, (*at, *symbol, *radius), &colour.css(), tip),
        Shape::Text(text) => words(svg, text),
    };
}

fn mark(svg: &mut String, (at, symbol, r): (Place, Symbol, f32), colour: &str, tip: &str) -> std::fmt::Result {
    let (x, y) = at;
    let tip = if tip.is_empty() { String::new() } else { format!(" data-tip=\"{}\"", escape(tip)) };
    match symbol {
        Symbol::Hidden => write!(svg, "<circle{tip} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\" fill=\"transparent\"/>"),
        Symbol::Circle => write!(svg, "<circle{tip} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\" fill=\"{colour}\"/>"),
        Symbol::Cross => {
            let [a, b] = strokes(at, r).map(|[from, to]| format!("M{:.1} {:.1}L{:.1} {:.1}", from.0, from.1, to.0, to.1));
            write!(svg, "<path{tip} d=\"{a}{b}\" stroke=\"{colour}\" stroke-width=\"1.6\" fill=\"none\"/>")
        }
        _ => write!(svg, "<polygon{tip} points=\"{}\" fill=\"{colour}\"/>", places(&corners(symbol, at, r))),
    }
}

fn words(svg: &mut String, text: &Text) -> std::fmt::Result {
    let (x, y) = text.at;
    let anchor = match text.anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let bold = if text.bold { " font-weight=\"bold\"" } else { "" };
    let turn = if text.upwards { format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"") } else { String::new() };
    let (class, colour, size) = (class(text.ink), text.ink.on_white().css(), text.size);
    let words = escape(&text.words);
    write!(
        svg,
        "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\"{bold}{anchor}{turn} fill=\"{colour}\">{words}</text>"
    )
}

fn class(ink: Ink) -> String {
    ink.class().map(|class| format!(" class=\"{class}\"")).unwrap_or_default()
}

fn places(points: &[Place]) -> String {
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
    fn nothing_typed_becomes_markup() {
        let tip = "<script>\"it's\" & more\u{1}\n".to_owned();
        let mark = Shape::Mark { at: (1.0, 2.0), symbol: Symbol::Circle, radius: 3.0, colour: Colour(1, 2, 3), tip };
        let scene = Scene { width: 10.0, height: 10.0, title: "a < b".into(), shapes: vec![mark] };
        let svg = inline(&scene);
        assert!(svg.contains("&lt;script&gt;&quot;it&#39;s&quot; &amp; more &#10;"), "{svg}");
        assert!(svg.contains("<title>a &lt; b</title>") && !svg.contains("<script"), "{svg}");
    }

    #[test]
    fn a_file_knows_dark_screens() {
        let scene = Scene { width: 10.0, height: 10.0, title: String::new(), shapes: vec![] };
        assert!(file(&scene).contains("prefers-color-scheme: dark"));
        assert!(!inline(&scene).contains("<style>"));
    }
}
