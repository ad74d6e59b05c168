//! Every action of a fault rule, through the provider's table: what the program under test gets to see.

mod actions;
mod bench;
mod calls;
mod children;
mod cm;
mod devices;
mod paths;
mod replay;
mod xrc;
