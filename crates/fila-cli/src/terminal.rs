//! The terminal of the live views: taken, and given back on every way out.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use anstream::ColorChoice;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How long the thread that reads keys waits before it looks whether anybody still wants them.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Whether somebody watches the standard output.
pub(crate) fn is_watched() -> bool {
    io::stdout().is_terminal()
}

/// The screen, while we have it. Dropping it gives it back as it was; so does a panic.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Self> {
        let terminal = ratatui::try_init();
        if terminal.is_err() {
            // It may have got half way.
            ratatui::restore();
        }
        Ok(Self {
            terminal: terminal?,
        })
    }

    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What somebody at the terminal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Key(KeyCode),
    /// Ctrl-C, which is no signal while we have the terminal.
    Interrupt,
    /// The window has another size.
    Resized,
}

/// Reads what is typed, on a thread of its own that ends soon after the receiver is dropped.
pub(crate) fn inputs() -> mpsc::UnboundedReceiver<Input> {
    let (to_view, inputs) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while !to_view.is_closed() {
            let input = match event::poll(KEY_WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read().ok().and_then(|event| input(&event)),
                // Without a keyboard the view goes on by itself.
                Err(_) => return,
            };
            if let Some(input) = input {
                let _ = to_view.send(input);
            }
        }
    });
    inputs
}

fn input(event: &Event) -> Option<Input> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Release => None,
        Event::Key(key) => {
            let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('c') if is_control => Some(Input::Interrupt),
                KeyCode::Char(_) if is_control => None,
                code => Some(Input::Key(code)),
            }
        }
        Event::Resize(..) => Some(Input::Resized),
        _ => None,
    }
}

/// Listens from now on, and returns a future that is done when the process is told to end, by Ctrl-C or otherwise.
pub(crate) fn told_to_end() -> impl Future<Output = ()> {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let signals = kinds.map(|kind| signal(kind).ok());
    async move {
        let [mut interrupt, mut terminate, mut hangup] = signals;
        tokio::select! {
            () = comes(&mut interrupt) => {}
            () = comes(&mut terminate) => {}
            () = comes(&mut hangup) => {}
        }
    }
}

async fn comes(signal: &mut Option<tokio::signal::unix::Signal>) {
    let come = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if come.is_none() {
        // It then does what it does by default.
        std::future::pending().await
    }
}

/// Colours that carry meaning; none at all where they are not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Palette {
    Colour,
    Plain,
}

impl Palette {
    /// Returns what was chosen: by `--color`, else no colour if `NO_COLOR` is set to anything.
    pub(crate) fn chosen() -> Self {
        let is_unwanted = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match ColorChoice::global() {
            ColorChoice::Never => Self::Plain,
            ColorChoice::Auto if is_unwanted() => Self::Plain,
            ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => Self::Colour,
        }
    }

    fn with(self, color: Color) -> Style {
        match self {
            Self::Colour => Style::new().fg(color),
            Self::Plain => Style::new(),
        }
    }

    /// As it should be.
    pub(crate) fn good(self) -> Style {
        self.with(Color::Green)
    }

    /// Not as it should be.
    pub(crate) fn bad(self) -> Style {
        self.with(Color::Red)
    }

    /// Worth a look.
    pub(crate) fn notable(self) -> Style {
        self.with(Color::Yellow)
    }

    /// What belongs to us.
    pub(crate) fn accent(self) -> Style {
        self.with(Color::Cyan)
    }

    /// What is there to be read second.
    pub(crate) fn faint(self) -> Style {
        match self {
            Self::Colour => Style::new().fg(Color::DarkGray),
            Self::Plain => Style::new().add_modifier(Modifier::DIM),
        }
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The row where one is.
    pub(crate) fn cursor(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
