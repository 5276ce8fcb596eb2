//! How `farpage top` writes numbers, bars and colours: short, and the same to read without colour.
//!
//! Callers: `list`, `details`. No state.

use super::reading::Program;
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use std::env;

/// What the terminal can show.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Colours.
    pub colour: bool,
    /// Dots of Braille, eight to a cell.
    pub braille: bool,
}

impl Look {
    /// As the environment says: `NO_COLOR`, the locale, the kind of terminal.
    pub fn of_environment() -> Look {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
        let (colour, unicode) = (set("NO_COLOR").is_none(), locale.contains("utf-8") || locale.contains("utf8"));
        // The kernel's own console has no such characters. Without colours lines could not be told apart.
        Look { colour, braille: colour && unicode && set("TERM").is_none_or(|term| term != "linux") }
    }

    /// A colour, where there are any.
    pub fn style(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    /// What must be seen.
    pub fn alarm(self) -> Style {
        self.style(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// How a line of a chart is drawn.
    pub fn marker(self, character: char) -> Marker {
        if self.braille { Marker::Braille } else { Marker::Custom(character) }
    }
}

/// Parts of a bar: character, colour, bytes.
pub type Parts = Vec<(char, Color, u64)>;

/// What a program's resident memory is, in the order of the bar.
pub fn parts(program: &Program) -> Parts {
    let get = |name: &str| program.page.get(name);
    let (hot, resident) = (get("hot_bytes"), get("resident_bytes"));
    let mut parts = vec![
        ('#', Color::Green, hot.min(resident)),
        ('=', Color::Cyan, resident.saturating_sub(hot)),
        ('+', Color::Yellow, get("cached_bytes").saturating_add(get("free_frames_bytes"))),
        ('%', Color::Magenta, get("pool_bytes")),
    ];
    let known = parts.iter().fold(0u64, |sum, (_, _, bytes)| sum.saturating_add(*bytes));
    parts.push(('-', Color::Gray, program.resident().saturating_sub(known)));
    parts
}

/// `[####==%%--   ]`, so many columns wide, as part of `whole`; `>` at the end if it is more.
pub fn bar(parts: &Parts, whole: u64, columns: usize, look: Look) -> Line<'static> {
    let cells = columns.saturating_sub(2);
    let (mut spans, mut sum, mut drawn) = (vec![Span::raw("[")], 0u64, 0);
    for (character, colour, bytes) in parts {
        sum = sum.saturating_add(*bytes);
        let share = if whole == 0 { 0.0 } else { (sum as f64 / whole as f64).min(1.0) };
        let end = (share * cells as f64).round() as usize;
        spans.push(Span::styled(character.to_string().repeat(end.saturating_sub(drawn)), look.style(*colour)));
        drawn = drawn.max(end);
    }
    spans.push(Span::raw(" ".repeat(cells.saturating_sub(drawn))));
    // Half a percent more is how the kernel counts.
    let over = whole > 0 && sum > whole.saturating_add(whole / 200);
    spans.push(if over { Span::styled(">", look.alarm()) } else { Span::raw("]") });
    Line::from(spans)
}

/// `512M`, `1.5G`: at most five columns.
pub fn short_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["", "K", "M", "G", "T", "P"] {
        if value < 999.5 || unit == "P" {
            return match value < 9.95 && !unit.is_empty() {
                true => format!("{value:.1}{unit}"),
                false => format!("{:.0}{unit}", value.min(9999.0)),
            };
        }
        value /= 1024.0;
    }
    unreachable!("the last unit takes all")
}

/// `812`, `12345`, `123k`: at most six columns.
pub fn short_number(number: f64) -> String {
    match number {
        n if n < 99_999.5 => format!("{n:.0}"),
        n if n < 99_999_500.0 => format!("{:.0}k", n / 1e3),
        n => format!("{:.0}M", (n / 1e6).min(9999.0)),
    }
}

/// `820ns`, `12us`, `1.8ms`, `2.5s`: at most five columns.
pub fn short_duration(ns: u64) -> String {
    let mut value = ns as f64;
    for unit in ["ns", "us", "ms"] {
        if value < 999.5 {
            return match value < 9.95 && unit != "ns" {
                true => format!("{value:.1}{unit}"),
                false => format!("{value:.0}{unit}"),
            };
        }
        value /= 1000.0;
    }
    if value < 9.95 { format!("{value:.1}s") } else { format!("{:.0}s", value.min(9999.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_are_short() {
        for (bytes, shown) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0K"),
            (512 << 20, "512M"),
            (1000 << 20, "1.0G"),
            (3 << 29, "1.5G"),
            (u64::MAX, "9999P"),
        ] {
            assert_eq!(short_size(bytes), shown);
        }
        for (ns, shown) in [(0, "0ns"), (820, "820ns"), (12_345, "12us"), (1_800_000, "1.8ms"), (2_500_000_000, "2.5s")]
        {
            assert_eq!(short_duration(ns), shown);
        }
        for power in 0..64 {
            for bytes in [(1u64 << power) - 1, 1 << power, (1 << power) / 10 * 9, u64::MAX >> power] {
                assert!(short_size(bytes).len() <= 5, "{bytes}: {}", short_size(bytes));
                assert!(short_duration(bytes).len() <= 5, "{bytes}: {}", short_duration(bytes));
                assert!(short_number(bytes as f64).len() <= 6, "{bytes}: {}", short_number(bytes as f64));
            }
        }
    }

    #[test]
    fn bars_are_as_wide_as_they_must_be() {
        let look = Look { colour: false, braille: false };
        let of = |a, b, whole| bar(&vec![('#', Color::Red, a), ('=', Color::Red, b)], whole, 12, look).to_string();
        assert_eq!(of(0, 0, 100), "[          ]");
        assert_eq!(of(50, 25, 100), "[#####===  ]");
        assert_eq!(of(50, 50, 100), "[#####=====]");
        assert_eq!(of(50, 80, 100), "[#####=====>");
        assert_eq!(of(u64::MAX, u64::MAX, 1), "[##########>");
        assert_eq!(of(1, 1, 0), "[          ]");
        for columns in 0..5 {
            let _ = bar(&vec![('#', Color::Red, 1)], 1, columns, look);
        }
    }
}
