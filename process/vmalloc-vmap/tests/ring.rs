//! A test of the example `ring`.

#[path = "../examples/ring.rs"]
#[expect(dead_code, reason = "an example has a main")]
mod ring;

#[test]
fn a_ring_mapped_twice_returns_each_message_in_one_piece() {
    assert!(ring::send(300).unwrap() > 300 * 1000);
}
