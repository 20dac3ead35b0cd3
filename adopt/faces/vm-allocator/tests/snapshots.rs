//! Snapshots of the original are read here, and the other way round.
#![cfg(feature = "serde")]

#[path = "../../draws.rs"]
mod draws;

use original as theirs;
use vm_allocator as ours;

#[test]
fn a_snapshot_goes_both_ways() {
    let mut draws = draws::Draws::new(1);
    let mut our = ours::AddressAllocator::new(0x1000, 0x10000).unwrap();
    let mut live = Vec::new();
    for _ in 0..300 {
        match our.allocate(2 + draws.below(100), 2, ours::AllocPolicy::FirstMatch) {
            Ok(range) if draws.below(3) > 0 => live.push(range),
            Ok(range) => our.free(&range).unwrap(),
            Err(_) => {}
        }
    }
    let saved = serde_json::to_string(&our).unwrap();
    let mut their: theirs::AddressAllocator = serde_json::from_str(&saved).unwrap();
    for range in live.drain(..).step_by(2) {
        our.free(&range).unwrap();
        their.free(&theirs::RangeInclusive::new(range.start(), range.end()).unwrap()).unwrap();
    }
    for _ in 0..50 {
        let (size, align) = (2 + draws.below(50), 1 << draws.below(8));
        assert_eq!(
            format!("{:?}", our.allocate(size, align, ours::AllocPolicy::LastMatch)),
            format!("{:?}", their.allocate(size, align, theirs::AllocPolicy::LastMatch))
        );
    }
    let back: ours::AddressAllocator = serde_json::from_str(&serde_json::to_string(&their).unwrap()).unwrap();
    assert_eq!(back, our);
    assert_eq!(back.clone().cmp(&our), std::cmp::Ordering::Equal);
}

#[test]
fn ids_go_both_ways() {
    let mut our = ours::IdAllocator::new(3, 50).unwrap();
    (0..20).for_each(|_| _ = our.allocate_id().unwrap());
    for id in [5, 6, 9] {
        our.free_id(id).unwrap();
    }
    let saved = serde_json::to_string(&our).unwrap();
    let mut their: theirs::IdAllocator = serde_json::from_str(&saved).unwrap();
    assert_eq!(serde_json::to_string(&their).unwrap(), saved);
    assert_eq!(their.allocate_id().unwrap(), 5);
    let mut back: ours::IdAllocator = serde_json::from_str(&serde_json::to_string(&their).unwrap()).unwrap();
    assert_eq!((0..4).map(|_| back.allocate_id().unwrap()).collect::<Vec<_>>(), [6, 9, 23, 24]);
}

#[test]
fn a_snapshot_that_makes_no_sense_is_an_error() {
    let read = |text: &str| serde_json::from_str::<ours::AddressAllocator>(text).is_ok();
    let tree = |root: &str| {
        format!(r#"{{"address_space":{{"start":0,"end":99}},"interval_tree":{{"root":{root}}}}}"#)
    };
    let node = |start: i32, end: i32, left: &str| {
        format!(
            r#"{{"key":{{"start":{start},"end":{end}}},"node_state":"Allocated","left":{left},"right":null,"height":1}}"#
        )
    };
    assert!(read(&tree(&node(0, 9, "null"))));
    assert!(read(&tree("null")));
    assert!(!read(&tree(&node(9, 0, "null"))));
    assert!(serde_json::from_str::<ours::RangeInclusive>(r#"{"start":2,"end":1}"#).is_err());
    assert!(!read(&tree(&node(95, 100, "null"))));
    assert!(!read(&tree(&node(0, 9, &node(5, 12, "null")))));
    assert!(!read(&tree("null").replace("\"end\":99", "\"end\":-1")));
    assert!(!read(&tree("null").replace("\"start\":0", "\"start\":100")));
    let ids = |text: &str| serde_json::from_str::<ours::IdAllocator>(text).is_ok();
    assert!(ids(r#"{"range_base":1,"next_id":9,"range_end":20,"freed_ids":[2,3]}"#));
    assert!(!ids(r#"{"range_base":1,"next_id":9,"range_end":20,"freed_ids":[2,2]}"#));
    assert!(!ids(r#"{"range_base":1,"next_id":9,"range_end":20,"freed_ids":[9]}"#));
    assert!(!ids(r#"{"range_base":5,"next_id":9,"range_end":2,"freed_ids":[]}"#));
}
