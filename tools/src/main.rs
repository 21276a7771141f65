//! The command `tieline`.
fn main() {}
