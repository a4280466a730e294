//! The terminal: taken over while the screen is shown, and given back whatever happens.

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

use super::draw::{Places, draw};
use crate::top::state::{State, Wish};
use weir_sink::plot::Ink;

/// How long to wait for a key before looking whether there is news.
const PATIENCE: Duration = Duration::from_millis(100);

/// The terminal is ours.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal while it is taken over. What is on it is known, so that only what changes is
/// written; it is asked nothing, since not every terminal answers.
pub struct Screen {
    backend: CrosstermBackend<Stdout>,
    /// The picture on the terminal; of another size than the terminal's if that is not known.
    shown: Buffer,
    ink: Ink,
}

impl Screen {
    /// Takes the terminal over. It is given back when this is dropped, and before a panic is told.
    ///
    /// # Errors
    /// When standard output is no terminal that can be written to.
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
        state.set_page(Places::new(area, state.view()).page());
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

    /// Forgets what is on the terminal.
    fn forget(&mut self) {
        self.shown = Buffer::empty(Rect::ZERO);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, once.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Where this fails there is no terminal any more.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Shows the state until the end is wished for. `news` brings the state up to date: true when
/// something is new, `None` when it is over. `grant` does what the state cannot.
///
/// # Errors
/// When the terminal cannot be read or written.
pub fn watch(
    mut screen: Screen,
    mut state: State,
    mut news: impl FnMut(&mut State) -> Option<bool>,
    mut grant: impl FnMut(&Wish, &mut State),
) -> io::Result<()> {
    let mut changed = true;
    loop {
        match news(&mut state) {
            None => return Ok(()),
            Some(new) => changed |= new,
        }
        if std::mem::take(&mut changed) {
            screen.show(&mut state)?;
        }
        if !event::poll(PATIENCE)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                changed = true;
                let wish = state.key(key);
                match wish {
                    Wish::None => {}
                    Wish::Redraw => screen.forget(),
                    Wish::Quit => return Ok(()),
                    Wish::Interrupt => {
                        // The signal may end the process at once.
                        drop(screen);
                        grant(&wish, &mut state);
                        return Ok(());
                    }
                    Wish::Ask | Wish::Level => grant(&wish, &mut state),
                }
            }
            Event::Resize(..) => changed = true,
            _ => {}
        }
    }
}
