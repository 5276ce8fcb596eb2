//! `farpage bench program --ram A,B,C`: time over RAM, measured. Called by [`super`], whose rounds these are.

use super::report::Rows;
use super::rounds::{ProgramArgs, RAM_PERCENT, measure, meter, no_kernel, plain, setting};
use super::side::{Ended, Invocation};
use crate::compare::row::or_dash;
use crate::compare::side::catch_signals;
use crate::compare::{cpu_ticks, machine, stolen};
use crate::destination::Destination;
use crate::failure::{Result, say};
use crate::output::SCHEMA;
use crate::output::bar;
use farpage_ipc::conf::size;
use serde_json::{Value, json};
use std::process::ExitCode;

const HEADER: &str = "   MiB:          seconds:               kernel's  major faults:\n   \
                      ram farpage    plain  kernel farpage / ours     kernel   farpage";
/// A bar is as long as that at so many times the plain time.
const BAR: usize = 11;
const BAR_TIMES: f64 = 6.0;

/// All sizes, the least first.
pub fn main(args: &ProgramArgs, destination: Destination<'_>) -> Result<ExitCode> {
    let program = Invocation::of(&args.program);
    let mut notes = vec![machine()];
    catch_signals();
    let before = cpu_ticks();
    let meter = meter();
    let meter = meter.as_ref();
    // Twice, as with one size.
    let first_output = plain(&program, meter)?.output;
    let as_it_is = plain(&program, meter)?;
    let peak = as_it_is.peak_rss_anon;
    let of = |ram: &String| setting(args, Some(ram), &program, peak, RAM_PERCENT, meter);
    let mut settings = args.ram.iter().map(of).collect::<Result<Vec<_>>>()?;
    settings.sort_by_key(|setting| setting.ram);
    settings.dedup_by_key(|setting| setting.ram);
    let takes = format!("{}: {} of anonymous memory as it is", args.program[0].to_string_lossy(), size::format(peak));
    notes.push(takes);
    notes.extend(no_kernel(args));
    notes.iter().for_each(|note| destination.tell(note));
    destination.tell(HEADER);
    let mut sizes = Vec::new();
    let mut complained = false;
    for setting in &settings {
        let rows = measure(setting, first_output, as_it_is.clone(), args.rounds)?;
        destination.tell(&line(&rows, setting.ram));
        let complaints = rows.complaints();
        let ram = size::format(setting.ram);
        complaints.iter().for_each(|text| say(format_args!("farpage: bench: {ram}: {text}")));
        complained |= !complaints.is_empty();
        let mut remarks = rows.remarks();
        if peak < setting.ram {
            remarks.push(String::from("it takes no more than --ram as it is"));
        }
        remarks.iter().for_each(|remark| destination.tell(&format!("{:7}{remark}", "")));
        let mut object = json!({});
        rows.put(&mut object, &args.program, &remarks, setting.ram);
        sizes.push(object);
        // What there is so far is worth having, should the rest be interrupted.
        destination.save(&json(&notes, &sizes))?;
    }
    if let Some(text) = stolen("the program", before, cpu_ticks()) {
        destination.tell(&text);
        notes.push(text);
    }
    destination.finish(&json(&notes, &sizes))?;
    Ok(if complained { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn json(notes: &[String], sizes: &[Value]) -> Value {
    json!({ "schema": SCHEMA, "notes": notes, "sizes": sizes })
}

/// One size; `ram`: the kernel's limit, bytes.
fn line(rows: &Rows, ram: u64) -> String {
    let median = |side: &str, of: fn(&Ended) -> f64| rows.median(side, of);
    let seconds = |side: &str| median(side, |ended| ended.wall_s);
    let faults = |side: &str| median(side, |ended| ended.major_faults as f64);
    let times = seconds("farpage").unwrap_or(0.0) / seconds("plain").unwrap_or(0.0).max(1e-3);
    let line = format!(
        "{:>6} {:>7} {:>8} {:>7} {:>7} {:>6} {:>10} {:>9}  {}",
        ram >> 20,
        rows.ram() >> 20,
        or_dash(seconds("plain"), 2),
        or_dash(seconds("kernel"), 2),
        or_dash(seconds("farpage"), 2),
        or_dash(rows.ratio().map(|ratio| ratio.median), 2),
        or_dash(faults("kernel"), 0),
        or_dash(faults("farpage"), 0),
        bar(times / BAR_TIMES, BAR)
    );
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::report::Round;
    use super::super::side::Counted;
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn rows(kernel: Option<f64>, farpage: f64) -> Rows {
        let ended = |wall_s| Ended {
            wall_s,
            cpu_s: wall_s,
            major_faults: 12_345_678,
            written_bytes: 0,
            peak_rss_anon: 1 << 20,
            pool_peak_bytes: 0,
            status: std::process::ExitStatus::from_raw(0),
            output: (1, 1),
            managed: true,
            counted: Counted::default(),
            stopped: false,
            requests: None,
        };
        let round = Round { plain: ended(2.0), kernel: kernel.map(ended), farpage: ended(farpage), ram: 96 << 20 };
        Rows { rounds: vec![round], first_output: (1, 1) }
    }

    #[test]
    fn a_line_fits_a_terminal() {
        let both = line(&rows(Some(9.0), 6.0), 64 << 20);
        assert!(both.contains(" 64 ") && both.contains(" 96 ") && both.contains(" 1.50 "), "{both}");
        assert!(both.ends_with(" ######"), "{both}");
        let alone = line(&rows(None, 600.0), 64 << 20);
        assert!(alone.len() < 81 && alone.ends_with("##>") && alone.contains(" - "), "{alone}");
        assert!(HEADER.lines().all(|line| line.len() < 80));
    }
}
