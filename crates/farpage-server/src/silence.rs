//! For how long a server has said nothing, as far as the thread that waits for it was there to hear. No locks.

use std::time::Duration;

/// A look counts for this part of the deadline at most. A process that was stopped, or a machine that stood still,
/// looks once, and late: the server may have stood still with it, and its answer be on its way.
pub(crate) const LOOKS: u32 = 4;

/// See the module header.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Silence {
    looked_ms: i64,
    silent_ms: i64,
}

impl Silence {
    /// It was asked something, or something has come.
    pub(crate) fn begin(&mut self, now_ms: i64) {
        *self = Silence { looked_ms: now_ms, silent_ms: 0 };
    }

    /// Nothing has come yet: whether that is so for longer than the deadline.
    pub(crate) fn is_over(&mut self, now_ms: i64, deadline: Duration) -> bool {
        let most = (deadline / LOOKS).as_millis() as i64;
        self.silent_ms += (now_ms - self.looked_ms).clamp(0, most);
        self.looked_ms = now_ms;
        self.silent_ms >= deadline.as_millis() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_server_is_silent_after_the_deadline() {
        let mut silence = Silence::default();
        silence.begin(5000);
        let over = (5000..).step_by(20).find(|now| silence.is_over(*now, SECOND));
        assert_eq!(over, Some(6000));
        silence.begin(6000);
        assert!(!silence.is_over(6100, SECOND), "it has said something");
    }

    #[test]
    fn time_in_which_nobody_looked_hardly_counts() {
        let mut silence = Silence::default();
        silence.begin(5000);
        assert!([95_000, 95_200, 95_400].iter().all(|now| !silence.is_over(*now, SECOND)));
        assert!(!silence.is_over(95_800, SECOND) && silence.is_over(96_000, SECOND));
    }
}
