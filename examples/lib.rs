//! What the programs in this folder share.
