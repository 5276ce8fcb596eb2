//! Types that a region can be viewed as.

/// Numbers of which every bit pattern is a value, and that have no padding.
///
/// # Safety
/// Exactly that; and the alignment is at most a page's.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty)*) => {$(
        // SAFETY: a primitive number.
        unsafe impl Plain for $t {}
    )*};
}

// SAFETY: an array has the bytes of its elements, one after the other, and their alignment.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);
