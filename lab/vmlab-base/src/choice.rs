//! Closed sets of values that a user selects by name.

/// A value that a user selects by name.
pub trait Choice: Copy + Send + Sync + 'static {
    /// All values, in the order in which they are listed.
    const CHOICES: &'static [Self];

    /// Returns the name.
    fn choice(self) -> &'static str;

    /// Returns the description, in one line.
    fn about(self) -> &'static str;

    /// Returns other names, which are not listed.
    fn aliases(self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the value with a name.
    fn named(name: &str) -> Option<Self> {
        Self::CHOICES.iter().copied().find(|one| one.choice() == name || one.aliases().contains(&name))
    }
}
