//! `fila demo`: shows fairness in under a minute.
//!
//! [`script`] describes the scenes, [`record`] the events of a scene, [`ideal`] the fair shares; [`view`], [`plain`]
//! and [`summary`] turn them into a screen, lines and sentences. All of these are pure. [`stage`] has the server and
//! its clients, and this file has the clock, the terminal and the order of the scenes.

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

/// The time between two frames or two lines.
const FRAME_INTERVAL: Duration = Duration::from_millis(200);
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a finished scene stays on the screen.
const LAST_LOOK: Duration = Duration::from_millis(1500);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila demo
  fila demo --seconds 10 --plain
  fila demo --json                    only the summary

The demo leaves nothing behind: its broker runs in this process, on a free port of the loopback interface and in
a temporary directory that it removes at the end. docs/demo.md explains the output.")]
pub(crate) struct DemoArguments {
    /// Duration of the demo in seconds, from 4 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = script::SECONDS, value_parser = clap::value_parser!(u64).range(4..=60))]
    seconds: u64,

    /// Print lines and draw nothing, as without a terminal
    #[arg(long)]
    plain: bool,
}

/// Plays all scenes, and prints the measurements.
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

/// The reason why a scene ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cue {
    Next,
    /// The user quits.
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
    /// Plays the scenes until the last, or until the user quits. In any case it stops the server and removes its
    /// directory.
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
        // The user gets the screen back before the server shuts down, which takes a moment.
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
        // The first tick comes at once, before there are figures.
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
            // On a fast machine a scene is done before its time is over.
            let [Some(without), Some(with)] = sides.map(|side| side.finished) else {
                continue;
            };
            if now >= without.max(with) + LAST_LOOK {
                break Cue::Next;
            }
        };
        self.played.push(self.stage.clear(playing).await?);
        Ok(cue)
    }
}

/// The recipient of the output.
enum Audience {
    Terminal {
        screen: Screen,
        inputs: mpsc::UnboundedReceiver<Input>,
        palette: Palette,
    },
    Lines,
    /// A program, which gets the summary only.
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

    /// Waits for an input of the user, and returns the action; none if only a redraw is due.
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
            // Without a keyboard.
            None => std::future::pending().await,
        }
    }

    fn open(&mut self, number: usize, of: usize, scene: &Scene) -> io::Result<Cue> {
        match self {
            Self::Terminal { .. } | Self::Program => Ok(Cue::Next),
            Self::Lines => until_closed(print(&plain::opening(number, of, scene))),
        }
    }

    /// Shows the state of a scene. If the reader has closed our output, the scene ends.
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
