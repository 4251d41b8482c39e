"""Files are written whole or not at all; what is not a file is written to and stays what it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fallline.files import write_atomically


def test_a_new_file_and_an_old_one(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write_atomically(str(file), b"old")
    file.chmod(0o640)
    write_atomically(str(file), b"new")
    assert file.read_bytes() == b"new" and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`--output-file /dev/null`, by a user who may, replaced the device for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDWR)  # so that nobody waits for the other end
    try:
        write_atomically(str(pipe), b"told")
        assert os.read(reading, 10) == b"told"
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(str(tmp_path / "folder"), b"x")
    assert os.listdir(tmp_path) == ["folder"]
