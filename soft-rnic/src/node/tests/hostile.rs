//! Peers of the same user that send nonsense.
