//! Raw system interfaces.
