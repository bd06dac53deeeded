//! The device interface over the CPU backend and the simulator.

mod basics;
