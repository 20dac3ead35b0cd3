//! The interface to the processors: what the port asks of them.

use va_base::Va;

/// Largest number of CPUs: the bits of a word.
pub const CPUS_MAX: usize = 64;

/// The CPUs of a machine. All functions are about the calling CPU, unless they name another.
pub trait Cpus: Copy + Send + Sync + 'static {
    /// CPUs that there may be, at most [`CPUS_MAX`].
    const POSSIBLE: usize;
    /// Returns the CPUs that may translate addresses, a bit each.
    fn online() -> u64;
    /// Returns the number of this CPU.
    fn this() -> usize;
    /// Disables interrupts, and returns true if they were enabled.
    fn disable_interrupts() -> bool;
    /// Enables interrupts.
    fn enable_interrupts();
    /// Returns true if they are enabled.
    fn takes_interrupts() -> bool;
    /// Interrupts another CPU, which then calls [`Shootdown::serve`](crate::shootdown::Shootdown::serve).
    fn interrupt(cpu: usize);
    /// Removes the translation of one page.
    fn forget(at: Va);
    /// Removes all translations.
    fn forget_all();
}
