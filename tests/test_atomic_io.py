"""Files are replaced completely or not at all, and never through a link."""

import os
import stat

import pytest

from algorithm.atomic_io import open_replacement, open_synced, replace_text

needs_links = pytest.mark.skipif(os.name == "nt", reason="links need a privilege")


@pytest.fixture
def secret(tmp_path):
    """Write a file outside of the folder in which a test writes."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / "secret.txt"
    path.write_text("keep")
    return path


@needs_links
@pytest.mark.parametrize("name", ["a.txt", "a.txt.new"])
def test_a_link_is_replaced_and_not_followed(secret, name):
    path = secret.parent / "folder/a.txt"
    path.with_name(name).symlink_to(secret)
    replace_text(path, "text")
    assert secret.read_text() == "keep"
    assert path.read_text() == "text" and not path.is_symlink()
    assert [each.name for each in path.parent.iterdir()] == ["a.txt"]


@needs_links
def test_a_link_to_a_file_that_does_not_exist_creates_none(secret):
    path, elsewhere = secret.parent / "folder/a.txt", secret.parent / "new.txt"
    path.symlink_to(elsewhere)
    with open_synced(path) as file:
        file.write(b"text")
    assert path.read_bytes() == b"text" and not elsewhere.exists()


def test_another_name_of_a_file_is_replaced_and_the_file_is_kept(secret):
    path = secret.parent / "folder/a.txt.new"
    path.hardlink_to(secret)
    replace_text(path.with_name("a.txt"), "text")
    assert secret.read_text() == "keep" and path.with_name("a.txt").read_text() == "text"


def test_a_file_that_could_not_be_written_is_as_before(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), open_replacement(path) as file:
        file.write(b"half of it")
        raise OSError("the disk is full")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="there is no umask")
def test_a_file_has_the_permissions_of_the_user(tmp_path):
    before = os.umask(0o027)
    try:
        replace_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640
