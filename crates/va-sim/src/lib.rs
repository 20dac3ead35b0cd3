//! Slow obvious twins of the fast structures.
