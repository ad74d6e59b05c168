//! Every action of a fault rule, seen through the provider's table by the program under test.

mod actions;
mod bench;
mod calls;
mod children;
mod cm;
mod devices;
mod flap;
mod hang;
mod paths;
mod rate;
mod replay;
mod xrc;
