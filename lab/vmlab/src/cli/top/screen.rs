//! The terminal of `vmlab top`: a screen of its own, and keys as they are pressed.
//!
//! # Theory
//! The terminal's settings and its earlier content come back when the screen is dropped, and before a panic is
//! reported. Signals that end the program set a flag, so that it is dropped then, too. Keys that suspend the program or
//! end it with a core dump are switched off. Only the terminal's own two colours are used, and bold and reversed text:
//! they can be read on dark and light terminals.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// The terminal's other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// The terminal and its settings before, which a panic restores: one screen at a time.
static BEFORE: Mutex<Option<(File, Termios)>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// A screen. Dropping it restores the terminal.
pub(super) struct Screen {
    terminal: File,
}

impl Screen {
    /// Takes the terminal over, if input and output are one.
    ///
    /// # Errors
    /// If the terminal rejects the settings.
    pub(super) fn enter(input: impl AsFd, output: impl AsFd) -> Result<Option<Self>> {
        if !isatty(&input) || !isatty(&output) {
            return Ok(None);
        }
        let context = "cannot use the terminal";
        let mut terminal = File::from(input.as_fd().try_clone_to_owned().context(context)?);
        let before = tcgetattr(&terminal).context(context)?;
        let mut keys = before.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        for suspends in [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT] {
            keys.special_codes[suspends] = 0;
        }
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                report(info);
            }));
        });
        let saved = (terminal.try_clone().context(context)?, before);
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        tcsetattr(&terminal, OptionalActions::Now, &keys).context(context)?;
        terminal.write_all(ENTER.as_bytes()).context(context)?;
        Ok(Some(Self { terminal }))
    }

    /// Returns the columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(&self.terminal).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Draws lines, the first bold and the last reversed.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn draw(&mut self, lines: &[String], last: &str) -> Result<()> {
        let (width, height) = self.size();
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().take(height.saturating_sub(1)).enumerate() {
            let (on, off) = if at == 0 { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
            text += &format!("{on}{line}{off}\x1b[K\r\n");
        }
        let last: String = super::view::cut(last, width);
        text += &format!("\x1b[J\x1b[{height};1H\x1b[7m{last}\x1b[0m\x1b[K");
        self.terminal.write_all(text.as_bytes()).context("cannot write to the terminal")
    }

    /// Waits for keys until the time is over, and returns their bytes. None after a signal.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn keys(&mut self, wait: Duration) -> Result<Vec<u8>> {
        let timeout = Timespec::try_from(wait).context("no time to wait")?;
        match poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            other => other.context("cannot read the terminal")?,
        };
        let mut bytes = [0; 64];
        let count = self.terminal.read(&mut bytes).context("cannot read the terminal")?;
        anyhow::ensure!(count > 0, "the terminal is gone");
        Ok(bytes[..count].to_vec())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((mut terminal, settings)) = before {
        // Nothing else can be done if the terminal is gone.
        let _ = terminal.write_all(LEAVE.as_bytes());
        let _ = tcsetattr(&terminal, OptionalActions::Now, &settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    #[test]
    fn a_panic_and_a_drop_restore_the_terminal() -> Result<()> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let terminal =
            std::fs::OpenOptions::new().read(true).write(true).open(name.to_str().context("a name")?)?;
        let mut ours = File::from(ours);
        let modes = || tcgetattr(&terminal).map(|settings| settings.local_modes);
        let before = modes()?;
        for panics in [false, true] {
            let thread_terminal = terminal.try_clone()?;
            let thread = std::thread::spawn(move || {
                let screen = Screen::enter(&thread_terminal, &thread_terminal);
                let during = tcgetattr(&thread_terminal).map(|settings| settings.local_modes);
                assert!(!panics, "on purpose");
                drop(screen);
                during
            });
            match thread.join() {
                Ok(during) => assert_eq!(during?, before - LocalModes::ICANON - LocalModes::ECHO),
                Err(_) => assert!(panics),
            }
            assert_eq!(modes()?, before);
            let mut bytes = [0; 256];
            let count = ours.read(&mut bytes)?;
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            assert!(text.starts_with(ENTER) && text.ends_with(LEAVE), "{text:?}");
        }
        // A file is no terminal.
        let file = File::open("/dev/null")?;
        assert!(Screen::enter(&file, &file)?.is_none());
        Ok(())
    }
}
