//! The command line.

use crate::guard::rules::Rule;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

const RUN_SHORT: &str = "\
Examples:
  farpage run --ram 512M -- sort -S 4G big.txt
  farpage run --ram 25% --swap zram --swap file:/mnt/nvme -- python3 train.py
Sizes, devices, exit status: farpage run --help";

const RUN_EXAMPLES: &str = "\
Sizes: 512M and 512MiB are 512 * 2^20 bytes, 512MB is 512,000,000 bytes, and a bare number is bytes. 25% is a \
    quarter of physical RAM or of the memory cgroup's limit, whichever is smaller.

Swap devices are used in the order given, or by priority (higher prio first):
  zram[,alg=lz4|zstd][,size=SIZE][,prio=N]  compressed RAM, inside the budget
  file:PATH[,size=SIZE][,prio=N]            an unnamed file in the directory
                                            PATH, or a block device
  nbd://HOST[:PORT][/EXPORT][,size=SIZE][,timeout=TIME][,prio=N]
  nbd+unix:///PATH[?EXPORT][,...]           an NBD server, encrypted: another
                                            machine's memory
  redis://[USER@]HOST[:PORT][/DB][,size=SIZE][,timeout=TIME][,prio=N]
                                            a Redis or Valkey server's memory
  default: zram, then file:/var/tmp

Exit status: the program's own, or 125 if farpage itself failed, 126 if the program cannot be executed, and \
    127 if it was not found.

