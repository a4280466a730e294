//! The terminal: set to raw mode while the screen is shown, and always restored.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::event::{self, Event, KeyEventKind};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};

use super::draw::{ScreenLayout, draw};
use crate::top::state::{KeyAction, State};
use weir_sink::plot::Ink;

/// How long to wait for a key before checking for new ticks.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// The terminal is in raw mode.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal in raw mode. Its content is stored, so that only changes are written; it is not
/// queried, since not every terminal answers.
pub struct Screen {
    backend: CrosstermBackend<Stdout>,
    /// The content of the terminal; its size differs from the terminal's if the content is unknown.
    shown: Buffer,
    ink: Ink,
}

impl Screen {
    /// Sets up the terminal. It is restored on drop, and before a panic message is printed.
    ///
    /// # Errors
    /// When standard output is not a writable terminal.
    pub fn open(ink: Ink) -> io::Result<Screen> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        let screen = Screen {
            backend: CrosstermBackend::new(stdout()),
            shown: Buffer::empty(Rect::ZERO),
            ink,
        };
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    fn show(&mut self, state: &mut State) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let area = Rect::new(0, 0, width, height);
        state.set_page(ScreenLayout::new(area, state.view()).page());
        let mut picture = Buffer::empty(area);
        draw(state, self.ink, &mut picture);
        if !TAKEN.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.shown.area != area {
            execute!(self.backend, Clear(ClearType::All))?;
            self.shown = Buffer::empty(area);
        }
        self.backend.draw(self.shown.diff(&picture).into_iter())?;
        Backend::flush(&mut self.backend)?;
        self.shown = picture;
        Ok(())
    }

    /// Marks the content of the terminal as unknown.
    fn forget(&mut self) {
        self.shown = Buffer::empty(Rect::ZERO);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // If this fails, the terminal no longer exists.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Shows the state until the user ends it. `update` updates the state: true when
/// it has changed, `None` at the end. `perform` performs the actions that the state cannot.
///
/// # Errors
/// When the terminal cannot be read or written.
pub fn watch(
    mut screen: Screen,
    mut state: State,
    mut update: impl FnMut(&mut State) -> Option<bool>,
    mut perform: impl FnMut(&KeyAction, &mut State),
) -> io::Result<()> {
    let mut changed = true;
    loop {
        match update(&mut state) {
            None => return Ok(()),
            Some(new) => changed |= new,
        }
        if std::mem::take(&mut changed) {
            screen.show(&mut state)?;
        }
        if !event::poll(WRITE_TIMEOUT)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                changed = true;
                let action = state.key(key);
                match action {
                    KeyAction::None => {}
                    KeyAction::Redraw => screen.forget(),
                    KeyAction::Quit => return Ok(()),
                    KeyAction::Interrupt => {
                        // The signal may end the process immediately.
                        drop(screen);
                        perform(&action, &mut state);
                        return Ok(());
                    }
                    KeyAction::QueryView | KeyAction::QueryLevel => perform(&action, &mut state),
                }
            }
            Event::Resize(..) => changed = true,
            _ => {}
        }
    }
}
