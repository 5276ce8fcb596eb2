//! Manual pages and completions of shells, made from the arguments as clap knows them. They lie in `pages`, which
//! `make install` copies from: so neither the command nor a build carries what makes them. This test fails if they are
//! not what the arguments say; `BLESS=1 cargo test -p farpage-cli pages` writes them anew.

use crate::args::Cli;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const NAME: &str = "farpage";

/// Files by their names below `pages`.
type Files = BTreeMap<String, String>;

#[test]
fn manual_and_completions_are_what_the_arguments_say() {
    let mut made = Files::new();
    let mut command = for_users(&Cli::command());
    for (shell, name) in [(Shell::Bash, "farpage"), (Shell::Zsh, "_farpage"), (Shell::Fish, "farpage.fish")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, NAME, &mut text);
        made.insert(format!("{shell}/{name}"), String::from_utf8(text).unwrap());
    }
    command.build();
    manual(&command, &mut made);

    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("pages");
    if std::env::var_os("BLESS").is_some() {
        let _ = fs::remove_dir_all(&place);
        for (name, text) in &made {
            fs::create_dir_all(place.join(name).parent().unwrap()).unwrap();
            fs::write(place.join(name), text).unwrap();
        }
    }
    let mut there = Files::new();
    for directory in fs::read_dir(&place).unwrap().flatten() {
        for file in fs::read_dir(directory.path()).unwrap().flatten() {
            let name = format!("{}/{}", directory.file_name().display(), file.file_name().display());
            there.insert(name, fs::read_to_string(file.path()).unwrap());
        }
    }
    let differs = |name: &&String| made.get(*name) != there.get(*name);
    let wrong: Vec<_> = made.keys().chain(there.keys()).filter(differs).collect();
    assert!(wrong.is_empty(), "BLESS=1 cargo test -p farpage-cli pages: {wrong:?}");
}

/// The command without the subcommands that it starts itself: completions would offer them.
fn for_users(command: &Command) -> Command {
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .after_help(command.get_after_help().cloned().unwrap_or_default())
        .args(command.get_arguments())
        .subcommands(command.get_subcommands().filter(|c| !c.is_hide_set()).cloned().map(with_long_help))
        .subcommand_required(true)
        .disable_help_subcommand(true)
}

/// What the short help leaves out has its place in the manual.
fn with_long_help(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    let command = command.mut_args(|argument| argument.hide_short_help(false));
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_long_help))
}

/// A page for the command, and one for each of those below it.
fn manual(command: &Command, made: &mut Files) {
    for below in command.get_subcommands() {
        manual(below, made);
    }
    let source = concat!("farpage ", env!("CARGO_PKG_VERSION"));
    // A date that is empty would be left out, and the next argument taken for it.
    let man = Man::new(command.clone()).date(" ").source(source).manual("User commands");
    let mut page = Vec::new();
    let written = [
        man.render_title(&mut page),
        man.render_name_section(&mut page),
        man.render_synopsis_section(&mut page),
        man.render_options_section(&mut page),
        if command.has_subcommands() { man.render_subcommands_section(&mut page) } else { Ok(()) },
        remarks(command).to_writer(&mut page),
        see_also(command).to_writer(&mut page),
    ];
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    made.insert(format!("man1/{}", man.get_filename()), String::from_utf8(page).unwrap());
}

/// What stands below the help. Lines that begin with a space are kept as they are: tables and examples.
fn remarks(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (before, examples) = text.split_once("Examples:\n").unwrap_or((&text, ""));
    for (heading, text) in [("NOTES", before), ("EXAMPLES", examples)] {
        if text.trim().is_empty() {
            continue;
        }
        roff.control("SH", [heading]);
        let mut kept = false;
        for line in text.trim_end().lines() {
            if kept != line.starts_with(' ') {
                kept = !kept;
                roff.control(if kept { "nf" } else { "fi" }, []);
            }
            if line.is_empty() {
                roff.control("PP", []);
            } else {
                roff.text([roman(line)]);
            }
        }
        if kept {
            roff.control("fi", []);
        }
    }
    roff
}

fn see_also(command: &Command) -> Roff {
    let name = command.get_display_name().unwrap_or(NAME);
    let top = for_users(&Cli::command());
    let below = top.get_subcommands().map(|c| format!("{NAME}-{}", c.get_name()));
    let pages = [NAME.to_owned()].into_iter().chain(below).filter(|page| page != name);
    let pages: Vec<_> = pages.map(|page| format!("{page}(1)")).collect();
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
    roff
}
