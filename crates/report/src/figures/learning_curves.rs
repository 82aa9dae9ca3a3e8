//! Learning curves: losses, held-out accuracy, gradient norm and learning rate against steps.
//!
//! A single training has all its losses in one panel; several trainings have one panel per loss. A
//! single training by reinforcement learning has one panel per scale ([`REWARD_PANELS`]).

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, Panel, Series, SeriesStyle,
    percent,
};
use crate::draw::drawing::{Colour, Symbol};
use crate::training_data::{TrainingData, score_interval, smooth};

/// Maximum number of points of a curve; longer curves are thinned out.
const MAX_POINTS: usize = 240;
/// An axis is logarithmic if the ratio of its largest to its smallest value is at least this.
const LOG_RATIO: f64 = 20.0;

/// Caption of the figure of losses and accuracy.
const LEARNING_CAPTION: &str = "\
    Losses of single steps (points, at most 240 per curve) and their exponential moving average \
    over 2% of training (line). Held-out accuracy is measured by decoding problems that are not \
    in the training data; bars: 95% confidence interval (Wilson); star: the kept model.";

/// Caption of the figure of the optimizer.
const OPTIMIZER_CAPTION: &str = "\
    Gradient norm before clipping, for single steps (points) and as a moving average (line), and \
    the learning rate. A continually growing norm indicates divergence.";

/// The panels of a training by reinforcement learning: title, axis and curves. Other curves are in
/// the panel of the loss.
const REWARD_PANELS: [(&str, &str, &[&str]); 4] = [
    ("rewards of sampled trajectories", "fraction", &["reward", "accuracy", "coverage"]),
    (
        "diversity",
        "fraction; entropy in nats",
        &["entropy", "distinct", "groups_used", "truncated"],
    ),
    ("lengths", "tokens or thoughts", &["answer_tokens", "thoughts"]),
    ("distance from earlier weights", "nats; fraction", &["kl", "clipped"]),
];

/// Held-out metrics of reinforcement learning, shown in addition to the score.
const HELD_OUT_METRICS: [&str; 3] = ["greedy", "majority", "coverage"];

/// All figures of these trainings.
pub fn learning_curves(trainings: &[TrainingData]) -> Vec<Figure> {
    let mut learning = loss_panels(trainings);
    learning.extend(accuracy_panel(trainings));
    let optimizer = [norm_panel(trainings), lr_panel(trainings)].into_iter().flatten().collect();
    let learning = Figure {
        name: "learning-curves",
        title: "Losses and held-out accuracy".into(),
        caption: LEARNING_CAPTION.into(),
        panels: learning,
    };
    let optimizer = Figure {
        name: "optimizer",
        title: "Gradient norm and learning rate".into(),
        caption: OPTIMIZER_CAPTION.into(),
        panels: optimizer,
    };
    [learning, optimizer].into_iter().filter(|figure| !figure.panels.is_empty()).collect()
}

/// One panel with all losses for a single training, else one panel per loss.
fn loss_panels(trainings: &[TrainingData]) -> Vec<Panel> {
    if let [one] = trainings {
        let names = one.loss_names();
        if !names.contains(&"reward") {
            return named_panel(one, ("losses", "loss"), &names).into_iter().collect();
        }
        let is_grouped = |name: &&str| REWARD_PANELS.iter().any(|(.., group)| group.contains(name));
        let rest: Vec<&str> = names.iter().copied().filter(|name| !is_grouped(name)).collect();
        let groups = REWARD_PANELS.iter().filter_map(|(title, label, group)| {
            let own: Vec<&str> =
                group.iter().copied().filter(|name| names.contains(name)).collect();
            named_panel(one, (title, label), &own)
        });
        return groups.chain(named_panel(one, ("loss", "loss"), &rest)).collect();
    }
    let mut names: Vec<&str> = Vec::new();
    for name in trainings.iter().flat_map(TrainingData::loss_names) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let panel = |name: &str| {
        curve_panel(
            name,
            name,
            curves(trainings, |training| training.curve(|r| r.losses.get(name))),
        )
    };
    names.into_iter().filter_map(panel).collect()
}

