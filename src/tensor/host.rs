//! Numbers in host memory.
//!
//! A step of training goes through tens of megabytes in strides of kilobytes, sequence by sequence and head by head:
//! nearly every row is in another page of 4 kB, whose address must be looked up. So the large buffers of a
//! [`Pool`](super::Pool) are cut from regions, which are in huge pages (of 2 MB) where Linux gives them.

use bytemuck::Pod;
use std::ops::{Deref, DerefMut};
#[cfg(target_os = "linux")]
use std::sync::{Arc, Weak};

/// Bytes of a cache line, and of the widest vector.
const LINE: usize = 64;

/// Elements of a fixed number; those made by [`Host::aligned`], and a pool's, begin on a cache line. A vector that
/// straddles two lines is read as two, and a store of one costs many times as much.
#[derive(Debug)]
pub struct Host<T> {
    all: Memory<T>,
    start: usize,
    len: usize,
    /// How many there is room for.
    room: usize,
}

#[derive(Debug)]
enum Memory<T> {
    Own(Vec<T>),
    #[cfg(target_os = "linux")]
    Part(region::Part<T>),
}

impl<T: Clone + Default> Host<T> {
    /// `len` defaults.
    pub fn aligned(len: usize) -> Host<T> {
        const { assert!(size_of::<T>() > 0, "no number of a tensor") };
        let all = vec![T::default(); len + LINE / size_of::<T>()];
        // Nothing is ever added, so that they stay where they are.
        let start = all.as_ptr().align_offset(LINE).min(all.len() - len);
        Host { all: Memory::Own(all), start, len, room: len }
    }
}

impl<T> Host<T> {
    /// How many elements there is room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Be so many elements, the first ones; what they hold is not specified.
    ///
    /// # Panics
    /// When there is no room for as many.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.room, "{len} elements where there is room for {}", self.room);
        self.len = len;
    }
}

impl<T> From<Vec<T>> for Host<T> {
    fn from(all: Vec<T>) -> Host<T> {
        Host { start: 0, len: all.len(), room: all.len(), all: Memory::Own(all) }
    }
}

impl<T> Deref for Host<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        #[allow(clippy::infallible_destructuring_match)] // on Linux there are two
        let all: &[T] = match &self.all {
            Memory::Own(all) => all,
            #[cfg(target_os = "linux")]
            Memory::Part(all) => all,
        };
        &all[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Host<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        #[allow(clippy::infallible_destructuring_match)] // as above
        let all: &mut [T] = match &mut self.all {
            Memory::Own(all) => all,
            #[cfg(target_os = "linux")]
            Memory::Part(all) => all,
        };
        &mut all[self.start..self.start + self.len]
    }
}

/// Bytes of the least buffer that is cut from a region.
const LEAST: usize = 1 << 17;

/// Where a pool's buffers are cut from, one after another. A region is given back when the last of its buffers is.
#[derive(Default)]
pub struct Arena {
    /// The newest, and how many of its bytes are taken.
    #[cfg(target_os = "linux")]
    region: Option<(Arc<region::Region>, usize)>,
    /// All that may still have a buffer.
    #[cfg(target_os = "linux")]
    regions: Vec<Weak<region::Region>>,
}

/// Whether the system has memory for a vector of so many bytes, or they are few. To make one that there is no memory
/// for ends the process; to ask does not.
pub fn is_there(bytes: usize) -> bool {
    bytes < LEAST || Vec::<u8>::new().try_reserve_exact(bytes.saturating_add(LINE)).is_ok()
}

impl Arena {
    /// `len` zeros: from a region if they are many enough and the system has one, else from memory of their own. None
    /// if the system has no such memory.
    pub fn host<T: Pod + Default>(&mut self, len: usize) -> Option<Host<T>> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= LINE, "no number of a tensor") };
        #[cfg(target_os = "linux")]
        if let Some(part) = self.part(len) {
            return Some(Host { all: Memory::Part(part), start: 0, len, room: len });
        }
        is_there(len.checked_mul(size_of::<T>())?).then(|| Host::aligned(len))
    }

    #[cfg(target_os = "linux")]
    fn part<T: Pod>(&mut self, len: usize) -> Option<region::Part<T>> {
        /// Bytes of the first region, of the largest if no buffer asks for more, and of all. Training asks for the same
        /// buffers again; a cache that grows by a token at each step never does, and huge pages must be found and
        /// cleared for each of its sizes: hence an end.
        const FIRST: usize = 1 << 20;
        const MOST: usize = 1 << 26;
        const ALL: usize = 1 << 29;
        /// Between buffers: were they powers of two apart, equal places of all would compete for the same lines of the
        /// first-level cache.
        const GAP: usize = 5 * LINE;
        let bytes = len.checked_mul(size_of::<T>())?.checked_next_multiple_of(LINE)?;
        if bytes < LEAST {
            return None;
        }
        let room = |r: &(Arc<region::Region>, usize)| r.0.bytes() - r.1 >= bytes;
        if !self.region.as_ref().is_some_and(room) {
            let next = self.region.as_ref().map_or(FIRST, |r| (2 * r.0.bytes()).min(MOST)).max(bytes);
            self.regions.retain(|region| region.strong_count() > 0);
            let mapped: usize = self.regions.iter().filter_map(Weak::upgrade).map(|region| region.bytes()).sum();
            if next > ALL.saturating_sub(mapped) {
                return None;
            }
            let region = Arc::new(region::Region::new(next)?);
            self.regions.push(Arc::downgrade(&region));
            self.region = Some((region, 0));
        }
        let (region, used) = self.region.as_mut()?;
        let at = *used;
        *used = (at + bytes + GAP).min(region.bytes());
        // SAFETY: `used` only grows, so that no other part has these bytes, and there are as many by `room`; `at` is a
        // multiple of a cache line, and `host` takes no type that is aligned to more.
        Some(unsafe { region::Part::new(region, at, len) })
    }
}

