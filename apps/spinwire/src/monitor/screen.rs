//! The live display of `top`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmd_observe::report::Align;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Table};
use ratatui::{DefaultTerminal, Frame};

use super::source::Source;
use super::table::align;
use super::view::{Choice, LCORES, NODES, QPS, View};

/// How often the state is read: it is written once a second.
const READ_EVERY: Duration = Duration::from_millis(500);
/// How long a key may wait for a signal to be seen.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Rows of lcores, and of nodes, that are shown at most.
const HEAD_ROWS: usize = 8;

/// What is on the screen.
#[derive(Debug)]
struct Screen {
    view: View,
    choice: Choice,
    /// The filter is being typed.
    typing: bool,
    /// Rows of queue pairs that are above the first one shown.
    scroll: usize,
    /// Rows that there is room for, and that there are: as of the last drawing.
    page: (usize, usize),
    /// Why the state could not be read the last time.
    trouble: Option<String>,
    over: bool,
}

/// Shows runs until somebody has seen enough. The terminal is left as it was found, whatever ends the display.
///
/// # Errors
/// When the terminal does not take it.
pub(crate) fn show(
    source: &Source,
    view: View,
    choice: Choice,
    interrupt: &AtomicBool,
) -> anyhow::Result<()> {
    // A panic puts the terminal back before it says anything.
    let mut terminal = ratatui::try_init()?;
    let shown = run(&mut terminal, Screen::new(view, choice), source, interrupt);
    ratatui::try_restore()?;
    shown
}

fn run(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    source: &Source,
    interrupt: &AtomicBool,
) -> anyhow::Result<()> {
    let mut read_at = Instant::now() + READ_EVERY;
    while !screen.over && !interrupt.load(Ordering::Relaxed) {
        terminal.draw(|frame| screen.draw(frame))?;
        let wait = read_at.saturating_duration_since(Instant::now()).min(LOOK_EVERY);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
        {
            screen.key(key);
        }
        if Instant::now() >= read_at {
            read_at = Instant::now() + READ_EVERY;
            match source.read() {
                Ok(runs) => {
                    screen.trouble = None;
                    screen.view.update(runs);
                }
                Err(error) => screen.trouble = Some(error.to_string()),
            }
        }
    }
    Ok(())
}

impl Screen {
    const fn new(view: View, choice: Choice) -> Self {
        let (typing, scroll, page, trouble, over) = (false, 0, (0, 0), None, false);
        Self { view, choice, typing, scroll, page, trouble, over }
    }

    fn key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.over = true;
            return;
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.choice.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.choice.filter.pop()),
                KeyCode::Char(letter) => self.choice.filter.push(letter),
                _ => {}
            }
            self.scroll = 0;
            return;
        }
        let (room, rows) = self.page;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.over = true,
            KeyCode::Char('s') => self.choice.sort = self.choice.sort.next(),
            KeyCode::Char('e') => self.choice.with_ended = !self.choice.with_ended,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll += room,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(room),
            KeyCode::Home | KeyCode::Char('g') => self.scroll = 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll = rows,
            _ => {}
        }
        self.scroll = self.scroll.min(rows.saturating_sub(room));
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let heads = self.view.heads();
        let (lcores, nodes) = (self.view.lcores(), self.view.nodes());
        let lines = |rows: usize| u16::try_from(rows).unwrap_or(u16::MAX);
        let shown = |rows: usize| lines(1 + rows.min(HEAD_ROWS) + 1);
        let [head, first, second, third, foot] = Layout::vertical([
            Constraint::Length(lines(heads.len().min(HEAD_ROWS))),
            Constraint::Length(shown(lcores.len())),
            Constraint::Length(shown(nodes.len())),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let heads: Vec<Line<'_>> = heads.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(heads).style(Style::new().bold()), head);
        let lcores = lcores.iter().map(|row| (row.to_vec(), Style::new()));
        draw_table(frame, first, &LCORES, lcores.take(HEAD_ROWS));
        let nodes = nodes.iter().map(|row| (row.to_vec(), Style::new()));
        draw_table(frame, second, &NODES, nodes.take(HEAD_ROWS));
        let rows = self.view.rows(&self.choice);
        let room = usize::from(third.height.saturating_sub(1));
        self.page = (room, rows.len());
        self.scroll = self.scroll.min(rows.len().saturating_sub(room));
        let visible = rows.iter().skip(self.scroll).take(room);
        let visible = visible.map(|row| (row.cells().to_vec(), style(row.qp)));
        draw_table(frame, third, &QPS, visible);
        frame.render_widget(Paragraph::new(self.foot(rows.len())), foot);
    }

    fn foot(&self, rows: usize) -> Line<'static> {
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        if let Some(trouble) = &self.trouble {
            return Line::styled(trouble.clone(), Style::new().fg(Color::Red));
        }
        if self.typing {
            return Line::styled(format!("filter: {}_", self.choice.filter), reversed);
        }
        let (live, bad) = self.view.tally();
        let filter = match self.choice.filter.as_str() {
            "" => String::new(),
            filter => format!(" with `{filter}`"),
        };
        let ended = if self.choice.with_ended { "hide" } else { "show" };
        let sort = self.choice.sort.as_str();
        let text = format!(
            "{live} queue pairs, {bad} not at work; {rows} shown{filter}, {sort} first   \
             q quit  s sort  / filter  e {ended} ended  arrows scroll"
        );
        Line::styled(text, reversed)
    }
}

