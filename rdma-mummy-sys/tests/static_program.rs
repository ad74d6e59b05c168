//! The error of a program that cannot load libraries at all: `--target x86_64-unknown-linux-musl`.

#![cfg(all(target_env = "musl", target_feature = "crt-static", not(miri)))]

#[test]
fn a_static_program_says_that_it_is_one() {
    let text = rdma_mummy_sys::Provider::system().expect_err("musl's dlopen fails").to_string();
    assert!(text.contains("statically linked") && text.contains("-crt-static"), "{text}");
    assert!(!text.contains("install"), "{text}");
}
