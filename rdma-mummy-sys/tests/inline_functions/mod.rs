//! Tests of every inline function, with structs as rdma-core 44 and 65 allocate them.
//!
//! The structs are no longer than in those releases, and filled with C functions that record their
//! calls. A wrong operation or a wrong argument fails a test. Under Miri so does a read of one byte
//! beyond the library's struct:
//!
//! ```sh
//! cargo +nightly miri test -p rdma-mummy-sys --test main inline_functions::
//! ```

#[macro_use]
mod cases;
#[macro_use]
mod fake;
mod cm;
mod context;
mod efa;
mod flow;
mod memory;
mod mlx5;
mod poll;
mod post;
mod queues;
mod word;

/// The lists of functions that the modules test.
const TESTED: [&[&str]; 19] = [
    cm::WRITTEN,
    context::CONTEXT_CASES,
    context::WRITTEN,
    efa::CQ_CASES,
    efa::QP_CASES,
    flow::CONTEXT_CASES,
    memory::CONTEXT_CASES,
    memory::DM_CASES,
    memory::WRITTEN,
    mlx5::QP_CASES,
    mlx5::WRITTEN,
    poll::CLASSIC_CASES,
    poll::CQ_CASES,
    poll::WRITTEN,
    post::CLASSIC_CASES,
    post::QP_CASES,
    post::WRITTEN,
    queues::CONTEXT_CASES,
    queues::WRITTEN,
];

#[test]
fn every_inline_function_is_tested() {
    let listed = include_str!("../../src/bindings/inlines.txt").lines();
    let names = listed.map(|line| line.split_once(' ').expect("header and name").1.trim_start_matches('_'));
    let tested: Vec<&str> = TESTED.concat();
    let missing: Vec<&str> = names.filter(|name| !tested.contains(name)).collect();
    assert!(missing.is_empty(), "not tested: {missing:?}");
}
