//! Code that the lab's programs about the kernel interfaces xpmem and knem share. The programs use the devices directly, with the
//! numbers and layouts of the tables, and without Tieline.

pub mod child;
pub mod knem;
pub mod random;
pub mod sys;
pub mod table;
pub mod xpmem;
