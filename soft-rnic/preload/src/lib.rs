//! A library for `LD_PRELOAD`, with which programs find the device files of `soft0`.
//!
//! Programs look for `/dev/infiniband` and `/sys/class/infiniband` before they use a device, and
//! many use TCP without a word if these are missing. `soft-rnic run` makes a tree with such files,
//! and names it in `SOFT_RNIC_FILES`. The functions of this library replace the C library's
//! functions of the same names: they change a path below these folders into one of the tree, and
//! call the C library's function with every other path unchanged.
//!
//! Any program and any thread calls these functions, also before `main`, in signal handlers, and
//! between `fork` and `exec`. So they allocate nothing, take no lock and keep `errno`.

#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod libraries;
mod path;
#[cfg(not(test))]
mod tree;
