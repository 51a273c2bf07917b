"""The formats of ``--lmgate-report``, all but the page, and JUnit's properties; `table` lists them."""
