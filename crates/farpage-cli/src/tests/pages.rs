//! Manual pages and completions of shells, made from the arguments as clap knows them. They lie in `pages`, which
//! `make install` copies from: so neither the command nor a build carries what makes them. This test fails if they are
//! not what the arguments say; `BLESS=1 cargo test -p farpage-cli pages` writes them anew.

use super::manual;
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
        made.insert(format!("{shell}/{name}"), with_values(shell, &String::from_utf8(text).unwrap()));
    }
    command.build();
    pages(&command, &mut made);

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

/// What clap does not know: processes, swap devices, and that behind `--` another command line begins.
fn with_values(shell: Shell, text: &str) -> String {
    match shell {
        Shell::Bash => text.replacen("_farpage() {", "_farpage_options() {", 1).replacen(
            "if [[ \"${BASH_VERSINFO[0]}\" -eq 4",
            &format!("{BASH}\nif [[ \"${{BASH_VERSINFO[0]}}\" -eq 4"),
            1,
        ),
        Shell::Zsh => {
            let values = |line: &str| match line {
                _ if line.contains(":pid -- ") => line.replace(":_default'", ":_pids'"),
                _ if line.contains("--swap=") => line.replace(":_default'", ":(zram file\\: nbd\\:// redis\\://)'"),
                _ => line.to_owned(),
            };
            text.lines().map(|line| values(line) + "\n").collect()
        }
        Shell::Fish => format!("{text}{FISH}"),
        _ => text.to_owned(),
    }
}

const BASH: &str = r#"_farpage() {
    local i cur="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
    for ((i = 2; i < COMP_CWORD; i++)); do
        if [[ "${COMP_WORDS[i]}" == -- ]]; then
            if ((COMP_CWORD == i + 1)); then
                COMPREPLY=($(compgen -c -- "$cur"))
            elif declare -F _command_offset > /dev/null; then
                _command_offset $((i + 1))
            fi
            return
        fi
    done
    case "$before" in
        --swap)
            COMPREPLY=($(compgen -W "zram file: nbd:// redis://" -- "$cur"))
            return
            ;;
        attach|detach|park|set|stat|unpark)
            if [[ "$cur" != -* && "$COMP_CWORD" -eq 2 ]]; then
                COMPREPLY=($(compgen -W "$(cd /proc && echo [0-9]*)" -- "$cur"))
                return
            fi
            ;;
    esac
    _farpage_options "$@"
}
"#;

const FISH: &str = r#"function __farpage_program
    set -l words (commandline -opc) (commandline -ct)
    set -l at (contains -i -- -- $words); or return
    set -l program (string escape -- $words[(math $at + 1)..-2]) $words[-1]
    complete -C "$program"
end
complete -c farpage -n "contains -- -- (commandline -opc)" -f -k -a "(__farpage_program)"
complete -c farpage -n "__fish_farpage_using_subcommand attach; or __fish_farpage_using_subcommand detach; or __fish_farpage_using_subcommand park; or __fish_farpage_using_subcommand unpark; or __fish_farpage_using_subcommand set; or __fish_farpage_using_subcommand stat" -x -a "(__fish_complete_pids)"
complete -c farpage -l swap -x -a "zram file: nbd:// redis://"
"#;

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
    let command = command.mut_args(|argument| argument.hide_short_help(false).hide_long_help(false));
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_long_help))
}

/// A page for the command, and one for each of those below it.
fn pages(command: &Command, made: &mut Files) {
    for below in command.get_subcommands() {
        pages(below, made);
    }
    let source = concat!("farpage ", env!("CARGO_PKG_VERSION"));
    // A date that is empty would be left out, and the next argument taken for it.
    let man = Man::new(command.clone()).date(" ").source(source).manual("User commands");
    let text = command.get_after_long_help().or(command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let (text, examples) = text.split_once("Examples:\n").unwrap_or((&text, ""));
    let (notes, status): (Vec<&str>, Vec<&str>) = text.split("\n\n").partition(|part| !part.starts_with(STATUS));
    let status = status.first().map(|part| part[STATUS.len()..].trim());
    let name = command.get_display_name().unwrap_or(NAME);
    let mut page = Vec::new();
    let written = [
        man.render_title(&mut page),
        man.render_name_section(&mut page),
        manual::synopsis(command).to_writer(&mut page),
        manual::description(name).to_writer(&mut page),
        man.render_options_section(&mut page),
        if command.has_subcommands() { man.render_subcommands_section(&mut page) } else { Ok(()) },
        kept("NOTES", &notes.join("\n\n")).to_writer(&mut page),
        manual::surroundings(name, status).to_writer(&mut page),
        kept("EXAMPLES", examples).to_writer(&mut page),
        see_also(command).to_writer(&mut page),
    ];
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    made.insert(format!("man1/{}", man.get_filename()), String::from_utf8(page).unwrap());
}

/// What begins a paragraph on it in the help.
const STATUS: &str = "Exit status:";

/// A part of what stands below the help. Lines that begin with a space are kept as they are: tables and examples.
fn kept(heading: &str, text: &str) -> Roff {
    let mut roff = Roff::new();
    if text.trim().is_empty() {
        return roff;
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
