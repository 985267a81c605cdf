//! A second process of this program that does not start anew.
//!
//! Called by `execs`, for runners: each command waits for its own. To start a program again
//! costs half a millisecond where the machine is a virtual one, for the C library asks the
//! processor what it is, and each of dozens of answers comes from the hypervisor.

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
    // fork(2); the C library's own, so that it knows of the copy.
    fn fork() -> i32;
}

/// Does `work` in a copy of this process, which must have no other thread: a lock that one
/// held would be held in the copy for ever. The copy has these pipes for its input and
/// output and no other descriptor but its errors; it ends with the work. Returns its pid.
pub fn apart(
    input: PipeReader,
    output: PipeWriter,
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<u32> {
    // SAFETY: it takes nothing, and what the copy does is ordinary where there is one thread.
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
    // Nothing that the copy inherited is dropped: what it stood for is the other's.
    process::exit(i32::from(worked.is_err()))
}

/// Closes every descriptor that stays open across a fork and would not across an exec.
fn close_others() -> io::Result<()> {
    let directory = openat(CWD, "/proc/self/fd", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Closed with the list.
    let own = directory.as_raw_fd();
    let number = |entry: DirEntry| entry.file_name().to_str().ok()?.parse::<RawFd>().ok();
    let open = Dir::new(directory)?.map(|entry| entry.map(number)).collect::<Result<Vec<_>, _>>()?;
    for descriptor in open.into_iter().flatten().filter(|&descriptor| descriptor > 2 && descriptor != own) {
        // SAFETY: their owners are in memory that this process never comes back to.
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
        let pid = apart(theirs, output, || {
            let mut word = [0; 5];
            let length = read(stdin(), &mut word)?;
            // The three, and the directory that is read.
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
