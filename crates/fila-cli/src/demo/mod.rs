//! `fila demo`: what fairness is, seen in under a minute.
//!
//! [`script`] says what is played, [`record`] what happened, [`ideal`] what would have been fair; [`view`], [`plain`] and
//! [`summary`] turn that into pictures, lines and sentences. All of these are pure. [`stage`] has the server and its
//! clients, and this file the clock, the terminal and the order of things.

mod ideal;
mod plain;
mod record;
mod script;
mod stage;
mod summary;
mod view;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ratatui::crossterm::event::KeyCode;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::failure::Failure;
use crate::general::General;
use crate::output::Format;
use crate::terminal::{self, Input, Palette, Screen};
use record::{Figures, Moment};
use script::Scene;
use stage::{Played, Stage};

/// How often the screen is drawn, and a line is printed.
const FRAME_INTERVAL: Duration = Duration::from_millis(200);
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a scene stays when nothing is left to happen.
const LAST_LOOK: Duration = Duration::from_millis(1500);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila demo
  fila demo --seconds 10 --plain
  fila demo --json                    only the summary

Nothing is left behind: the broker runs within this process, on a free port of the loopback interface and in a
temporary directory that is removed at the end. docs/demo.md says what is seen.")]
pub(crate) struct DemoArguments {
    /// How long it lasts, from 4 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 45, value_parser = clap::value_parser!(u64).range(4..=60))]
    seconds: u64,

    /// Print lines instead of drawing, as happens without a terminal
    #[arg(long)]
    plain: bool,
}

/// Plays all scenes, and says what was measured.
pub(crate) fn run(general: &General, arguments: &DemoArguments) -> Result<(), Failure> {
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .thread_name("fila-demo")
        .build()
        .context("the runtime cannot be started")?;
    let scenes = script::scenes(Duration::from_secs(arguments.seconds)).map(Arc::new);
    let output = general.output();
    let played = runtime.block_on(async {
        let audience = Audience::welcome(output.format, arguments)?;
        Show::run(audience, &scenes).await
    })?;
    let text = || summary::text(&played).join("\n");
    output.result(&summary::json(&played), text)
}

/// Why a scene is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cue {
    Next,
    /// Somebody has seen enough.
    Quit,
    /// Ctrl-C.
    Interrupt,
}

/// The scenes in their order.
struct Show {
    stage: Stage,
    audience: Audience,
    played: Vec<Played>,
}

impl Show {
    /// Plays scenes until all were seen, or somebody has seen enough. The server ends and its directory is removed in
    /// any case.
    async fn run(audience: Audience, scenes: &[Arc<Scene>]) -> Result<Vec<Played>, Failure> {
        let mut told_to_end = std::pin::pin!(terminal::told_to_end());
        let stage = tokio::select! {
            stage = Stage::open() => stage?,
            () = &mut told_to_end => return Err(Failure::Interrupted),
        };
        let mut show = Self {
            stage,
            audience,
            played: Vec::new(),
        };
        let ended = tokio::select! {
            ended = show.play_all(scenes) => ended,
            () = &mut told_to_end => Ok(Cue::Interrupt),
        };
        // The screen is given back before the server takes its time to end.
        drop(show.audience);
        show.stage.close().await?;
        match ended? {
            Cue::Interrupt => Err(Failure::Interrupted),
            Cue::Next | Cue::Quit => Ok(show.played),
        }
    }

    async fn play_all(&mut self, scenes: &[Arc<Scene>]) -> anyhow::Result<Cue> {
        for number in 1..=scenes.len() {
            let cue = self.play(number, scenes).await?;
            if cue != Cue::Next {
                return Ok(cue);
            }
        }
        Ok(Cue::Next)
    }

