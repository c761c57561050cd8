//! `fila demo` without a terminal.
#![cfg(test)] // helpers may unwrap, as tests do

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn demo(temporary: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fila"));
    command
        .env_clear()
        .env("TMPDIR", temporary.path())
        .arg("demo")
        .args(arguments);
    command
}

fn text(output: Output) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(errors, "");
    String::from_utf8(output.stdout).unwrap()
}

fn is_empty(directory: &TempDir) -> bool {
    directory.path().read_dir().unwrap().next().is_none()
}

#[test]
fn every_scene_is_played_and_the_summary_says_what_was_measured() {
    let temporary = TempDir::new().unwrap();
    let text = text(
        demo(&temporary, &["--plain", "--seconds", "5"])
            .output()
            .unwrap(),
    );
    let mut rest = &*text;
    for expected in [
        "Scene 1 of 5: a flood",
        "Scene 2 of 5: weights",
        "Scene 3 of 5: a slow tenant",
        "Scene 4 of 5: a burst",
        "Scene 5 of 5: a split",
        "Measured just now",
        "Beside a flood of 4,",
        "weight 3",
        "20 times as long",
        "sent at once",
        "splits itself into 1,000 keys",
        "fila queue create orders",
    ] {
        let (_, after) = rest.split_once(expected).unwrap_or_else(|| {
            panic!("`{expected}` is missing, or not in its place:\n{text}");
        });
        rest = after;
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(is_empty(&temporary));
}

#[test]
fn a_quiet_tenant_stands_behind_the_flood_in_one_line_and_before_it_with_a_share() {
    let temporary = TempDir::new().unwrap();
    let text = text(
        demo(&temporary, &["--json", "--seconds", "5"])
            .output()
            .unwrap(),
    );
    let summary: Value = serde_json::from_str(&text).unwrap();
    let scenes = summary["scenes"].as_array().unwrap();
    assert_eq!(scenes.len(), 5);
    let sides = &scenes[0]["sides"];
    // How many deliveries went to others before a message in the middle was served.
    let overtaken = |side: &str| -> u64 {
        let tenants = sides[side]["tenants"].as_array().unwrap();
        let quiet = tenants
            .iter()
            .filter(|tenant| tenant["tenant"].as_str().unwrap().starts_with("quiet"));
        quiet
            .map(|tenant| tenant["overtaken_by_p50"].as_u64().unwrap())
            .sum()
    };
    let (fifo, fair) = (overtaken("fifo"), overtaken("fair"));
    assert!(
        fair < fifo,
        "{fair} deliveries first in fair turns, {fifo} in one line"
    );

    let share = |side: &str, tenant: usize| {
        scenes[1]["sides"][side]["tenants"][tenant]["share"]
            .as_f64()
            .unwrap()
    };
    assert!(share("fair", 0) > share("fair", 1), "{text}");
    assert!(is_empty(&temporary));
}

#[test]
fn a_tenant_that_splits_itself_gains_by_it_without_groups_and_nothing_with_them() {
    let temporary = TempDir::new().unwrap();
    let text = text(
        demo(&temporary, &["--json", "--seconds", "12"])
            .output()
            .unwrap(),
    );
    let summary: Value = serde_json::from_str(&text).unwrap();
    let split = &summary["scenes"][4];
    let of_split = |side: &str, figure: &str| {
        let tenant = &split["sides"][side]["tenants"][0];
        assert_eq!(tenant["keys"], 1000);
        tenant[figure].as_f64().unwrap()
    };
    let ideal = of_split("groups", "share_ideal");
    assert!((ideal - 0.25).abs() < 0.01, "{split:#}");
    assert!(of_split("flat", "share") > 0.9, "{split:#}");
    assert!(
        (of_split("groups", "share") - ideal).abs() < 0.05,
        "{split:#}"
    );
    assert!(is_empty(&temporary));
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing_behind() {
    let temporary = TempDir::new().unwrap();
    let mut demo = demo(&temporary, &["--plain"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let is_playing = |line: &str| line.contains("FIFO") && line.contains("/s");
    lines
        .find(|line| is_playing(line.as_ref().unwrap()))
        .unwrap()
        .unwrap();
    assert!(!is_empty(&temporary));
    interrupt(&demo);
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert!(is_empty(&temporary));
}

#[test]
fn the_demo_ends_well_when_its_pipe_is_closed() {
    let temporary = TempDir::new().unwrap();
    let mut demo = demo(&temporary, &["--plain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(demo.stdout.take());
    text(demo_output(demo));
    assert!(is_empty(&temporary));
}

fn demo_output(demo: Child) -> Output {
    demo.wait_with_output().unwrap()
}

fn interrupt(process: &Child) {
    let killed = Command::new("kill")
        .args(["-INT", &process.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
}
