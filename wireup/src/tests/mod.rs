//! Tests of the wire-up: every interleaving of two workers, random ones of several, the parsers, and the
//! scenarios of `docs/wireup.md`.

mod bounds;
mod counted;
mod deadlines;
mod explore;
mod many;
mod parsers;
mod scenarios;
mod world;
