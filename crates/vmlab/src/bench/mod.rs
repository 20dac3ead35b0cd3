//! Measures.
/// Args.
#[derive(clap::Args, Debug)]
pub struct Args {}
/// Run.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    Ok(())
}
