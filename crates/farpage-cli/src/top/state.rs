//! What is on the screen of `farpage top`, and what keys do to it. Nothing is drawn here and nothing read.
//!
//! Callers: [`super`] gives it readings and keys, and does what it asks for; `list` and `details` show it.

use super::reading::{Id, Program, Rates, Reading, TreeRow};
use farpage_ipc::conf::size;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Ordering;

/// By what programs are in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Number of the process.
    Pid,
    /// Resident memory.
    Resident,
    /// What is swapped out.
    Swapped,
    /// Faults a second.
    Faults,
    /// Faults a second that read a device.
    Major,
    /// Time for which threads wait for memory.
    Waiting,
    /// Latency.
    Latency,
}

type Compare = fn(&Program, &Program) -> Ordering;

impl Sort {
    /// By each of them: the column that is sorted, and what comes first.
    #[rustfmt::skip]
    const ALL: [(Sort, &str, Compare); 7] = [
        (Sort::Pid, "PID", |_, _| Ordering::Equal),
        (Sort::Resident, "RSS", |a, b| b.resident().cmp(&a.resident())),
        (Sort::Swapped, "SWAP", |a, b| b.page.get("swapped_bytes").cmp(&a.page.get("swapped_bytes"))),
        (Sort::Faults, "FAULT/s", |a, b| rates(b).faults.total_cmp(&rates(a).faults)),
        (Sort::Major, "MAJ/s", |a, b| rates(b).major.total_cmp(&rates(a).major)),
        (Sort::Waiting, "WAIT%", |a, b| rates(b).waiting.total_cmp(&rates(a).waiting)),
        (Sort::Latency, "P99", |a, b| rates(b).p99.cmp(&rates(a).p99)),
    ];

    /// The column that is sorted.
    pub fn name(self) -> &'static str {
        Sort::ALL[self as usize].1
    }

    fn next(self) -> Sort {
        Sort::ALL[(self as usize + 1) % Sort::ALL.len()].0
    }

    fn compare(self, a: &Program, b: &Program) -> Ordering {
        Sort::ALL[self as usize].2(a, b).then(a.id.cmp(&b.id))
    }
}

fn rates(program: &Program) -> Rates {
    program.rates.unwrap_or_default()
}

/// A row of the list.
#[derive(Debug, Clone, Copy)]
pub enum ListRow<'a> {
    /// A tree; its programs follow.
    Tree(&'a TreeRow),
    /// A program or pager.
    Program(&'a Program),
}

/// Which row: it stays selected wherever it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowId {
    /// A tree.
    Tree(u32),
    /// A program or pager.
    Program(Id),
}

impl ListRow<'_> {
    fn id(&self) -> RowId {
        match self {
            ListRow::Tree(tree) => RowId::Tree(tree.pid),
            ListRow::Program(program) => RowId::Program(program.id),
        }
    }
}

/// What fills the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// All.
    List,
    /// One program or pager.
    Details(Id),
}

/// A budget that is being typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// A process of the tree whose budget it is to be.
    pub pid: u32,
    /// What was typed so far.
    pub text: String,
}

/// A tree that is to be parked, or to come back, if that is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parking {
    /// A process of the tree.
    pub pid: u32,
    /// It is parked, and is to come back.
    pub is_back: bool,
}

/// What a key asks of the outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Nothing,
    /// To end.
    Quit,
    /// To stop until the shell lets it go on.
    Suspend,
    /// To give the tree of a process a budget.
    Budget(Prompt),
    /// To park a tree, or bring it back.
    Park(Parking),
}

/// All of it.
#[derive(Debug)]
pub struct State {
    /// The last reading.
    pub reading: Reading,
    /// What fills the screen.
    pub view: View,
    /// The order of programs, and whether it is the other way round.
    pub sort: (Sort, bool),
    /// The selected row.
    pub selected: Option<RowId>,
    /// First mapping that is shown.
    pub first_mapping: usize,
    /// Keys are explained.
    pub help: bool,
    /// A budget is being typed.
    pub prompt: Option<Prompt>,
    /// Whether a tree is to be parked is being asked.
    pub parking: Option<Parking>,
    /// One line that was said last.
    pub message: Option<String>,
}

