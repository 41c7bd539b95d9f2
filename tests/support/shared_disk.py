"""`tocsin` on a Spark cluster whose workers see the data folder, which the command line itself refuses.

It is for tests of what does not depend on where tables are.
"""

from __future__ import annotations

from tocsin.cli.main import main
from tocsin.pipeline.spark import masters

if __name__ == "__main__":
    masters.refuse_local_tables = lambda *_arguments, **_flags: None
    main()
