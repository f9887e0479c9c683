//! Who may grow its receive window, and by how much.
//!
//! Every stream is promised [`MUX_INITIAL_WINDOW`]; what goes beyond comes out of a pool of
//! [`MUX_RECEIVE_POOL`] bytes per connection. A window is set anew each time its reader has taken
//! half of it: four times as large as it was, but no more than [`MUX_STREAM_WINDOW`], than an equal
//! part of the pool for each stream that grew, and than what is left. The equal part shrinks as more
//! streams grow, so streams that read give room to others; one that does not read keeps what it was
//! promised, and that is in the sum.

use super::stream::RecvHalf;
use crate::limits::{MUX_INITIAL_WINDOW, MUX_RECEIVE_POOL, MUX_STREAM_WINDOW};

const INITIAL_WINDOW: usize = MUX_INITIAL_WINDOW as usize;
const MAX_WINDOW: usize = MUX_STREAM_WINDOW as usize;

#[derive(Debug, Default)]
pub(super) struct WindowBudget {
    used: usize,
    grown: usize,
}

impl WindowBudget {
    /// Sets the window of a stream whose reader has read, and returns the credit to grant now.
    pub(super) fn grant(&mut self, recv: &mut RecvHalf) -> usize {
        let promised = recv.credit + recv.unread();
        if recv.window - promised.min(recv.window) < recv.window / 2 {
            return 0;
        }
        self.give_back(recv);
        let wanted = (recv.window * 4).min(MAX_WINDOW) - INITIAL_WINDOW;
        let part = MUX_RECEIVE_POOL / (self.grown + 1);
        let share = wanted
            .min(part)
            .min(MUX_RECEIVE_POOL.saturating_sub(self.used));
        // Never below what the peer holds already: a promise is not taken back.
        self.take(recv, share.max(promised.saturating_sub(INITIAL_WINDOW)));
        let grant = recv.window.saturating_sub(promised);
        recv.credit += grant;
        grant
    }

    /// The peer will send no more on this stream: only what is unread still counts.
    pub(super) fn settle(&mut self, recv: &mut RecvHalf) {
        self.give_back(recv);
        recv.credit = 0;
        self.take(recv, recv.unread().saturating_sub(INITIAL_WINDOW));
    }

    /// Gives back what a stream that is over had taken.
    pub(super) fn forget(&mut self, recv: &mut RecvHalf) {
        self.give_back(recv);
        recv.window = INITIAL_WINDOW;
    }

    fn give_back(&mut self, recv: &RecvHalf) {
        let share = recv.window - INITIAL_WINDOW;
        self.used -= share;
        self.grown -= usize::from(share > 0);
    }

    fn take(&mut self, recv: &mut RecvHalf, share: usize) {
        recv.window = INITIAL_WINDOW + share;
        self.used += share;
        self.grown += usize::from(share > 0);
    }

    #[cfg(test)]
    pub(super) const fn used(&self) -> usize {
        self.used
    }
}
