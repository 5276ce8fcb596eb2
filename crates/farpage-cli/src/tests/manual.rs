//! What a manual page says besides what `--help` does.

use clap::Command;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// Sections of one page. In lists a term stands on one line, and what it means, indented, below.
struct Words {
    /// `farpage-run`; a name with a `*` at its end holds for all that begin so.
    name: &'static str,
    description: &'static str,
    environment: &'static str,
    files: &'static str,
}

/// The first one that fits.
const PAGES: [Words; 17] = [
    Words {
        name: "farpage-run",
        description: "\
Starts PROGRAM. Together with everything that it starts, it may have SIZE bytes of anonymous memory in RAM. \
    Memory that does not fit is compressed or written to swap devices, and comes back when it is touched. The program \
    is not changed: farpage preloads a library into it and then replaces itself with it, so that process ID, \
    terminal, signals and exit status are the program's own.

It needs Linux 6.8 or newer, glibc, and access to a full userfaultfd: root, or a user who may open /dev/userfaultfd. \
    farpage doctor says what is missing.",
        environment: RUN_ENVIRONMENT,
        files: RUN_FILES,
    },
    Words {
        name: "farpage-attach",
        description: "\
Puts the running process PID, and everything that it starts later, under a budget, as farpage run would have done. \
    One thread of the process is stopped for a few milliseconds while it loads the library; the others run on. \
    Children that run already stay outside of the budget unless --tree is given. The command returns when the process \
    is within its budget.

The user must be allowed to trace the process: see ptrace(2) and /proc/sys/kernel/yama/ptrace_scope.",
        environment: PRELOAD,
        files: RUN_FILES,
    },
    Words {
        name: "farpage-detach",
        description: "\
Brings all memory of the process PID back into RAM and lets it run on without farpage. The process must have been \
    attached to, or forked by one that was. Its engine ends and its descriptors are closed; the library stays loaded \
    and does nothing. What the process starts later runs without farpage. What it has started before stays within the \
    budget unless --tree is given; then one line names each process that could not be detached, and the exit status \
    is 1. If there is no room for its memory, or a device does not answer, a process stays as it was. farpage attach \
    puts it under a budget again.",
        environment: "",
        files: "",
    },
    Words {
        name: "farpage-guard",
        description: "\
Watches the machine, or memory cgroups with limits. Before memory runs out, it attaches to the largest program and \
    gives it a budget, so that the program is slowed down instead of killed. It stays in the foreground and writes one \
    line to standard error for each thing that it does. It runs until it is stopped by a signal; budgets that it has \
    set stay in force.",
        environment: PRELOAD,
        files: "\
/proc/meminfo, /proc/pressure/memory
    what is left of the machine, and how long tasks wait for memory
/sys/fs/cgroup
    limits and use of memory cgroups
/usr/lib/systemd/system/farpage-guard.service
    the service, where the Debian package is installed",
    },
    Words {
        name: "farpage-park",
        description: "\
Swaps out as much as possible of the process PID and of every process in its tree. A parked program comes back \
    automatically when it is used, and gets its part of the budget back. farpage unpark brings it back earlier.",
        environment: "",
        files: "",
    },
    Words {
        name: "farpage-unpark",
        description: "\
Reads back what farpage park has swapped out, as far as the budget allows, so that the next use of the program does \
    not have to wait.",
        environment: "",
        files: "",
    },
    Words {
        name: "farpage-set",
        description: "\
Changes the budget of the tree that the process PID belongs to: the program that was started with farpage run, or \
    attached to, and everything that it has started. The command waits until the tree fits into the new budget, or \
    says why it does not.",
        environment: "",
        files: "",
    },
    Words {
        name: "farpage-stat",
        description: "\
Shows the counters of programs that run under farpage, and of pagers. Without PID it prints a table of all processes \
    that the user may read, one row each; with PID, every counter of that process.",
        environment: "",
        files: PROC,
    },
    Words {
        name: "farpage-top",
        description: "\
Shows all programs and trees under farpage on one screen, and updates it every second. Keys change budgets, and \
    park trees or bring them back. It needs a terminal of at least 80 columns and 24 lines.",
        environment: "\
NO_COLOR
    if it is set and not empty, no colours are used
TERM, LANG, LC_ALL, LC_CTYPE
    what the terminal can do; where the locale is not UTF-8, charts are drawn in ASCII",
        files: PROC,
    },
    Words {
        name: "farpage-exporter",
        description: "\
Answers HTTP requests for /metrics with the counters of all programs under farpage, in the text form of OpenMetrics. \
    Only processes that the user may read are in it.",
        environment: "",
        files: PROC,
    },
    Words {
        name: "farpage-report",
        description: "\
Combines pages that farpage run --report has written into one, in which the runs stand side by side, chart by chart, \
    with the same scales and one cursor.",
        environment: "",
        files: "",
    },
    Words {
        name: "farpage-doctor",
        description: "\
Tests everything that farpage run needs, for the current user, and says what does not work, why, and how to enable \
    it. With --swap it tests a swap device instead, and measures its speed.",
        environment: PRELOAD,
        files: RUN_FILES,
    },
    Words {
        name: "farpage-swapoff",
        description: "\
Removes pages from a Redis or Valkey server that programs have left there when they ended. \
    Pages of running programs are kept.",
        environment: PASSWORD,
        files: "",
    },
    Words {
        name: "farpage-size",
        description: "\
Runs PROGRAM several times, with all of its memory and within budgets, and prints how long it takes with how much RAM. \
    It names the smallest budget at which the program is not much slower.",
        environment: RUN_ENVIRONMENT,
        files: RUN_FILES,
    },
    Words {
        name: "farpage-bench",
        description: "Measures farpage against the kernel's own swap, with equal memory.",
        environment: "",
        files: "",
    },
    Words {
        name: "farpage-bench-*",
        description: "\
Runs a load on the kernel's own swap and under farpage, with equal memory, and prints both. The kernel's side needs \
    root and a memory cgroup.",
        environment: "",
        files: "",
    },
    Words {
        name: "farpage",
        description: "\
farpage gives a program more memory than the RAM it is allowed. It is the Linux swap subsystem, rebuilt in user space: \
    cold memory is compressed, and what does not fit is written to a file, a disk, or another machine's memory. It \
    needs no swap space on the machine, no kernel module and no change to the program.

Start with farpage doctor, which says whether it works here, then use farpage run.",
        environment: RUN_ENVIRONMENT,
        files: RUN_FILES,
    },
];

