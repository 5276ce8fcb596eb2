//! Inputs that are too large to be shipped: made anew in the suite's directory, the same each time.

use crate::failure::{Failure, OrCannot, Result};
use farpage_swap::sim::Random;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Lines to sort: sort takes a little more than twice their bytes.
const LINES: u64 = 2_000_000;
/// Functions of the C file: cc1 takes some 190 KiB for one.
const FUNCTIONS: u64 = 1500;

fn made(path: &Path, result: io::Result<()>) -> Result<()> {
    result.or_cannot(format_args!("make {}", path.display()))
}

/// `lines`: text that hardly compresses.
///
/// # Errors
/// It cannot be written.
pub fn lines(directory: &Path) -> Result<()> {
    let path = directory.join("lines");
    made(&path, write_lines(&path, LINES))
}

fn write_lines(path: &Path, n: u64) -> io::Result<()> {
    let (mut out, mut random) = (BufWriter::new(File::create(path)?), Random(7));
    for _ in 0..n {
        let (head, middle, tail) = (random.bits(), random.bits(), random.bits());
        // 19 to 52 characters.
        let width = (random.below(4) * 11) as usize;
        writeln!(out, "{head:016x} {:.width$}{:02x}", format!("{middle:016x} {tail:016x}"), tail & 0xff)?;
    }
    out.flush()
}

/// `functions.c`: one large file for a C compiler.
///
/// # Errors
/// It cannot be written.
pub fn functions(directory: &Path) -> Result<()> {
    let path = directory.join("functions.c");
    made(&path, fs::write(&path, source(FUNCTIONS)))
}

fn source(functions: u64) -> String {
    let mut text = String::from(
        "int printf(const char *, ...);\nint strcmp(const char *, const char *);\n\
         struct node { struct node *next; int key; double weight; char name[24]; };\n",
    );
    let mut random = Random(11);
    for i in 0..functions {
        // Formatting into a string cannot fail.
        let _ = function(&mut text, i, &mut random);
    }
    text
}

/// A function with a table, a loop, a switch, and a call of the one before it.
fn function(text: &mut String, i: u64, random: &mut Random) -> std::fmt::Result {
    let (a, b, cases) = (random.below(1000), random.below(98) + 1, random.below(7) + 4);
    write!(text, "static const int table{i}[120] = {{")?;
    for _ in 0..120 {
        write!(text, "{},", random.below(100_000))?;
    }
    write!(
        text,
        "}};\nint function{i}(struct node *list, const char *text, int n)\n{{\n  int sum = {a}, i;\n  double w = 0;\n  \
         for (i = 0; i < n % 120; i++) sum += table{i}[i] * {b} + text[i % {b}];\n  \
         for (struct node *p = list; p; p = p->next) switch (p->key % {}) {{\n",
        cases + 1
    )?;
    for k in 0..cases {
        writeln!(
            text,
            "    case {k}: sum ^= p->key << {}; w += p->weight * {k}.5; \
             if (strcmp(p->name, \"n{i}_{k}\") == 0) return sum; break;",
            k + 1
        )?;
    }
    let before = i.checked_sub(1).map(|i| format!(" + function{i}(list, text, n - 1)")).unwrap_or_default();
    writeln!(text, "    default: sum -= {a}; }}\n  printf(\"{i}: %d %f\\n\", sum, w);\n  return sum{before};\n}}")
}

/// Compiles `Table.java`.
///
/// # Errors
/// `javac` cannot be started, or says what is wrong.
pub fn compile_java(directory: &Path) -> Result<()> {
    let mut command = Command::new("javac");
    // Without -XX:-UsePerfData it would leave a file in /tmp, were it ended.
    command.args(["-J-XX:-UsePerfData", "-d", ".", "Table.java"]).current_dir(directory).stdin(Stdio::null());
    let output = command.output().or_cannot("run javac")?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("javac: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| write_lines(path, 1000).unwrap());
        let [a, b] = paths.map(|path| fs::read_to_string(path).unwrap());
        assert!(a == b && a.lines().count() == 1000);
        let widths: std::collections::BTreeSet<usize> = a.lines().map(str::len).collect();
        assert_eq!(widths.into_iter().collect::<Vec<_>>(), [19, 30, 41, 52]);
        assert_eq!(source(3), source(3));
        assert!(source(3).contains("return sum + function1(list"));
    }
}
