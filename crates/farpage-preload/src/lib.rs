//! LD_PRELOAD library.