Defaults of all options: FARPAGE_RAM and FARPAGE_SWAP (with ; between devices), then ~/.config/farpage.conf, then \
    /etc/farpage.conf (TOML: ram = \"1G\"). farpage doctor shows them.

Further options, rarely needed: --ram-per-process, --stats-json, --verify, --force; see farpage-run(1).

Examples:
  farpage run --ram 512M -- sort -S 4G big.txt
  farpage run --ram 25% --swap zram --swap file:/mnt/nvme -- python3 train.py
  farpage run --ram 1G --stats -- redis-server --port 7777
  sudo farpage run --user alice --ram 2G -- node server.js";

const ATTACH_EXAMPLES: &str = "\
Some programs are refused and left as they are: those that are statically linked, use musl, were built with a \
    sanitizer, run under a debugger or a strict seccomp filter, or run under farpage already.

Exit status: 0 when the program is within the budget, 1 when it is refused or has memory that cannot be swapped \
    out.

Examples:
  farpage attach 1234 --ram 512M
  sudo farpage attach \"$(pidof -s java)\" --ram 2G --verbose
  farpage attach --tree \"$(pgrep -o gunicorn)\" --ram 1G
  sudo farpage attach --unit jupyter.service --ram 4G
  farpage set 1234 --ram 1G";

const GUARD_EXAMPLES: &str = "\
Free memory is MemAvailable of the machine; in a cgroup it is the limit minus what is used, not counting \
    pages of files. guard attaches to the largest program that the rules allow, or lowers its budget if it has \
    one. No program is cut below a quarter of what it had. When memory is plentiful again, programs that were cut \
    get some of it back.

A rule has one or more parts, joined by commas: name=GLOB, user=NAME|UID, cgroup=GLOB

Examples:
  sudo farpage guard
  sudo farpage guard --dry-run
  sudo farpage guard --keep 1G --never name=postgres --never user=root
  sudo farpage guard --cgroup /docker --only name=java --only name=python*
  farpage guard --swap file:/scratch";

const STAT_EXAMPLES: &str = "\
Columns, with one row for each program under farpage and one for each pager:
  BUDGET   --ram, or what the pager was built with
  RSS      resident anonymous memory as the kernel counts it; for a pager, what
           counts against its budget
  SWAPPED  bytes whose only copy is on a swap device
  POOL     RAM of the compressed pool
  FILE     bytes on file devices
  MAJFLT   faults that read a swap device
  PAGER    number of the pager in its process, from 1; -: the program itself

JSON: the program's values (null if it does not run under farpage), and a list
\"pagers\" with the same names as far as they apply. --watch adds \"interval_s\"
and \"per_second\", which is null where there is no earlier reading.

Examples:
  farpage stat
  farpage stat 1234
  farpage stat 1234 --watch
  farpage stat 1234 --watch 0.2 --json
  farpage stat --bytes
  farpage stat 1234 --events
  farpage stat --openmetrics
  farpage stat --openmetrics --output /var/lib/node_exporter/farpage.prom";

#[cfg(feature = "top")]
const TOP_EXAMPLES: &str = "\
Keys: up and down to select, Enter for details, s and r to sort, b to change a
budget, p to park a tree or bring it back, ? for all keys, q to quit.
NO_COLOR=1 turns colours off.

Examples:
  farpage top
  sudo farpage top
  farpage top --interval 0.5";

/// Where the exporter listens, if nothing else is said.
const EXPORTER_LISTENS: &str = "127.0.0.1:9797";

const EXPORTER_EXAMPLES: &str = "\
Only processes that the user may read are included. Run it as root to see all of them.

Examples:
  farpage exporter
  farpage exporter --listen [::1]:9797
  curl http://127.0.0.1:9797/metrics";

const REPORT_EXAMPLES: &str = "\
The page is a single file that needs no other file and no network. The runs
stand side by side, chart by chart, with the same scales and one cursor.

Examples:
  farpage run --ram 256M --report small.html -- python3 train.py
  farpage run --ram 512M --report large.html -- python3 train.py
  farpage report small.html large.html --output both.html";

const DOCTOR_EXAMPLES: &str = "\
Exit status: 0 if farpage run works for this user, 1 if it does not.

Examples:
  farpage doctor
  farpage doctor --verbose
  farpage doctor --json
  farpage doctor --swap nbd://box
  farpage doctor --swap redis://box
  sudo -u alice farpage doctor";

const SWAPOFF_EXAMPLES: &str = "\
A program that has not been heard from for a minute counts as ended. Do not run this while programs that swap \
    to the server are stopped.

Examples:
  farpage swapoff redis://box
  farpage swapoff --dry-run redis+unix:///run/redis.sock";

const EXAMPLES: &str = "\
Examples:
  farpage run --ram 512M -- sort -S 4G big.txt
  farpage stat
  farpage doctor";

/// Give a program more memory than the RAM it is allowed: the rest is swapped in user space.
#[derive(Debug, Parser)]
#[command(name = "farpage", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program under a RAM budget
    #[command(after_help = RUN_SHORT, after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Put a running program, and whatever it starts later, under a RAM budget
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(AttachArgs),
    /// Undo attach: bring a process back into RAM and let it run on without farpage
    Detach(DetachArgs),
    /// Watch memory, and put the largest program under a budget before the kernel kills one
    #[command(after_help = GUARD_EXAMPLES)]
    Guard(GuardArgs),
    /// Swap out as much as possible of an idle program and of all processes in its tree
    Park(ParkArgs),
    /// Bring a parked program back into RAM before it is used
    Unpark(ParkArgs),
    /// Change the budget of a running program and of all processes in its tree
    Set(SetArgs),
    /// Show the counters of programs that run under farpage or use pagers
    #[command(after_help = STAT_EXAMPLES)]
    Stat(StatArgs),
    /// Watch all programs live on one screen, and change their budgets
    #[cfg(feature = "top")]
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Serve the counters of all programs to Prometheus over HTTP
    #[command(after_help = EXPORTER_EXAMPLES)]
    Exporter(ExporterArgs),
    /// Combine the pages of several run --report into one, to compare the runs
    #[command(after_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Check what works here for this user, and say how to enable the rest
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Remove the pages that programs have left behind on a Redis server
    #[command(after_help = SWAPOFF_EXAMPLES)]
    Swapoff(SwapoffArgs),
    /// Find out how much RAM a program needs, by timing it with less and less
    #[command(after_help = farpage_bench::size::EXAMPLES)]
    Size(farpage_bench::size::SizeArgs),
    /// Compare farpage with the kernel's swap
    Bench(crate::bench::BenchArgs),
    /// Cleans up behind `bench`
    #[command(hide = true)]
    BenchGuard,
}

