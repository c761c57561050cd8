//! `fila completions`.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::failure::Failure;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila completions bash > ~/.local/share/bash-completion/completions/fila
  fila completions zsh > ~/.zfunc/_fila
  fila completions fish > ~/.config/fish/completions/fila.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(
        arguments.shell,
        &mut crate::FilaArguments::command(),
        "fila",
        &mut script,
    );
    output::write(&script)
}
