# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_farpage_global_optspecs
    string join \n h/help V/version
end

function __fish_farpage_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_farpage_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_farpage_using_subcommand
    set -l cmd (__fish_farpage_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c farpage -n "__fish_farpage_needs_command" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_needs_command" -s V -l version -d 'Print version'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "run" -d 'Run a program under a RAM budget'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "attach" -d 'Put a running program, and whatever it starts later, under a RAM budget'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "detach" -d 'Undo attach: bring a process back into RAM and let it run on without farpage'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "guard" -d 'Watch memory, and put the largest program under a budget before the kernel kills one'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "park" -d 'Swap out as much as possible of an idle program and of all processes in its tree'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "unpark" -d 'Bring a parked program back into RAM before it is used'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "set" -d 'Change the budget of a running program and of all processes in its tree'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "stat" -d 'Show the counters of programs that run under farpage or use pagers'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "top" -d 'Watch all programs live on one screen, and change their budgets'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "exporter" -d 'Serve the counters of all programs to Prometheus over HTTP'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "report" -d 'Combine the pages of several run --report into one, to compare the runs'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "doctor" -d 'Check what works here for this user, and say how to enable the rest'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "swapoff" -d 'Remove the pages that programs have left behind on a Redis server'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "size" -d 'Find out how much RAM a program needs, by timing it with less and less'
complete -c farpage -n "__fish_farpage_needs_command" -f -a "bench" -d 'Compare farpage with the kernel\'s swap'
complete -c farpage -n "__fish_farpage_using_subcommand run" -s m -l ram -l memory -d 'RAM budget: 512M, 25%' -r
complete -c farpage -n "__fish_farpage_using_subcommand run" -l ram-per-process -d 'Budget for each process. Without --ram there is no common budget' -r
complete -c farpage -n "__fish_farpage_using_subcommand run" -l swap -d 'Swap device [default: zram, then file:/var/tmp]' -r
complete -c farpage -n "__fish_farpage_using_subcommand run" -l readahead -d 'Readahead, parts separated by commas: none, stream, vma or slot; page_cluster=N (at most 2^N pages at a time); vma_ra_enabled=0|1; exact (pages wait for their touch, so that hits are exact) [default: stream,page_cluster=5]' -r
complete -c farpage -n "__fish_farpage_using_subcommand run" -l idle-poll -d 'Keep idle CPUs from sleeping while faults come fast (auto: on machines of up to 8 CPUs)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c farpage -n "__fish_farpage_using_subcommand run" -l idle -d 'Park each process that has been idle for TIME (90s, 10m, 2h)' -r
complete -c farpage -n "__fish_farpage_using_subcommand run" -l stats-json -d 'Write the counters to FILE as one JSON object when the program ends (-: stderr; stdout is the program\'s)' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand run" -l report -d 'Write a page with charts to FILE at the end' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand run" -l user -d 'Run the program as this user (root only)' -r -f -a "(__fish_complete_users)"
complete -c farpage -n "__fish_farpage_using_subcommand run" -l trace -d 'Record in FILE which pages are touched, for farpage-bench sim (slow: each has a fault); processes after the first write to FILE.PID' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand run" -l verify -d 'Keep a checksum of every swapped-out page, and abort on a mismatch'
complete -c farpage -n "__fish_farpage_using_subcommand run" -l stats -d 'Print a table of counters at the end'
complete -c farpage -n "__fish_farpage_using_subcommand run" -s v -l verbose -d 'Say on stderr what is being done'
complete -c farpage -n "__fish_farpage_using_subcommand run" -s q -l quiet -d 'No warnings, and no lines about swapping and waiting'
complete -c farpage -n "__fish_farpage_using_subcommand run" -l force -d 'Try what farpage would refuse: static, setuid or foreign programs, older kernels'
complete -c farpage -n "__fish_farpage_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l unit -d 'Attach to every process of this systemd unit, found by its cgroup, under one budget' -r
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l cgroup -d 'Attach to every process of this cgroup and of those below it, under one budget' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand attach" -s m -l ram -l memory -d 'Budget for resident anonymous memory of the process and of what it starts' -r
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l swap -d 'Swap device [default: zram, then file:/var/tmp]' -r
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l readahead -d 'Readahead, parts separated by commas: none, stream, vma or slot; page_cluster=N (at most 2^N pages at a time); vma_ra_enabled=0|1; exact (pages wait for their touch, so that hits are exact) [default: stream,page_cluster=5]' -r
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l idle-poll -d 'Keep idle CPUs from sleeping while faults come fast (auto: on machines of up to 8 CPUs)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l idle -d 'Park each process that has been idle for TIME (90s, 10m, 2h)' -r
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l tree -d 'Also attach to every process that it has started, under one budget'
complete -c farpage -n "__fish_farpage_using_subcommand attach" -l verify -d 'Keep a checksum of every swapped-out page, and abort on a mismatch'
complete -c farpage -n "__fish_farpage_using_subcommand attach" -s v -l verbose -d 'Say on stderr what is being done'
complete -c farpage -n "__fish_farpage_using_subcommand attach" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c farpage -n "__fish_farpage_using_subcommand detach" -l tree -d 'Also detach every process that it has started'
complete -c farpage -n "__fish_farpage_using_subcommand detach" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l cgroup -d 'Watch this memory cgroup and those below it, where they have limits; may be repeated [default: the cgroup that limits this process, else the machine]' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l keep -d 'Memory to keep free, a size or a percentage: act when less is free, or will be within a second' -r
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l only -d 'Consider only programs that match RULE or another --only; may be repeated' -r
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l never -d 'Leave programs alone that match RULE; may be repeated' -r
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l swap -d 'Swap device [default: zram, then file:/var/tmp]' -r
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l readahead -d 'Readahead, parts separated by commas: none, stream, vma or slot; page_cluster=N (at most 2^N pages at a time); vma_ra_enabled=0|1; exact (pages wait for their touch, so that hits are exact) [default: stream,page_cluster=5]' -r
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l idle-poll -d 'Keep idle CPUs from sleeping while faults come fast (auto: on machines of up to 8 CPUs)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l idle -d 'Park each process that has been idle for TIME (90s, 10m, 2h)' -r
complete -c farpage -n "__fish_farpage_using_subcommand guard" -s n -l dry-run -d 'Only say what would be done'
complete -c farpage -n "__fish_farpage_using_subcommand guard" -l verify -d 'Keep a checksum of every swapped-out page, and abort on a mismatch'
complete -c farpage -n "__fish_farpage_using_subcommand guard" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c farpage -n "__fish_farpage_using_subcommand park" -s v -l verbose -d 'Say on stderr what is being done'
complete -c farpage -n "__fish_farpage_using_subcommand park" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand unpark" -s v -l verbose -d 'Say on stderr what is being done'
complete -c farpage -n "__fish_farpage_using_subcommand unpark" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand set" -s m -l ram -l memory -d 'New budget of the whole tree, or max for none. Compressed memory does not grow beyond what was reserved at the start' -r
complete -c farpage -n "__fish_farpage_using_subcommand set" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand stat" -l watch -d 'Repeat every SECONDS (default 1), with rates, until the process ends. Put PID before this option' -r
complete -c farpage -n "__fish_farpage_using_subcommand stat" -l output -d 'Write the metrics to FILE in Prometheus text format, for node_exporter\'s textfile collector' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand stat" -s J -l json -d 'Print one JSON object (with --watch: one per line)'
complete -c farpage -n "__fish_farpage_using_subcommand stat" -s b -l bytes -d 'Print sizes in bytes'
complete -c farpage -n "__fish_farpage_using_subcommand stat" -l events -d 'Print the engine\'s last 4096 events: faults, evictions, changes of mappings'
complete -c farpage -n "__fish_farpage_using_subcommand stat" -l tuning -d 'Print the values of the feedback controllers, of the engine and of pagers'
complete -c farpage -n "__fish_farpage_using_subcommand stat" -l openmetrics -d 'Print the counters of all processes as metrics, in OpenMetrics text format'
complete -c farpage -n "__fish_farpage_using_subcommand stat" -l per-process -d 'One set of series for each process, instead of one for each tree'
complete -c farpage -n "__fish_farpage_using_subcommand stat" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand top" -s n -l interval -d 'Seconds between updates' -r
complete -c farpage -n "__fish_farpage_using_subcommand top" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand exporter" -l listen -d 'Address and port to listen on' -r
complete -c farpage -n "__fish_farpage_using_subcommand exporter" -l per-process -d 'One set of series for each process, instead of one for each tree'
complete -c farpage -n "__fish_farpage_using_subcommand exporter" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand report" -s o -l output -d 'Page to write' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand report" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand doctor" -l swap -d 'Check only this swap device: whether it can be used, and how fast it is' -r
complete -c farpage -n "__fish_farpage_using_subcommand doctor" -s J -l json -d 'Print one JSON object'
complete -c farpage -n "__fish_farpage_using_subcommand doctor" -s v -l verbose -d 'Show everything that was tried, and the outcome'
complete -c farpage -n "__fish_farpage_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand swapoff" -s n -l dry-run -d 'Only say what would be removed'
complete -c farpage -n "__fish_farpage_using_subcommand swapoff" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand size" -l swap -d 'Swap device, as in farpage run; may be repeated [default: zram, then file:/var/tmp]' -r
complete -c farpage -n "__fish_farpage_using_subcommand size" -l rounds -d 'Number of measurements of each time; the median counts' -r
complete -c farpage -n "__fish_farpage_using_subcommand size" -l limit -d 'Time limit of each run; a recording that reaches it stands for the whole run' -r
complete -c farpage -n "__fish_farpage_using_subcommand size" -l json -d 'Write the result to FILE as JSON (-: to standard output, without the table)' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand size" -l quick -d 'Run the program only twice, as it is and with half of its memory; takes three times as long as the program'
complete -c farpage -n "__fish_farpage_using_subcommand size" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand bench; and not __fish_seen_subcommand_from program" -s h -l help -d 'Print help'
complete -c farpage -n "__fish_farpage_using_subcommand bench; and not __fish_seen_subcommand_from program" -f -a "program" -d 'Compare a program of yours, or a suite, on the kernel\'s swap and under farpage, with equal memory'
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -s m -l ram -l memory -d 'The kernel\'s memory limit: a size, or a percentage of what the program takes as it is; several, joined by commas, give a curve [default: 25%, some programs of the suite 50%; at least 16M]' -r
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l against -d 'What the kernel swaps to' -r -f -a "zram\t'Swap on compressed RAM'
file\t'A swap file'"
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l rounds -d 'How often everything is measured' -r
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l swap -d 'farpage\'s swap devices [default: as farpage run; with --against file: file:DIR]' -r
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l idle-poll -d 'Whether idle CPUs are kept from sleeping, as farpage run has it [default: auto]' -r
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l swap-size -d 'Size of the kernel\'s swap [default: four times what the program takes as it is, at least 256M]' -r
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l dir -d 'Where the swap file for --against file goes, and the suite\'s files' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l json -d 'Write the results as JSON (-: standard output, without the table)' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l only -d 'Of the suite, only these' -r
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l python -d 'A Python that has the suite\'s packages [default: python3, then /usr/bin/python3]' -r -F
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l no-kernel -d 'Measure the program as it is and farpage only'
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -l suite -d 'Measure the programs of the suite'
complete -c farpage -n "__fish_farpage_using_subcommand bench; and __fish_seen_subcommand_from program" -s h -l help -d 'Print help (see more with \'--help\')'
function __farpage_program
    set -l words (commandline -opc) (commandline -ct)
    set -l at (contains -i -- -- $words); or return
    set -l program (string escape -- $words[(math $at + 1)..-2]) $words[-1]
    complete -C "$program"
end
complete -c farpage -n "contains -- -- (commandline -opc)" -f -k -a "(__farpage_program)"
complete -c farpage -n "__fish_farpage_using_subcommand attach; or __fish_farpage_using_subcommand detach; or __fish_farpage_using_subcommand park; or __fish_farpage_using_subcommand unpark; or __fish_farpage_using_subcommand set; or __fish_farpage_using_subcommand stat" -x -a "(__fish_complete_pids)"
complete -c farpage -l swap -x -a "zram file: nbd:// redis://"
