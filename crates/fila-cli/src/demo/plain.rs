//! The demo without a terminal: a few lines a second.

use super::record::{Figures, Moment, TenantFigures, Wait};
use super::script::{Plot, Scene, Unit};
use crate::units;
use crate::wrap::wrap;

/// The width of wrapped text.
const WIDTH: usize = 76;

/// Returns the lines that open a scene.
pub(crate) fn opening(number: usize, of: usize, scene: &Scene) -> Vec<String> {
    let title = format!("Scene {number} of {of}: {}", scene.title);
    let words = wrap(&scene.sentence, WIDTH);
    let words = words.into_iter().map(|line| format!("  {line}"));
    [String::new(), title].into_iter().chain(words).collect()
}

/// Returns the state of both sides, a line for each.
pub(crate) fn lines(scene: &Scene, now: Moment, sides: &[Figures; 2]) -> Vec<String> {
    let width = scene.sides.map(|side| side.name().len()).into_iter().max();
    let width = width.unwrap_or_default();
    // Both lines are of the same moment.
    let moments = [format!("{:.0} s", now.as_secs_f64()), String::new()];
    let sides = moments.into_iter().zip(scene.sides).zip(sides);
    let sides = sides.map(|((at, side), figures)| {
        let told = side_text(scene, figures);
        format!("{at:>6}  {:<width$}  {told}", side.name())
    });
    sides.collect()
}

fn side_text(scene: &Scene, figures: &Figures) -> String {
    let of = |tenant: usize| (scene.tenants[tenant].name, &figures.tenants[tenant]);
    let told = match scene.plot {
        Plot::Flood { noisy, quiet } => vec![progress(of(noisy)), waiting(of(quiet[0]))],
        Plot::Burst { burst, steady, .. } => vec![waiting(of(burst)), waiting(of(steady))],
        Plot::Weights { .. } | Plot::Slow { .. } | Plot::Split { .. } => {
            let all = 0..scene.tenants.len();
            all.map(|tenant| share(of(tenant))).collect()
        }
    };
    let unit = match scene.unit {
        Unit::Messages => "",
        Unit::Time => "of the time: ",
    };
    let rate = format!("{}/s", units::rate(figures.per_second));
    format!("{rate:>7}  {unit}{}", told.join("  "))
}

fn progress((name, figures): (&str, &TenantFigures)) -> String {
    format!(
        "{name} {}/{}",
        units::count(figures.served),
        units::count(figures.sent)
    )
}

fn waiting((name, figures): (&str, &TenantFigures)) -> String {
    let wait = match figures.wait_half {
        None => "–".to_owned(),
        Some(Wait::Over(time)) => units::time(time),
        Some(Wait::SoFar(time)) => format!("≥{}", units::time(time)),
    };
    format!("{} wait {wait}", progress((name, figures)))
}

fn share((name, figures): (&str, &TenantFigures)) -> String {
    format!("{name} {:.0} %", 100.0 * figures.share.got)
}
