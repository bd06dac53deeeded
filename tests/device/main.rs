//! The device interface over the CPU backend and the simulated devices.

mod basics;
mod common;
mod faults;
mod guards;
mod imports;
mod ordering;
mod registry;
mod usage;
mod visibility;
