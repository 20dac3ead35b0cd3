//! Work that some threads share.

use anyhow::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Calls `work` for each item, for `jobs` of them at a time, and `done` on this thread with each result as it comes.
///
/// # Errors
/// The first error of `work` or `done`. What has begun by then comes to its end.
pub(crate) fn each<'i, I: Sync, R: Send>(
    jobs: usize,
    items: &'i [I],
    work: impl Fn(&'i I) -> Result<R> + Sync,
    mut done: impl FnMut(&'i I, R) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let (sender, results) = sync_channel(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send((item, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        // The other end is dropped after an error, so the threads return.
        results.into_iter().try_for_each(|(item, result)| done(item, result?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn so_many_items_at_a_time_and_each_once() {
        let (caller, both) = (thread::current().id(), Barrier::new(2));
        let mut sum = 0;
        let work = |item: &u32| {
            both.wait();
            Ok(item * 10)
        };
        let done = |item: &u32, result| {
            assert_eq!((thread::current().id(), result), (caller, item * 10));
            sum += result;
            Ok(())
        };
        each(2, &[1, 2, 3, 4], work, done).unwrap();
        assert_eq!(sum, 100);
    }

    #[test]
    fn an_error_is_the_last_result() {
        let items: Vec<u32> = (0..1000).collect();
        let begun = AtomicUsize::new(0);
        let work = |item: &u32| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *item == 3 { bail!("three") } else { Ok(()) }
        };
        let before = |item: &u32, ()| {
            assert!(*item < 3);
            Ok(())
        };
        let error = each(1, &items, work, before).unwrap_err();
        assert_eq!(error.to_string(), "three");
        assert!(each(2, &items, |_| Ok(()), |_, ()| bail!("no more")).is_err());
        assert!(each(3, &[] as &[u32], |_| Ok(()), |_, ()| bail!("no item")).is_ok());
        assert!(begun.into_inner() <= 5);
    }
}
