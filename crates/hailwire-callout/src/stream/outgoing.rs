//! Sends frames: callers append them to a batch, and one of them writes the whole batch.
//!
//! Frames are gathered in a batch; small ones lie one after the other in one buffer, large data keeps its own memory
//! and is written from there. A connection's driver writes the batch when it is woken; who is alone writes at once
//! on the spot, for which no task has to be woken. While one writes a batch, others gather the next.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    mem,
    pin::Pin,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use crate::wire::frame::{FrameError, MAX_LENGTH, PREFIX, put};

/// From this size on, data is written from where it lies.
const LARGE_DATA: usize = 4 << 10;

/// Bytes of small frames at which a batch is written without waiting for more.
const FLUSH_SIZE: usize = 64 << 10;

/// How many slices one system call writes.
const MAX_SLICES: usize = 32;

/// A buffer that grew beyond this is not kept.
const MAX_KEPT_BUFFER: usize = 256 << 10;

pub(crate) struct FrameSender<W> {
    queue: Mutex<SendQueue>,
    writer: Mutex<BatchWriter<W>>,
    woken: AtomicBool,
    closing: AtomicBool,
}

#[derive(Default)]
struct SendQueue {
    batch: FrameBatch,
    /// The driver's, once it has been polled.
    driver: Option<Waker>,
}

struct BatchWriter<W> {
    io: W,
    batch: FrameBatch,
    driver: Option<Waker>,
}

impl<W: AsyncWrite + Unpin> FrameSender<W> {
    pub(crate) fn new(io: W) -> Self {
        Self {
            queue: Mutex::default(),
            writer: Mutex::new(BatchWriter {
                io,
                batch: FrameBatch::default(),
                driver: None,
            }),
            woken: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    /// The stream, once everything has been written.
    pub(crate) fn into_io(self) -> W {
        let writer = self.writer.into_inner();
        writer.unwrap_or_else(PoisonError::into_inner).io
    }

    /// Appends a frame.
    pub(crate) fn frame(
        &self,
        code: u8,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), FrameError> {
        put(&mut self.queue().batch.small, code, write)
    }

    /// Appends a frame whose payload ends with data that is not to be copied.
    pub(crate) fn frame_with(
        &self,
        code: u8,
        head: impl FnOnce(&mut BytesMut),
        data: Bytes,
    ) -> Result<(), FrameError> {
        self.queue().batch.frame_with(code, head, data)
    }

    /// Makes the driver write what was appended, with what others append until then.
    pub(crate) fn wake_driver(&self) {
        if self.woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let driver = self.queue().driver.clone();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Writes what was appended here and now, as far as it goes; the driver writes the rest.
    pub(crate) fn write(&self) {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.wake_driver(),
        };
        let Some(driver) = writer.driver.take() else {
            return self.wake_driver();
        };
        // Where the stream takes no more, it is the driver that hears when it does.
        let written = writer.poll(&self.queue, &mut Context::from_waker(&driver));
        writer.driver = Some(driver);
        drop(writer);
        if let Poll::Ready(Err(_)) = written {
            self.close();
        }
    }

    /// Ends the driver.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake_driver();
    }

    /// For the driver: whether it was woken since it asked last.
    pub(crate) fn was_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    /// For the driver: whether enough waits that gathering more gains nothing.
    pub(crate) fn is_flush_due(&self) -> bool {
        let batch = &self.queue().batch;
        !batch.large.is_empty() || batch.small.len() >= FLUSH_SIZE
    }

    /// For the driver: whether it is to end. To be asked after [`Self::was_roused`].
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// For the driver: says whom to wake.
    pub(crate) fn attach(&self, driver: &Waker) {
        let mut queue = self.queue();
        if queue
            .driver
            .as_ref()
            .is_some_and(|known| known.will_wake(driver))
        {
            return;
        }
        queue.driver = Some(driver.clone());
        drop(queue);
        self.writer().driver = Some(driver.clone());
    }

    /// For the driver: writes everything that was appended.
    pub(crate) fn poll_write(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll(&self.queue, context)
    }

    /// For the driver: says that no more comes.
    pub(crate) fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer().io).poll_shutdown(context)
    }

    fn queue(&self) -> MutexGuard<'_, SendQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, BatchWriter<W>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: AsyncWrite + Unpin> BatchWriter<W> {
    fn poll(
        &mut self,
        queue: &Mutex<SendQueue>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.batch.is_empty() {
                self.batch.reset();
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                if queue.batch.is_empty() {
                    break;
                }
                mem::swap(&mut queue.batch, &mut self.batch);
            }
            let io = Pin::new(&mut self.io);
            let written = if self.batch.large.is_empty() {
                ready!(io.poll_write(context, self.batch.rest()))?
            } else {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let count = self.batch.slices(&mut slices);
                ready!(io.poll_write_vectored(context, slices.get(..count).unwrap_or_default()))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.batch.advance(written);
        }
        Pin::new(&mut self.io).poll_flush(context)
    }
}