const RUN_ENVIRONMENT: &str = "\
FARPAGE_RAM, FARPAGE_SWAP
    defaults of --ram and --swap; devices are separated by semicolons
FARPAGE_DEFAULTS
    0: do not read files of defaults
FARPAGE_DISABLE
    unless it is 0 or empty, the program runs without a budget; to find out whether farpage is the cause of a problem
FARPAGE_PRELOAD
    path of libfarpage_preload.so; without it the library beside the command is used, then the one in \
    ../lib/farpage from there
FARPAGE_CONF, LD_PRELOAD
    set for the program; with these two alone a program can be put under a budget of its own without farpage run
FARPAGE_REDIS_PASSWORD
    password of a Redis server, unless password-file= names a file";

const PRELOAD: &str = "\
FARPAGE_PRELOAD
    path of libfarpage_preload.so; without it the library beside the command is used, then the one in \
    ../lib/farpage from there";

const PASSWORD: &str = "\
FARPAGE_REDIS_PASSWORD
    password of the server, unless password-file= names a file";

const RUN_FILES: &str = "\
$XDG_CONFIG_HOME/farpage.conf or ~/.config/farpage.conf, then /etc/farpage.conf
    defaults of farpage run: ram = \"512M\", a line for each option, in TOML
/dev/userfaultfd
    the user must be able to open it, or be root
/var/tmp
    the default directory for swap files, which have no names and vanish with the program
../lib/farpage/libfarpage_preload.so
    the library that is preloaded, seen from the command's directory";

