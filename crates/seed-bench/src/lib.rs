//! What `farpage-bench` measures beside the product: the forms that farpage does not use. Apart from the command, so
//! that loom can check them without the engine.

pub mod splice;