/// Frames in the order in which they are written.
#[derive(Default)]
struct FrameBatch {
    small: BytesMut,
    /// How much of `small` is written.
    done: usize,
    /// Data, and how much of `small` comes before it.
    large: VecDeque<(usize, Bytes)>,
}

impl FrameBatch {
    fn frame_with(
        &mut self,
        code: u8,
        head: impl FnOnce(&mut BytesMut),
        data: Bytes,
    ) -> Result<(), FrameError> {
        if data.len() < LARGE_DATA {
            return put(&mut self.small, code, |out| {
                head(out);
                out.put_slice(&data);
            });
        }
        let start = self.small.len();
        put(&mut self.small, code, head)?;
        let payload = self.small.len() - start - PREFIX + data.len();
        let length = u32::try_from(payload + 1)
            .ok()
            .filter(|length| *length <= MAX_LENGTH);
        let Some(length) = length else {
            self.small.truncate(start);
            return Err(FrameError::TooLarge(payload));
        };
        if let Some(prefix) = self.small.get_mut(start..start + 4) {
            prefix.copy_from_slice(&length.to_be_bytes());
        }
        self.large.push_back((self.small.len(), data));
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.done == self.small.len() && self.large.is_empty()
    }

    /// Empty, with its memory unless that is much.
    fn reset(&mut self) {
        self.done = 0;
        if self.small.capacity() > MAX_KEPT_BUFFER {
            self.small = BytesMut::new();
        } else {
            self.small.clear();
        }
    }

    /// What of the small frames is not written.
    fn rest(&self) -> &[u8] {
        self.small.get(self.done..).unwrap_or_default()
    }

    /// What is to be written next, and in how many slices.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut at = self.done;
        let mut count = 0;
        let mut push = |slice: &'a [u8]| {
            if !slice.is_empty()
                && let Some(place) = slices.get_mut(count)
            {
                *place = IoSlice::new(slice);
                count += 1;
            }
        };
        for (before, data) in self.large.iter().take(MAX_SLICES) {
            push(self.small.get(at..*before).unwrap_or_default());
            push(data);
            at = *before;
        }
        if self.large.len() < MAX_SLICES {
            push(self.small.get(at..).unwrap_or_default());
        }
        count
    }

    fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let until = self.large.front().map_or(self.small.len(), |(at, _)| *at);
            let small = written.min(until - self.done);
            self.done += small;
            written -= small;
            let Some((_, data)) = self.large.front_mut() else {
                return;
            };
            let large = written.min(data.len());
            data.advance(large);
            written -= large;
            if data.is_empty() {
                self.large.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_frames_are_written_in_their_order_in_whatever_steps() {
        let mut expected = BytesMut::new();
        let mut batch = FrameBatch::default();
        for index in 0..100_u8 {
            let size = if index % 3 == 0 { 3 * LARGE_DATA } else { 3 };
            let data = Bytes::from(vec![index; size]);
            let head = |out: &mut BytesMut| out.put_u8(index);
            batch.frame_with(index, head, data.clone()).unwrap();
            let whole = |out: &mut BytesMut| {
                out.put_u8(index);
                out.put_slice(&data);
            };
            put(&mut expected, index, whole).unwrap();
        }
        let mut written = Vec::new();
        let mut step = 1;
        while !batch.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = batch.slices(&mut slices);
            let now: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
            step = (step * 7 % 10_007).min(now.len());
            written.extend_from_slice(&now[..step]);
            batch.advance(step);
        }
        assert!(written == expected);
    }

    #[test]
    fn the_largest_payload_is_one_byte_less_than_sixteen_mebibytes() {
        let mut batch = FrameBatch::default();
        let largest = Bytes::from(vec![0; MAX_LENGTH as usize - 2]);
        let head = |out: &mut BytesMut| out.put_u8(0);
        assert_eq!(batch.frame_with(1, head, largest), Ok(()));
        let larger = Bytes::from(vec![0; MAX_LENGTH as usize - 1]);
        let refused = batch.frame_with(1, head, larger);
        assert_eq!(refused, Err(FrameError::TooLarge(MAX_LENGTH as usize)));
    }
}
