//! Several processes.