const PROC: &str = "\
/proc/PID/fd, /proc/PID/smaps
    the counters of a process, and what the kernel says of its memory";

const STATUS: &str = "0 on success, 1 on failure, 2 if the command line is wrong.";

fn words(name: &str) -> &'static Words {
    let fits =
        |words: &&Words| words.name.strip_suffix('*').map_or(words.name == name, |begin| name.starts_with(begin));
    PAGES.iter().find(fits).unwrap_or_else(|| panic!("{name} has no description in {}", file!()))
}

/// Every way to write the command: options with all their names and their values.
pub fn synopsis(command: &Command) -> Roff {
    let mut line = vec![bold(command.get_bin_name().unwrap_or("farpage"))];
    let is_shown = |argument: &&clap::Arg| !argument.is_hide_set();
    for option in command.get_arguments().filter(is_shown).filter(|argument| !argument.is_positional()) {
        let long =
            option.get_long_and_visible_aliases().unwrap_or_default().into_iter().map(|name| format!("--{name}"));
        let short =
            option.get_short_and_visible_aliases().unwrap_or_default().into_iter().map(|name| format!("-{name}"));
        let names: Vec<String> = short.chain(long).collect();
        let (begin, end) = if option.is_required_set() { ("", "") } else { ("[", "]") };
        let several = if names.len() > 1 && option.is_required_set() { ("{", "}") } else { ("", "") };
        line.push(roman(format!(" {begin}{}", several.0)));
        for (at, name) in names.into_iter().enumerate() {
            line.extend((at > 0).then(|| roman("|")));
            line.push(bold(name));
        }
        line.push(roman(several.1));
        let values = option.get_num_args().expect("the command is built");
        if values.takes_values() {
            let name = option.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
            let (before, after) = if values.min_values() == 0 { (" [", "]") } else { (" ", "") };
            line.extend([roman(before), italic(name), roman(after)]);
        }
        let repeats = matches!(option.get_action(), clap::ArgAction::Append | clap::ArgAction::Count);
        line.push(roman(format!("{end}{}", if repeats { "..." } else { "" })));
    }
    for value in command.get_positionals().filter(is_shown) {
        let name = value.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
        let (begin, end) = if value.is_required_set() { ("", "") } else { ("[", "]") };
        let dashes = if value.is_last_set() { "-- " } else { "" };
        let more = value.get_num_args().is_some_and(|values| values.max_values() > 1);
        line.extend([roman(format!(" {begin}{dashes}")), italic(name)]);
        line.push(roman(format!("{}{end}", if more { "..." } else { "" })));
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND"), roman(" ["), italic("ARGUMENT"), roman("]...")]);
    }
    let mut roff = Roff::new();
    // Options are not hyphenated, and lines not filled up with blanks.
    roff.control("SH", ["SYNOPSIS"]).control("ad", ["l"]).control("nh", []);
    roff.text(line).control("hy", []).control("ad", ["b"]);
    roff
}

/// `DESCRIPTION`.
pub fn description(name: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["DESCRIPTION"]);
    for (at, paragraph) in words(name).description.split("\n\n").enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(paragraph)]);
    }
    roff
}

/// `EXIT STATUS`, where the help says nothing of it; `ENVIRONMENT`, `FILES`.
pub fn surroundings(name: &str, status: Option<&str>) -> Roff {
    let mut roff = Roff::new();
    let status = status.unwrap_or(STATUS);
    let (first, rest) = status.split_at(1);
    roff.control("SH", ["EXIT STATUS"]).text([roman(format!("{}{rest}", first.to_uppercase()))]);
    let words = words(name);
    for (heading, list) in [("ENVIRONMENT", words.environment), ("FILES", words.files)] {
        if !list.is_empty() {
            roff.control("SH", [heading]);
        }
        for line in list.lines() {
            match line.strip_prefix("    ") {
                Some(meaning) => roff.text([roman(meaning)]),
                None => roff.control("TP", []).text([bold(line)] as [Inline; 1]),
            };
        }
    }
    roff
}