/// `farpage set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Any process of the tree
    pub pid: u32,
    /// New budget of the whole tree, or max for none. Compressed memory does not grow beyond what was reserved at the
    /// start
    #[arg(short = 'm', long, visible_alias = "memory", value_name = "SIZE", allow_hyphen_values = true)]
    pub ram: String,
}

/// `farpage park` and `farpage unpark`.
#[derive(Debug, Args)]
pub struct ParkArgs {
    /// Any process of the tree: started by farpage run, attached to, or a descendant of such a process
    pub pid: u32,
    /// Say on stderr what is being done
    #[arg(short, long)]
    pub verbose: bool,
}

/// `farpage attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Process to attach to
    #[arg(required_unless_present_any = ["unit", "cgroup"])]
    pub pid: Option<u32>,
    /// Also attach to every process that it has started, under one budget
    #[arg(long, requires = "pid")]
    pub tree: bool,
    /// Attach to every process of this systemd unit, found by its cgroup, under one budget
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "cgroup"])]
    pub unit: Option<String>,
    /// Attach to every process of this cgroup and of those below it, under one budget
    #[arg(long, value_name = "NAME|DIR", conflicts_with = "pid")]
    pub cgroup: Option<PathBuf>,
    /// Budget for resident anonymous memory of the process and of what it starts
    #[arg(short = 'm', long, visible_alias = "memory", value_name = "SIZE", allow_hyphen_values = true)]
    pub ram: String,
    /// How the engine works.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Say on stderr what is being done
    #[arg(short, long)]
    pub verbose: bool,
}

/// `farpage detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// Process that was attached to, or forked by one that was
    pub pid: u32,
    /// Also detach every process that it has started
    #[arg(long)]
    pub tree: bool,
}

/// `farpage guard`.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// Watch this memory cgroup and those below it, where they have limits; may be repeated [default: the cgroup that
    /// limits this process, else the machine]
    #[arg(long, value_name = "NAME|DIR")]
    pub cgroup: Vec<PathBuf>,
    /// Memory to keep free, a size or a percentage: act when less is free, or will be within a second
    #[arg(long, value_name = "SIZE", default_value = "10%")]
    pub keep: String,
    /// Consider only programs that match RULE or another --only; may be repeated
    #[arg(long, value_name = "RULE", value_parser = Rule::parse)]
    pub only: Vec<Rule>,
    /// Leave programs alone that match RULE; may be repeated
    #[arg(long, value_name = "RULE", value_parser = Rule::parse)]
    pub never: Vec<Rule>,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// How the engines work.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How an engine works: of `run`, `attach` and `guard`.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Swap device [default: zram, then file:/var/tmp]
    ///
    /// May be repeated.
    #[arg(long, value_name = "SPEC")]
    pub swap: Vec<OsString>,
    /// Readahead, parts separated by commas: none, stream, vma or slot; page_cluster=N (at most 2^N pages at a time);
    /// vma_ra_enabled=0|1; exact (pages wait for their touch, so that hits are exact) [default: stream,page_cluster=5]
    #[arg(long, value_name = "SPEC", hide = true)]
    pub readahead: Option<String>,
    /// Keep idle CPUs from sleeping while faults come fast (auto: on machines of up to 8 CPUs)
    #[arg(long, value_name = "WHEN", value_parser = ["auto", "always", "never"], hide = true)]
    pub idle_poll: Option<String>,
    /// Park each process that has been idle for TIME (90s, 10m, 2h)
    ///
    /// Idle means less than 1% of a CPU. Its memory is swapped out as far as possible, and comes back when it is used.
    #[arg(long, value_name = "TIME")]
    pub idle: Option<String>,
    /// Keep a checksum of every swapped-out page, and abort on a mismatch
    #[arg(long, hide_short_help = true, hide_long_help = true)]
    pub verify: bool,
}

