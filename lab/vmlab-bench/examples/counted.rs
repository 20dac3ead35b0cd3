//! The programs whose instructions `cargo xtask counts` counts: prints their names, or runs the one that is named.

use vmlab_base::output::Output;

/// Standard output for names, and stderr for notes.
struct Terminal;

impl Output for Terminal {
    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        println!("{line}");
        Ok(())
    }

    fn note(&mut self, line: &str) {
        eprintln!("{line}");
    }
}

fn main() -> anyhow::Result<()> {
    vmlab_bench::counts::main(std::env::args().nth(1).as_deref(), &mut Terminal)
}
