//! The names of the holders of areas, each once: the callers of a table in its order, then tasks in the order of
//! events.

use crate::map::palette::UNCOUNTED;
use std::collections::HashMap;
use vmlab_trace::vmallocinfo::Table;

/// Names, by number.
pub(super) struct Names {
    names: Vec<String>,
    tasks: HashMap<String, u32>,
    chunk: Option<u32>,
    uncounted: Option<u32>,
}

impl Names {
    /// Creates the names from the callers of a table, under the table's numbers.
    pub(super) fn new(table: &Table) -> Self {
        Self { names: table.callers().to_vec(), tasks: HashMap::new(), chunk: None, uncounted: None }
    }

    /// Returns the number of a task, and adds it if it is new.
    pub(super) fn task(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.tasks.get(name) {
            return known;
        }
        let shown = if name.is_empty() { "unknown".to_string() } else { format!("task {name}") };
        let number = self.add(shown);
        self.tasks.insert(name.to_string(), number);
        number
    }

    /// Returns the number of a caller, and adds it if it is new.
    pub(super) fn caller(&mut self, name: &str) -> u32 {
        let known = self.names.iter().position(|known| known == name);
        known.map_or_else(|| self.add(name.to_string()), |at| at as u32)
    }

    /// Returns the number of the holder of all areas that are not counted.
    pub(super) fn uncounted(&mut self) -> u32 {
        if let Some(known) = self.uncounted {
            return known;
        }
        let number = self.add(UNCOUNTED.to_string());
        self.uncounted = Some(number);
        number
    }

    /// Returns the number of the holder of percpu chunks, whose event has this holder.
    pub(super) fn chunk(&mut self, holder: u32) -> u32 {
        if self.uncounted == Some(holder) {
            return holder;
        }
        if let Some(known) = self.chunk {
            return known;
        }
        let number = self.caller("pcpu_get_vm_areas");
        self.chunk = Some(number);
        number
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        self.names
    }

    fn add(&mut self, name: String) -> u32 {
        self.names.push(name);
        (self.names.len() - 1) as u32
    }
}
