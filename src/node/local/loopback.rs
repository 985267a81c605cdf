//! Loop devices: files as block devices.
//!
//! Called by `volume`. The program `mount` creates loop devices too, but queries every loop device of the
//! machine for its file first, and each sandbox has one.

use std::{
    ffi::c_void,
    fs::File,
    io,
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
    ptr,
};

use rustix::{
    io::Errno,
    ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl},
    system::uname,
};

use crate::base::limit::LOOP_DEVICE_ATTEMPTS_MAX;

const CONTROL: &str = "/dev/loop-control";
/// First Linux version with `LOOP_CONFIGURE`, which creates a loop device in one call.
const OLDEST: (u32, u32) = (5, 8);
// linux/loop.h
const GET_FREE: Opcode = 0x4c82;
const CONFIGURE: Opcode = 0x4c0a;
const AUTOCLEAR: u32 = 4;

/// A file as a block device. The kernel releases it when it is no longer open or mounted, even after a crash.
pub(super) struct Device {
    pub path: PathBuf,
    pub file: File,
}

/// Checks that loop devices are available.
///
/// # Errors
/// Reason why they are not, for the log.
pub(super) fn look() -> Result<(), String> {
    if !Path::new(CONTROL).exists() {
        return Err("there are no loop devices".to_owned());
    }
    let uname = uname();
    let release = uname.release().to_string_lossy();
    let mut numbers =
        release.split(|character: char| !character.is_ascii_digit()).map(|part| part.parse().ok());
    let mut number = || numbers.next().flatten().unwrap_or(0);
    let version: (u32, u32) = (number(), number());
    match version >= OLDEST {
        true => Ok(()),
        false => Err(format!("loop devices need Linux {}.{}, this is {release}", OLDEST.0, OLDEST.1)),
    }
}

/// Attaches a file to a free loop device.
pub(super) fn attach(image: &Path) -> io::Result<Device> {
    let image = File::options().read(true).write(true).open(image)?;
    let control = File::options().read(true).write(true).open(CONTROL)?;
    let config = Config::of(image.as_raw_fd());
    for _ in 0..LOOP_DEVICE_ATTEMPTS_MAX {
        // SAFETY: the kernel takes no argument and writes nothing.
        let number = unsafe { ioctl(&control, GetFree) }?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let file = File::options().read(true).write(true).open(&path)?;
        // SAFETY: the kernel reads one `loop_config`, which `Config` is laid out as.
        match unsafe { ioctl(&file, Setter::<CONFIGURE, Config>::new(config)) } {
            Ok(()) => return Ok(Device { path, file }),
            // Another process took the same device first.
            Err(Errno::BUSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("other processes took every free loop device"))
}

/// `struct loop_config`, and within it `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    fd: RawFd,
    block_size: u32,
    /// Device, inode, its device, offset, size limit.
    place: [u64; 5],
    /// Number, encryption type and key size.
    kind: [u32; 3],
    flags: u32,
    /// File name, encryption name and key.
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Config>() == 304);

impl Config {
    fn of(fd: RawFd) -> Self {
        Self {
            fd,
            block_size: 0,
            place: [0; 5],
            kind: [0; 3],
            flags: AUTOCLEAR,
            names: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        }
    }
}

/// ioctl that returns the number of a free loop device.
struct GetFree;

// SAFETY: the call has no argument, and its return value is the number itself.
unsafe impl Ioctl for GetFree {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<IoctlOutput> {
        Ok(number)
    }
}
