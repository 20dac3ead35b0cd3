//! The correction of a model that follows another allocator, which decides when to purge.

use super::{Answer, Areas, Lazy, Owner, Place, SpaceModel};
use va_base::{AllocError, PAGE_SIZE, Request, Va, VaRange};
use va_space::Config;
use va_space::node::Zone;
use va_tree::{Congruent, FreeIndex};

impl<C: Config, I: FreeIndex> SpaceModel<C, I> {
    /// Returns true if areas have owners.
    fn has_pools(&self) -> bool {
        C::POOL_PAGES_MAX > 0 && (C::POOL_ON_ONE_NODE || self.nodes() > 1)
    }

    /// Returns the owner of an area for this request.
    pub fn owner_for(&self, cpu: u32, request: &Request) -> Owner {
        let default = request.window().is_none_or(|window| window == self.index.default_window());
        if self.has_pools() && default { Owner::Node(cpu % self.nodes()) } else { Owner::NoNode }
    }

    /// Allocates as [`Self::alloc`] does, but without a purge: the other allocator decides when that is.
    pub fn try_alloc(&mut self, cpu: u32, request: &Request) -> Option<Answer> {
        let owner = self.owner_for(cpu, request);
        let pooled = match owner {
            Owner::Node(node) => self.pooled(node, request),
            Owner::NoNode | Owner::Unknown => None,
        };
        let answer = match pooled {
            Some(answer) => answer,
            None => match self.take_lowest(request) {
                Ok(start) => Answer { start: start.get(), pool: None },
                Err(_) => self.steal(owner, request)?,
            },
        };
        self.insert(answer.start, request.size().get() * PAGE_SIZE, owner);
        Some(answer)
    }

    /// Takes a range from the index, in as many steps as it needs.
    fn take_lowest(&mut self, request: &Request) -> Result<Va, AllocError> {
        loop {
            if let Some(taken) = C::take_lowest(&mut self.index, request).transpose() {
                return taken;
            }
        }
    }

    /// Returns what [`Self::try_alloc`] would return without another node's pool, and changes nothing.
    pub fn peek(&self, cpu: u32, request: &Request) -> Option<Answer> {
        if let Owner::Node(node) = self.owner_for(cpu, request)
            && let Some(list) = self.pools[node as usize].get(&request.size().get())
            && let Some(&start) =
                list.iter().take(C::POOL_TRIES as usize).find(|&&at| Va::new(at).is_aligned(request.align()))
        {
            return Some(Answer { start, pool: Some(node) });
        }
        let fit = if C::AMPLE { self.index.ample_fit(request) } else { self.index.would_fit(request) };
        fit.ok().map(|start| Answer { start: start.get(), pool: None })
    }

    /// Takes an area from the pool of a node.
    fn pooled(&mut self, node: u32, request: &Request) -> Option<Answer> {
        let list = self.pools[node as usize].get_mut(&request.size().get())?;
        for _ in 0..(C::POOL_TRIES as usize).min(list.len()) {
            let start = list.pop_front()?;
            if Va::new(start).is_aligned(request.align()) {
                let least = self.least[node as usize].entry(request.size().get()).or_default();
                *least = (*least).min(list.len() as u64);
                let (_, pool) = self.areas.pooled.remove(start)?;
                return Some(Answer { start, pool });
            }
            list.push_back(start);
        }
        None
    }

    /// Takes an area from the pool of another node.
    fn steal(&mut self, owner: Owner, request: &Request) -> Option<Answer> {
        let Owner::Node(node) = owner else { return None };
        let mut others = if C::STEAL && self.may_fit(request) { 1..self.nodes() } else { 0..0 };
        others.find_map(|step| self.pooled((node + step) % self.nodes(), request))
    }

    /// Undoes the last `try_alloc`: the area returns to its previous state.
    pub fn undo(&mut self, answer: Answer) {
        let Some((size, _)) = self.areas.busy.remove(answer.start) else { return };
        match answer.pool {
            Some(node) => {
                self.areas.pooled.replace(answer.start, size, Some(node));
                let pool = &mut self.pools[node as usize];
                pool.entry(size / PAGE_SIZE).or_default().push_front(answer.start);
            }
            None => self.free_range(answer.start, size),
        }
    }

