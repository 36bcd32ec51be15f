"""Data files are found in a checkout and in an installed package."""

from algorithm.data import DATA, find_data_folder


def test_a_checkout_has_the_data_files_alongside_the_package(tmp_path):
    (tmp_path / "default_config.yaml").touch()
    (tmp_path / "algorithm" / "_data").mkdir(parents=True)
    assert find_data_folder(tmp_path / "algorithm") == tmp_path


def test_an_installed_package_contains_the_data_files(tmp_path):
    (tmp_path / "envs").mkdir()  # a package of this name that is installed, too
    assert find_data_folder(tmp_path / "algorithm") == tmp_path / "algorithm" / "_data"


def test_the_folder_of_this_package_contains_all_data_files():
    assert (DATA / "default_config.yaml").is_file()
    assert (DATA / "envs" / "gym" / "cartpole" / "config.yaml").is_file()
