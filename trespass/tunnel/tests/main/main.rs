//! The tunnel as two processes, over TCP and over software devices.

mod carrying;
mod fixture;
mod llama;
mod many;
mod metrics;
mod programs_of_trespass;
mod resets;
mod settings;
mod shutdown;
