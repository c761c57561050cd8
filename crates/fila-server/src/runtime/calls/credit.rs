//! The part of a client's credit that is passed on to the broker.
//!
//! A client may grant four billion deliveries and then read none. Its leases would run out, and the broker would send
//! the same messages again and again, into the server's memory. So the broker gets a window of the credit only. The
//! window moves on as the connection takes deliveries out of the consumer's channel. It counts messages; the broker itself
//! bounds their bytes.

/// The most deliveries in a consumer's channel.
const WINDOW: u32 = 1_024;

/// The credit of one consumer.
#[derive(Debug)]
pub(crate) struct CreditWindow {
    /// Credit from the client that was not passed on yet.
    owed: u64,
    /// Credit that was passed on, minus the deliveries that were taken out of the channel.
    open: u32,
}

impl CreditWindow {
    pub(crate) fn new() -> Self {
        Self { owed: 0, open: 0 }
    }

    /// Takes credit from the client, and returns how much of it to pass on.
    pub(crate) fn add(&mut self, credit: u64) -> u32 {
        self.owed = self.owed.saturating_add(credit);
        self.grant()
    }

    /// Notes that deliveries were taken out of the channel, and returns how much credit to pass on.
    pub(crate) fn taken(&mut self, deliveries: usize) -> u32 {
        let count = u32::try_from(deliveries).unwrap_or(u32::MAX);
        self.open = self.open.saturating_sub(count);
        self.grant()
    }

    fn grant(&mut self) -> u32 {
        let free = WINDOW.saturating_sub(self.open);
        let grant = u32::try_from(self.owed).unwrap_or(u32::MAX).min(free);
        // While more credit is owed than fits, it is passed on in few large steps.
        if u64::from(grant) < self.owed && self.open > WINDOW / 2 {
            return 0;
        }
        self.owed -= u64::from(grant);
        self.open += grant;
        grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_credit_is_passed_on_at_once() {
        let mut window = CreditWindow::new();
        assert_eq!(window.add(1), 1);
        assert_eq!(window.add(10), 10);
        assert_eq!(window.taken(11), 0);
    }

    #[test]
    fn an_unread_channel_never_holds_more_than_a_window() {
        let mut window = CreditWindow::new();
        let mut passed = u64::from(window.add(u64::MAX));
        for _ in 0..100 {
            passed += u64::from(window.add(u64::from(u32::MAX)));
        }
        assert_eq!(passed, u64::from(WINDOW));
    }

    #[test]
    fn all_credit_is_passed_on_in_the_end() {
        let mut window = CreditWindow::new();
        let (mut passed, mut in_channel) = (0, u64::from(window.add(10_000)));
        while in_channel > 0 {
            passed += 1;
            in_channel -= 1;
            in_channel += u64::from(window.taken(1));
        }
        assert_eq!(passed, 10_000);
    }
}
