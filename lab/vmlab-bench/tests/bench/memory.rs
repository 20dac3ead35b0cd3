//! Allocators of a process.

use std::sync::Mutex;
use std::time::Duration;
use vmalloc::Vmalloc;
use vmlab_bench::memory::Named;
use vmlab_bench::memory::child::Times;
use vmlab_bench::memory::contenders::{BUDGETS_MIB, Contender, OURS, ours};
use vmlab_bench::memory::driver::{Driver, Kvs, Malloc, Mmap};
use vmlab_bench::memory::measure::{Resident, Sample, ever};
use vmlab_bench::memory::ops::{Exchange, Grow, Mix, Producer, Sizes, ThreadOps, consume};
use vmlab_bench::memory::print::equal_memory;
use vmlab_bench::memory::results::{Point, Results, Row, at_equal_memory};
use vmlab_bench::memory::sys::{faults, libc_version, malloc_library, process_cpu_ns, version};
use vmlab_bench::memory::task::{self, Growth, How, Task, Touch, Ways};

#[test]
fn a_peer_is_named_with_or_without_its_library() {
    let named = |text: &str| text.parse::<Named>();
    assert_eq!(named("mmap").unwrap(), Named { name: "mmap".into(), path: None });
    assert_eq!(named("x=/a=b").unwrap(), Named { name: "x".into(), path: Some("/a=b".into()) });
    for bad in ["", "=x", "x="] {
        assert!(named(bad).is_err(), "{bad}");
    }
}

#[test]
fn ours_has_a_point_for_each_budget_and_one_default() {
    let all = ours(false);
    assert_eq!(all.iter().filter(|one| one.family == OURS && one.is_default).count(), 1);
    let default = vmalloc::Options::default().cache_bytes_max;
    let others = BUDGETS_MIB.iter().filter(|&&mib| mib << 20 != default).count();
    assert_eq!(all.iter().filter(|one| one.family == OURS).count(), 1 + others + 2);
}

#[test]
fn every_workload_has_a_name_of_its_own_and_travels_as_json() {
    let all = task::all();
    let mut names: Vec<_> = all.iter().map(|spec| spec.name.as_str()).collect();
    assert!(names.contains(&"pair-64M-byte-1t") && names.contains(&"mix-1M-16M-pages-2t"), "{names:?}");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
    for spec in all {
        let how = How::Vmalloc { cache_bytes_max: Some(8 << 20), ways: Ways::SmallPages };
        let (work, touch, threads) = (spec.work, spec.touch, spec.threads);
        let task = Task { how, library: None, work, touch, threads, ms: 1, seed: 7, same_ops: 9 };
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
    }
}

#[test]
fn workloads_of_several_threads_have_each_number_in_their_names() {
    let specs = task::of_threads(&[1, 16]);
    let named = |name: &str| specs.iter().find(|spec| spec.name == name).map(|spec| spec.threads);
    assert_eq!(named("mix-64K-4M-byte-1t"), Some(1));
    assert_eq!(named("mix-64K-4M-byte-16t"), Some(16));
    assert_eq!(named("exchange-64K-1M-byte-16t"), Some(16));
    // One allocates and one frees.
    assert!(
        !specs.iter().any(|spec| matches!(spec.work, task::Work::Flow { .. }) || spec.name.contains("2t"))
    );
    let all = task::all().into_iter().filter(|spec| spec.threads == 2 && !spec.name.starts_with("flow"));
    assert_eq!(specs.len(), 2 * all.count());
}

fn all_calls(driver: &impl Driver) {
    for bytes in [1, 5000, 100_000, 3 << 20] {
        let mut held = driver.alloc(bytes).unwrap();
        held.touch(Touch::Pages);
        held.write(bytes - 1);
        let mut held = driver.resize(held, 2 * bytes).unwrap();
        held.touch_from(bytes);
        held.write(2 * bytes - 1);
        driver.free(held);
        let mut zeros = driver.zeroed(bytes).unwrap();
        assert!(zeros.is_zero());
        zeros.touch(Touch::Byte);
        assert!(!zeros.is_zero());
        zeros.fill();
        assert!(zeros.is_zero());
        driver.free(zeros);
        let aligned = driver.aligned(bytes, 4096).unwrap();
        assert_eq!(aligned.address() % 4096, 0);
        driver.free(aligned);
    }
    assert!(driver.alloc(1 << 60).is_none());
}

