//! Prints a chart of two lines as SVG.

use vmlab_base::chart::{Chart, Scale};

fn main() {
    let line = |slope: f64| (1..=8).map(|x| (f64::from(x), f64::from(x) * slope)).collect();
    let chart = Chart {
        title: "Two lines",
        x: "areas",
        y: "nanoseconds",
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
        lines: vec![("flat".into(), line(1.0)), ("steep".into(), line(3.0))],
        about: &[],
        size: (640.0, 360.0),
    };
    println!("{}", chart.svg(true));
}
