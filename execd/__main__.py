"""Start of the zipapp: `python -I -S -B execd.pyz --listen-fd 3 --config-fd 4`."""

import sys

from execd.server import main

sys.exit(main(sys.argv[1:]))
