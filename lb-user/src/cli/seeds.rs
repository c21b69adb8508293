//! `evenkeel seeds`: generation and age of every seed; `seeds rotate` makes new ones.

use super::{
    Context, duration,
    exit::Outcome,
    reload,
    table::{self, Paint, Table},
};
use crate::api::types::{Done, Rotate, Seed};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make new seeds; established flows keep their backends.
    Rotate(RotateArgs),
}

#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct RotateArgs {
    /// Only this CPU's seed.
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// The shared seed, which `fleet` selection and client affinity pick with.
    #[arg(long)]
    shared: bool,
    /// Every CPU's seed and the shared one [default: every CPU's].
    #[arg(long)]
    all: bool,
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    let Some(Command::Rotate(args)) = args.command else {
        let seeds: Vec<Seed> = context.client().get("/v1/seeds").await?;
        return context.print(&seeds, |paint| render(&seeds, paint));
    };
    let which = match (args.cpu, args.shared, args.all) {
        (Some(cpu), ..) => Rotate::Cpu(cpu),
        (None, true, _) => Rotate::Shared,
        (None, false, true) => Rotate::All,
        (None, false, false) => Rotate::Cpus,
    };
    let done: Done = context.client().post("/v1/seeds/rotate", &which).await?;
    context.print(&done, |paint| reload::render(&done, paint))
}

fn render(seeds: &[Seed], paint: Paint) -> String {
    let mut table = Table::new(&["SEED", ">GENERATION", ">AGE", ">NEXT ROTATION", ">FRESH KEYS"]);
    for seed in seeds {
        table.row([
            name(seed),
            if seed.generation == 0 {
                paint.bad("unset")
            } else {
                seed.generation.to_string()
            },
            duration::show(seed.age_seconds),
            seed.next_rotation_seconds
                .map_or_else(|| "on command".to_owned(), duration::show),
            table::percent(seed.fresh_fill),
        ]);
    }
    table.render(0, paint)
}

fn name(seed: &Seed) -> String {
    seed.cpu
        .map_or_else(|| "shared".to_owned(), |cpu| format!("cpu {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_show_their_age_and_never_their_secret() {
        let shared = Seed {
            cpu: None,
            generation: 1,
            age_seconds: 90_000,
            next_rotation_seconds: None,
            fresh_fill: 0.0,
        };
        let cpu = Seed {
            cpu: Some(0),
            generation: 7,
            age_seconds: 65,
            next_rotation_seconds: Some(535),
            fresh_fill: 0.1234,
        };
        let unset = Seed {
            cpu: Some(1),
            generation: 0,
            ..cpu
        };
        insta::assert_snapshot!(render(&[shared, cpu, unset], Paint::PLAIN));
    }
}
