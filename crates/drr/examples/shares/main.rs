//! The service of each tenant in four situations, under three schedulers: first in first out, a round robin that
//! serves one task per visit, and `drr`. All figures are counted in the run, none is made up.
//!
//! `cargo run --release -p drr --example shares` draws them in the terminal;
//! `-- --svg FILE` writes the same figures as a picture.

mod rivals;
mod scenes;
mod svg;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => terminal::draw(&scenes::all()),
        [flag, path] if flag == "--svg" => {
            if let Err(error) = std::fs::write(path, svg::draw(&scenes::all())) {
                eprintln!("could not write {path}: {error}");
                return ExitCode::FAILURE;
            }
            println!("wrote {path}");
        }
        _ => {
            eprintln!("usage: shares [--svg FILE]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