#[test]
fn every_worker_makes_every_call() {
    all_calls(&Malloc);
    all_calls(&Vmalloc::new(vmalloc::Options::default()).unwrap());
    all_calls(&Kvs);
    all_calls(&Mmap);
}

#[test]
#[should_panic(expected = "offset < self.bytes")]
fn no_thread_writes_beside_what_is_held() {
    let mut held = Malloc.alloc(10).unwrap();
    held.write(10);
}

#[test]
fn sizes_of_a_mix_are_even_over_doublings() {
    let mut sizes = Sizes::new((1 << 10, 1 << 14), 1);
    let mut counts = [0; 4];
    for _ in 0..4000 {
        counts[sizes.draw().ilog2() as usize - 10] += 1;
    }
    assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    let first = |seed| Sizes::new((1 << 10, 1 << 30), seed).draw();
    assert_ne!(first(1), first(2));
}

#[test]
fn a_mix_holds_as_many_as_requested() {
    let mut mix = Mix::new(&Malloc, Touch::Pages, (64 << 10, 256 << 10), 4, 1);
    (0..100).for_each(|_| assert!(mix.step()));
    assert!(mix.slots.iter().all(Option::is_some));
    mix.finish();
    for growth in [Growth::Half, Growth::Double, Growth::Steps] {
        let mut grow = Grow { driver: &Malloc, low: 1000, high: 3 << 20, growth };
        assert!(grow.step());
    }
}

#[test]
fn an_exchange_leaves_one_in_each_place_and_frees_all_at_its_end() {
    let slots: Vec<_> = (0..4).map(|_| Mutex::new(None)).collect();
    let mut ops = Exchange {
        driver: &Malloc,
        touch: Touch::Byte,
        sizes: Sizes::new((1 << 10, 1 << 12), 3),
        slots: &slots,
    };
    (0..100).for_each(|_| assert!(ops.step()));
    assert!(slots.iter().all(|slot| slot.lock().unwrap().is_some()));
    ops.finish();
    assert!(slots.iter().all(|slot| slot.lock().unwrap().is_none()));
}

#[test]
fn all_that_is_sent_is_freed_and_the_consumer_ends() {
    let (to, from) = std::sync::mpsc::sync_channel(4);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(move || consume(&Malloc, &from));
        let mut producer = Producer { driver: &Malloc, bytes: 70_000, touch: Touch::Byte, to };
        (0..1000).for_each(|_| assert!(producer.step()));
        producer.finish();
        // The consumer ends by itself; otherwise this waits for ever.
        consumer.join().unwrap();
    });
}

#[test]
fn p99_is_found_to_a_sixteenth() {
    let mut times = Times::default();
    assert_eq!(times.p99(), None);
    (0..990).for_each(|_| times.add(Duration::from_nanos(100)));
    (0..10).for_each(|_| times.add(Duration::from_millis(1)));
    let p99 = times.p99().unwrap();
    assert!((100..=107).contains(&p99), "{p99}");
    times.add(Duration::from_millis(1));
    (0..100).for_each(|_| times.add(Duration::from_millis(1)));
    let p99 = times.p99().unwrap();
    assert!((1_000_000..=1_070_000).contains(&p99), "{p99}");
    // The extremes have a step.
    times.add(Duration::ZERO);
    times.add(Duration::from_secs(1000));
}

#[test]
fn the_mean_is_over_time_and_the_peak_over_samples() {
    let mut resident = Resident::of(std::process::id()).unwrap();
    let first = resident.sample().unwrap();
    assert!(first > 0.0 && resident.mean() == first);
    let pages = vec![1u8; 64 << 20];
    std::thread::sleep(Duration::from_millis(5));
    let second = resident.sample().unwrap();
    assert!(second > first + (60 << 20) as f64 && pages[1 << 20] == 1);
    assert!((resident.mean() - (first + second) / 2.0).abs() < 1.0);
    assert!(resident.peak == second && ever(std::process::id()).unwrap() > first);
}

#[test]
fn a_process_that_is_not_there_is_reported() {
    let error = Resident::of(0).err().unwrap();
    assert!(error.to_string().contains("/proc/0/statm"), "{error}");
}