impl EngineArgs {
    /// The command line that says the same.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut put = |name: &str, value: &OsStr| arguments.extend([OsString::from(name), value.to_owned()]);
        self.swap.iter().for_each(|spec| put("--swap", spec));
        for (name, value) in
            [("--readahead", &self.readahead), ("--idle-poll", &self.idle_poll), ("--idle", &self.idle)]
        {
            value.iter().for_each(|value| put(name, value.as_ref()));
        }
        arguments.extend(self.verify.then(|| "--verify".into()));
        arguments
    }
}

/// `farpage run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// RAM budget: 512M, 25%
    ///
    /// Budget for resident anonymous memory of the program and everything that it starts. Default: 90% of the memory
    /// cgroup's limit, else half of the available memory.
    #[arg(short = 'm', long, visible_alias = "memory", value_name = "SIZE", allow_hyphen_values = true)]
    pub ram: Option<String>,
    /// Budget for each process. Without --ram there is no common budget
    #[arg(long, value_name = "SIZE", hide_short_help = true, hide_long_help = true)]
    pub ram_per_process: Option<String>,
    /// How the engine works.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print a table of counters at the end
    ///
    /// farpage stays as the parent and prints the table on stderr when the program ends.
    #[arg(long)]
    pub stats: bool,
    /// Write the counters to FILE as one JSON object when the program ends (-: stderr; stdout is the program's)
    #[arg(long, value_name = "FILE", hide_short_help = true, hide_long_help = true)]
    pub stats_json: Option<PathBuf>,
    /// Write a page with charts to FILE at the end
    ///
    /// farpage stays as the parent and samples all processes several times a second.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Run the program as this user (root only)
    ///
    /// Names or numbers. The program gets an open /dev/userfaultfd and no other privilege.
    #[arg(long, value_name = "USER[:GROUP]", value_hint = ValueHint::Username)]
    pub user: Option<String>,
    /// Record in FILE which pages are touched, for farpage-bench sim (slow: each has a fault); processes after the
    /// first write to FILE.PID
    #[arg(long, value_name = "FILE", conflicts_with = "readahead", hide = true)]
    pub trace: Option<PathBuf>,
    /// Say on stderr what is being done
    #[arg(short, long)]
    pub verbose: bool,
    /// No warnings, and no lines about swapping and waiting
    ///
    /// Otherwise a line on a terminal says that swapping has begun, and a line on stderr says that the program mostly
    /// waits for memory, once while it runs and once at its end.
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Try what farpage would refuse: static, setuid or foreign programs, older kernels
    #[arg(long, hide_short_help = true, hide_long_help = true)]
    pub force: bool,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", required = true, num_args = 1.., trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// `farpage stat`.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// Process to show; without it, a table of all processes
    pub pid: Option<u32>,
    /// Print one JSON object (with --watch: one per line)
    #[arg(short = 'J', long)]
    pub json: bool,
    /// Repeat every SECONDS (default 1), with rates, until the process ends. Put PID before this option
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub watch: Option<f64>,
    /// Print sizes in bytes
    #[arg(short, long)]
    pub bytes: bool,
    /// Print the engine's last 4096 events: faults, evictions, changes of mappings
    #[arg(long, requires = "pid", conflicts_with = "watch")]
    pub events: bool,
    /// Print the values of the feedback controllers, of the engine and of pagers
    #[arg(long, requires = "pid", conflicts_with_all = ["watch", "events"], hide = true)]
    pub tuning: bool,
    /// Print the counters of all processes as metrics, in OpenMetrics text format
    #[arg(long, conflicts_with_all = ["pid", "json", "watch", "bytes", "events", "tuning"])]
    pub openmetrics: bool,
    /// One set of series for each process, instead of one for each tree
    #[arg(long, requires = "openmetrics")]
    pub per_process: bool,
    /// Write the metrics to FILE in Prometheus text format, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE", requires = "openmetrics")]
    pub output: Option<PathBuf>,
}

