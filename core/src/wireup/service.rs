//! Client/server services: written next.
