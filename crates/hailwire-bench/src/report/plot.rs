//! Plots: latency distributions, throughput against agents, memory against peers.
//!
//! plotters lays them out; the colours that it writes are placeholders for CSS classes, so that the page's style
//! sheet styles them, light or dark. Hailwire's lines are solid and coloured, each with a marker of its own; baselines are grey, each
//! with a dash pattern and a marker of its own.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use plotters::{
    coord::{Shift, combinators::WithKeyPoints, types::RangedCoordf64},
    prelude::*,
};

use super::{figure, subjects};
use crate::tables::{callout, subject};

/// Width and height of a plot in its own units: small, so that its text can be read on a phone.
const SIZE: (u32, u32) = (440, 300);
/// How many different series a style sheet can draw.
pub(crate) const LINE_STYLES: usize = 2 * OF_EACH_SIDE;
/// Half of them are for Hailwire, half for baselines.
const OF_EACH_SIDE: usize = 8;

const TEXT: RGBColor = RGBColor(2, 0, 0);
const GRID: RGBColor = RGBColor(3, 0, 0);
const AXIS: RGBColor = RGBColor(4, 0, 0);

/// A plot ready to be put into a page.
#[derive(Clone, Debug)]
pub(crate) struct SvgPlot {
    /// What it shows.
    pub(crate) title: String,
    /// The same in figures, as a text alternative.
    pub(crate) desc: String,
    /// The inside of the `svg` element.
    pub(crate) inside: String,
    /// Style and name of each series.
    pub(crate) series: Vec<(usize, String)>,
}

/// What is to be drawn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChartData {
    /// What it shows.
    pub(crate) title: String,
    /// The same in figures.
    pub(crate) desc: String,
    /// Label of the x axis, and the figure's name by which its values are printed.
    pub(crate) x: (String, String),
    /// The same for y.
    pub(crate) y: (String, String),
    /// The lines.
    pub(crate) series: Vec<ChartSeries>,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChartSeries {
    /// The subject.
    pub(crate) name: String,
    /// Points, x rising.
    pub(crate) points: Vec<(f64, f64)>,
    /// The points with a marker.
    pub(crate) marks: Vec<(f64, f64)>,
}

/// The style of a subject, below [`LINE_STYLES`]: the first half are Hailwire's, solid and coloured, the second half the
/// baselines', grey and dashed. A known subject looks the same in every plot; the others of `before` (the unknown ones
/// drawn so far, Hailwire's and baselines) get what is left of their half, and past that they share its last.
fn style(name: &str, before: &mut [usize; 2]) -> usize {
    let ours = subjects::is_hailwire(name);
    let (first, fixed) = if ours {
        (0, OURS_FIXED)
    } else {
        (OF_EACH_SIDE, THEIRS_FIXED)
    };
    let known = fixed.iter().position(|names| names.contains(&name));
    let within = known.unwrap_or_else(|| {
        let [of_ours, of_theirs] = before;
        let count = if ours { of_ours } else { of_theirs };
        *count += 1;
        (fixed.len() + *count - 1).min(OF_EACH_SIDE - 1)
    });
    first + within
}

/// Hailwire's styles that are taken; subjects that never share a plot share one.
const OURS_FIXED: &[&[&str]] = &[
    &[subject::QUIC, callout::OURS, callout::OURS_OURS],
    &[subject::H2, callout::FAR],
    &[subject::WS, callout::NEAR],
    &[subject::PROCESSES, callout::SELDOM],
    &[subject::AUTO],
];

/// The baselines'.
const THEIRS_FIXED: &[&[&str]] = &[
    &[subject::RAW_IROH, callout::THEIRS, callout::THEIRS_THEIRS],
    &[subject::PLAIN_H2, callout::RAW],
    &[subject::PLAIN_WS, callout::UDP],
    &[callout::OURS_THEIRS],
    &[callout::THEIRS_OURS],
];

/// Draws a chart. `Err` says why it cannot be drawn.
///
/// # Errors
///
/// It has no points, or plotters refuses.
pub(crate) fn draw(chart: &ChartData) -> Result<SvgPlot, String> {
    let mut svg = String::new();
    let mut others = [0; 2];
    let series: Vec<(usize, &ChartSeries)> = chart
        .series
        .iter()
        .map(|series| (style(&series.name, &mut others), series))
        .collect();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        lay_out(chart, &series, &area).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(SvgPlot {
        title: chart.title.clone(),
        desc: chart.desc.clone(),
        inside: classes(&svg),
        series: series
            .iter()
            .map(|(style, series)| (*style, subjects::words(&series.name)))
            .collect(),
    })
}

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type PlotContext<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<WithKeyPoints<LogCoord<f64>>, RangedCoordf64>>;

