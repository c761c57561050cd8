//! The settings of a queue as flags: one for each row of the SDK's table.

use std::path::Path;

use clap::builder::{
    PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser, ValueParser,
};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use fila_sdk::{QueueSettings, Setting, SettingKind, SettingValue};

use crate::failure::Failure;
use crate::values;

/// The settings from the flags. The script is the path of its file.
#[derive(Clone, Debug)]
pub(super) struct SettingsFlags(QueueSettings);

impl SettingsFlags {
    /// Returns whether no setting is given.
    pub(super) fn is_empty(&self) -> bool {
        self.0 == QueueSettings::new()
    }

    /// Returns the settings, with the texts of their files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn read(self) -> Result<QueueSettings, Failure> {
        let mut settings = self.0;
        if let Some(script) = &mut settings.script {
            *script = read_script(Path::new(script))?;
        }
        Ok(settings)
    }
}

impl Args for SettingsFlags {
    fn augment_args(command: Command) -> Command {
        command.args(QueueSettings::TABLE.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingsFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self(QueueSettings::new());
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in QueueSettings::TABLE {
            if let Some(value) = matches.get_one::<SettingValue>(setting.name) {
                (setting.set)(&mut self.0, value.clone())
                    .expect("the flag's parser takes values of the setting's kind only");
            }
        }
        Ok(())
    }
}

fn flag(setting: &'static Setting) -> Arg {
    let mut help = setting.help.to_owned();
    if let Some(zero) = setting.zero {
        help += &format!("; 0 means {zero}");
    }
    let (value_name, parser) = match setting.kind {
        SettingKind::Time => {
            let times = match setting.name {
                // The one flag whose number may lack its unit: it was documented so before there were units.
                "visibility_timeout" => values::duration_or_millis,
                _ => values::duration,
            };
            ("TIME", ValueParser::from(times.map(SettingValue::Time)))
        }
        SettingKind::Number { max } => {
            let numbers = clap::value_parser!(u64).range(..=max);
            ("NUMBER", numbers.map(SettingValue::Number).into())
        }
        SettingKind::Word(words) => {
            let values = words.iter().map(|it| {
                let value = PossibleValue::new(it.word).help(it.help);
                value.alias(it.word.replace('_', "-"))
            });
            let parser = PossibleValuesParser::new(values).map(|given| {
                let given = given.replace('-', "_");
                let known = words.iter().find(|it| it.word == given);
                SettingValue::Word(known.expect("clap takes these words only").word)
            });
            ("WORD", parser.into())
        }
        SettingKind::Text if setting.name == "key_separator" => {
            help += "; one character, `off` for none";
            let separators = StringValueParser::new().map(|text| match text.as_str() {
                "off" => SettingValue::Text(String::new()),
                _ => SettingValue::Text(text),
            });
            ("CHARACTER", separators.into())
        }
        _ => {
            help += "; a file, `-` for the standard input";
            (
                "FILE",
                ValueParser::from(StringValueParser::new().map(SettingValue::Text)),
            )
        }
    };
    help += &format!(" [server's default: {}]", setting.default);
    Arg::new(setting.name)
        .long(setting.name.replace('_', "-"))
        .value_name(value_name)
        .value_parser(parser)
        // So that `-5s` is refused as a time, not as a flag; and `-` is a separator.
        .allow_hyphen_values(
            matches!(setting.kind, SettingKind::Time) || setting.name == "key_separator",
        )
        .help(help)
}

/// Reads a script. Refuses an empty one, because it would remove the hooks, which is the job of `--no-script`.
fn read_script(path: &Path) -> Result<String, Failure> {
    let source = values::text_file(path)?;
    if source.trim().is_empty() {
        let text = format!(
            "`{}` is empty; to remove the hooks use --no-script",
            path.display()
        );
        return Err(Failure::Usage(text));
    }
    Ok(source)
}