/// What wants to be seen is coloured.
fn style(qp: &pmd_observe::status::Qp) -> Style {
    use pmd_observe::status::State::{Error, Init, Rtr, Sqe};
    match qp.state {
        _ if qp.ended => Style::new().fg(Color::DarkGray),
        Error | Sqe => Style::new().fg(Color::Red).bold(),
        Init | Rtr => Style::new().fg(Color::Yellow),
        _ if qp.stalled_s >= 1.0 => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

/// A table as wide as its cells.
fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    headings: &[&str],
    rows: impl Iterator<Item = (Vec<String>, Style)>,
) {
    let rows: Vec<(Vec<String>, Style)> = rows.collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|(row, _)| row[column].chars().count());
        let width = cells.chain([headings[column].len()]).max().unwrap_or(0);
        u16::try_from(width).unwrap_or(u16::MAX)
    };
    let columns = 0..headings.len();
    let widths: Vec<u16> = columns.map(width).collect();
    let cell = |(column, text): (usize, String)| {
        let text = Text::from(text);
        Cell::from(match align(headings[column]) {
            Align::Left => text.left_aligned(),
            Align::Right => text.right_aligned(),
        })
    };
    let row = |cells: Vec<String>, style| {
        ratatui::widgets::Row::new(cells.into_iter().enumerate().map(cell)).style(style)
    };
    let heading = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let table = Table::new(
        rows.iter().map(|(cells, style)| row(cells.clone(), *style)).collect::<Vec<_>>(),
        widths.iter().map(|width| Constraint::Length(*width)),
    );
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    frame.render_widget(table.column_spacing(2).header(row(heading, bold)), area);
}

#[cfg(test)]
mod tests {
    use pmd_observe::status::{Qp, State};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::source::Life;
    use super::super::view::tests::{qp, run};
    use super::*;

    fn screen() -> Screen {
        let mut qps: Vec<Qp> = (1..=300).map(|qpn| qp(qpn, State::Rts, 900.0)).collect();
        qps.push(qp(0xbad, State::Init, 42.0));
        qps.push(Qp { ended: true, ..qp(0xdead, State::Rts, 1.0) });
        Screen::new(View::new(vec![run(qps)]), Choice::default())
    }

    fn drawn(screen: &mut Screen) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(150, 24)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..150).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..24).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE));
    }

    fn row_of(lines: &[String], number: &str) -> Option<usize> {
        lines.iter().position(|line| line.contains(number))
    }

    #[test]
    fn s2_28_the_stuck_one_is_on_the_first_row_of_hundreds() {
        let mut screen = screen();
        let lines = drawn(&mut screen);
        assert_eq!(lines[0], "process 4711, 12.5 s, running  [/run]");
        let heading = lines.iter().position(|line| line.starts_with("state")).unwrap();
        assert!(lines[heading + 1].starts_with("INIT    42 s"), "{}", lines[heading + 1]);
        assert!(lines[heading + 2].starts_with("RTS    900 s"), "{}", lines[heading + 2]);
        let foot = lines.last().unwrap();
        assert!(
            foot.starts_with("301 queue pairs, 1 not at work; 301 shown, worst first"),
            "{foot}"
        );
    }

    #[test]
    fn keys_sort_filter_scroll_and_quit() {
        let mut screen = screen();
        drawn(&mut screen);
        press(&mut screen, KeyCode::Char('s'));
        let lines = drawn(&mut screen);
        assert!(row_of(&lines, "0x000bad").is_none(), "by dwell it is the last");
        press(&mut screen, KeyCode::End);
        assert!(row_of(&drawn(&mut screen), "0x000bad").is_some());
        press(&mut screen, KeyCode::PageUp);
        assert!(row_of(&drawn(&mut screen), "0x000bad").is_none());
        press(&mut screen, KeyCode::Home);
        press(&mut screen, KeyCode::Down);
        assert!(row_of(&drawn(&mut screen), "0x000001").is_none());
        press(&mut screen, KeyCode::Char('/'));
        for letter in ['I', 'n', 'i', 'x'] {
            press(&mut screen, KeyCode::Char(letter));
        }
        assert!(drawn(&mut screen).last().unwrap().starts_with("filter: Inix_"));
        press(&mut screen, KeyCode::Backspace);
        press(&mut screen, KeyCode::Enter);
        let lines = drawn(&mut screen);
        assert!(lines.last().unwrap().contains("1 shown with `Ini`, dwell first"), "{lines:?}");
        press(&mut screen, KeyCode::Char('/'));
        press(&mut screen, KeyCode::Esc);
        press(&mut screen, KeyCode::Char('e'));
        assert!(drawn(&mut screen).last().unwrap().contains("; 302 shown, dwell first"));
        assert!(!screen.over);
        press(&mut screen, KeyCode::Char('q'));
        assert!(screen.over);
        screen.over = false;
        screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(screen.over);
    }

    #[test]
    fn the_end_of_a_run_is_said() {
        let mut screen = screen();
        screen.view.runs[0].life = Life::Gone;
        assert!(drawn(&mut screen)[0].contains("gone: it was killed"));
        screen.view.runs[0].life = Life::Ended;
        assert!(drawn(&mut screen)[0].contains("ended"));
        screen.trouble = Some("cannot read it".to_owned());
        assert_eq!(drawn(&mut screen).last().unwrap(), "cannot read it");
    }

    /// However small the terminal is.
    #[test]
    fn small_terminals_show_less() {
        for (width, height) in [(1, 1), (20, 5), (150, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| screen().draw(frame)).unwrap();
        }
    }
}
