//! The integration tests of rdma-mummy-sys. One program, because each costs seconds to link.

mod inline_functions;
mod inline_names;
mod layout;
mod loader;
mod static_program;
