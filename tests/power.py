"""Power cuts for real: a file system of its own, on a loop device, that the kernel can shut down.

``PowerCutVolume.cut`` is ext4's shutdown call without a flush of its journal: from then on nothing
reaches the image, as when the power goes. What was written and not synced is lost with the mount.
Mounting needs root; a machine that cannot do this makes the tests fail, they are never skipped.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)
_TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")
_BUSY_SECONDS_MAX = 60.0
_MIB = 1 << 20


class PowerCutUnavailable(Exception):
    """This machine cannot cut the power of a volume; the message says what is missing."""


class PowerCutVolume:
    """A mounted ext4 volume at ``path``; ``close`` removes it with all that is on it."""

    def __init__(self, folder: str, size_bytes: int = 64 * _MIB) -> None:
        """Make the image and the mount point inside ``folder``, which must exist."""
        require_power_cuts()
        self.path = os.path.join(folder, "volume")
        self._image = os.path.join(folder, "volume.img")
        self._device = ""
        self._mounted = False
        try:
            os.mkdir(self.path)
            with open(self._image, "xb") as image:
                image.truncate(size_bytes)
            # A small journal and no work left for later: what a cut and a mount cost is the journal.
            options = ["-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
            _run("mkfs.ext4", "-q", "-F", *options, self._image)
            self._device = _run("losetup", "--find", "--show", self._image)
            self._mount()
        except BaseException:
            self.close()
            raise

    def flush(self) -> None:
        """Write back what is in memory, as the kernel may do at any time without being asked."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                raise OSError(ctypes.get_errno(), "syncfs failed", self.path)
        finally:
            os.close(descriptor)

    def cut(self) -> int:
        """Cut the power; the moment when it began to go, in ``time.monotonic_ns``.

        Writes and syncs that begin later fail. Processes go on, as they would not if the power were
        gone: a sync that was under way may tell them of a success that never was (about one cut in
        twenty, with a bare write and fdatasync). So what they say after this moment does not count.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            moment_ns = time.monotonic_ns()
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(descriptor)
        return moment_ns

    def remount(self) -> None:
        """Power is back. Whoever had files or maps of the volume open must have let go of them."""
        self._unmount()
        self._mount()

    def close(self) -> None:
        """Unmount, and remove the device and the image; safe at any time and more than once."""
        try:
            self._unmount()
        except subprocess.CalledProcessError:
            _run("umount", "--lazy", self.path)
            self._mounted = False
            raise
        finally:
            if self._device:
                _run("losetup", "--detach", self._device)
                self._device = ""
            if os.path.exists(self._image):
                os.unlink(self._image)

    def _mount(self) -> None:
        """Mount, once it is no longer mounted anywhere else.

        A process that another test started in a network of its own may have the old mount in its
        namespace. As long as it has, a new mount is the old one, without power.
        """
        deadline = time.monotonic() + _BUSY_SECONDS_MAX
        while not self._mounted:
            _run("mount", "-t", "ext4", self._device, self.path)
            self._mounted = True
            if not self._has_power():
                assert time.monotonic() < deadline, "another namespace keeps the volume mounted"
                self._unmount()
                time.sleep(0.05)

    def _has_power(self) -> bool:
        path = os.path.join(self.path, "power")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            os.unlink(path)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return True

    def _unmount(self) -> None:
        deadline = time.monotonic() + _BUSY_SECONDS_MAX
        while self._mounted:
            try:
                _run("umount", self.path)
                self._mounted = False
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def require_power_cuts() -> None:
    """``PowerCutUnavailable`` with what is missing, unless this machine can mount a volume."""
    missing = [f"the command {tool}" for tool in _TOOLS if not shutil.which(tool)]
    if sys.platform != "linux":
        missing.append("Linux")
    if os.geteuid() != 0:
        missing.append("root")
    if not os.path.exists("/dev/loop-control"):
        missing.append("loop devices (/dev/loop-control)")
    if missing:
        raise PowerCutUnavailable(f"not here: {', '.join(missing)}")


@pytest.fixture
def power_cut_volume(tmp_path: Path) -> Iterator[PowerCutVolume]:
    try:
        volume = PowerCutVolume(str(tmp_path))
    except (PowerCutUnavailable, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        pytest.fail(f"power-cut tests need root, loop devices and mkfs.ext4: {reason}")
    try:
        yield volume
    finally:
        volume.close()


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()
