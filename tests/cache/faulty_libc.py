"""A C library that fails as systems do: no locks (FLOCK_ERRNO), or a clock that is set (CLOCK_SECONDS).

It is loaded before the system's own, so that Python and all libraries of a process get the fault from their calls.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/time.h>
#include <time.h>

int flock(int fd, int operation) {
    const char *wanted = getenv("FLOCK_ERRNO");
    if (wanted) { errno = atoi(wanted); return -1; }
    int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
    return real(fd, operation);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    const char *ahead = getenv("CLOCK_SECONDS");
    int status = real(clock, now);
    if (ahead && clock == CLOCK_REALTIME) now->tv_sec += atol(ahead);
    return status;
}
"""


def faulty_libc(folder: Path) -> dict[str, str]:
    """Compile the library into a folder, and return the environment that loads it.

    Skips where there is no compiler for it.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("no C compiler on Linux: a file system without locks and a clock that is set are NOT checked")
    source, library = folder / "faulty.c", folder / "faulty.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}
