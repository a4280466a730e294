//! [`DeviceArgs`]: the devices, groups and numbers of `weir iostat`, in the order of the command
//! line, on which their meaning depends.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use weir_view::iostat::selection::DeviceArgument;

/// Names of the arguments.
const WORDS: &str = "words";
const PARTITIONS: &str = "partitions";
const GROUP: &str = "group";

/// The arguments that select devices, and numbers, as `Device`.
#[derive(Clone, Debug)]
pub struct DeviceArgs {
    pub arguments: Vec<DeviceArgument>,
}

impl FromArgMatches for DeviceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<DeviceArgs, Error> {
        let values = |name: &str| {
            let values = matches.get_many::<String>(name).unwrap_or_default();
            let indices = matches.indices_of(name).unwrap_or_default();
            indices
                .zip(values.cloned())
                .collect::<Vec<(usize, String)>>()
        };
        let partitions = |list: String| (!list.is_empty()).then_some(list);
        let mut arguments: Vec<(usize, DeviceArgument)> = Vec::new();
        for (at, word) in values(WORDS) {
            arguments.push((at, DeviceArgument::Device(word)));
        }
        for (at, list) in values(PARTITIONS) {
            arguments.push((at, DeviceArgument::Partitions(partitions(list))));
        }
        for (at, name) in values(GROUP) {
            arguments.push((at, DeviceArgument::Group(name)));
        }
        arguments.sort_by_key(|(at, _)| *at);
        let arguments = arguments.into_iter().map(|(_, argument)| argument);
        Ok(DeviceArgs {
            arguments: arguments.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = DeviceArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for DeviceArgs {
    fn augment_args(command: Command) -> Command {
        let words = Arg::new(WORDS)
            .value_name("DEVICE] [INTERVAL [COUNT]")
            .help(
                "Devices, such as web:vda or sda, or ALL [default: all]; then the interval in \
                 seconds, and the number of reports [default: unlimited]",
            )
            .num_args(0..)
            .action(ArgAction::Append);
        let partitions = Arg::new(PARTITIONS)
            .short('p')
            .value_name("DEVICE,..|ALL")
            .help("Print these devices, or ALL devices, with their partitions [default: no partitions]")
            .num_args(0..=1)
            .default_missing_value("")
            .action(ArgAction::Append);
        let group = Arg::new(GROUP)
            .short('g')
            .value_name("NAME")
            .help(
                "Print the sum of the devices that are named after this option, or of all, under \
                 this name; may be repeated",
            )
            .action(ArgAction::Append);
        command.arg(words).arg(partitions).arg(group)
    }

    fn augment_args_for_update(command: Command) -> Command {
        DeviceArgs::augment_args(command)
    }
}
