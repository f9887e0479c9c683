//! The thread that carries packets between the devices of a network, as the model says.
//!
//! It sleeps in `ppoll` until a device has something to read or the next packet is due, reads what is
//! there, lets the model decide, and writes what has come due. It runs before ordinary threads where
//! the system lets it, because a late router is a slow network. A packet that a kernel does not
//! take, because its host is overrun, is gone, as on a real network card.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::SyncDevice;

use super::frame::{MAX_FRAME, TunFrame};
use crate::fabric::{Fabric, FabricOutput, FabricPort, PacketCounters, SiteChange};

/// Buffers read from one device before others have their turn.
const MAX_READS_PER_TURN: usize = 16;

/// The running router. Dropping it stops the thread and closes the devices.
#[derive(Debug)]
pub(super) struct PacketRouter {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    wake: OwnedFd,
    changes: mpsc::Sender<(usize, SiteChange)>,
    counters: Arc<Mutex<PacketCounters>>,
}

impl PacketRouter {
    /// Starts it. `devices[n]` is that of the model's port `n`.
    pub(super) fn start(fabric: Fabric<TunFrame>, devices: Vec<SyncDevice>) -> io::Result<Self> {
        for device in &devices {
            device.set_nonblocking(true)?;
        }
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&woken, true)?;
        let (changes, asked) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let counters = Arc::new(Mutex::new(PacketCounters::default()));
        let mut running = RouterLoop {
            fabric,
            devices,
            woken,
            asked,
            stop: Arc::clone(&stop),
            counters: Arc::clone(&counters),
            origin: Instant::now(),
            inbox: vec![0; MAX_FRAME],
            outbox: Vec::with_capacity(MAX_FRAME),
        };
        let thread = thread::Builder::new()
            .name("lab-router".into())
            .spawn(move || {
                super::hurry();
                if let Err(error) = running.run() {
                    tracing::error!(%error, "the lab's router has stopped");
                }
            })?;
        Ok(Self {
            thread: Some(thread),
            stop,
            wake,
            changes,
            counters,
        })
    }

    /// Changes a site (by its number) before the next packet. An error where the thread has ended.
    pub(super) fn change(&self, site: usize, change: SiteChange) -> io::Result<()> {
        let ended = || io::Error::other("the lab's router has stopped");
        self.changes.send((site, change)).map_err(|_| ended())?;
        rustix::io::write(&self.wake, &[0])?;
        Ok(())
    }

    /// What became of the packets so far.
    pub(super) fn counters(&self) -> PacketCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PacketRouter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The pipe is all but empty, so that this cannot fail or wait.
        let _ = rustix::io::write(&self.wake, &[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct RouterLoop {
    fabric: Fabric<TunFrame>,
    devices: Vec<SyncDevice>,
    woken: OwnedFd,
    asked: mpsc::Receiver<(usize, SiteChange)>,
    stop: Arc<AtomicBool>,
    counters: Arc<Mutex<PacketCounters>>,
    origin: Instant,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

impl RouterLoop {
    fn run(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            self.wait(&mut ready)?;
            // Nothing to read there is no error: it was a packet that woke it.
            let _ = rustix::io::read(&self.woken, &mut [0; 16]);
            while let Ok((site, change)) = self.asked.try_recv() {
                self.fabric.change(site, change);
            }
            for index in ready.drain(..) {
                self.read(index)?;
                self.write()?;
            }
            self.write()?;
            *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = self.fabric.counters();
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Sleeps until a device can be read, a packet is due, or it is to stop.
    fn wait(&self, ready: &mut Vec<usize>) -> io::Result<()> {
        let mut fds: Vec<PollFd<'_>> = self
            .devices
            .iter()
            .map(|device| PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN))
            .chain([PollFd::new(&self.woken, PollFlags::IN)])
            .collect();
        let limit = self.fabric.next().map(|due| due.saturating_sub(self.now()));
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let can_be_read = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::IN | PollFlags::ERR);
        ready.extend((0..self.devices.len()).filter(|i| can_be_read(&fds[*i])));
        Ok(())
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
        for _ in 0..MAX_READS_PER_TURN {
            let length = match self.devices[index].recv(&mut self.inbox) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let now = self.now();
            let bytes = Bytes::copy_from_slice(&self.inbox[..length]);
            if let Some(frame) = TunFrame::read(bytes) {
                let (flow, segments) = (frame.flow(), frame.segments());
                self.fabric
                    .enter(now, FabricPort(index), flow, segments, frame);
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some(output) = self.fabric.leave(self.now()) {
            let port = match output {
                FabricOutput::Arrived {
                    port,
                    flow,
                    range,
                    payload,
                    ..
                } => {
                    payload.write(flow, range, &mut self.outbox);
                    port
                }
                FabricOutput::TooLarge { port, mtu, payload } => {
                    payload.too_large(mtu, &mut self.outbox);
                    port
                }
            };
            match self.devices[port.0].send(&self.outbox) {
                Ok(_) => {}
                Err(error) if overrun(&error) => {
                    tracing::debug!(%error, port = port.0, "a host took no packet");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether a kernel refused one packet, rather than the device being gone.
fn overrun(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    error.kind() == io::ErrorKind::WouldBlock
        || [Errno::NOBUFS, Errno::NOMEM, Errno::INVAL, Errno::IO]
            .iter()
            .any(|errno| code == Some(errno.raw_os_error()))
}
