//! The progress of long work.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress line on the standard error. It shows on a terminal only, and disappears when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins a progress line, of this many messages if the number is known.
    pub(crate) fn new(what: &'static str, messages: Option<u64>) -> Self {
        // Draws nothing without a terminal.
        let bar = ProgressBar::with_draw_target(messages, ProgressDrawTarget::stderr());
        let template = match messages {
            Some(_) => "{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}",
            None => "{msg} {spinner} {human_pos} {per_sec}",
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.expect("the templates are right"));
        bar.set_message(what);
        Self(bar)
    }

    /// Returns a progress that is not shown, because another one is.
    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    pub(crate) fn advance(&self, messages: u64) {
        self.0.inc(messages);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
