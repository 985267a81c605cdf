//! Fork of this process without exec.
//!
//! Called by `execs` for runners: the start of a command waits for its runner. An exec costs half a
//! millisecond on a virtual machine, because the C library identifies the processor with dozens of CPUID
//! instructions, each of which is handled by the hypervisor.

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsRawFd, RawFd},
    process,
};

use rustix::{
    fs::{CWD, Dir, DirEntry, Mode, OFlags, openat},
    stdio::{dup2_stdin, dup2_stdout},
};

unsafe extern "C" {
    // fork(2); the C library's wrapper, so that its state in the copy is consistent.
    fn fork() -> i32;
}

/// Runs `work` in a copy of this process and returns its pid.
///
/// This process must have no other thread: a lock held by one would stay held in the copy forever. The copy
/// has these pipes as standard input and output, its standard error, and no other descriptor; it exits after
/// the work.
pub(crate) fn run_in_child(
    input: PipeReader,
    output: PipeWriter,
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<u32> {
    // SAFETY: fork takes no argument, and with a single thread the copy may run any code.
    match unsafe { fork() } {
        0 => {}
        child => return u32::try_from(child).map_err(|_| io::Error::last_os_error()),
    }
    let worked = dup2_stdin(&input)
        .and_then(|()| dup2_stdout(&output))
        .map_err(io::Error::from)
        .and_then(|()| close_others())
        .and_then(|()| work());
    if let Err(error) = &worked {
        eprintln!("sojourn-init: {error}");
    }
    // Exit without dropping inherited values: the resources belong to the parent.
    process::exit(i32::from(worked.is_err()))
}

/// Closes all descriptors above 2, which fork inherits even if they are close-on-exec.
fn close_others() -> io::Result<()> {
    let directory = openat(CWD, "/proc/self/fd", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Closed when the list is dropped.
    let own = directory.as_raw_fd();
    let number = |entry: DirEntry| entry.file_name().to_str().ok()?.parse::<RawFd>().ok();
    let open = Dir::new(directory)?.map(|entry| entry.map(number)).collect::<Result<Vec<_>, _>>()?;
    for descriptor in open.into_iter().flatten().filter(|&descriptor| descriptor > 2 && descriptor != own) {
        // SAFETY: their owners are in values that this process never uses again.
        unsafe { rustix::io::close(descriptor) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::{Read, Write},
    };

    use rustix::{
        io::{read, write},
        stdio::{stdin, stdout},
    };

    use super::*;

    #[test]
    fn a_copy_has_its_two_pipes_and_nothing_else_of_the_first() {
        let (theirs, mut ours) = io::pipe().unwrap();
        let (mut answer, output) = io::pipe().unwrap();
        let kept = File::open("/dev/null").unwrap();
        let pid = run_in_child(theirs, output, || {
            let mut word = [0; 5];
            let length = read(stdin(), &mut word)?;
            // The three standard descriptors, and the directory being read.
            let open = fs::read_dir("/proc/self/fd")?.count();
            write(stdout(), format!("{length} {open}").as_bytes())?;
            Ok(())
        })
        .unwrap();
        ours.write_all(b"hello").unwrap();
        let mut said = String::new();
        answer.read_to_string(&mut said).unwrap();
        assert_eq!(said, "5 4");
        assert!(pid != process::id() && kept.metadata().is_ok());
    }
}
