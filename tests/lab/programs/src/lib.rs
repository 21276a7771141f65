//! What the lab's programs about the kernel interfaces xpmem and knem share. They speak to the devices directly, with the
//! numbers and layouts of the tables, and know nothing of Tieline.

pub mod child;
pub mod knem;
pub mod random;
pub mod sys;
pub mod table;
pub mod xpmem;