/// `farpage top`.
#[cfg(feature = "top")]
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between updates
    #[arg(short = 'n', long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
}

/// `farpage exporter`.
#[derive(Debug, Args)]
pub struct ExporterArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = EXPORTER_LISTENS)]
    pub listen: String,
    /// One set of series for each process, instead of one for each tree
    #[arg(long)]
    pub per_process: bool,
}

/// `farpage report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Pages written by farpage run --report
    #[arg(value_name = "FILE", required = true, num_args = 1.., value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Page to write
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
}

/// `farpage doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(short = 'J', long)]
    pub json: bool,
    /// Show everything that was tried, and the outcome
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    /// Check only this swap device: whether it can be used, and how fast it is
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["json", "verbose"])]
    pub swap: Vec<String>,
}

/// `farpage swapoff`.
#[derive(Debug, Args)]
pub struct SwapoffArgs {
    /// Server, as in --swap: redis://[USER@]HOST[:PORT][/DB][,password-file=PATH]
    pub server: String,
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn engines_are_told_what_was_said() {
        let said = "--swap zram --swap file:/tmp,size=1G --readahead none --idle-poll never --idle 5m --verify";
        let parse = |arguments: &[OsString]| {
            let all = ["farpage", "attach", "1", "--ram", "1G"]
                .map(OsString::from)
                .into_iter()
                .chain(arguments.iter().cloned());
            match Cli::try_parse_from(all).expect("it can be read").command {
                Command::Attach(args) => args.engine,
                _ => unreachable!("it is attach"),
            }
        };
        let said: Vec<OsString> = said.split(' ').map(OsString::from).collect();
        let engine = parse(&said);
        assert_eq!(engine.to_arguments(), said);
        assert_eq!(format!("{:?}", parse(&engine.to_arguments())), format!("{engine:?}"));
    }

    /// `farpage run -h` is one screen, and names what is needed; the manual has the rest.
    #[test]
    fn the_short_help_of_run_is_one_screen() {
        let run = Cli::command().find_subcommand("run").cloned().unwrap().bin_name("farpage run").term_width(80);
        let short = run.clone().render_help().to_string();
        assert!(short.lines().count() <= 24, "{short}");
        let options = |text: &str| {
            text.lines().filter(|line| line.starts_with(' ') && line.trim_start().starts_with('-')).count()
        };
        assert_eq!((options(&short), options(&run.clone().render_long_help().to_string())), (9, 9), "{short}");
    }

    /// What stands below the help of a command, and of those below it.
    fn texts(command: &clap::Command) -> Vec<(String, String)> {
        let text = command.get_after_long_help().or(command.get_after_help());
        let text = text.map(ToString::to_string).unwrap_or_default();
        let below = command.get_subcommands().flat_map(texts);
        std::iter::once((command.get_name().to_owned(), text)).chain(below).collect()
    }

    /// Tables and examples fit into 80 columns: broken by clap, they could not be read, or pasted. Other text is either
    /// narrow, too, or a paragraph is one line: what was broken by hand would be broken once more.
    #[test]
    fn help_is_not_broken_twice() {
        let shown = Cli::command().find_subcommand("stat").cloned().unwrap().term_width(80).render_help().to_string();
        assert!(shown.contains(STAT_EXAMPLES), "{shown}");
        let told = texts(&Cli::command());
        assert!(told.iter().filter(|(_, text)| !text.is_empty()).count() > 10);
        for (name, text) in told {
            let lines: Vec<&str> = text.lines().chain([""]).collect();
            for pair in lines.windows(2) {
                let of_one_paragraph = pair.iter().all(|line| line.starts_with(|c: char| !c.is_whitespace()));
                let heading = pair[1].split_whitespace().next().is_some_and(|word| word.ends_with(':'));
                let kept = pair[0].len() < 80;
                assert!(kept || !pair[0].starts_with(' '), "{name}: {}", pair[0]);
                assert!(kept || !of_one_paragraph || heading, "{name}: {}\n{}", pair[0], pair[1]);
            }
        }
    }
}