/// A panel with some losses of a training; `None` if there are none.
fn named_panel(
    training: &TrainingData,
    (title, label): (&str, &str),
    names: &[&str],
) -> Option<Panel> {
    let curve = |(i, name): (usize, &&str)| Curve {
        label: (*name).to_owned(),
        colour: colour(i),
        points: training.curve(|record| record.losses.get(name)),
    };
    curve_panel(title, label, names.iter().enumerate().map(curve).collect())
}

fn norm_panel(trainings: &[TrainingData]) -> Option<Panel> {
    let positive = |norm: f64| Some(norm).filter(|norm| *norm > 0.0);
    let norms = curves(trainings, |t| t.curve(|record| positive(record.grad_norm)));
    let mut panel = curve_panel("gradient norm", "norm before clipping", norms)?;
    panel.y.scale = AxisScale::Log10;
    Some(panel)
}

fn lr_panel(trainings: &[TrainingData]) -> Option<Panel> {
    let series = curves(trainings, |training| training.curve(|record| Some(record.lr)));
    let series = series.iter().map(|curve| curve.line(&curve.points)).collect();
    Some(Panel {
        title: "learning rate".into(),
        x: FigureAxis::new("steps", AxisScale::Count),
        y: FigureAxis::new("learning rate", AxisScale::Linear),
        series,
    })
}

/// Held-out accuracy of every training with evaluations, with the kept model marked; `None` if
/// there are no evaluations.
fn accuracy_panel(trainings: &[TrainingData]) -> Option<Panel> {
    let evaluated = || trainings.iter().enumerate().filter(|(_, t)| !t.evals.is_empty());
    let mut series: Vec<Series> = evaluated()
        .map(|(i, training)| {
            let label = if trainings.len() == 1 { "held-out accuracy" } else { &training.label };
            accuracy_series(training, label, colour(i))
        })
        .collect();
    if let [one] = trainings {
        series.extend(metric_series(one));
    }
    series.extend(evaluated().filter_map(|(i, training)| kept_series(training, colour(i))));
    let shares = series.iter().flat_map(|s| &s.points).all(|p| (0.0..=1.0).contains(&p.y));
    let (label, scale) = match shares {
        true => ("held-out accuracy (%)", AxisScale::Percent),
        false => ("held-out score", AxisScale::Linear),
    };
    (!series.is_empty()).then(|| Panel {
        title: "held-out problems".into(),
        // The same axis as for losses, even with few evaluations.
        x: FigureAxis::new("steps", AxisScale::Count).enclosing(step_range(trainings)),
        y: FigureAxis::new(label, scale),
        series,
    })
}

/// The first and the last step of all trainings.
fn step_range(trainings: &[TrainingData]) -> Vec<f64> {
    let steps = || trainings.iter().flat_map(|training| &training.steps);
    let ends = [steps().map(|record| record.step).min(), steps().map(|record| record.step).max()];
    ends.into_iter().flatten().map(f64::from).collect()
}

fn accuracy_series(training: &TrainingData, label: &str, colour: Colour) -> Series {
    let point = |eval: &record::EvalRecord| {
        let metrics = serde_json::Value::Object(eval.metrics.clone());
        let tooltip = format!("{label}\nafter {} steps\n{metrics}", eval.step);
        let interval = score_interval(eval).map(|interval| (interval.low, interval.high));
        DataPoint { x: f64::from(eval.step), y: eval.score, interval, tooltip }
    };
    Series {
        label: label.to_owned(),
        style: SeriesStyle { intervals: IntervalStyle::Bars, ..SeriesStyle::line(colour) },
        points: training.evals.iter().map(point).collect(),
    }
}

/// The held-out metrics of reinforcement learning other than the score.
fn metric_series(training: &TrainingData) -> Vec<Series> {
    let value = |eval: &record::EvalRecord, name: &str| eval.metrics.get(name)?.as_f64();
    let is_score = |name: &str| {
        training.evals.iter().all(|eval| value(eval, name).is_none_or(|x| x == eval.score))
    };
    let others = HELD_OUT_METRICS.iter().filter(|name| !is_score(name)).enumerate();
    let series = |(i, name): (usize, &&str)| {
        let points = training.evals.iter();
        let points = points.filter_map(|eval| Some((f64::from(eval.step), value(eval, name)?)));
        let points: Vec<(f64, f64)> = points.collect();
        let curve = Curve { label: (*name).to_owned(), colour: colour(i + 1), points };
        curve.line(&curve.points)
    };
    others.map(series).collect()
}

