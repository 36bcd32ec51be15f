# What CI runs, on any machine with Python 3.10-3.13.
PYTHON ?= python

.PHONY: check test slow format lint types docs site

check: test lint types site

test:
	$(PYTHON) -m pytest -n auto --dist loadscope

slow:
	$(PYTHON) -m pytest -m slow

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

docs:
	$(PYTHON) docs/tables.py

site:
	$(PYTHON) -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	! grep -rE "(src=|<link[^>]+href=|@import |url\()[\"']?(https?:)?//" docs/_build/html --include=*.html --include=*.css --include=*.svg
