//! `evenkeel completions SHELL` and `evenkeel man`.

use clap::Command;
use clap_complete::Shell;

use super::{
    exit::{OK, Outcome},
    table::write_stdout,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    shell: Shell,
}

pub(super) fn run(args: &Args, command: &mut Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "evenkeel", &mut script);
    write_stdout(&String::from_utf8_lossy(&script))?;
    Ok(OK)
}

/// evenkeel(1) with a section for every command.
pub(super) fn man(mut command: Command) -> Outcome {
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        clap_mangen::Man::new(verb.clone()).render(&mut page)?;
    }
    write_stdout(&String::from_utf8_lossy(&page))?;
    Ok(OK)
}