fn lay_out(
    chart: &ChartData,
    series: &[(usize, &ChartSeries)],
    area: &PlotArea<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || series.iter().flat_map(|(_, one)| &one.points);
    let (low, high) = bounds(points().map(|point| point.0)).ok_or("no points")?;
    let (_, top) = bounds(points().map(|point| point.1)).ok_or("no points")?;
    let (low, high) = (low.max(1e-9) * 0.9, high.max(1e-9) * 1.1);
    let x = (low..high).log_scale().with_key_points(ticks(low, high));
    let mut context = ChartBuilder::on(area)
        .margin(6)
        .margin_right(18)
        .x_label_area_size(42)
        .y_label_area_size(76)
        .build_cartesian_2d(x, 0.0..top.max(f64::MIN_POSITIVE) * 1.05)?;
    let text = |size: u32| ("sans-serif", size).into_font().color(&TEXT);
    context
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(AXIS)
        .x_labels(5)
        .y_labels(5)
        .x_desc(chart.x.0.as_str())
        .y_desc(chart.y.0.as_str())
        .label_style(text(15))
        .axis_desc_style(text(16))
        .x_label_formatter(&|value| tick(&chart.x.1, *value, *value))
        .y_label_formatter(&|value| tick(&chart.y.1, *value, top))
        .draw()?;
    for (style, one) in series {
        let colour = RGBColor(1, 0, *style as u8);
        let line = LineSeries::new(one.points.iter().copied(), colour.stroke_width(2));
        context.draw_series(line)?;
        mark(&mut context, *style, &one.marks)?;
    }
    Ok(())
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .filter(|value| value.is_finite())
        .fold(None, |bounds, value| {
            let (low, high) = bounds.unwrap_or((value, value));
            Some((value.min(low), value.max(high)))
        })
}

/// Where a logarithmic axis is labelled: at powers of ten where there are some, else at 1, 2 and 5 times
/// these, else more closely, and at last anywhere.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let digits: [&[f64]; 5] = [
        &[1.0],
        &[1.0, 3.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 1.5, 2.0, 3.0, 5.0],
        &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
    ];
    let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let at = |digits: &[f64]| -> Vec<f64> {
        let of = |power| digits.iter().map(move |digit| digit * 10_f64.powi(power));
        let all = powers.clone().flat_map(of);
        all.filter(|tick| (low..=high).contains(tick)).collect()
    };
    let enough = digits
        .iter()
        .map(|digits| at(digits))
        .find(|ticks| ticks.len() >= 3);
    enough.unwrap_or_else(|| {
        [0.2, 0.5, 0.8]
            .map(|share| low + share * (high - low))
            .to_vec()
    })
}

/// Draws a series' marker: circle, square, triangle, each filled and hollow, and crosses.
fn mark(
    context: &mut PlotContext<'_, '_>,
    style: usize,
    at: &[(f64, f64)],
) -> Result<(), Box<dyn std::error::Error>> {
    let colour = RGBColor(1, 1, style as u8);
    let style_in_side = style % OF_EACH_SIDE;
    let shape = match style_in_side % 3 {
        _ if style_in_side >= 6 => {
            context.draw_series(
                at.iter()
                    .map(|at| Cross::new(*at, 4, colour.stroke_width(2))),
            )?;
            return Ok(());
        }
        0 => ShapeStyle::from(colour),
        _ => ShapeStyle::from(colour).stroke_width(2),
    };
    let shape = if style_in_side < 3 {
        shape.filled()
    } else {
        shape.stroke_width(2)
    };
    match style_in_side % 3 {
        0 => {
            context.draw_series(at.iter().map(|at| Circle::new(*at, 4, shape)))?;
        }
        1 => {
            let square =
                |at: &(f64, f64)| EmptyElement::at(*at) + Rectangle::new([(-4, -4), (4, 4)], shape);
            context.draw_series(at.iter().map(square))?;
        }
        _ => {
            context.draw_series(at.iter().map(|at| TriangleMarker::new(*at, 5, shape)))?;
        }
    }
    Ok(())
}

/// A label at an axis: a figure without trailing zeros.
fn tick(name: &str, value: f64, like: f64) -> String {
    let (divisor, unit) = figure::unit(name, like);
    let number = figure::number(value / divisor);
    let short = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        &number
    };
    // A rate's unit is in the axis' name.
    let unit = unit.trim_end_matches(" /s");
    if value == 0.0 {
        "0".into()
    } else {
        format!("{short}{unit}")
    }
}

/// The drawing without its outer element, its colours replaced by classes.
fn classes(svg: &str) -> String {
    let inside = svg.split_once('>').map_or("", |(_, rest)| rest);
    let inside = inside
        .rsplit_once("</svg>")
        .map_or(inside, |(front, _)| front);
    let mut out = inside
        .replace(" opacity=\"1\"", "")
        .replace("fill=\"#020000\"", "class=\"t\"")
        .replace("stroke=\"#030000\"", "class=\"grid\"")
        .replace("stroke=\"#040000\"", "class=\"axis\"")
        .replace(" font-family=\"sans-serif\"", "");
    for style in 0..LINE_STYLES {
        let mut colour = String::new();
        let _ = write!(colour, "{style:02X}");
        out = out
            .replace(
                &format!("stroke=\"#0100{colour}\""),
                &format!("class=\"l s{style}\""),
            )
            .replace(
                &format!("stroke=\"#0101{colour}\""),
                &format!("class=\"h s{style}\""),
            )
            .replace(
                &format!("fill=\"#0101{colour}\""),
                &format!("class=\"m s{style}\""),
            );
    }
    out
}

