//! Tests of the wire-up: every interleaving of two workers with few events, random ones of several workers, the parsers, and the
//! scenarios of `docs/wireup.md`.

mod bounds;
mod counted;
mod deadlines;
mod explore;
mod many;
mod parsers;
mod scenarios;
mod world;