/// Rows that a page up or down passes.
const PAGE_ROWS: usize = 10;
/// Longest text of a budget.
const PROMPT_CHARS: usize = 20;

impl State {
    /// All programs, the first selected.
    pub fn new(reading: Reading) -> State {
        let mut state = State {
            reading,
            view: View::List,
            sort: (Sort::Pid, false),
            selected: None,
            first_mapping: 0,
            help: false,
            prompt: None,
            parking: None,
            message: None,
        };
        state.keep_selection();
        state
    }

    /// Another reading.
    pub fn take(&mut self, reading: Reading) {
        if let View::Details(id) = self.view
            && reading.program(id).is_none()
        {
            let command = self.reading.program(id).map_or(String::new(), |program| format!(" ({})", program.command));
            self.message = Some(format!("process {}{command} has ended, or what it had", id.pid));
            self.view = View::List;
        }
        self.reading = reading;
        self.keep_selection();
    }

    /// Trees with their programs, then programs without one; all in order.
    pub fn rows(&self) -> Vec<ListRow<'_>> {
        let mut programs: Vec<&Program> = self.reading.programs.iter().collect();
        programs.sort_by(|a, b| self.sort.0.compare(a, b));
        if self.sort.1 {
            programs.reverse();
        }
        // The tree of the first program comes first.
        let mut rows = Vec::new();
        let mut trees: Vec<&TreeRow> = self.reading.trees.iter().collect();
        let first_of = |tree: &&TreeRow| programs.iter().position(|program| program.tree == Some(tree.pid));
        trees.sort_by_key(|tree| first_of(tree).unwrap_or(usize::MAX));
        for tree in trees {
            rows.push(ListRow::Tree(tree));
            rows.extend(programs.iter().filter(|p| p.tree == Some(tree.pid)).map(|p| ListRow::Program(p)));
        }
        rows.extend(programs.iter().filter(|p| p.tree.is_none()).map(|p| ListRow::Program(p)));
        rows
    }

    /// The place of the selected row.
    pub fn selected_place(&self) -> Option<usize> {
        self.rows().iter().position(|row| Some(row.id()) == self.selected)
    }

    /// Selects the first row if the selected one has gone.
    fn keep_selection(&mut self) {
        if self.selected_place().is_none() {
            self.selected = self.rows().first().map(ListRow::id);
        }
    }

    fn select(&mut self, place: impl FnOnce(usize) -> usize) {
        let rows = self.rows();
        let now = rows.iter().position(|row| Some(row.id()) == self.selected).unwrap_or(0);
        self.selected = rows.get(place(now).min(rows.len().saturating_sub(1))).map(ListRow::id);
    }

    /// What a key does.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Quit,
                KeyCode::Char('z') => Wish::Suspend,
                KeyCode::Char('u') => {
                    self.prompt.iter_mut().for_each(|prompt| prompt.text.clear());
                    Wish::Nothing
                }
                _ => Wish::Nothing,
            };
        }
        if std::mem::take(&mut self.help) {
            return Wish::Nothing;
        }
        if self.prompt.is_some() {
            return self.prompt_key(key.code);
        }
        if let Some(parking) = self.parking.take() {
            return match key.code {
                KeyCode::Char('y') | KeyCode::Enter => Wish::Park(parking),
                _ => Wish::Nothing,
            };
        }
        self.message = None;
        match key.code {
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('b') => self.ask(|_| None),
            KeyCode::Char('+') => self.ask(|budget| Some(budget.saturating_add(budget / 10))),
            KeyCode::Char('p') => {
                let selected = self.selected_tree("parked");
                self.parking = selected.map(|tree| Parking { pid: tree.pid, is_back: tree.is_parked });
            }
            KeyCode::Char('-') => self.ask(|budget| Some(budget - budget / 10)),
            code => {
                return match self.view {
                    View::List => self.list_key(code),
                    View::Details(_) => self.details_key(code),
                };
            }
        }
        Wish::Nothing
    }

    fn list_key(&mut self, code: KeyCode) -> Wish {
        match code {
            KeyCode::Char('q') | KeyCode::F(10) => return Wish::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at| at + 1),
            KeyCode::PageUp => self.select(|at| at.saturating_sub(PAGE_ROWS)),
            KeyCode::PageDown => self.select(|at| at + PAGE_ROWS),
            KeyCode::Home | KeyCode::Char('g') => self.select(|_| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(|_| usize::MAX),
            KeyCode::Char('s') => self.sort.0 = self.sort.0.next(),
            KeyCode::Char('r') => self.sort.1 = !self.sort.1,
            KeyCode::Enter | KeyCode::Right => self.open(),
            _ => {}
        }
        Wish::Nothing
    }

    fn details_key(&mut self, code: KeyCode) -> Wish {
        match code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter | KeyCode::Left | KeyCode::Backspace => {
                self.view = View::List;
            }
            KeyCode::Up | KeyCode::Char('k') => self.first_mapping = self.first_mapping.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.first_mapping = (self.first_mapping + 1).min(self.last_mapping())
            }
            KeyCode::Home => self.first_mapping = 0,
            _ => {}
        }
        Wish::Nothing
    }

    fn last_mapping(&self) -> usize {
        let View::Details(id) = self.view else { return 0 };
        self.reading.program(id).map_or(0, |program| program.page.readahead().len().saturating_sub(1))
    }

    /// Shows the selected program, of a tree the first one.
    fn open(&mut self) {
        let rows = self.rows();
        let at = rows.iter().position(|row| Some(row.id()) == self.selected);
        let program = at.and_then(|at| {
            rows[at..].iter().take(2).find_map(|row| match row {
                ListRow::Program(program) => Some(program.id),
                ListRow::Tree(_) => None,
            })
        });
        match program {
            Some(id) => (self.view, self.first_mapping) = (View::Details(id), 0),
            None => self.message = Some("there is nothing to show of it".into()),
        }
    }

    /// The selected tree, or that of the selected program. If there is none, it is said that so nothing can be `done`.
    fn selected_tree(&mut self, done: &str) -> Option<TreeRow> {
        let selected = match self.view {
            View::Details(id) => Some(RowId::Program(id)),
            View::List => self.selected,
        };
        let (pid, tree) = match selected {
            Some(RowId::Tree(pid)) => (pid, Some(pid)),
            Some(RowId::Program(id)) => (id.pid, self.reading.program(id).and_then(|program| program.tree)),
            None => return None,
        };
        let found = tree.and_then(|tree| self.reading.trees.iter().find(|row| row.pid == tree));
        if found.is_none() {
            self.message = Some(format!("process {pid} is in no tree of farpage run, and cannot be {done}"));
        }
        found.cloned()
    }

    /// Begins to ask for a budget of the selected tree; what is proposed comes from the one that it has.
    fn ask(&mut self, proposed: impl FnOnce(u64) -> Option<u64>) {
        let Some(tree) = self.selected_tree("given a budget") else { return };
        let text = tree.budget.and_then(proposed).map_or(String::new(), |bytes| format!("{}M", bytes >> 20));
        self.prompt = Some(Prompt { pid: tree.pid, text });
    }

    fn prompt_key(&mut self, code: KeyCode) -> Wish {
        let Some(prompt) = &mut self.prompt else { return Wish::Nothing };
        match code {
            KeyCode::Esc => self.prompt = None,
            KeyCode::Backspace => drop(prompt.text.pop()),
            KeyCode::Enter if prompt.text.is_empty() => self.prompt = None,
            KeyCode::Enter => return self.prompt.take().map_or(Wish::Nothing, Wish::Budget),
            KeyCode::Char(c) if c.is_ascii_graphic() && prompt.text.len() < PROMPT_CHARS => prompt.text.push(c),
            _ => {}
        }
        Wish::Nothing
    }

    /// The budget of a tree in words, for the prompt.
    pub fn budget_of(&self, pid: u32) -> String {
        let tree = self.reading.trees.iter().find(|tree| tree.pid == pid);
        tree.and_then(|tree| tree.budget).map_or("none".into(), size::format)
    }
}

#[cfg(test)]
mod tests;
