//! Nothing: build scripts have the features of its build dependencies too.

fn main() {}
