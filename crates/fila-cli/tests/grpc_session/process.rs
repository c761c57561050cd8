//! The real server, as the document starts it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::command::ADDRESS;

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// What it has printed, with the address that the document knows.
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
        let mut child = Command::new(env!("CARGO_BIN_EXE_fila"))
            .env_clear()
            .args(arguments)
            .args(["--address", "127.0.0.1:0"])
            .current_dir(data.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let printed = child.stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(printed).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self {
            child,
            output: line.replace(&address, ADDRESS),
            address,
            _data: data,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
