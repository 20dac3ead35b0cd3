//! The holders of areas, by name, each once: the callers of a table first, in its order, then tasks as they come.

use crate::trace::vmallocinfo::Table;
use std::collections::HashMap;

/// Names, by number.
pub(super) struct Names {
    names: Vec<String>,
    tasks: HashMap<String, u32>,
    chunk: Option<u32>,
}

impl Names {
    /// Begins with the callers of a table, under its numbers.
    pub(super) fn new(table: &Table) -> Self {
        Self { names: table.callers().to_vec(), tasks: HashMap::new(), chunk: None }
    }

    /// The number of a task.
    pub(super) fn task(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.tasks.get(name) {
            return known;
        }
        let shown = if name.is_empty() { "unknown".to_string() } else { format!("task {name}") };
        let number = self.add(shown);
        self.tasks.insert(name.to_string(), number);
        number
    }

    /// The number of the holder of percpu chunks.
    pub(super) fn chunk(&mut self) -> u32 {
        if let Some(known) = self.chunk {
            return known;
        }
        let caller = "pcpu_get_vm_areas";
        let listed = self.names.iter().position(|name| name == caller).map(|at| at as u32);
        let number = listed.unwrap_or_else(|| self.add(caller.to_string()));
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