impl SvgPlot {
    /// The plot as an `svg` element whose title and description have ids that begin with `id`.
    #[must_use]
    pub(crate) fn markup(&self, id: &str) -> Markup {
        let (title, desc) = (format!("{id}-title"), format!("{id}-desc"));
        html! {
            svg viewBox=(format!("0 0 {} {}", SIZE.0, SIZE.1)) role="img"
                aria-labelledby=(format!("{title} {desc}")) {
                title id=(title) { (self.title) }
                desc id=(desc) { (self.desc) }
                (PreEscaped(&self.inside))
            }
        }
    }
}

/// The legend entry of a series: a part of its line with its marker.
#[must_use]
pub(crate) fn key(style: usize) -> Markup {
    let line = format!("l s{style}");
    let side = style % OF_EACH_SIDE;
    let filled = if side < 3 { "m" } else { "h" };
    let shape = format!("{filled} s{style}");
    html! {
        svg.key viewBox="0 0 36 14" aria-hidden="true" {
            line class=(line) x1="1" y1="7" x2="35" y2="7" stroke-width="2" {}
            @match side % 3 {
                _ if side >= 6 => path class=(format!("h s{style}")) d="M14 3l8 8M22 3l-8 8" fill="none" stroke-width="2" {},
                0 => circle class=(shape) cx="18" cy="7" r="4" stroke-width="2" {},
                1 => rect class=(shape) x="14" y="3" width="8" height="8" stroke-width="2" {},
                _ => path class=(shape) d="M18 2l5 9h-10z" stroke-width="2" {},
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: Vec<ChartSeries>) -> ChartData {
        ChartData {
            title: "a <title>".into(),
            desc: "a & b".into(),
            x: ("latency".into(), "p50_us".into()),
            y: ("share".into(), "share".into()),
            series,
        }
    }

    fn series(name: &str) -> ChartSeries {
        ChartSeries {
            name: name.into(),
            points: vec![(10.0, 0.0), (100.0, 0.5), (20_000.0, 1.0)],
            marks: vec![(100.0, 0.5)],
        }
    }

    #[test]
    fn a_plot_has_no_colour_of_its_own_and_each_series_a_class() {
        let names = [
            "quic", "raw iroh", "plain h2", "h2", "plain ws", "ws", "foreign", "other",
        ];
        let plot = draw(&chart(names.map(series).to_vec())).unwrap();
        assert!(!plot.inside.contains('#'), "{}", plot.inside);
        let styles: std::collections::BTreeSet<usize> =
            plot.series.iter().map(|(style, _)| *style).collect();
        assert_eq!(styles.len(), names.len());
        for style in styles {
            assert!(plot.inside.contains(&format!("l s{style}\"")), "s{style}");
        }
    }

    #[test]
    fn hailwire_is_solid_and_coloured_and_a_baseline_grey_and_dashed() {
        let mut before = [0; 2];
        for name in ["quic", "quic bbr", "h2", "auto", "far agent", "embedded"] {
            assert!(style(name, &mut before) < OF_EACH_SIDE, "{name}");
        }
        for name in [
            "raw iroh",
            "raw iroh bbr",
            "pilot",
            "theirs to ours",
            "udp echo",
        ] {
            assert!(style(name, &mut before) >= OF_EACH_SIDE, "{name}");
        }
        let css = crate::report::html::STYLE;
        for one in 0..LINE_STYLES {
            let ours = one < OF_EACH_SIDE;
            let colour = if ours {
                format!("--c: var(--s{one})")
            } else {
                "--c: var(--grey)".into()
            };
            assert!(css.contains(&format!("svg .s{one} {{ {colour};")), "s{one}");
            let dashed = css.contains(&format!("svg .l.s{one} {{ stroke-dasharray"));
            assert_eq!(dashed, !ours, "s{one}");
        }
    }

    #[test]
    fn a_title_cannot_leave_its_element() {
        let plot = draw(&chart(vec![series("quic")])).unwrap();
        let markup = plot.markup("p").into_string();
        assert!(markup.contains("a &lt;title&gt;") && markup.contains("a &amp; b"));
    }

    #[test]
    fn an_axis_has_a_few_ticks_however_long_it_is() {
        assert_eq!(ticks(9.0, 1_100.0), [10.0, 100.0, 1_000.0]);
        for (low, high) in [
            (90.0, 320.0),
            (45e3, 130e3),
            (99.0, 101.0),
            (1e-3, 1e7),
            (500.0, 512.0),
        ] {
            let ticks = ticks(low, high);
            assert!((2..12).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            assert!(
                ticks.iter().all(|tick| (low..=high).contains(tick)),
                "{ticks:?}"
            );
        }
    }

    #[test]
    fn nothing_to_draw_is_said() {
        assert!(draw(&chart(Vec::new())).is_err());
    }
}