    /// Sets the node of areas to unknown: of those of a size that precede `until` in a pool, or of all.
    pub fn forget(&mut self, node: u32, size: u64, until: Option<u64>) {
        let Some(list) = self.pools[node as usize].get_mut(&(size / PAGE_SIZE)) else { return };
        while let Some(start) = list.pop_front_if(|&mut start| Some(start) != until) {
            self.areas.pooled.replace(start, size, None);
        }
    }

    /// Returns the state of a range; if it has several, the first of busy, lazy, pooled.
    pub fn place(&self, start: u64, size: u64) -> Place {
        let Areas { busy, lazy, pooled } = &self.areas;
        if let Some((start, size, _)) = busy.overlap(start, size) {
            Place::Busy { start, size }
        } else if let Some((start, size, lazy)) = lazy.overlap(start, size) {
            Place::Lazy { start, size, node: lazy.node }
        } else if let Some((start, size, &node)) = pooled.overlap(start, size) {
            Place::Pooled { start, size, node }
        } else {
            Place::Hole
        }
    }

    /// Makes exactly this range busy, whatever its state; the rests of areas that it cuts go to the index. Returns the
    /// number of areas that were busy there; `None` if the range is not of pages of the extent.
    pub fn put(&mut self, start: u64, size: u64, owner: Owner) -> Option<u64> {
        let whole = VaRange::from_size(Va::new(start), size)?;
        if !whole.is_page_aligned() || whole.is_empty() {
            return None;
        }
        let (busy, lazy, pooled) = self.areas.take_overlaps(start, size);
        let gone = busy.len() as u64;
        for &(at, bytes, node) in &pooled {
            self.unlist(at, bytes, node);
        }
        let busy = busy.into_iter().map(|(at, bytes, _)| (at, bytes));
        let lazy = lazy.into_iter().map(|(at, bytes, _)| (at, bytes));
        let pooled = pooled.into_iter().map(|(at, bytes, _)| (at, bytes));
        self.free_all(busy.chain(lazy).chain(pooled).collect(), false);
        self.index.take(whole).ok()?;
        self.insert(start, size, if self.has_pools() { owner } else { Owner::NoNode });
        Some(gone)
    }

    /// Removes an area from the list of its pool.
    fn unlist(&mut self, start: u64, size: u64, node: Option<u32>) {
        if let Some(node) = node
            && let Some(list) = self.pools[node as usize].get_mut(&(size / PAGE_SIZE))
            && let Some(at) = list.iter().position(|&other| other == start)
        {
            list.remove(at);
        }
    }

    /// Makes a range lazy in a node. `false` if it is not free.
    pub fn put_lazy(&mut self, start: u64, size: u64, node: Option<u32>) -> bool {
        let owner = node.map_or(Owner::Unknown, |node| Owner::Node(node % self.nodes()));
        self.place(start, size) == Place::Hole && self.put(start, size, owner).is_some() && self.free(start)
    }

    /// Frees the area that starts here, without a purge; `false` if there is none.
    pub fn free(&mut self, start: u64) -> bool {
        self.clock += 1;
        let (nodes, freed) = (&self.nodes, self.clock);
        let lazy = |&owner: &Owner| {
            let node = match owner {
                Owner::Node(node) => node,
                Owner::NoNode | Owner::Unknown => C::Zone::node_of(nodes, Va::new(start)),
            };
            Lazy { owner, node, freed }
        };
        self.areas.free(start, lazy).is_some()
    }

