//! The terminal of the live views: taken at the start, and restored on every way out.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use anstream::ColorChoice;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How long the thread that reads keys waits before it checks whether its receiver is gone.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Returns whether the standard output is a terminal.
pub(crate) fn is_watched() -> bool {
    io::stdout().is_terminal()
}

/// Returns the columns of the window if the standard output is a terminal.
pub(crate) fn columns() -> Option<usize> {
    let (columns, _) = is_watched()
        .then(ratatui::crossterm::terminal::size)?
        .ok()?;
    (columns > 0).then_some(columns.into())
}

/// The screen of a live view. A drop or a panic restores it.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Self> {
        let terminal = ratatui::try_init();
        if terminal.is_err() {
            // The setup may have failed half way.
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

/// An input of the user at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Key(KeyCode),
    /// Ctrl-C, which sends no signal while the view has the terminal.
    Interrupt,
    /// The window has a new size.
    Resized,
}

/// Reads the keyboard in its own thread, which ends soon after the receiver is dropped.
pub(crate) fn inputs() -> mpsc::UnboundedReceiver<Input> {
    let (to_view, inputs) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while !to_view.is_closed() {
            let input = match event::poll(KEY_WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read().ok().and_then(|event| input(&event)),
                // Without a keyboard the view continues by itself.
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

/// Listens from now on, and returns a future that completes when a signal, as of Ctrl-C, ends the process.
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
        // The signal keeps its default effect.
        std::future::pending().await
    }
}

/// Colours that carry meaning; none if the user does not want them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Palette {
    Colour,
    Plain,
}

impl Palette {
    /// Returns the palette: by `--color`, else without colours if `NO_COLOR` is set to anything.
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

    /// A value as it should be.
    pub(crate) fn good(self) -> Style {
        self.with(Color::Green)
    }

    /// A value not as it should be.
    pub(crate) fn bad(self) -> Style {
        self.with(Color::Red)
    }

    /// A value worth a look.
    pub(crate) fn notable(self) -> Style {
        self.with(Color::Yellow)
    }

    /// The colour of Fila itself.
    pub(crate) fn accent(self) -> Style {
        self.with(Color::Cyan)
    }

    /// Secondary text.
    pub(crate) fn faint(self) -> Style {
        match self {
            Self::Colour => Style::new().fg(Color::DarkGray),
            Self::Plain => Style::new().add_modifier(Modifier::DIM),
        }
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The selected row.
    pub(crate) fn cursor(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