#[cfg(target_os = "linux")]
mod region {
    use bytemuck::Pod;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::{
        ffi::c_void,
        marker::PhantomData,
        ops::{Deref, DerefMut},
        ptr::null_mut,
        sync::Arc,
    };

    /// Bytes of a huge page.
    const HUGE: usize = 1 << 21;

    /// Zeros from the system, aligned to a huge page if there are as many. (`memmap2` would own them as one slice; parts
    /// that several threads write are pointers into it all the same.)
    #[derive(Debug)]
    pub struct Region {
        map: *mut c_void,
        mapped: usize,
        skip: usize,
    }

    // SAFETY: a region is an address range; who reads and writes which part is up to `Part`.
    unsafe impl Send for Region {}
    // SAFETY: the same; nothing of a region itself changes.
    unsafe impl Sync for Region {}

    impl Region {
        /// At least so many bytes, if the system has them.
        pub fn new(bytes: usize) -> Option<Region> {
            let mapped = if bytes < HUGE { bytes } else { bytes.checked_next_multiple_of(HUGE)? + HUGE };
            // SAFETY: a new mapping wherever the system likes touches no memory that anybody has.
            let map =
                unsafe { mmap_anonymous(null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
            let map = map.ok()?;
            let skip = if bytes < HUGE { 0 } else { map.align_offset(HUGE) };
            if bytes >= HUGE {
                // SAFETY: the range is the one just mapped. What comes of it does not matter: it is about speed alone.
                let _ = unsafe { madvise(map, mapped, Advice::LinuxHugepage) };
            }
            Some(Region { map, mapped, skip })
        }

        pub fn bytes(&self) -> usize {
            self.mapped - self.skip
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: the mapping is this region's, and every part of it held the region, so that none is left.
            let _ = unsafe { munmap(self.map, self.mapped) };
        }
    }

    /// Numbers in a region, which nobody else reads or writes.
    #[derive(Debug)]
    pub struct Part<T> {
        region: Arc<Region>,
        at: usize,
        len: usize,
        of: PhantomData<T>,
    }

    impl<T: Pod> Part<T> {
        /// # Safety
        /// No other part has any of these `len` numbers from byte `at` on; they are inside of the region, and aligned.
        pub unsafe fn new(region: &Arc<Region>, at: usize, len: usize) -> Part<T> {
            Part { region: region.clone(), at, len, of: PhantomData }
        }
    }

    impl<T> Part<T> {
        fn start(&self) -> *mut T {
            self.region.map.wrapping_byte_add(self.region.skip + self.at).cast()
        }
    }

    impl<T> Drop for Part<T> {
        fn drop(&mut self) {
            /// Bytes of the largest page that is not huge, on any processor.
            const PAGE: usize = 1 << 16;
            let (start, bytes) = (self.start(), self.len * size_of::<T>());
            let skip = start.addr().next_multiple_of(PAGE) - start.addr();
            let pages = bytes.saturating_sub(skip) / PAGE * PAGE;
            // The last part gives all back at once.
            if pages > 0 && Arc::strong_count(&self.region) > 1 {
                // SAFETY: these pages are inside of this part, which is no more; they read as zeros afterwards. Where
                // the system does not want them, they are held until the region is given back.
                let _ =
                    unsafe { madvise(start.cast::<c_void>().wrapping_byte_add(skip), pages, Advice::LinuxDontNeed) };
            }
        }
    }

    impl<T> Deref for Part<T> {
        type Target = [T];
        fn deref(&self) -> &[T] {
            // SAFETY: by `new` they are mapped, aligned and this part's alone, and any bytes, first zeros, are numbers.
            unsafe { std::slice::from_raw_parts(self.start(), self.len) }
        }
    }

    impl<T> DerefMut for Part<T> {
        fn deref_mut(&mut self) -> &mut [T] {
            // SAFETY: the same, and the part is borrowed mutably.
            unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
        }
    }
}
