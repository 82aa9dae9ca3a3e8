//! The numbers of a figure, as rows of the CSV file and as JSON for the page, whose script
//! (`assets/figures.js`) shows them as a table and exports the same CSV.

use serde_json::{Value, json};

use super::figure::{AxisScale, DataPoint, Figure, FigureAxis, Panel, Series};

/// One data point of a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureRow<'a> {
    /// The panel of the point.
    pub panel: &'a Panel,
    /// The label of the series, or the text of the tooltip for an unlabeled series.
    pub series: String,
    /// The point.
    pub point: &'a DataPoint,
}

impl Figure {
    /// All data points, ordered by panel and series.
    pub fn rows(&self) -> Vec<FigureRow<'_>> {
        let mut rows = Vec::new();
        for panel in &self.panels {
            for series in &panel.series {
                for point in &series.points {
                    rows.push(FigureRow { panel, series: series_name(series, point), point });
                }
            }
        }
        rows
    }

    /// The rows as CSV (RFC 4180, but with line feeds). Fractions are between 0 and 1; missing
    /// intervals have empty bounds.
    pub fn csv(&self) -> String {
        let mut csv = "panel,series,x,y,low,high\n".to_owned();
        for FigureRow { panel, series, point } in self.rows() {
            let DataPoint { x, y, interval, .. } = point;
            let ends = interval.map_or(",".to_owned(), |(low, high)| format!("{low},{high}"));
            csv.push_str(&format!("{},{},{x},{y},{ends}\n", field(&panel.title), field(&series)));
        }
        csv
    }
}

impl Figure {
    /// The rows as JSON: for each panel the title, the axes (label, and whether they are in
    /// percent), and the rows `[series, x, y, low, high]`.
    pub fn data_json(&self) -> Value {
        let axis = |axis: &FigureAxis| json!([axis.label, axis.scale == AxisScale::Percent]);
        let rows = self.rows();
        let panel = |panel: &Panel| {
            let own = rows.iter().filter(|row| std::ptr::eq(row.panel, panel));
            let row = |row: &FigureRow<'_>| {
                let (low, high) = row.point.interval.unzip();
                json!([row.series, row.point.x, row.point.y, low, high])
            };
            json!({
                "title": panel.title,
                "x": axis(&panel.x),
                "y": axis(&panel.y),
                "rows": own.map(row).collect::<Vec<_>>(),
            })
        };
        json!({ "name": self.name, "panels": self.panels.iter().map(panel).collect::<Vec<_>>() })
    }
}

fn series_name(series: &Series, point: &DataPoint) -> String {
    match (series.label.as_str(), point.tooltip.as_str()) {
        ("", "") => "single steps".into(),
        ("", tooltip) => tooltip.replace('\n', "; "),
        (label, _) => label.into(),
    }
}

/// A CSV field, quoted if necessary.
fn field(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{COLOURS, FigureAxis, SeriesStyle};

    #[test]
    fn every_point_is_a_line_of_csv() {
        let axis = |label: &str| FigureAxis::new(label, AxisScale::Percent);
        let point = |x: f64, interval, tooltip: &str| DataPoint {
            x,
            y: 0.25,
            interval,
            tooltip: tooltip.into(),
        };
        let series = |label: &str, points: Vec<DataPoint>| Series {
            label: label.into(),
            style: SeriesStyle::line(COLOURS[0]),
            points,
        };
        let figure = Figure {
            name: "figure",
            title: "a figure".into(),
            caption: String::new(),
            panels: vec![Panel {
                title: "one, \"two\"".into(),
                x: axis("x"),
                y: axis("y"),
                series: vec![
                    series("majority", vec![point(1.0, Some((0.2, 0.3)), "tip")]),
                    series("", vec![point(2.5, None, "p = 0.1\nright"), point(3.0, None, "")]),
                ],
            }],
        };
        let expected = "panel,series,x,y,low,high\n\
                        \"one, \"\"two\"\"\",majority,1,0.25,0.2,0.3\n\
                        \"one, \"\"two\"\"\",p = 0.1; right,2.5,0.25,,\n\
                        \"one, \"\"two\"\"\",single steps,3,0.25,,\n";
        assert_eq!(figure.csv(), expected);
        let panel = &figure.data_json()["panels"][0];
        assert_eq!(panel["y"], json!(["y", true]));
        assert_eq!(panel["rows"][0], json!(["majority", 1.0, 0.25, 0.2, 0.3]));
        assert_eq!(panel["rows"][1], json!(["p = 0.1; right", 2.5, 0.25, null, null]));
    }
}
