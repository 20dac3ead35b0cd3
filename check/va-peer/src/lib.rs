//! C functions over the space, so that the benches and replays of Linux's own allocator run on it unchanged.
//!
//! `libva_peer.so` exports the functions that such a program looks up by name (`kv_init`, `kv_alloc`, `kv_free` and so
//! on); Linux's allocator, built as a library, exports the same. `cargo xtask peer` runs both in turn. The environment
//! selects the policies of the space: `VA_PEER_POLICY=default` (or nothing) or `VA_PEER_POLICY=linux`.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the C functions: pointers in and out, numbers for errors |
//! | [`call`] | the same in Rust: the calls of a thread, and its cache |
//! | [`peer`] | the one space of the process, under either policy |
//! | [`pcpu_abi`], [`pcpu`] | the same for per-CPU memory (`kp_init`, `kp_alloc` and so on); also `VA_PEER_POLICY=scan` |
//! | [`host`] | the machine of this process: memory, a helper thread, counts in place of flushes |

pub mod abi;
pub mod call;
pub mod host;
pub mod pcpu;
pub mod pcpu_abi;
pub mod peer;
