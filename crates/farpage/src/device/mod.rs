//! Swap devices.
