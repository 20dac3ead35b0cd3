//! The programs whose instructions `cargo xtask counts` counts: prints their names, or runs the one that is named.

mod terminal;

use terminal::Terminal;

fn main() -> anyhow::Result<()> {
    vmlab_bench::counts::main(std::env::args().nth(1).as_deref(), &mut Terminal)
}
