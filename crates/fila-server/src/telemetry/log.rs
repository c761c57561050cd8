//! Log lines on the standard error.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt;
use tracing_subscriber::registry::LookupSpan;

use super::log_writer::LogWriter;
use crate::config::{LogFormat, TelemetryConfig};

/// Returns the layer that gives log lines to the writer.
pub(super) fn layer<S>(
    config: &TelemetryConfig,
    writer: &'static LogWriter,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = fmt::layer().with_writer(writer);
    let filter = config.log.targets().clone();
    match config.log_format {
        LogFormat::Text => lines
            .with_ansi(is_colour_wanted())
            .with_filter(filter)
            .boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .with_filter(filter)
            .boxed(),
    }
}

/// Returns whether a terminal shows the lines and the user has not declined colours, see <https://no-color.org>.
fn is_colour_wanted() -> bool {
    let is_declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !is_declined
}
