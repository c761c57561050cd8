//! The real server, as the document starts it.

use std::process::Stdio;

use tempfile::TempDir;

use crate::command::ADDRESS;
use crate::program::{Running, fila};

pub(crate) struct Server {
    _running: Running,
    pub(crate) address: String,
    /// Its output, with the address of the document.
    pub(crate) output: String,
    _data: TempDir,
}

impl Server {
    /// Starts it with the document's arguments, but on a directory and a port of its own.
    pub(crate) fn start(arguments: &[String]) -> Self {
        let data = TempDir::new().unwrap();
        let mut arguments = arguments.to_vec();
        let place = arguments.iter().position(|word| word == "--data");
        let place = place.expect("the document says where the data goes");
        arguments[place + 1] = data.path().to_str().unwrap().to_owned();
        let running = Running::start(
            fila()
                .args(arguments)
                .args(["--address", "127.0.0.1:0"])
                .current_dir(data.path())
                .stderr(Stdio::null()),
        );
        Self {
            address: running.address.clone(),
            output: format!("fila is listening on {ADDRESS}\n"),
            _running: running,
            _data: data,
        }
    }
}