    /// Returns the highest base for a percpu chunk of this size.
    pub fn find_chunk(&self, size: u64) -> Option<u64> {
        let areas = [(0, size)];
        let request = Congruent::new(&areas, 1 << size.trailing_zeros().min(63)).ok()?;
        self.index.find_congruent(&request.within(self.index.default_window())).ok().map(Va::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelIndex;
    use va_space::Purge;
    use va_space::config::Standard;

    type Model = SpaceModel<Standard, ModelIndex>;

    const START: u64 = 0x10_0000;

    fn model() -> Model {
        let extent = VaRange::from_pages(START / PAGE_SIZE, START / PAGE_SIZE + 64).unwrap();
        SpaceModel::new(ModelIndex::new(extent, extent).unwrap(), 2)
    }

    fn request(pages: u64) -> Request {
        Request::pages(pages).unwrap()
    }

    /// Damages a model with a busy and a pooled area of three pages, and returns the rule that is broken.
    fn broken(damage: fn(&mut Model)) -> &'static str {
        let mut model = model();
        let two = [0, 0].map(|cpu| model.alloc(cpu, &request(3)).map(Va::get));
        assert_eq!(two, [Some(START), Some(START + 3 * PAGE_SIZE)]);
        model.free(START + 3 * PAGE_SIZE);
        model.purge(Purge::Drain);
        assert_eq!(model.validate(), Ok(()));
        damage(&mut model);
        model.validate().unwrap_err().rule
    }

    #[test]
    fn bk1_an_area_in_two_states_or_in_none_is_found() {
        assert_eq!(broken(|model| _ = model.areas.pooled.replace(START, PAGE_SIZE, None)), "BK1");
        assert_eq!(broken(|model| _ = model.areas.busy.remove(START)), "BK1");
        assert_eq!(
            broken(|model| model.areas.busy.insert(START - PAGE_SIZE, 1, Owner::NoNode).unwrap()),
            "BK1"
        );
    }

    #[test]
    fn bk2_a_pool_whose_lists_are_not_its_areas_is_found() {
        assert_eq!(broken(|model| model.pools[0].clear()), "BK2");
        assert_eq!(broken(|model| model.pools[0].entry(3).or_default().push_front(START)), "BK2");
        assert_eq!(broken(|model| model.pools.swap(0, 1)), "BK2");
    }

    #[test]
    fn an_answer_is_undone_wherever_it_came_from() {
        let mut model = model();
        for cpu in [0, 0, 1] {
            model.try_alloc(cpu, &request(2)).unwrap();
        }
        assert!(model.free(START) && !model.free(START));
        assert_eq!(model.purge_oldest(false, 9), 1);
        let place = Place::Pooled { start: START, size: 2 * PAGE_SIZE, node: Some(0) };
        for (cpu, start, pool) in [(0, START, Some(0)), (1, START + 6 * PAGE_SIZE, None)] {
            let answer = Answer { start, pool };
            assert_eq!(model.peek(cpu, &request(2)), Some(answer));
            assert_eq!(model.try_alloc(cpu, &request(2)), Some(answer));
            model.undo(answer);
            assert_eq!((model.place(START, 1), model.validate()), (place, Ok(())));
        }
        // In no pool that is known, it is found by its range alone.
        model.forget(0, 2 * PAGE_SIZE, None);
        assert_eq!(model.place(START, 1), Place::Pooled { start: START, size: 2 * PAGE_SIZE, node: None });
        assert_eq!(model.peek(0, &request(2)), Some(Answer { start: START + 6 * PAGE_SIZE, pool: None }));
        assert_eq!((model.shrink(), model.pooled_areas(), model.validate()), (0, 1, Ok(())));
    }

    #[test]
    fn a_range_is_put_over_areas_of_every_state() {
        let mut model = model();
        let at = |page: u64| START + page * PAGE_SIZE;
        for page in [0, 2, 4, 6] {
            assert_eq!(model.put(at(page), 2 * PAGE_SIZE, Owner::Node(1)), Some(0));
        }
        model.free(at(2));
        model.purge_oldest(false, 9);
        model.free(at(4));
        // Its rests are holes, and the pool does not have it any more.
        assert_eq!(model.put(at(1), 6 * PAGE_SIZE, Owner::Unknown), Some(2));
        assert_eq!((model.validate(), model.pooled_areas(), model.lazy_pages()), (Ok(()), 0, 0));
        assert_eq!(
            (model.place(at(0), PAGE_SIZE), model.place(at(7), PAGE_SIZE)),
            (Place::Hole, Place::Hole)
        );
        assert_eq!(model.try_alloc(1, &request(2)), Some(Answer { start: at(7), pool: None }));
        // Not pages, or outside.
        for (start, size) in [(at(9) + 1, PAGE_SIZE), (at(9), 0), (at(63), 2 * PAGE_SIZE)] {
            assert_eq!((model.put(start, size, Owner::NoNode), model.validate()), (None, Ok(())));
        }
        assert!(model.put_lazy(at(20), PAGE_SIZE, None) && !model.put_lazy(at(20), PAGE_SIZE, Some(1)));
        assert!(matches!(model.place(at(20), 1), Place::Lazy { .. }));
    }
}