#[test]
fn a_process_knows_its_time_its_faults_and_its_allocator() {
    let (before, faults_before) = (process_cpu_ns(), faults());
    let pages = vec![1u8; 32 << 20];
    assert!(std::hint::black_box(&pages).iter().all(|&byte| byte == 1));
    assert!(process_cpu_ns() > before && faults() > faults_before);
    let library = malloc_library().unwrap();
    assert!(library.to_string_lossy().contains("libc"), "{}", library.display());
    assert!(libc_version().unwrap().starts_with("2."));
    assert_eq!(version(), None, "none of the others is loaded");
}

#[test]
fn ours_is_the_cheapest_point_that_has_no_more_memory_than_the_peer() {
    let ours = [(10.0, 100.0), (20.0, 50.0), (30.0, 60.0), (40.0, 10.0)].map(|(rss, ns)| Point { rss, ns });
    for (rss, ns, ratio) in [
        (5.0, 1.0, None),
        (10.0, 200.0, Some(2.0)),
        (19.9, 200.0, Some(2.0)),
        (20.0, 200.0, Some(4.0)),
        // A point with more memory and more cost is never the best choice.
        (35.0, 200.0, Some(4.0)),
        (1000.0, 5.0, Some(0.5)),
    ] {
        assert_eq!(at_equal_memory(&ours, Point { rss, ns }), ratio, "{rss} {ns}");
    }
    assert_eq!(at_equal_memory(&[], Point { rss: 1.0, ns: 1.0 }), None);
}

#[test]
fn a_row_has_figures_and_a_point_only_with_a_round() {
    let sample = |cpu_ns: f64| Sample { cpu_ns, rss_same: 10.0 * cpu_ns, ..Sample::default() };
    let rounds = [5.0, 1.0, 3.0].map(sample).to_vec();
    let row = Row { spec: 0, contender: 0, rounds, stopped: None };
    let cpu = row.figure(|sample| sample.cpu_ns).unwrap();
    assert_eq!([cpu.median, cpu.min, cpu.max], [3.0, 1.0, 5.0]);
    assert_eq!(row.point(), Some(Point { rss: 30.0, ns: 3.0 }));
    assert_eq!(Row { spec: 0, contender: 0, rounds: vec![], stopped: None }.point(), None);
}

/// Returns results of one workload: name, family, average resident MiB and nanoseconds of each contender.
fn results(spec: &str, points: &[(&str, &'static str, f64, f64)]) -> Results {
    let specs: Vec<_> = task::all().into_iter().filter(|one| one.name == spec).collect();
    assert_eq!(specs.len(), 1, "{spec}");
    let contender = |&(name, family, ..): &(&str, &'static str, f64, f64)| Contender {
        name: name.to_string(),
        family,
        how: How::Vmalloc { cache_bytes_max: None, ways: Ways::Default },
        library: None,
        env: Vec::new(),
        version: String::new(),
        is_default: name == family,
    };
    let row = |(at, &(_, _, mib, cpu_ns)): (usize, &(&str, &'static str, f64, f64))| {
        let rss_same = mib * f64::from(1 << 20);
        let sample = Sample { cpu_ns, rss_same, ..Sample::default() };
        Row { spec: 0, contender: at, rounds: vec![sample], stopped: None }
    };
    let rows = points.iter().enumerate().map(row).collect();
    let contenders = points.iter().map(contender).collect();
    Results { specs, contenders, rows, missing: Vec::new(), broken: Vec::new() }
}

#[test]
fn a_peer_is_compared_at_equal_memory_with_each_of_its_settings() {
    let points = [
        ("ours", "ours", 100.0, 10.0),
        ("ours 8M", "ours", 50.0, 40.0),
        ("ours-kv", "ours-kv", 1.0, 1.0),
        ("glibc", "glibc", 60.0, 400.0),
        ("jemalloc", "jemalloc", 70.0, 80.0),
        ("jemalloc decay-0", "jemalloc", 40.0, 1e9),
        ("mimalloc", "mimalloc", 200.0, 12.0),
    ];
    let results = results("mix-1M-16M-pages-1t", &points);
    let table = equal_memory(&results, &results.specs.iter().collect::<Vec<_>>());
    let wanted =
        [["glibc", "10.00"], ["jemalloc", "2.00"], ["jemalloc decay-0", "less"], ["mimalloc", "1.20"]];
    assert_eq!(table.rows(), wanted);
}
