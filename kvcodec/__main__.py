"""`python -m kvcodec`: the command line."""

from kvcodec.cli import main

if __name__ == "__main__":
    main()
