"""``python -m shredsaver`` is the ``shredsaver`` command."""

from shredsaver.cli import main

if __name__ == "__main__":
    main()