fn kept_series(training: &TrainingData, colour: Colour) -> Option<Series> {
    let kept = training.kept()?;
    let score = if (0.0..=1.0).contains(&kept.score) {
        percent(kept.score)
    } else {
        format!("{:.4}", kept.score)
    };
    let tooltip = format!("{}\nkept: after {} steps, {score}", training.label, kept.step);
    Some(Series {
        label: "kept model".into(),
        style: SeriesStyle { radius: 5.0, ..SeriesStyle::points_only(colour, Symbol::Star) },
        points: vec![DataPoint { x: f64::from(kept.step), y: kept.score, interval: None, tooltip }],
    })
}

/// A labeled curve over steps.
struct Curve {
    label: String,
    colour: Colour,
    points: Vec<(f64, f64)>,
}

/// One curve per training, without a label if there is a single training.
fn curves(
    trainings: &[TrainingData],
    points: impl Fn(&TrainingData) -> Vec<(f64, f64)>,
) -> Vec<Curve> {
    let curve = |(i, training): (usize, &TrainingData)| Curve {
        label: if trainings.len() == 1 { String::new() } else { training.label.clone() },
        colour: colour(i),
        points: points(training),
    };
    trainings.iter().enumerate().map(curve).filter(|curve| !curve.points.is_empty()).collect()
}

impl Curve {
    /// The values of single steps, drawn faintly.
    fn raw(&self) -> Series {
        let point = |(x, y)| DataPoint { x, y, interval: None, tooltip: String::new() };
        let style = SeriesStyle::points_only(self.colour, Symbol::Circle);
        Series {
            label: String::new(),
            style: SeriesStyle { radius: 1.2, opacity: 0.35, ..style },
            points: thinned(&self.points).map(point).collect(),
        }
    }

    fn line(&self, points: &[(f64, f64)]) -> Series {
        let tooltip = |x: f64, y: f64| {
            let name = if self.label.is_empty() { "" } else { &format!("{}\n", self.label) };
            format!("{name}after {x} steps\n{}", format_value(y))
        };
        let point = |(x, y)| DataPoint { x, y, interval: None, tooltip: tooltip(x, y) };
        Series {
            label: self.label.clone(),
            style: SeriesStyle {
                symbol: Symbol::Hidden,
                intervals: IntervalStyle::None,
                ..SeriesStyle::line(self.colour)
            },
            points: thinned(points).map(point).collect(),
        }
    }
}

/// A panel with raw points below smoothed lines; `None` without curves.
fn curve_panel(title: &str, label: &str, curves: Vec<Curve>) -> Option<Panel> {
    let mut series: Vec<Series> = curves.iter().map(Curve::raw).collect();
    series.extend(curves.iter().map(|curve| curve.line(&smooth(&curve.points))));
    let values = || curves.iter().flat_map(|curve| &curve.points).map(|(_, y)| *y);
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(0.0, f64::max);
    let log = low > 0.0 && high > LOG_RATIO * low;
    (!series.is_empty()).then(|| Panel {
        title: title.into(),
        x: FigureAxis::new("steps", AxisScale::Count),
        y: FigureAxis::new(label, if log { AxisScale::Log10 } else { AxisScale::Linear }),
        series,
    })
}

/// At most [`MAX_POINTS`] equidistant points, including the last.
fn thinned(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    let stride = points.len().div_ceil(MAX_POINTS).max(1);
    let first = points.len().saturating_sub(1) % stride;
    points.iter().copied().skip(first).step_by(stride)
}

/// Formats a value with four significant digits.
fn format_value(value: f64) -> String {
    match value.abs() {
        large if large >= 0.01 || large == 0.0 => format!("{value:.4}"),
        _ => format!("{value:.3e}"),
    }
}

fn colour(index: usize) -> Colour {
    COLOURS[index % COLOURS.len()]
}
