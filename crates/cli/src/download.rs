//! Downloads the Hugging Face Hub ids in a command's arguments before it runs, with progress; the
//! library then finds them in the cache.

use anyhow::Result;
use latent_tts::training::WeightedData;
use latent_tts::{fetch_bases, fetch_data, fetch_model};
use model::hub::HubEvent;

use crate::args::values::format_bytes;
use crate::args::{Command, ModelArgs, OutputArgs, TrainCommand};
use crate::printer::{Printer, Progress};

/// The arguments of a command that may be Hub ids, and its printer.
struct Names<'a> {
    models: Vec<Option<&'a String>>,
    /// The base of adapters, if given.
    base: Option<&'a String>,
    data: Vec<String>,
    output: &'a OutputArgs,
}

/// Downloads the Hub files of a command that are not cached.
pub fn fetch(command: &Command) -> Result<()> {
    let Some(Names { models, base, data, output }) = names(command) else { return Ok(()) };
    let printer = Printer::new(output);
    for model in models.iter().chain([&base]).copied().flatten() {
        fetch_model(model, &mut FileProgress::new(&printer).handler())?;
    }
    // A given base replaces those that adapters record.
    for model in models.into_iter().flatten().filter(|_| base.is_none()) {
        fetch_bases(model, &mut FileProgress::new(&printer).handler())?;
    }
    for data in &data {
        fetch_data(data, &mut FileProgress::new(&printer).handler())?;
    }
    Ok(())
}

fn names(command: &Command) -> Option<Names<'_>> {
    Some(match command {
        Command::Eval(args) => of_models(&args.model, &args.data, &args.output),
        Command::Sweep(args) => of_models(&args.model, &args.data, &args.output),
        Command::Solve(args) => of_models(&args.model, &None, &args.output),
        #[cfg(feature = "serve")]
        Command::Serve(args) => of_models(&args.model, &None, &args.output),
        Command::Annotate(args) => Names {
            models: vec![args.model.as_ref()],
            base: args.base.as_ref(),
            data: args.data.iter().cloned().collect(),
            output: &args.output,
        },
        Command::Inspect(args) => Names {
            models: vec![Some(&args.dir)],
            base: args.base.as_ref(),
            data: Vec::new(),
            output: &args.output,
        },
        Command::Convert(args) => Names {
            models: Vec::new(),
            base: args.base.as_ref(),
            data: Vec::new(),
            output: &args.output,
        },
        Command::Verify(args) => Names {
            models: Vec::new(),
            base: args.base.as_ref(),
            data: Vec::new(),
            output: &args.output,
        },
        Command::Train(TrainCommand::Reasoner(args)) => Names {
            models: vec![args.options.init.as_ref()],
            base: args.options.lora.base.as_ref(),
            data: args.options.data.iter().filter_map(WeightedData::file).map(path_name).collect(),
            output: &args.output,
        },
        Command::Train(TrainCommand::Reward(args)) => Names {
            models: vec![
                Some(&args.options.model),
                args.options.init.as_ref(),
                args.options.reference.as_ref(),
            ],
            base: args.options.lora.base.as_ref(),
            data: Vec::new(),
            output: &args.output,
        },
        Command::Train(TrainCommand::Probe(args)) => Names {
            models: vec![args.model.as_ref()],
            base: args.base.as_ref(),
            data: args.data.iter().cloned().collect(),
            output: &args.output,
        },
        Command::Train(TrainCommand::Rl(args)) => Names {
            models: vec![Some(&args.options.model), args.options.policy.reward_model.as_ref()],
            base: args.options.lora.base.as_ref(),
            data: args.options.data.iter().filter_map(WeightedData::file).map(path_name).collect(),
            output: &args.output,
        },
        Command::Report(_)
        | Command::Calibrate(_)
        | Command::Doctor(_)
        | Command::Corpus(_)
        | Command::Augment(_)
        | Command::Bench(_) => return None,
    })
}

fn of_models<'a>(model: &'a ModelArgs, data: &Option<String>, output: &'a OutputArgs) -> Names<'a> {
    Names {
        models: vec![model.model.as_ref(), model.reward_model.as_ref()],
        base: model.base.as_ref(),
        data: data.iter().cloned().collect(),
        output,
    }
}

fn path_name(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Prints the progress of a download: one line per file, and a bar on a terminal.
struct FileProgress<'a> {
    printer: &'a Printer,
    bar: Option<Progress>,
    name: String,
    size: u64,
}

impl<'a> FileProgress<'a> {
    fn new(printer: &'a Printer) -> Self {
        Self { printer, bar: None, name: String::new(), size: 0 }
    }

    fn handler(mut self) -> impl FnMut(HubEvent<'_>) {
        move |event| self.show(event)
    }

    fn show(&mut self, event: HubEvent<'_>) {
        match event {
            HubEvent::File { name, size, resumed } => {
                self.bar = None;
                (self.name, self.size) = (name.to_owned(), size);
                let size = format_bytes(size);
                self.printer.note(&match resumed {
                    0 => format!("downloading {name}, {size}"),
                    there => {
                        format!("downloading {name}, resuming at {} of {size}", format_bytes(there))
                    }
                });
                self.bar = Some(self.printer.progress(resumed as usize, self.size as usize));
            }
            HubEvent::Bytes(done) => {
                let (name, size) = (&self.name, format_bytes(self.size));
                if let Some(bar) = &mut self.bar {
                    bar.set(done as usize);
                    bar.report(&format!("bytes, {} of {size} of {name}", format_bytes(done)));
                }
            }
            HubEvent::Resumed(from) => {
                let (name, from) = (&self.name, format_bytes(from));
                self.printer.note(&format!("{name}: connection lost, resuming at {from}"));
            }
            _ => {}
        }
    }
}