    async fn play(&mut self, number: usize, scenes: &[Arc<Scene>]) -> anyhow::Result<Cue> {
        let scene = &scenes[number - 1];
        let of = scenes.len();
        let mut playing = self.stage.play(scene).await?;
        if self.audience.open(number, of, scene)? == Cue::Quit {
            return Ok(Cue::Quit);
        }
        let mut end = std::pin::pin!(sleep_until(playing.ends()));
        let mut ticks = interval(self.audience.interval());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // The first comes at once, when there is nothing to see.
        ticks.tick().await;
        let cue = loop {
            let cue = tokio::select! {
                () = &mut end => break Cue::Next,
                error = playing.failure() => return Err(error),
                cue = self.audience.cue() => cue,
                _ = ticks.tick() => None,
            };
            if let Some(cue) = cue {
                break cue;
            }
            let (now, sides) = playing.figures();
            if self.audience.show(number, of, scene, now, &sides)? == Cue::Quit {
                break Cue::Quit;
            }
            // On a fast machine all is done before the time is over.
            let [Some(fifo), Some(fair)] = sides.map(|side| side.finished) else {
                continue;
            };
            if now >= fifo.max(fair) + LAST_LOOK {
                break Cue::Next;
            }
        };
        self.played.push(self.stage.clear(playing).await?);
        Ok(cue)
    }
}

/// Whoever watches.
enum Audience {
    Terminal {
        screen: Screen,
        inputs: mpsc::UnboundedReceiver<Input>,
        palette: Palette,
    },
    Lines,
    /// Waits for the summary.
    Program,
}

impl Audience {
    fn welcome(format: Format, arguments: &DemoArguments) -> anyhow::Result<Self> {
        if format == Format::Json {
            return Ok(Self::Program);
        }
        if arguments.plain || !terminal::is_watched() {
            return Ok(Self::Lines);
        }
        Ok(Self::Terminal {
            screen: Screen::take().context("the terminal cannot be used; try --plain")?,
            inputs: terminal::inputs(),
            palette: Palette::chosen(),
        })
    }

    fn interval(&self) -> Duration {
        match self {
            Self::Terminal { .. } => FRAME_INTERVAL,
            Self::Lines | Self::Program => LINE_INTERVAL,
        }
    }

    /// Waits until somebody does something, and returns what is to happen then; nothing but drawing if none.
    async fn cue(&mut self) -> Option<Cue> {
        let Self::Terminal { inputs, .. } = self else {
            return std::future::pending().await;
        };
        match inputs.recv().await {
            Some(Input::Interrupt) => Some(Cue::Interrupt),
            Some(Input::Key(KeyCode::Char('q') | KeyCode::Esc)) => Some(Cue::Quit),
            Some(Input::Key(KeyCode::Char(' ') | KeyCode::Right | KeyCode::Enter)) => {
                Some(Cue::Next)
            }
            Some(Input::Key(_) | Input::Resized) => None,
            // Nobody is at the keyboard.
            None => std::future::pending().await,
        }
    }

    fn open(&mut self, number: usize, of: usize, scene: &Scene) -> io::Result<Cue> {
        match self {
            Self::Terminal { .. } | Self::Program => Ok(Cue::Next),
            Self::Lines => until_closed(print(&plain::opening(number, of, scene))),
        }
    }

    /// Shows how a scene is. Whoever has closed our output has seen enough.
    fn show(
        &mut self,
        number: usize,
        of: usize,
        scene: &Scene,
        now: Moment,
        sides: &[Figures; 2],
    ) -> io::Result<Cue> {
        match self {
            Self::Terminal {
                screen, palette, ..
            } => {
                let shown = view::DemoFrame {
                    number,
                    of,
                    scene,
                    now,
                    sides,
                };
                screen.draw(|frame| view::draw(frame, &shown, *palette))?;
                Ok(Cue::Next)
            }
            Self::Lines => until_closed(print(&plain::lines(scene, now, sides))),
            Self::Program => Ok(Cue::Next),
        }
    }
}

fn print(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

fn until_closed(printed: io::Result<()>) -> io::Result<Cue> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Cue::Quit),
        printed => printed.map(|()| Cue::Next),
    }
}
